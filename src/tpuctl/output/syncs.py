"""Render the results of a sync: table rows, JSON, a summary, and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.escaping import visible
from tpuctl.output.sizes import format_size
from tpuctl.output.tables import Cell
from tpuctl.remote.syncing.sessions import NotSyncedError
from tpuctl.remote.syncing.values import Brought

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tpuctl.remote.syncing.values import Ending, Synced

HEADER = ("WORKER", "SENT", "SIZE", "DELETED", "NOTE")
CHANGES_HEADER = ("ACTION", "FILE", "WORKERS")
_MAX_NAMES_SHOWN = 5


def rows(synced: Synced) -> list[tuple[Cell, ...]]:
    """Return one row for each worker."""
    table: list[tuple[Cell, ...]] = []
    for result in synced.results:
        label, changes = Cell(result.member.label), result.outcome
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


def change_rows(synced: Synced) -> list[tuple[Cell, ...]]:
    """Return one row for each file to send or delete, with its workers."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in synced.results:
        if isinstance(result.outcome, Brought):
            for action, names in (("send", result.outcome.sent), ("delete", result.outcome.deleted)):
                for name in names:
                    found.setdefault((action, name), []).append(result.member.label)
    everywhere = len(synced.succeeded)
    return [
        (Cell(action), Cell(readable(name)), Cell("all" if len(labels) == everywhere else ",".join(labels)))
        for (action, name), labels in found.items()
    ]


def to_json(synced: Synced, *, sandbox: bool, dry_run: bool) -> list[dict[str, Any]]:
    """Return one object for each worker. Bytes of names that are not UTF-8 are shown as backslash escapes."""
    values: list[dict[str, Any]] = []
    for result in synced.results:
        name, changes = result.member.node.name, result.outcome
        value: dict[str, Any] = {"nodeId": name.node_id, "zone": name.zone, "worker": result.member.worker}
        if isinstance(changes, NotSyncedError):
            value["error"] = {"kind": changes.kind, "message": changes.message}
        else:
            value |= {
                "folder": readable(changes.folder),
                "sent": list(map(readable, changes.sent)),
                "bytes": changes.size,
                "adjusted": changes.adjusted,
                "deleted": list(map(readable, changes.deleted)),
                "kept": list(map(readable, changes.kept)),
                "replaced": list(map(readable, changes.replaced)),
                "via": changes.via and str(changes.via),
            }
        values.append(value)
    added = {**({"dryRun": True} if dry_run else {}), **({"sandbox": True} if sandbox else {})}
    return [{**value, **added} for value in values]


def summary(synced: Synced, *, dry_run: bool = False) -> str | None:
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


def remarks(synced: Synced) -> Iterator[str]:
    """Yield notes about the results that are not failures."""
    results = [result for result in synced.results if isinstance(result.outcome, Brought)]
    for names, workers in _grouped(results, lambda one: one.kept):
        yield f"not deleted on {workers}, because changed there since the last sync: {_listed(names)}"
    for names, workers in _grouped(results, lambda one: one.replaced):
        yield (
            f"replaced on {workers}, though not from a sync or changed since: {_listed(names)}\n"
            "  the old files are kept on the worker, below ~/.tpuctl/sync"
        )
    for notes, workers in _grouped(results, lambda one: one.notes):
        yield f"{workers}: {'; '.join(map(visible, notes))}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def readable(name: str) -> str:
    """Return a printable name: bytes that are not UTF-8 become `\\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _grouped(
    results: Sequence[Ending], part: Callable[[Brought], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each value of `part`, with the workers that share it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        if isinstance(result.outcome, Brought) and part(result.outcome):
            found.setdefault(part(result.outcome), []).append(result.member.label)
    for value, labels in found.items():
        is_all = len(labels) == len(results) > 1
        yield value, f"all {len(labels)} workers" if is_all else f"worker {', '.join(labels)}"


def _listed(names: Iterable[str]) -> str:
    listed = [f"`{visible(readable(name))}`" for name in names]
    more = len(listed) - _MAX_NAMES_SHOWN
    return ", ".join(listed[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
