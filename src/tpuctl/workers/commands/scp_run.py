"""The body of `tpuctl scp`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.clock import SystemClock
from tpuctl.durations import format_duration, format_size
from tpuctl.errors import ExitCode, NotFoundError, RemoteCommandError
from tpuctl.models.node import WorkerSet
from tpuctl.output.terminal import StatusLine, View
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.channel import explain_agent_errors
from tpuctl.ssh.transfer import is_failed_login
from tpuctl.workers.commands.node_selection import find_nodes
from tpuctl.workers.copy_progress import show_copies
from tpuctl.workers.copying import CopyOptions, download, list_local_files, parse_copy_request, upload
from tpuctl.workers.targets import await_key, find_targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.workers.copying import CopyResult


def run_scp(
    app: App,
    *,
    places: tuple[str, ...],
    worker: str,
    recurse: bool,
    preserve: bool,
    selector: tuple[str, ...],
    fanout: int,
) -> int:
    """Copy files to or from all workers of a node."""
    request, workers = parse_copy_request(places, has_labels=bool(selector)), WorkerSet.parse(worker)
    options, folder = CopyOptions(recurse=recurse, preserve=preserve, fanout=fanout), app.invocation.folder
    listing = list_local_files(request.sources, folder, recurse=recurse) if request.is_upload else None
    chosen = find_targets(app, find_nodes(app, request.nodes, selector), workers)
    await_key(app, chosen)
    # Copies take real time, also in a sandbox with a faster clock.
    clock = app.invocation.clock or SystemClock()
    started = clock.monotonic()
    with (
        app.in_flight("some workers do not have all files yet", resume=app.command_line()),
        StatusLine(app.terminal, clock) as line,
    ):
        draw = show_copies(line, clock)
        if listing is not None:
            copied = upload(chosen, listing, request.destination, options=options, clock=clock, on_progress=draw)
        else:
            copied = download(
                chosen, request.sources, folder, request.destination, options=options, clock=clock, on_progress=draw
            )
    for note in listing.notes if listing else ():
        app.terminal.note(note)
    return _show(app, copied, clock.monotonic() - started)


_MAX_NAMED = 5


# A worker may send any number of notes.
_MAX_NOTES = 50


class CopyError(RemoteCommandError):
    """Files could not be copied to or from some workers."""


def _show(app: App, copied: Sequence[CopyResult], duration: timedelta) -> int:
    """Show the results and return 0. Raises the error of a single worker, or `CopyError` with the failed workers."""
    is_single = len(copied) == 1
    for one in copied:
        notes = list(one.notes[:_MAX_NOTES])
        if len(one.notes) > _MAX_NOTES:
            notes.append(f"and {len(one.notes) - _MAX_NOTES} more notes")
        for note in notes:
            app.terminal.note(note if is_single else f"worker {one.target.label}: {note}")
    names = [f"{one.target.node.name.node_id}-{one.target.worker}" for one in copied if not one.error]
    app.show(View(value=lambda: list(map(_to_json, copied)), text=lambda _: None, names=lambda: names))
    failed = [one for one in copied if one.error]
    if not failed:
        app.terminal.note(_summary(copied, duration))
        return ExitCode.OK

    unreached = [one.error for one in failed if one.error and is_failed_login(one.error)]
    causes = explain_agent_errors(unreached, accepted_elsewhere=len(unreached) < len(copied))
    if is_single and causes:
        raise causes[0]
    for cause in causes:
        app.show_error(cause)
    for one in failed:
        if not is_failed_login(one.error):
            for text in _problems(one, is_single=is_single):
                app.terminal.warn(text)
    raise _error_for(copied, failed)


def _summary(copied: Sequence[CopyResult], duration: timedelta) -> str:
    sizes = {(one.files, one.size) for one in copied}
    files, size = sum(one.files for one in copied), sum(one.size for one in copied)
    each = ""
    if len(sizes) == 1 and len(copied) > 1:
        files, size = sizes.pop()
        each = f" for each of {len(copied)} workers"
    words = f"{files} file{'' if files == 1 else 's'}, {format_size(size)}{each}"
    return f"copied {words} in {format_duration(duration)}"


def _problems(one: CopyResult, *, is_single: bool) -> list[str]:
    """Return the warnings about a failed worker."""
    lines = list(one.problems[:_MAX_NAMED])
    if len(one.problems) > _MAX_NAMED:
        lines.append(f"and {len(one.problems) - _MAX_NAMED} more files")
    if one.error and not one.problems and not is_single:
        lines.append(one.error.message)
    is_named = is_single or isinstance(one.error, UnexpectedAnswerError)
    return lines if is_named else [f"worker {one.target.label}: {text}" for text in lines]


def _error_for(copied: Sequence[CopyResult], failed: Sequence[CopyResult]) -> Exception:
    first = failed[0].error
    hints = dict.fromkeys(one.error.hint for one in failed if one.error and one.error.hint)
    # A problem with a file occurs again, unlike a broken connection.
    retry = "fix this, then repeat the command"
    hint = "\n".join(hints) or (retry if failed[0].problems else None)
    if len(copied) == 1:
        if first is not None and not failed[0].problems:
            return first
        name, count = failed[0].target.node.name.node_id, len(failed[0].problems)
        missing = f"1 file of `{name}` was" if count == 1 else f"{count} files of `{name}` were"
        return CopyError(f"{missing} not copied" + ("; the others were copied" if copied[0].files else ""), hint=hint)
    labels = ", ".join(one.target.label for one in failed)
    what = "files are missing" if all(one.problems for one in failed) else "the copy failed"
    is_missing = all(isinstance(one.error, NotFoundError) for one in failed)
    error = NotFoundError if is_missing else CopyError
    return error(f"{what} on {len(failed)} of {len(copied)} workers: {labels}", hint=hint)


def _to_json(one: CopyResult) -> dict[str, Any]:
    body: dict[str, Any] = {
        "node": one.target.node.name.node_id,
        "worker": one.target.worker,
        "ok": one.error is None,
        "files": one.files,
        "bytes": one.size,
        "bytesMoved": one.moved,
        "seconds": round(one.duration.total_seconds(), 3),
    }
    body |= {"skipped": list(one.notes)} if one.notes else {}
    body |= {"problems": list(one.problems)} if one.problems else {}
    return body | ({"error": {"kind": one.error.kind, "message": one.error.message}} if one.error else {})
