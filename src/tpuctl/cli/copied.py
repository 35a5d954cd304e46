"""Show the results of a copy: skipped files, the result of each worker, and a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.clock import format_duration
from tpuctl.errors import ExitCode, NotFoundError, RemoteCommandError
from tpuctl.output.sizes import format_size
from tpuctl.output.terminal import Format
from tpuctl.remote.answers import UnexpectedAnswerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from typing import Any

    from tpuctl.cli.app import App
    from tpuctl.remote.copying.values import Copied

_MAX_NAMED = 5
# A worker may send any number of notes.
_MAX_NOTES = 50


class CopyError(RemoteCommandError):
    """Files could not be copied to or from some workers."""


def show_copied(app: App, copied: Sequence[Copied], *, notes: Sequence[str], duration: timedelta) -> int:
    """Show the results of a copy and return 0. Raises the error of a single worker, or `CopyError` with the failed workers.

    Raises `NotFoundError` if the files were not found on any of the failed workers.
    """
    for note in notes:
        app.terminal.note(note)
    for one in copied:
        notes = list(one.notes[:_MAX_NOTES])
        if len(one.notes) > _MAX_NOTES:
            notes.append(f"and {len(one.notes) - _MAX_NOTES} more notes")
        for note in notes:
            app.terminal.note(f"worker {one.member.label}: {note}" if len(copied) > 1 else note)
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data([_to_json(app, one) for one in copied], app.format)
    elif app.format is Format.NAME:
        app.terminal.names(f"{one.member.node.name.node_id}-{one.member.worker}" for one in copied if not one.error)
    failed = [one for one in copied if one.error]
    if not failed:
        app.terminal.note(_summary(copied, duration))
        return ExitCode.OK
    if unreached := [(one.member, one.ssh_stderr) for one in failed if one.ssh_stderr]:
        from tpuctl.remote.failures import explain_failures, look_around  # noqa: PLC0415  # only for failures

        context = look_around(unreached[0][0], accepted_elsewhere=len(unreached) < len(copied))
        causes = explain_failures(unreached, context)
        if len(copied) == 1:
            raise causes[0]
        for cause in causes:
            app.show_error(cause)
    for one in failed:
        if not one.ssh_stderr:
            _show_problems(app, one, is_single=len(copied) == 1)
    raise _error_for(copied, failed)


def _summary(copied: Sequence[Copied], duration: timedelta) -> str:
    sizes = {(one.files, one.size) for one in copied}
    files, size = sum(one.files for one in copied), sum(one.size for one in copied)
    each = ""
    if len(sizes) == 1 and len(copied) > 1:
        files, size = sizes.pop()
        each = f" for each of {len(copied)} workers"
    words = f"{files} file{'' if files == 1 else 's'}, {format_size(size)}{each}"
    moved = sum(one.moved for one in copied)
    resumed = "" if moved >= sum(one.size for one in copied) else f"; {format_size(moved)} transferred"
    return f"copied {words} in {format_duration(duration)}{resumed}"


def _show_problems(app: App, one: Copied, *, is_single: bool) -> None:
    is_named = is_single or isinstance(one.error, UnexpectedAnswerError)
    label = "" if is_named else f"worker {one.member.label}: "
    lines = list(one.problems[:_MAX_NAMED])
    if len(one.problems) > _MAX_NAMED:
        lines.append(f"and {len(one.problems) - _MAX_NAMED} more files")
    if one.error and not one.problems and not is_single:
        lines.append(one.error.message)
    for text in lines:
        app.terminal.warn(f"{label}{text}")


def _error_for(copied: Sequence[Copied], failed: Sequence[Copied]) -> Exception:
    first = failed[0].error
    hints = dict.fromkeys(one.error.hint for one in failed if one.error and one.error.hint)
    # A problem with a file occurs again, unlike a broken connection.
    retry = "fix this, then repeat the command: complete files are not sent again"
    hint = "\n".join(hints) or (retry if failed[0].problems else None)
    if len(copied) == 1 and first is not None and not failed[0].problems:
        return first
    labels = ", ".join(one.member.label for one in failed)
    what = "files are missing" if all(one.problems for one in failed) else "the copy failed"
    message = f"{what} on {len(failed)} of {len(copied)} workers: {labels}"
    if len(copied) == 1:
        name = failed[0].member.node.name.node_id
        count = len(failed[0].problems)
        missing = f"1 file of `{name}` was" if count == 1 else f"{count} files of `{name}` were"
        return CopyError(f"{missing} not copied" + ("; the others were copied" if copied[0].files else ""), hint=hint)
    if all(isinstance(one.error, NotFoundError) for one in failed):
        return NotFoundError(message, hint=hint)
    return CopyError(message, hint=hint)


def _to_json(app: App, one: Copied) -> dict[str, Any]:
    body: dict[str, Any] = {
        "node": one.member.node.name.node_id,
        "worker": one.member.worker,
        "ok": one.error is None,
        "files": one.files,
        "bytes": one.size,
        "bytesMoved": one.moved,
        "seconds": round(one.duration.total_seconds(), 3),
    }
    body |= {"skipped": list(one.notes)} if one.notes else {}
    body |= {"problems": list(one.problems)} if one.problems else {}
    body |= {"error": {"kind": one.error.kind, "message": one.error.message}} if one.error else {}
    return body | ({"sandbox": True} if app.is_sandbox else {})
