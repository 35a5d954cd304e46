"""The options of `tpuctl ssh` that are passed on to ssh."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tpuctl.errors import InvalidInputError
from tpuctl.remote.forwards import Forward, settle
from tpuctl.remote.ssh_options import misplaced, vetted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.cli.app import App
    from tpuctl.remote.ssh import Connection

_OPTIONS = (
    click.option("-o", "keys", metavar="KEY=VALUE", multiple=True, help="An ssh option, as in ssh -o. Repeatable."),
    click.option("-L", "local", metavar="FORWARD", multiple=True, help="Forward a local port (ssh -L)."),
    click.option("-R", "remote", metavar="FORWARD", multiple=True, help="Forward a port of the worker (ssh -R)."),
    click.option("-D", "dynamic", metavar="[ADDRESS:]PORT", multiple=True, help="Open a SOCKS proxy (ssh -D)."),
    click.option(
        "-A", "agent", is_flag=True, help="Forward the ssh agent (ssh -A); only for workers whose users you trust."
    ),
    click.option("-N", "no_command", is_flag=True, help="Run no command: only forward ports, until Ctrl-C."),
    click.option("-t", "tty", is_flag=True, help="Allocate a terminal for the command (ssh -t)."),
    click.option(
        "--ssh-flag",
        "flags",
        metavar="OPTION",
        multiple=True,
        help="Other argument of ssh: --ssh-flag=-vv. Repeatable.",
    ),
    click.option(
        "--forward",
        "forwards",
        metavar="PORT",
        multiple=True,
        help="Port of the worker to forward to this machine: tensorboard (6006), jupyter (8888), PORT or LOCAL:PORT; "
        "without LOCAL, a free local port is used. Repeatable.",
    ),
)


class AllOrNumber(click.ParamType[int | None]):
    """A number of workers, or `all` as in gcloud, which means no limit."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number. None for `all`."""
        if value == "all" or isinstance(value, int):
            return value if isinstance(value, int) else None
        if not re.fullmatch(r"[1-9]\d{0,8}", str(value), re.ASCII):
            self.fail(f"'{value}' is neither a number of workers nor 'all'", param, ctx)
        return int(value)


def ssh_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for ssh."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class SshFlags:
    """The options for ssh. `words` are validated, and do not contain those of `--forward`."""

    words: tuple[str, ...]
    forwards: tuple[Forward, ...]
    tty: bool
    no_command: bool
    keys: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def are_for_one_worker(self) -> bool:
        """Tell whether they are possible for one worker only."""
        return bool(self.words or self.forwards or self.tty or self.no_command)

    def for_connection(self, connection: Connection) -> tuple[str, ...]:
        """Return the arguments of ssh for one worker. Raises `InvalidInputError` for a second proxy."""
        vetted(self.keys, self.flags, has_proxy=connection.proxy_command is not None, is_plain=True)
        words = [*self.words, *(["-N"] if self.no_command else [])]
        for forward in self.forwards:
            words += forward.options
        # ssh must fail if a port is in use by now, or the worker refuses to forward it.
        return (*words, *(("-o", "ExitOnForwardFailure=yes") if self.forwards else ()))


def take_flags(options: dict[str, Any]) -> SshFlags:
    """Remove the ssh options from a command's options, and return them.

    Raises `InvalidInputError` for an option that is not allowed, `ConflictError` for a local port that is in use.
    """
    keys, flags = options.pop("keys"), options.pop("flags")
    words = list(vetted(keys, flags, has_proxy=False, is_plain=options["plain"]))
    for name, letter in (("local", "-L"), ("remote", "-R"), ("dynamic", "-D")):
        words += [word for value in options.pop(name) for word in (letter, value)]
    words += ["-A"] if options.pop("agent") else []
    forwards = tuple(settle([Forward.parse(text) for text in options.pop("forwards")]))
    return SshFlags(tuple(words), forwards, options.pop("tty"), options.pop("no_command"), keys, flags)


def command_words(words: tuple[str, ...], line: str | None, node: str) -> tuple[str, ...]:
    """Return the command after `--`, or that of `--command`. Raises `InvalidInputError` for both, or an option of ssh."""
    if line is None:
        if words and words[0].startswith("-"):
            raise misplaced(words[0], node, words[1:])
        return words
    if words:
        raise InvalidInputError("the command is given twice", hint="use `--command LINE` or `-- COMMAND…`, not both")
    return (line,)


def tell_forwards(app: App, forwards: tuple[Forward, ...], label: str) -> None:
    """Print the local URLs of the forwarded ports."""
    for forward in forwards:
        app.terminal.note(f"http://localhost:{forward.local}/ forwards to port {forward.remote} of {label}")
