"""`tpuctl ssh`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tpuctl.cli.members import find_nodes, members
from tpuctl.cli.options import cli_command, node_argument
from tpuctl.errors import InvalidInputError
from tpuctl.model.worker_set import WorkerSet
from tpuctl.remote.ssh import execute, run

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("ssh", without=("output",))
@node_argument
@click.argument("remote_command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--worker", type=click.IntRange(min=0), default=0, show_default=True, help="Which worker.")
@click.option("--command", "line", metavar="LINE", help="The command, as one shell line.")
@click.option("-o", "ssh_options", metavar="KEY=VALUE", multiple=True, help="An option of ssh itself.")
@click.option("-L", "local", metavar="FORWARD", multiple=True, help="Forward a local port, as ssh does.")
@click.option("-t", "tty", is_flag=True, help="Give the command a terminal.")
def command(
    app: App,
    *,
    node: str,
    remote_command: tuple[str, ...],
    worker: int,
    line: str | None,
    ssh_options: tuple[str, ...],
    local: tuple[str, ...],
    tty: bool,
) -> int:
    """Open a shell on a worker, or run a command on it and end with the command's exit code.

    One word after -- is a line for the remote shell; several are an argument vector and reach the command as they are.

    \b
    Examples:
      tpuctl ssh trainer
      tpuctl ssh trainer --worker 3 -- 'ls -l $HOME'
      tpuctl ssh ada@trainer -L 6006:localhost:6006
    """
    words = _command(remote_command, line)
    member = members(app, find_nodes(app, [node]), WorkerSet.parse(str(worker)))[0]
    connection = member.way
    options = (*(f"-o{option}" for option in ssh_options), *(f"-L{forward}" for forward in local))
    streams = app.terminal.streams
    if app.is_sandbox and (tty or (not words and streams.stdin_is_terminal)):
        _warn_without_terminals(app, node)
    streams.stdout.flush()
    if not words and streams.stdin is sys.stdin:
        app.close()
        execute(connection, tty=tty or streams.stdin_is_terminal, options=options)
    return run(connection, words, tty=tty, options=options)


def _warn_without_terminals(app: App, node: str) -> None:
    """Say beforehand why the sandbox's sshd will end the session: it does not tell itself."""
    from tpuctl.sandbox.sshd.terminals import terminal_obstacle  # noqa: PLC0415  # only for the sandbox

    if obstacle := terminal_obstacle():
        app.terminal.warn(f"{obstacle}\n  run commands without one: tpuctl ssh {node} -- COMMAND")


def _command(words: tuple[str, ...], line: str | None) -> tuple[str, ...]:
    if line is None:
        if words and words[0].startswith("-"):
            raise InvalidInputError(
                f"`{words[0]}` after `--` is not a command", hint="ssh's own options go before `--`: `-L`, `-o`, `-t`"
            )
        return words
    if words:
        raise InvalidInputError("the command is given twice", hint="give `--command LINE` or `-- COMMAND…`, not both")
    return (line,)
