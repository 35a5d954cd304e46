"""How a sync is shown: as rows of a table, as JSON, as a sentence, and what a person must know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.escaping import visible
from tpuctl.output.sizes import format_size
from tpuctl.output.tables import Cell
from tpuctl.remote.syncing.values import Brought, NotSyncedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tpuctl.remote.syncing.values import Ending, Synced

HEADER = ("WORKER", "SENT", "SIZE", "DELETED", "NOTE")
CHANGES_HEADER = ("ACTION", "FILE", "WORKERS")
_NAMES_SHOWN = 5


def rows(synced: Synced) -> list[tuple[Cell, ...]]:
    """Return one row for each worker."""
    return [_row(ending) for ending in synced.endings]


def change_rows(synced: Synced) -> list[tuple[Cell, ...]]:
    """Return one row for each file that would be sent or deleted, with the workers on which."""
    found: dict[tuple[str, str], list[str]] = {}
    for ending in synced.endings:
        if isinstance(ending.brought, Brought):
            for action, names in (("send", ending.brought.sent), ("delete", ending.brought.deleted)):
                for name in names:
                    found.setdefault((action, name), []).append(ending.member.label)
    everywhere = len(synced.brought)
    return [
        (Cell(action), Cell(readable(name)), Cell("all" if len(labels) == everywhere else ",".join(labels)))
        for (action, name), labels in found.items()
    ]


def to_json(synced: Synced, *, sandbox: bool, dry_run: bool) -> list[dict[str, Any]]:
    """Return one object for each worker. Names that are no UTF-8 are shown with backslashes."""
    values = [_object(ending) for ending in synced.endings]
    added = {**({"dryRun": True} if dry_run else {}), **({"sandbox": True} if sandbox else {})}
    return [{**value, **added} for value in values]


def summary(synced: Synced, *, dry_run: bool = False) -> str | None:
    """Return what was done, in a sentence; nothing where no worker got anything because all failed."""
    brought = synced.brought
    if not brought:
        return None
    names = {name for one in brought for name in one.sent}
    deleted = {name for one in brought for name in one.deleted}
    adjusted = max(one.adjusted for one in brought)
    took = "" if dry_run else f" in {synced.took.total_seconds():.1f}s"
    if not (names or deleted or adjusted):
        return f"nothing changed: {counted(len(brought), 'worker')} had it all"
    said = []
    if names:
        size = sum(entry.size for entry in synced.tree.entries if entry.path in names)
        verb = "would sync" if dry_run else "synced"
        said.append(f"{verb} {counted(len(names), 'file')} ({format_size(size)}) to {counted(len(brought), 'worker')}")
    elif adjusted:
        verb = "would set" if dry_run else "set"
        said.append(f"{verb} time or mode of {counted(adjusted, 'file')} on {counted(len(brought), 'worker')}")
    if deleted:
        said.append(f"{'would delete' if dry_run else 'deleted'} {counted(len(deleted), 'file')}")
    return ", ".join(said) + took


def remarks(synced: Synced) -> Iterator[str]:
    """Yield what is worth knowing, though it is no failure."""
    brought = [ending for ending in synced.endings if isinstance(ending.brought, Brought)]
    for names, workers in _shared(brought, lambda one: one.kept):
        yield f"changed on {workers} since a sync put it there, so not deleted: {_listed(names)}"
    for names, workers in _shared(brought, lambda one: one.replaced):
        yield (
            f"replaced on {workers}, where no sync had put it or it was changed since: {_listed(names)}\n"
            "  copies of what was there are kept on the worker, below ~/.tpuctl/sync"
        )
    for notes, workers in _shared(brought, lambda one: one.notes):
        yield f"{workers}: {'; '.join(map(visible, notes))}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def readable(name: str) -> str:
    """Return a name that any stream takes, bytes that are no UTF-8 as `\\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _row(ending: Ending) -> tuple[Cell, ...]:
    label, brought = Cell(ending.member.label), ending.brought
    if isinstance(brought, NotSyncedError):
        return (label, Cell("-"), Cell("-"), Cell("-"), Cell(brought.message, style="red"))
    facts = [f"{len(brought.kept)} kept"] if brought.kept else []
    facts += [f"{len(brought.replaced)} replaced"] if brought.replaced else []
    facts += [f"{brought.adjusted} with another time or mode"] if brought.adjusted else []
    size = Cell(format_size(brought.size), plain=str(brought.size))
    return (label, Cell(str(len(brought.sent))), size, Cell(str(len(brought.deleted))), Cell(", ".join(facts)))


def _object(ending: Ending) -> dict[str, Any]:
    name = ending.member.node.name
    about: dict[str, Any] = {"nodeId": name.node_id, "zone": name.zone, "worker": ending.member.worker}
    brought = ending.brought
    if isinstance(brought, NotSyncedError):
        return {**about, "error": {"kind": brought.kind, "message": brought.message}}
    return {
        **about,
        "folder": readable(brought.folder),
        "sent": list(map(readable, brought.sent)),
        "bytes": brought.size,
        "adjusted": brought.adjusted,
        "deleted": list(map(readable, brought.deleted)),
        "kept": list(map(readable, brought.kept)),
        "replaced": list(map(readable, brought.replaced)),
        "via": brought.via and str(brought.via),
    }


def _shared(
    endings: Sequence[Ending], part: Callable[[Brought], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each thing that was found, with the workers for which it is the same."""
    found: dict[tuple[str, ...], list[str]] = {}
    for ending in endings:
        if isinstance(ending.brought, Brought) and part(ending.brought):
            found.setdefault(part(ending.brought), []).append(ending.member.label)
    for value, labels in found.items():
        is_all = len(labels) == len(endings) > 1
        yield value, f"all {len(labels)} workers" if is_all else f"worker {', '.join(labels)}"


def _listed(names: Iterable[str]) -> str:
    listed = [f"`{visible(readable(name))}`" for name in names]
    more = len(listed) - _NAMES_SHOWN
    return ", ".join(listed[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
