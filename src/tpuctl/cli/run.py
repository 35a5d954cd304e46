"""`tpuctl run`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.environment_options import environment_options, take_environment
from tpuctl.cli.one_off_options import one_off_options, take_job
from tpuctl.cli.options import Duration, cli_command, complete_node, fanout_option, selector_option, worker_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import InvalidInputError
from tpuctl.userfile import expand

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.cli.running import Wish


@cli_command("run", takes_command=True, asks_trust=False)
@click.argument("nodes", metavar="NODE...", nargs=-1, shell_complete=complete_node)
@worker_option
@selector_option
@click.option("--command", "line", metavar="LINE", help="Command, as one shell line.")
@click.option("--workdir", "-w", metavar="DIR", help="Working directory on the workers. [default: the home directory]")
@environment_options
@click.option("--detach", "-d", is_flag=True, help="Start the command, print the job's name, and leave it running.")
@click.option("--name", "job", metavar="JOB", help="Name of the job. [default: from the time]")
@click.option("--log-dir", metavar="DIR", help="Directory for a file with each worker's output.")
@click.option("--allow-unreachable", is_flag=True, help="Run also when some workers cannot be reached.")
@click.option("--partial", is_flag=True, hidden=True, help="Old name of --allow-unreachable.")
@click.option("--fail-fast", is_flag=True, help="Terminate the command everywhere when it fails on one worker.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="Time limit of the command: 90s, 30m. [default: none]")
@click.option(
    "--batch",
    "--batch-size",
    "batch",
    type=click.IntRange(1),
    metavar="N",
    help="Number of workers that run it at a time. [default: all]",
)
@fanout_option("commands")
@click.option(
    "--connect-timeout",
    type=Duration(),
    metavar="TIME",
    help="Time limit for connecting to a worker. [default: 45s]",
)
@click.option("--no-stdin", "-n", is_flag=True, help="Do not pass stdin to the command on a single worker.")
@one_off_options
@reach_options
def command(app: App, *, nodes: tuple[str, ...], worker: str, selector: tuple[str, ...], **options: Any) -> int:
    """Run a command on all workers of nodes; exit with 0 only if it exits with 0 on all.

    The command starts on all workers or, if one cannot be reached, on none; and at most once on each. When a connection
    breaks, the command continues and tpuctl reconnects to its output. Ctrl-C sends INT to it, a second time QUIT, a third time
    KILL. The command is also terminated when its output is no longer read, as with | head.
    One word after -- is a line for the remote shell; several are an argument vector, passed unchanged.

    \b
    Examples:
      tpuctl run trainer -- python3 train.py --steps 1000
      tpuctl run trainer --worker 0 -- 'ls -l $HOME'
      tpuctl run trainer --detach --tpu-log-dir /tmp/logs -- ./job.sh
      tpuctl run -l team=vision --fail-fast -- nproc
      tpuctl run --up v5litepod-16 --spot --rm -- ./train.sh
    """
    from tpuctl.cli.members import await_key, find_nodes, members  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.running import run_on  # noqa: PLC0415  # as above
    from tpuctl.model.worker_set import WorkerSet  # noqa: PLC0415  # as above

    workers = WorkerSet.parse(worker)
    job = take_job(app, options, workers)
    wish = _wish(app, options)
    if job is None or not job.names_file:
        app.require_trust()
    if job is not None:
        from tpuctl.cli.one_off import run_job  # noqa: PLC0415  # as above

        if len(nodes) > 1 or selector:
            raise InvalidInputError("`--up` takes one node", hint="name one, or none to generate a name")
        return run_job(app, nodes[0] if nodes else None, job, wish)
    found = members(app, find_nodes(app, nodes, selector), workers)
    await_key(app, found)
    return run_on(app, found, wish)


def _wish(app: App, options: dict[str, Any]) -> Wish:
    """Return the request that the options describe. Raises `InvalidInputError`."""
    from tpuctl.cli.running import Wish, check_detached, line_of  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.remote.jobs.values import check_job_name  # noqa: PLC0415  # as above
    from tpuctl.remote.running.values import Limits  # noqa: PLC0415  # as above

    words: tuple[str, ...] = options["remote_command"]
    if options["line"] is not None and words:
        raise InvalidInputError("two commands given", hint="give `--command LINE` or `-- COMMAND…`, not both")
    if options["line"] is None and not words:
        raise InvalidInputError("no command given", hint="put it after `--`: `tpuctl run NODE -- hostname`")
    if options["detach"]:
        check_detached(app, options)
    environment = take_environment(app, options)
    limits = Limits(
        fanout=options["fanout"],
        batch=options["batch"],
        partial=options["allow_unreachable"] or options["partial"],
        fail_fast=options["fail_fast"],
        timeout=_limit(options["timeout"]),
        connect_within=_limit(options["connect_timeout"]) or Limits().connect_within,
    )
    return Wish(
        line=options["line"] if options["line"] is not None else line_of(words),
        limits=limits,
        environment=environment,
        job=check_job_name(options["job"]) if options["job"] is not None else None,
        folder=options["workdir"],
        log_folder=app.invocation.folder / expand(Path(options["log_dir"])) if options["log_dir"] else None,
        detach=options["detach"],
        takes_stdin=not options["no_stdin"],
    )


def _limit(value: timedelta | str | None) -> timedelta | None:
    return value if isinstance(value, timedelta) else None
