"""The body of `tpuctl unstick`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import parse_timestamp
from tpuctl.errors import ExitCode, InvalidInputError, NotConfirmedError, worst_exit_code
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.usage import describe_use, require_idle
from tpuctl.output.terminal import OutputFormat
from tpuctl.workers.targets import await_key, find_node, find_targets
from tpuctl.workers.tpu_release import (
    find_holders,
    holders_use,
    holders_view,
    release_errors,
    release_notes,
    release_question,
    release_tpu,
)

if TYPE_CHECKING:
    from tpuctl.app.app import App


_GRACE = timedelta(seconds=10)


def run_unstick(
    app: App,
    *,
    node: str,
    worker: str,
    grace: timedelta | str | None,
    pid: int | None,
    started_before: str | None,
    dry_run: bool,
    if_idle: bool,
    yes: bool,
) -> int:
    """Terminate the processes that hold the TPU ("The TPU is already in use by process with pid 1234")."""
    found = find_node(app, node)
    before = parse_timestamp(started_before)
    if started_before is not None and before is None:
        raise InvalidInputError(
            f"`--started-before {started_before}` is not a time", hint="write it as 2026-01-31T18:30:00Z"
        )
    if isinstance(grace, str):
        raise InvalidInputError("`--grace forever` would never kill a process", hint="give a time, such as `30s`")
    asked = find_targets(app, [found], WorkerSet.parse(worker), read_only=dry_run)
    await_key(app, asked)
    reports = find_holders(asked, only=pid, started_before=before)
    node_id, is_to_act = found.name.node_id, not dry_run and any(report.is_stuck for report in reports)
    # A script gets one document, at the end; a person sees the list before the question.
    is_script = app.format in {OutputFormat.JSON, OutputFormat.YAML}
    if not is_script:
        app.show(holders_view(node_id, reports))
    use = holders_use(found, reports)
    if if_idle:
        require_idle([found], {found.name: use})
    if is_to_act:
        question = release_question(node_id, reports)
        if use.uses:
            question = f"{describe_use(found, use)}; {question}"
        try:
            is_wanted = app.terminal.confirm(question, yes=yes)
        except InvalidInputError:
            # stdin is no terminal: the list is shown as well.
            if is_script:
                app.show(holders_view(node_id, reports))
            raise
        if not is_wanted:
            raise NotConfirmedError
        reports = release_tpu(reports, grace=_GRACE if grace is None else grace)
    if is_script:
        app.show(holders_view(node_id, reports))
    for note in release_notes(node_id, reports):
        app.terminal.note(note)
    errors = release_errors(node_id, reports)
    for error in errors:
        app.show_error(error)
    return worst_exit_code(error.exit_code for error in errors) if errors else ExitCode.OK
