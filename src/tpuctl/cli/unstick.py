"""`tpuctl unstick`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import Duration, cli_command, node_argument, worker_option, yes_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import ExitCode, InvalidInputError, NotConfirmedError, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.actions.unstick import Site
    from tpuctl.cli.app import App

_GRACE = timedelta(seconds=10)
_SIGNALS = ("HUP", "INT", "QUIT", "TERM", "KILL")


@cli_command("unstick")
@node_argument
@worker_option
@click.option(
    "--signal",
    type=click.Choice(_SIGNALS, case_sensitive=False),
    default="TERM",
    metavar="NAME",
    help="First signal: HUP, INT, QUIT, TERM or KILL. [default: TERM]",
)
@click.option("--grace", type=Duration(), metavar="TIME", help="Time between the first signal and KILL. [default: 10s]")
@click.option("--pid", type=click.IntRange(2), metavar="PID", help="Terminate only this process, if it holds the TPU.")
@click.option("--dry-run", is_flag=True, help="Show what holds the TPU, and change nothing.")
@reach_options
@yes_option
def command(
    app: App,
    *,
    node: str,
    worker: str,
    signal: str,
    grace: timedelta | str | None,
    pid: int | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Terminate the processes that hold the TPU ("The TPU is already in use by process with pid 1234").

    These have the TPU's device files or /tmp/libtpu_lockfile open. The lock file is removed only if no process holds it.
    Processes that have only loaded libtpu are shown, and not terminated. Processes of other users and of containers need sudo
    without a password on the workers. In a pipe, ages are in seconds.

    \b
    Examples:
      tpuctl unstick trainer
      tpuctl unstick trainer --worker 3 --signal INT --grace 60s --yes
      tpuctl unstick trainer --dry-run -o json
    """
    from tpuctl.actions.unstick import notes, problems, release, survey  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.members import await_key, find_nodes, members  # noqa: PLC0415  # as above
    from tpuctl.model.worker_set import WorkerSet  # noqa: PLC0415  # as above

    (found,) = find_nodes(app, [node])
    if isinstance(grace, str):
        raise InvalidInputError("`--grace forever` would never kill a process", hint="give a time, such as `30s`")
    asked = members(app, [found], WorkerSet.parse(worker), only_looks=dry_run)
    await_key(app, asked)
    sites = survey(asked, only=pid)
    node_id, is_to_act = found.name.node_id, not dry_run and any(site.is_stuck for site in sites)
    # A script gets one document, at the end; a person sees the list before the question.
    if not _is_json(app):
        _show(app, node_id, sites)
    if is_to_act:
        _confirm(app, node_id, sites, yes=yes)
        sites = release(sites, signal=signal, grace=_GRACE if grace is None else grace)
    if _is_json(app):
        _show(app, node_id, sites)
    for note in notes(node_id, sites, signal=signal):
        app.terminal.note(note)
    errors = problems(node_id, sites)
    for error in errors:
        app.show_error(error)
    return worst(error.exit_code for error in errors) if errors else ExitCode.OK


def _confirm(app: App, node_id: str, sites: Sequence[Site], *, yes: bool) -> None:
    """Ask for confirmation. Raises `NotConfirmedError` for a no; if stdin is no terminal, the list is shown as well."""
    from tpuctl.actions.unstick import question  # noqa: PLC0415  # as above

    try:
        is_wanted = app.terminal.confirm(question(node_id, sites), yes=yes)
    except InvalidInputError:
        if _is_json(app):
            _show(app, node_id, sites)
        raise
    if not is_wanted:
        raise NotConfirmedError("nothing was done")


def _is_json(app: App) -> bool:
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    return app.format in {Format.JSON, Format.YAML}


def _show(app: App, node_id: str, sites: Sequence[Site]) -> None:
    """Show what holds the TPU on each worker; an empty list is shown only to scripts."""
    from tpuctl.output.holders import HEADER, rows, to_json  # noqa: PLC0415  # as above
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    if _is_json(app):
        workers = [to_json(site.member.worker, site.seen, site.after) for site in sites]
        body = {"node": node_id, "workers": workers} | ({"sandbox": True} if app.is_sandbox else {})
        app.terminal.data(body, app.format)
        return
    table = [row for site in sites for row in rows(site.member.label, site.seen)]
    if app.format is Format.NAME:
        app.terminal.names(str(one.pid) for site in sites for one in site.to_end)
    elif table:
        app.terminal.table(HEADER, table)
