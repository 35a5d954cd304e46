"""`tpuctl ssh`: a session on a worker, or a command on several. With tmux a session survives a lost connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, node_argument, option, takes_options
from tpuctl.app.route_options import route_options
from tpuctl.app.spec_options import GivenOptions
from tpuctl.ssh.interactive import DEFAULT_TMUX_SESSION, parse_ssh_options


class BatchSize(click.ParamType[int | None]):
    """A number of workers, or `all` as in gcloud, which means no limit."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number. None for `all`."""
        if value == "all" or isinstance(value, int):
            return value if isinstance(value, int) else None
        if not re.fullmatch(r"[1-9]\d{0,8}", str(value), re.ASCII):
            self.fail(f"'{value}' is neither a number of workers nor 'all'", param, ctx)
        return int(value)


@dataclass(frozen=True, slots=True)
class SshFlags(GivenOptions):
    """The options of the session, and those of ssh itself."""

    worker: str = option(
        "--worker",
        group=OptionGroup.WORKERS,
        metavar="SET",
        default="0",
        show_default=True,
        help="Worker number; with a command also a set: all, or 1,3-5.",
    )
    line: str | None = option(
        "--command", group=OptionGroup.PROGRAM, metavar="LINE", help="Command to run, as one shell line."
    )
    tmux: str | None = option(
        "--tmux",
        group=OptionGroup.PROGRAM,
        metavar="[NAME]",
        is_flag=False,
        flag_value=DEFAULT_TMUX_SESSION,
        help="Attach to a tmux session, which survives lost connections.",
    )
    keys: tuple[str, ...] = option(
        "-o",
        group=OptionGroup.ACCESS,
        metavar="KEY=VALUE",
        multiple=True,
        help="Option of ssh, as in ssh -o. Repeatable.",
    )
    local: tuple[str, ...] = option(
        "-L",
        group=OptionGroup.PORTS,
        metavar="FORWARD",
        multiple=True,
        help="Local port to forward to an address that the worker reaches (ssh -L). Repeatable.",
    )
    remote: tuple[str, ...] = option(
        "-R",
        group=OptionGroup.PORTS,
        metavar="FORWARD",
        multiple=True,
        help="Port of the worker to forward to this machine (ssh -R). Repeatable.",
    )
    dynamic: tuple[str, ...] = option(
        "-D",
        group=OptionGroup.PORTS,
        metavar="[ADDRESS:]PORT",
        multiple=True,
        help="Local port for a SOCKS proxy through the worker (ssh -D). Repeatable.",
    )
    agent: bool = option(
        "-A",
        group=OptionGroup.ACCESS,
        is_flag=True,
        help="Forward the ssh agent (ssh -A); only for workers whose users you trust.",
    )
    no_command: bool = option(
        "-N", group=OptionGroup.PORTS, is_flag=True, help="Run no command: only forward ports, until Ctrl-C."
    )
    tty: bool = option(
        "-t", group=OptionGroup.PROGRAM, is_flag=True, help="Allocate a terminal for the command (ssh -t)."
    )
    others: tuple[str, ...] = option(
        "--ssh-flag",
        group=OptionGroup.ACCESS,
        metavar="OPTION",
        multiple=True,
        help="Other argument of ssh: --ssh-flag=-vv. Repeatable.",
    )
    forwards: tuple[str, ...] = option(
        "--forward",
        group=OptionGroup.PORTS,
        metavar="PORT",
        multiple=True,
        help="Port of the worker to forward to this machine: tensorboard (6006), jupyter (8888), PORT or LOCAL:PORT; "
        "without LOCAL a free port. Repeatable.",
    )

    @property
    def are_for_one_worker(self) -> bool:
        """Return whether they are possible for one worker only."""
        # With several workers the command runs as with `tpuctl run`.
        return self.given.keys() - {"worker", "line"} != set()

    def words(self, *, plain: bool) -> list[str]:
        """Return the arguments of ssh, but those for `-N` and `--forward`. Raises `InvalidInputError`."""
        words = list(parse_ssh_options(self.keys, self.others, is_plain=plain))
        for letter, values in (("-L", self.local), ("-R", self.remote), ("-D", self.dynamic)):
            words += [word for value in values for word in (letter, value)]
        return [*words, "-A"] if self.agent else words


@cli_command("ssh", without=("output",))
@node_argument
@click.argument("remote_command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@takes_options(SshFlags, "flags")
@route_options
@grouped_option(
    "--plain",
    group=OptionGroup.ACCESS,
    is_flag=True,
    help="Use the keys and known host keys of your own ssh configuration instead of tpuctl's.",
)
@grouped_option(
    "--batch-size",
    group=OptionGroup.WORKERS,
    type=BatchSize(),
    metavar="N",
    help="Number of workers on which the command runs at the same time. [default: all]",
)
@grouped_option(
    "--dry-run", group=OptionGroup.SAFETY, is_flag=True, help="Print the ssh command line, and change nothing."
)
@body_in("tpuctl.workers.commands.ssh_run:run_ssh")
def command() -> None:
    """Open a shell on a worker, or run a command on it and exit with its exit code.

    A single word after -- is a line for the remote shell; several words are passed unchanged as arguments. On several workers
    a command runs as with `tpuctl run`. A tmux session survives a lost connection: tpuctl attaches to it again as soon as the
    worker answers.

    \b
    Examples:
      tpuctl ssh trainer
      tpuctl ssh trainer --worker 3 -- 'ls -l $HOME'
      tpuctl ssh ada@trainer --forward tensorboard
      tpuctl ssh trainer --tmux
      tpuctl ssh private-trainer --iap
    """
