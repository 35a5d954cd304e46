"""`tpuctl run`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import cli_command, complete_node

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("run")
@click.argument("words", metavar="NODE... -- COMMAND...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_node)
@click.option("--worker", default="all", show_default=True, metavar="SET", help="Workers: all, 0, 1,3-5.")
def command(app: App, *, words: tuple[str, ...], worker: str, **options: Any) -> int:
    """Run a command on all workers of a node at once.
    """
    from tpuctl.actions.running import Command, Runner, job_name
    from tpuctl.cli.members import find_nodes, members
    from tpuctl.model.worker_set import WorkerSet
    from tpuctl.clock import SystemClock
    from tpuctl.remote.running.values import Limits
    import sys
    found = members(app, find_nodes(app, words[:1]), WorkerSet.parse(worker))
    class A:
        def output(self, member, data, *, is_error): sys.stdout.write(f"[{member.label}] {data!r}\n")
        def ended(self, ending): print(ending.member.label, ending.outcome, ending.code, ending.duration, ending.why)
        def note(self, member, text): print("note", member and member.label, text)
    clock = SystemClock()
    r = Runner(clock, A(), inquire=lambda m: None, ssh_options=lambda c: ())
    result = r.run(found, Command(line=words[1] if len(words)==2 else shlex.join(words[1:])), Limits(), job=job_name(clock.now()), environment=lambda m: {"TPUCTL_WORKER_ID": str(m.worker)})
    return result.exit_code
