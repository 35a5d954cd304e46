"""Run `tpuctl sync` for the chosen workers, once or continuously, and show the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.app.signals import TerminatedError
from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.clock import SystemClock
from tpuctl.durations import format_size, local_time
from tpuctl.errors import ExitCode, RemoteCommandError, TpuctlError
from tpuctl.escaping import escape_unprintable
from tpuctl.output.terminal import Cell, StatusLine, View, table_view
from tpuctl.ssh.channel import explain_agent_errors
from tpuctl.ssh.transfer import is_failed_login
from tpuctl.workers.copy_progress import show_copies
from tpuctl.workers.syncing import SyncResult, sync_workers, watch_and_sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tpuctl.app.app import App
    from tpuctl.clock import Clock
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.file_tree import FileTree
    from tpuctl.workers.syncing import SyncChanges, SyncRequest

_HINT = "repeat the command: files that are already there are not sent again; on a full disk free some space first"
_MAX_SHOWN, _MAX_NAMES_SHOWN = 3, 5


def sync_once(
    app: App,
    find: Callable[[], Sequence[Target]],
    read: Callable[[], FileTree],
    request: SyncRequest,
    *,
    next_command: str,
) -> int:
    """Sync once, and show the results. Raises `RemoteCommandError` if a worker failed."""
    tree = read()
    _note(app, tree.notes)
    targets = find()
    clock = _clock(app)
    with (
        app.in_flight("some workers do not have all files yet", resume=app.command_line()),
        StatusLine(app.terminal, clock) as line,
    ):
        progress, options = show_copies(line, clock), shared_connection_options(app)
        synced = sync_workers(targets, tree, request, clock=clock, on_progress=progress, ssh_options=options)
    app.show(_view(synced, dry_run=request.dry_run))
    note_remarks(app, synced)
    if text := sync_summary(synced, request):
        app.terminal.note(text)
        if app.terminal.is_interactive and not request.dry_run:
            app.terminal.note(f"  run there: `{next_command}`")
    if synced.failed:
        raise sync_failure(app, synced)
    if synced.unreadable:
        raise unreadable_error(synced, hint="all other files are synced")
    return ExitCode.OK


def sync_continuously(
    app: App, find: Callable[[], Sequence[Target]], read: Callable[[], FileTree], request: SyncRequest
) -> int:
    """Sync continuously, with a line for each round with changes or errors. SIGTERM ends it with exit code 0."""
    try:
        with app.in_flight("changes are no longer synced", resume=app.command_line()):
            clock = _clock(app)
            _note(app, read().notes)
            problems: frozenset[str] | None = None
            for result in watch_and_sync(find, read, request, clock=clock, ssh_options=shared_connection_options(app)):
                if isinstance(result, SyncResult):
                    has_changes = any(not changes.is_empty for _, changes in result.succeeded)
                    if has_changes:
                        # For people, the summary replaces the table.
                        app.show(View(value=_view(result, dry_run=False).value, text=lambda _: None))
                        note_remarks(app, result)
                    if result.succeeded and (has_changes or problems is None):
                        app.terminal.note(f"{local_time(clock.now()):%H:%M:%S} {sync_summary(result, request)}")
                    current = {f"{_worker_text(target)}: {error.message}" for target, error in result.failed}
                    current |= {_describe_unreadable(result)} if result.unreadable else set()
                else:
                    current = {result.message}
                # The texts stay the same while a problem lasts.
                for text in sorted(current - (problems or frozenset())):
                    app.terminal.warn(f"{text}; retrying")
                problems = frozenset(current)
    except TerminatedError:
        app.terminal.note("terminated: the sync has ended, and the workers keep their files")
    return ExitCode.OK


def note_remarks(app: App, synced: SyncResult) -> None:
    """Say what of a sync is neither a change nor a failure: files that were kept on workers."""
    _note(app, _remarks(synced))


def unreadable_error(synced: SyncResult, *, hint: str) -> TpuctlError:
    """Return the error for files that could not be read."""
    return TpuctlError(_describe_unreadable(synced), hint=hint)


def sync_failure(app: App, synced: SyncResult) -> TpuctlError:
    """Return the error for the failed workers. If there are several causes, show each of them first."""
    unreached = [error for _, error in synced.failed if is_failed_login(error)]
    causes = explain_agent_errors(unreached, accepted_elsewhere=len(unreached) < len(synced.results))
    causes += [
        RemoteCommandError(f"{_worker_text(target)} was not synced: {error.message}", hint=_HINT)
        for target, error in synced.failed
        if not is_failed_login(error)
    ]
    if len(causes) == 1:
        return causes[0]
    for cause in causes:
        app.show_error(cause)
    names = ", ".join(target.label for target, _ in synced.failed)
    count = len(synced.failed) + len(synced.succeeded)
    return RemoteCommandError(f"{len(synced.failed)} of {count} workers were not synced: {names}", hint=_HINT)


def _describe_unreadable(synced: SyncResult) -> str:
    reasons = [printable_name(why) for _, why in sorted(synced.unreadable.items())]
    more = f" and {len(reasons) - _MAX_SHOWN} more" if len(reasons) > _MAX_SHOWN else ""
    return f"{counted(len(reasons), 'file')} not sent: {', '.join(reasons[:_MAX_SHOWN])}{more}"


def _worker_text(target: Target) -> str:
    return f"worker {target.worker} of `{target.node.name.node_id}`"


def _note(app: App, texts: Iterable[str]) -> None:
    for text in texts:
        app.terminal.note(printable_name(text))


def _clock(app: App) -> Clock:
    """Return the clock of this machine, also with a sandbox: files change and connections break in real time."""
    return app.invocation.clock or SystemClock()


def _view(synced: SyncResult, *, dry_run: bool) -> View:
    return table_view(
        ("ACTION", "FILE", "WORKERS") if dry_run else ("WORKER", "SENT", "SIZE", "DELETED", "NOTE"),
        _planned_rows(synced) if dry_run else _rows(synced),
        value=lambda: [_to_json(*one) | ({"dryRun": True} if dry_run else {}) for one in synced.results],
        names=lambda: [target.label for target, _ in synced.succeeded],
    )


def _rows(synced: SyncResult) -> list[tuple[Cell, ...]]:
    """Return one row for each worker."""
    table: list[tuple[Cell, ...]] = []
    for target, changes in synced.results:
        label = Cell(target.label)
        if isinstance(changes, TpuctlError):
            table.append((label, Cell("-"), Cell("-"), Cell("-"), Cell(changes.message, style="red")))
            continue
        facts = [(len(changes.kept), "kept"), (len(changes.replaced), "replaced")]
        facts += [(changes.adjusted, "with another time or mode")]
        note = Cell(", ".join(f"{number} {what}" for number, what in facts if number))
        size = Cell(format_size(changes.size), plain=str(changes.size))
        table.append((label, Cell(str(len(changes.sent))), size, Cell(str(len(changes.deleted))), note))
    return table


def _planned_rows(synced: SyncResult) -> list[tuple[Cell, ...]]:
    """Return one row for each file to send or delete, with its workers."""
    found: dict[tuple[str, str], list[str]] = {}
    for target, changes in synced.succeeded:
        for action, names in (("send", changes.sent), ("delete", changes.deleted)):
            for name in names:
                found.setdefault((action, name), []).append(target.label)
    everywhere = len(synced.succeeded)
    return [
        (Cell(action), Cell(printable_name(name)), Cell("all" if len(labels) == everywhere else ",".join(labels)))
        for (action, name), labels in found.items()
    ]


def _to_json(target: Target, changes: SyncChanges | TpuctlError) -> dict[str, Any]:
    """Return an object for one worker. Bytes of names that are not UTF-8 are shown as backslash escapes."""
    name = target.node.name
    value: dict[str, Any] = {"nodeId": name.node_id, "zone": name.zone, "worker": target.worker}
    if isinstance(changes, TpuctlError):
        return {**value, "error": {"kind": changes.kind, "message": changes.message}}
    return {
        **value,
        "folder": printable_name(changes.folder),
        "sent": list(map(printable_name, changes.sent)),
        "bytes": changes.size,
        "adjusted": changes.adjusted,
        "deleted": list(map(printable_name, changes.deleted)),
        "kept": list(map(printable_name, changes.kept)),
        "replaced": list(map(printable_name, changes.replaced)),
    }


def sync_summary(synced: SyncResult, request: SyncRequest) -> str | None:
    """Return a summary of the changes. None if all workers failed."""
    dry_run = request.dry_run
    changes = [one for _, one in synced.succeeded]
    if not changes:
        return None
    workers = f"`{request.folder}` on {counted(len(changes), 'worker')}"
    names = {name for one in changes for name in one.sent}
    deleted = {name for one in changes for name in one.deleted}
    adjusted = max(one.adjusted for one in changes)
    duration = "" if dry_run else f" in {synced.duration.total_seconds():.1f}s"
    if not (names or deleted or adjusted):
        return f"no changes: {workers}, up to date"
    parts = []
    if names:
        size = sum(entry.size for entry in synced.tree.entries if entry.path in names)
        verb = "would sync" if dry_run else "synced"
        parts.append(f"{verb} {counted(len(names), 'file')} ({format_size(size)}) to {workers}")
    elif adjusted:
        parts.append(f"{'would set' if dry_run else 'set'} time or mode of {counted(adjusted, 'file')} in {workers}")
    if deleted:
        parts.append(f"{'would delete' if dry_run else 'deleted'} {counted(len(deleted), 'file')}")
    return ", ".join(parts) + duration


def _remarks(synced: SyncResult) -> Iterator[str]:
    """Yield notes about the results that are not failures."""
    for names, workers in _grouped(synced, lambda one: one.kept):
        yield f"not deleted on {workers}, because changed there since the last sync: {_listed(names)}"
    for names, workers in _grouped(synced, lambda one: one.replaced):
        yield f"replaced on {workers}, though not from a sync or changed since: {_listed(names)}"
        yield "  the old files are kept on the worker, below ~/.tpuctl/sync"


def _grouped(
    synced: SyncResult, part: Callable[[SyncChanges], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each value of `part`, with the workers that share it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for target, changes in synced.succeeded:
        if part(changes):
            found.setdefault(part(changes), []).append(target.label)
    for value, labels in found.items():
        is_all = len(labels) == len(synced.succeeded) > 1
        yield value, f"all {len(labels)} workers" if is_all else f"worker {', '.join(labels)}"


def _listed(names: Iterable[str]) -> str:
    listed = [f"`{escape_unprintable(printable_name(name))}`" for name in names]
    more = len(listed) - _MAX_NAMES_SHOWN
    return ", ".join(listed[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, what: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{number} {what if number == 1 else several or f'{what}s'}"


def printable_name(name: str) -> str:
    """Return a printable name: bytes that are not UTF-8 become `\\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
