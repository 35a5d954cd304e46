"""`tpuctl ssh`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.members import await_key, find_nodes, members
from tpuctl.cli.one_worker import attach, check_wish, explain, session_with, warn_without_terminals
from tpuctl.cli.options import cli_command, node_argument
from tpuctl.cli.reach_options import reach_options
from tpuctl.cli.ssh_flags import AllOrNumber, command_words, ssh_flags, take_flags, tell_forwards
from tpuctl.errors import InvalidInputError
from tpuctl.model.worker_set import WorkerSet
from tpuctl.remote.foreground import execute, run
from tpuctl.remote.tmux import DEFAULT_NAME

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("ssh", without=("output",))
@node_argument
@click.argument("remote_command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--worker",
    metavar="SET",
    default="0",
    show_default=True,
    help="Worker number; with a command also a set: all, or 1,3-5.",
)
@click.option("--command", "line", metavar="LINE", help="Command, as one shell line.")
@click.option(
    "--tmux",
    metavar="[NAME]",
    is_flag=False,
    flag_value=DEFAULT_NAME,
    help="Attach to a tmux session, which survives lost connections.",
)
@ssh_flags
@reach_options
@click.option("--plain", is_flag=True, help="Use the keys and host keys of your own ssh configuration.")
@click.option(
    "--batch-size", type=AllOrNumber(), metavar="N", help="Maximum number of workers at the same time. [default: all]"
)
@click.option("--dry-run", is_flag=True, help="Print the ssh command line, and change nothing.")
def command(
    app: App, *, node: str, remote_command: tuple[str, ...], worker: str, line: str | None, **options: Any
) -> int:  # click's options
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
    words = command_words(remote_command, line, node)
    flags, workers = take_flags(options), WorkerSet.parse(worker)
    is_read_only = options["dry_run"] or options["plain"]
    check_wish(app, node, words, flags=flags, options=options)
    nodes = find_nodes(app, [node])
    numbers = workers.of(nodes[0].name.node_id, nodes[0].workers)
    if len(numbers) > 1:
        one = f"choose a worker from 0 to {nodes[0].workers - 1} with `--worker`"
        if not words:
            raise InvalidInputError("a shell needs a single worker", hint=f"{one}, or add a command: `-- COMMAND`")
        if flags.are_for_one_worker or options["tmux"] is not None or options["plain"]:
            raise InvalidInputError("options of ssh, `--tmux` and `--plain` need a single worker", hint=one)
    found = members(app, nodes, workers, only_looks=is_read_only)
    if not is_read_only:
        await_key(app, found)
    if len(found) > 1 and not options["dry_run"]:
        from tpuctl.cli.running import Wish, line_of, run_on  # noqa: PLC0415  # most sessions are with one worker
        from tpuctl.remote.running.values import Limits  # noqa: PLC0415  # as above

        return run_on(app, found, Wish(line=line_of(words), limits=Limits(batch=options["batch_size"])))
    sessions = [session_with(app, node, member, words, flags=flags, options=options) for member in found]
    if options["dry_run"]:
        app.terminal.names(shlex.join(session.argv()) for session in sessions)
        return 0
    tell_forwards(app, flags.forwards, f"worker {found[0].worker} of `{found[0].node.name.node_id}`")
    app.terminal.flush()
    session, streams = sessions[0], app.terminal.streams
    if session.tmux is not None:
        return attach(app, session)
    if app.is_sandbox and session.tty:
        warn_without_terminals(app, session.member)
    if not session.words and streams.stdin is sys.stdin:
        app.close()
        execute(session.argv())
    ran = run(session.argv, has_terminal=session.tty and streams.stdin_is_terminal)
    if ran.was_lost and not ran.has_connected:
        explain(app, session)
    return ran.code
