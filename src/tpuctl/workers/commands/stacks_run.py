"""The body of `tpuctl stacks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import ExitCode, InvalidInputError
from tpuctl.workers.commands.jobs_run import job_targets, show_errors
from tpuctl.workers.device_stacks import list_device_stacks
from tpuctl.workers.worker_jobs import check_job_name, parse_signal
from tpuctl.workers.worker_stacks import list_stacks, stacks_view

if TYPE_CHECKING:
    from tpuctl.app.app import App


def run_stacks(
    app: App,
    *,
    nodes: tuple[str, ...],
    selector: tuple[str, ...],
    worker: str,
    job: str | None,
    signal: str | None,
    device: bool,
) -> int:
    """Show where the programs on workers are: the Python stacks of the processes that hold the TPU."""
    if not nodes and not selector:
        raise InvalidInputError("no node given", hint="name one, or use `-l KEY=VALUE`")
    number = parse_signal(signal) if signal is not None else None
    scope = job_targets(app, nodes, selector, worker, job=check_job_name(job) if job is not None else None)
    devices = list_device_stacks(scope) if device else None
    listing = list_stacks(scope, signal=number)
    app.show(stacks_view(listing, devices))
    for note in listing.notes:
        app.terminal.note(note)
    return show_errors(app, listing.errors) if listing.errors else ExitCode.OK
