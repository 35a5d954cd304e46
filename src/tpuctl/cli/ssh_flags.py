"""The options of `tpuctl ssh` that are ssh's own, or stand for some of them."""

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
    click.option("-o", "keys", metavar="KEY=VALUE", multiple=True, help="An option of ssh itself."),
    click.option("-L", "local", metavar="FORWARD", multiple=True, help="Forward a local port, as ssh does."),
    click.option("-R", "remote", metavar="FORWARD", multiple=True, help="Forward a port of the worker, as ssh does."),
    click.option("-D", "dynamic", metavar="[ADDRESS:]PORT", multiple=True, help="Be a SOCKS proxy there, as ssh does."),
    click.option("-A", "agent", is_flag=True, help="Forward the ssh agent: for workers whose users you trust."),
    click.option("-N", "no_command", is_flag=True, help="Run nothing: only forward, until Ctrl-C."),
    click.option("-t", "tty", is_flag=True, help="Give the command a terminal."),
    click.option("--ssh-flag", "flags", metavar="OPTION", multiple=True, help="Any other option: --ssh-flag=-vv."),
    click.option(
        "--forward",
        "forwards",
        metavar="PORT",
        multiple=True,
        help="Bring tensorboard (6006), jupyter (8888), PORT or LOCAL:PORT of the worker here; a free port is found "
        "unless LOCAL names one.",
    ),
)


class AllOrNumber(click.ParamType[int | None]):
    """A number of workers, or gcloud's word `all`, which stands for no limit."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number, or nothing for all."""
        if value == "all" or isinstance(value, int):
            return value if isinstance(value, int) else None
        if not re.fullmatch(r"[1-9]\d{0,8}", str(value), re.ASCII):
            self.fail(f"'{value}' is neither a number of workers nor 'all'", param, ctx)
        return int(value)


def ssh_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ssh."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class SshFlags:
    """What the user wants of ssh itself. `words` are checked, and do not hold the forwards by name."""

    words: tuple[str, ...]
    forwards: tuple[Forward, ...]
    tty: bool
    no_command: bool
    keys: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def are_for_one_worker(self) -> bool:
        """Tell whether they make sense for one worker only."""
        return bool(self.words or self.forwards or self.tty or self.no_command)

    def for_way(self, way: Connection) -> tuple[str, ...]:
        """Return the words that ssh gets for one worker.

        Raises `InvalidInputError` for a second proxy, `ConflictError` for a local port that is taken.
        """
        vetted(self.keys, self.flags, has_proxy=way.proxy_command is not None, is_plain=True)
        words = [*self.words, *(["-N"] if self.no_command else [])]
        for forward in self.forwards:
            words += forward.options
        # A port that is taken in the meantime, or that the worker refuses to forward, must not look forwarded.
        return (*words, *(("-o", "ExitOnForwardFailure=yes") if self.forwards else ()))


def take_flags(options: dict[str, Any]) -> SshFlags:
    """Take ssh's options out of a command's options. Raises `InvalidInputError` for what may not be passed on."""
    keys, flags = options.pop("keys"), options.pop("flags")
    words = list(vetted(keys, flags, has_proxy=False, is_plain=options["plain"]))
    for name, letter in (("local", "-L"), ("remote", "-R"), ("dynamic", "-D")):
        words += [word for value in options.pop(name) for word in (letter, value)]
    words += ["-A"] if options.pop("agent") else []
    forwards = tuple(settle([Forward.parse(text) for text in options.pop("forwards")]))
    return SshFlags(tuple(words), forwards, options.pop("tty"), options.pop("no_command"), keys, flags)


def command_words(words: tuple[str, ...], line: str | None, node: str) -> tuple[str, ...]:
    """Return the command that was given after `--`, or as gcloud's `--command`. Raises `InvalidInputError` where it is none."""
    if line is None:
        if words and words[0].startswith("-"):
            raise misplaced(words[0], node, words[1:])
        return words
    if words:
        raise InvalidInputError("the command is given twice", hint="give `--command LINE` or `-- COMMAND…`, not both")
    return (line,)


def tell_forwards(app: App, forwards: tuple[Forward, ...], label: str) -> None:
    """Say where the worker's ports are to be found here."""
    for forward in forwards:
        app.terminal.note(f"http://localhost:{forward.local}/ leads to port {forward.remote} of {label}")
