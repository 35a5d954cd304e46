"""How what holds a TPU is shown: rows of a table, and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_duration
from tpuctl.output.tables import Cell
from tpuctl.remote.holders import Found, Holder, Silence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

HEADER = ("WORKER", "PID", "USER", "AGE", "HOLDS", "COMMAND")


def rows(label: str, seen: Found | Silence) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each process, and one for a lock file that no process is known to have open."""
    if isinstance(seen, Silence):
        return
    for one in seen.holders:
        where = f"[container {one.container}] " if one.container else ""
        style = "" if one.holds and not one.is_protected else "dim"
        cells = (Cell(label), Cell(str(one.pid)), Cell(one.user), _age(one.age), Cell(_held(one)))
        yield (*cells, Cell(where + one.command, style=style))
    lock = seen.lock_file
    if lock is not None and not any(one.has_lock_file for one in seen.holders):
        yield (Cell(label), Cell("-"), Cell(lock.user), _age(lock.age), Cell("lock file"), Cell(lock.path))


def to_json(worker: int, seen: Found | Silence, after: Found | Silence | None) -> dict[str, Any]:
    """Return a worker, what holds its TPU, and what became of it. Ages are seconds."""
    if isinstance(seen, Silence):
        return {"worker": worker, "error": seen.why}
    outcomes = after.outcomes if isinstance(after, Found) else {}
    lock = seen.lock_file
    body: dict[str, Any] = {
        "worker": worker,
        "holders": [_process(one, outcomes.get((one.pid, one.start))) for one in seen.holders],
        "lockFile": {"path": lock.path, "user": lock.user, "age": round(lock.age.total_seconds())} if lock else None,
        "hiddenProcesses": 0 if seen.is_root else seen.hidden,
    }
    if lock is not None and isinstance(after, Found):
        body["lockFile"]["outcome"] = after.lock_outcome
    if isinstance(after, Silence):
        body["error"] = after.why
    return body


def _process(one: Holder, outcome: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "pid": one.pid,
        "user": one.user,
        "age": round(one.age.total_seconds()),
        "state": one.state,
        "command": one.command,
        "devices": [f"/dev/{device}" for device in one.devices],
        "lockFile": one.has_lock_file,
        "library": one.maps_library,
        "container": one.container,
    }
    return body | ({"outcome": outcome} if outcome else {})


def _held(one: Holder) -> str:
    words = [*one.devices, *(["lock file"] if one.has_lock_file else [])]
    return ",".join(words) or "nothing (has loaded libtpu)"


def _age(age: timedelta) -> Cell:
    return Cell(f"{format_duration(age)}", plain=str(round(age.total_seconds())))
