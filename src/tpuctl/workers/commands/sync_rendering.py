"""Run `tpuctl sync` for the chosen workers, once or continuously, and show the results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.app.signals import TerminatedError
from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.clock import SystemClock
from tpuctl.durations import format_size
from tpuctl.errors import ExitCode, InvalidInputError, RemoteCommandError, TpuctlError
from tpuctl.escaping import escape_unprintable
from tpuctl.output.status_line import StatusLine, TransferProgress
from tpuctl.output.terminal import Cell, OutputFormat
from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failures
from tpuctl.ssh.transfer_channels import NotSyncedError
from tpuctl.workers.file_tree import default_worker_folder, read_tree
from tpuctl.workers.syncing import SyncChanges, SyncRequest, SyncResult, SyncTransport, sync_workers, watch_and_sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tpuctl.app.app import App
    from tpuctl.clock import Clock
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.file_tree import FileTree
    from tpuctl.workers.syncing import WorkerSyncResult

_HINT = "repeat the command: complete files are not sent again"
_MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The source folder and the request. `home` is the home folder on this machine."""

    source: Path
    home: Path | None
    order: SyncRequest

    @classmethod
    def of(cls, app: App, source: Path, options: dict[str, Any]) -> SyncOptions:
        """Build it from the command's options. Raises `InvalidInputError` for an empty `--to`."""
        text = app.invocation.environ.get("HOME", "").rstrip("/")
        folder = options["folder"]
        if folder is None:
            folder = default_worker_folder(source)
        elif not folder.strip():
            raise InvalidInputError("`--to` is empty", hint="use a path on the workers: `--to '~/code'`")
        elif text and (folder == text or folder.startswith(text + "/")):
            # The local shell has expanded the tilde.
            folder = "~" + folder[len(text) :]
        order = SyncRequest(
            folder=folder, delete=options["delete"], dry_run=options["dry_run"], via=SyncTransport(options["via"])
        )
        return cls(source, Path(text) if text else None, order)

    def read(self) -> FileTree:
        """List the files to send now."""
        return read_tree(self.source, home=self.home)


def sync_once(app: App, find: Callable[[], Sequence[Target]], options: SyncOptions) -> int:
    """Sync once, and show the results. Raises `RemoteCommandError` if a worker failed."""
    tree = options.read()
    _note(app, tree.notes)
    targets, clock = find(), _clock(app)
    with (
        app.in_flight("some workers do not have all files yet", resume=app.command_line()),
        StatusLine(app.terminal, clock) as line,
    ):
        progress = TransferProgress(line, clock)
        synced = sync_workers(
            targets, tree, options.order, clock=clock, on_progress=progress, ssh_options=shared_connection_options(app)
        )
    _show(app, synced, dry_run=options.order.dry_run)
    _note(app, sync_remarks(synced))
    if text := sync_summary(synced, dry_run=options.order.dry_run):
        app.terminal.note(text)
    if synced.failed:
        raise _failure(app, synced)
    if synced.unreadable:
        raise TpuctlError(_describe_unreadable(synced), hint="all other files are synced")
    return ExitCode.OK


def sync_continuously(app: App, find: Callable[[], Sequence[Target]], options: SyncOptions) -> int:
    """Sync continuously, with a line for each round with changes or errors. SIGTERM ends it with exit code 0."""
    try:
        with app.in_flight("changes are no longer synced", resume=app.command_line()):
            clock = _clock(app)
            _note(app, options.read().notes)
            problems: frozenset[str] | None = None
            for result in watch_and_sync(
                find, options.read, options.order, clock=clock, ssh_options=shared_connection_options(app)
            ):
                if isinstance(result, SyncResult):
                    has_changes = any(not one.is_empty for one in result.succeeded)
                    if has_changes and app.format in {OutputFormat.JSON, OutputFormat.YAML}:
                        _show(app, result, dry_run=False)
                    if has_changes:
                        _note(app, sync_remarks(result))
                    if result.succeeded and (has_changes or problems is None):
                        app.terminal.note(f"{clock.now().astimezone():%H:%M:%S} {sync_summary(result)}")
                # The texts stay the same while a problem lasts.
                if isinstance(result, TpuctlError):
                    current = frozenset({result.message})
                else:
                    unreadable = {_describe_unreadable(result)} if result.unreadable else set()
                    failed = {f"{_worker_text(target)}: {error.message}" for target, error in result.failed}
                    current = frozenset(failed | unreadable)
                for text in sorted(current - (problems or frozenset())):
                    app.terminal.warn(f"{text}; retrying")
                problems = current
    except TerminatedError:
        app.terminal.note("terminated: the sync has ended, and the workers keep their files")
    return ExitCode.OK


def _show(app: App, synced: SyncResult, *, dry_run: bool) -> None:
    terminal = app.terminal
    if app.format in {OutputFormat.JSON, OutputFormat.YAML}:
        terminal.data(sync_to_json(synced, sandbox=app.is_sandbox, dry_run=dry_run), app.format)
    elif app.format is OutputFormat.NAME:
        terminal.names(one.target.label for one in synced.results if isinstance(one.outcome, SyncChanges))
    elif dry_run:
        if changes := sync_change_rows(synced):
            terminal.table(SYNC_CHANGES_HEADER, changes)
    else:
        terminal.table(SYNC_HEADER, sync_rows(synced))


def _failure(app: App, synced: SyncResult) -> RemoteCommandError:
    """Return the error for the failed workers. If there are several causes, show each of them first."""
    unreached = [(target, error.ssh_stderr) for target, error in synced.failed if error.ssh_stderr is not None]
    accepted = len(unreached) < len(synced.results)
    causes: list[RemoteCommandError] = []
    if unreached:
        causes += explain_ssh_failures(unreached, collect_failure_context(unreached[0][0], accepted_elsewhere=accepted))
    causes += [
        RemoteCommandError(f"{_worker_text(target)} was not synced: {error.message}", hint=_HINT)
        for target, error in synced.failed
        if error.ssh_stderr is None
    ]
    if len(causes) == 1:
        return causes[0]
    for cause in causes:
        app.show_error(cause)
    names = ", ".join(target.label for target, _ in synced.failed)
    return RemoteCommandError(
        f"{len(synced.failed)} of {len(synced.results)} workers were not synced: {names}", hint=_HINT
    )


def _describe_unreadable(synced: SyncResult) -> str:
    reasons = [f"`{printable_name(name)}`: {why}" for name, why in sorted(synced.unreadable.items())]
    more = f" and {len(reasons) - _MAX_SHOWN} more" if len(reasons) > _MAX_SHOWN else ""
    return f"{counted(len(reasons), 'file')} not sent: {', '.join(reasons[:_MAX_SHOWN])}{more}"


def _worker_text(target: Target) -> str:
    return f"worker {target.worker} of `{target.node.name.node_id}`"


def _note(app: App, texts: Iterable[str]) -> None:
    for text in texts:
        app.terminal.note(*printable_name(text).split("\n"))


def _clock(app: App) -> Clock:
    """Return the clock of this machine, also with a sandbox: files change and connections break in real time."""
    return app.invocation.clock or SystemClock()


SYNC_HEADER = ("WORKER", "SENT", "SIZE", "DELETED", "NOTE")
SYNC_CHANGES_HEADER = ("ACTION", "FILE", "WORKERS")
_MAX_NAMES_SHOWN = 5


def sync_rows(synced: SyncResult) -> list[tuple[Cell, ...]]:
    """Return one row for each worker."""
    table: list[tuple[Cell, ...]] = []
    for result in synced.results:
        label, changes = Cell(result.target.label), result.outcome
        if isinstance(changes, NotSyncedError):
            table.append((label, Cell("-"), Cell("-"), Cell("-"), Cell(changes.message, style="red")))
            continue
        facts = [f"{len(changes.kept)} kept"] if changes.kept else []
        facts += [f"{len(changes.replaced)} replaced"] if changes.replaced else []
        facts += [f"{changes.adjusted} with another time or mode"] if changes.adjusted else []
        size = Cell(format_size(changes.size), plain=str(changes.size))
        sent, deleted = Cell(str(len(changes.sent))), Cell(str(len(changes.deleted)))
        table.append((label, sent, size, deleted, Cell(", ".join(facts))))
    return table


def sync_change_rows(synced: SyncResult) -> list[tuple[Cell, ...]]:
    """Return one row for each file to send or delete, with its workers."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in synced.results:
        if isinstance(result.outcome, SyncChanges):
            for action, names in (("send", result.outcome.sent), ("delete", result.outcome.deleted)):
                for name in names:
                    found.setdefault((action, name), []).append(result.target.label)
    everywhere = len(synced.succeeded)
    return [
        (Cell(action), Cell(printable_name(name)), Cell("all" if len(labels) == everywhere else ",".join(labels)))
        for (action, name), labels in found.items()
    ]


def sync_to_json(synced: SyncResult, *, sandbox: bool, dry_run: bool) -> list[dict[str, Any]]:
    """Return one object for each worker. Bytes of names that are not UTF-8 are shown as backslash escapes."""
    values: list[dict[str, Any]] = []
    for result in synced.results:
        name, changes = result.target.node.name, result.outcome
        value: dict[str, Any] = {"nodeId": name.node_id, "zone": name.zone, "worker": result.target.worker}
        if isinstance(changes, NotSyncedError):
            value["error"] = {"kind": changes.kind, "message": changes.message}
        else:
            value |= {
                "folder": printable_name(changes.folder),
                "sent": list(map(printable_name, changes.sent)),
                "bytes": changes.size,
                "adjusted": changes.adjusted,
                "deleted": list(map(printable_name, changes.deleted)),
                "kept": list(map(printable_name, changes.kept)),
                "replaced": list(map(printable_name, changes.replaced)),
                "via": changes.via and str(changes.via),
            }
        values.append(value)
    added = {**({"dryRun": True} if dry_run else {}), **({"sandbox": True} if sandbox else {})}
    return [{**value, **added} for value in values]


def sync_summary(synced: SyncResult, *, dry_run: bool = False) -> str | None:
    """Return a summary of the changes. None if all workers failed."""
    changes = synced.succeeded
    if not changes:
        return None
    names = {name for one in changes for name in one.sent}
    deleted = {name for one in changes for name in one.deleted}
    adjusted = max(one.adjusted for one in changes)
    duration = "" if dry_run else f" in {synced.duration.total_seconds():.1f}s"
    if not (names or deleted or adjusted):
        return f"no changes: {counted(len(changes), 'worker')} up to date"
    parts = []
    if names:
        size = sum(entry.size for entry in synced.tree.entries if entry.path in names)
        verb = "would sync" if dry_run else "synced"
        parts.append(f"{verb} {counted(len(names), 'file')} ({format_size(size)}) to {counted(len(changes), 'worker')}")
    elif adjusted:
        verb = "would set" if dry_run else "set"
        parts.append(f"{verb} time or mode of {counted(adjusted, 'file')} on {counted(len(changes), 'worker')}")
    if deleted:
        parts.append(f"{'would delete' if dry_run else 'deleted'} {counted(len(deleted), 'file')}")
    return ", ".join(parts) + duration


def sync_remarks(synced: SyncResult) -> Iterator[str]:
    """Yield notes about the results that are not failures."""
    results = [result for result in synced.results if isinstance(result.outcome, SyncChanges)]
    for names, workers in _grouped(results, lambda one: one.kept):
        yield f"not deleted on {workers}, because changed there since the last sync: {_listed(names)}"
    for names, workers in _grouped(results, lambda one: one.replaced):
        yield (
            f"replaced on {workers}, though not from a sync or changed since: {_listed(names)}\n"
            "  the old files are kept on the worker, below ~/.tpuctl/sync"
        )
    for notes, workers in _grouped(results, lambda one: one.notes):
        yield f"{workers}: {'; '.join(map(escape_unprintable, notes))}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def printable_name(name: str) -> str:
    """Return a printable name: bytes that are not UTF-8 become `\\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _grouped(
    results: Sequence[WorkerSyncResult], part: Callable[[SyncChanges], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each value of `part`, with the workers that share it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        if isinstance(result.outcome, SyncChanges) and part(result.outcome):
            found.setdefault(part(result.outcome), []).append(result.target.label)
    for value, labels in found.items():
        is_all = len(labels) == len(results) > 1
        yield value, f"all {len(labels)} workers" if is_all else f"worker {', '.join(labels)}"


def _listed(names: Iterable[str]) -> str:
    listed = [f"`{escape_unprintable(printable_name(name))}`" for name in names]
    more = len(listed) - _MAX_NAMES_SHOWN
    return ", ".join(listed[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
