"""Render the processes that hold a TPU: as table rows and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_duration
from tpuctl.output.tables import Cell
from tpuctl.remote.holders import Found, Silence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

HEADER = ("WORKER", "PID", "USER", "AGE", "HOLDS", "COMMAND")


def rows(label: str, seen: Found | Silence) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each process, and one for a lock file that no known process has open."""
    if isinstance(seen, Silence):
        return
    for one in seen.holders:
        where = f"[container {one.container}] " if one.container else ""
        style = "" if one.holds and not one.is_protected else "dim"
        held = ",".join([*one.devices, *(["lock file"] if one.has_lock_file else [])]) or "nothing (has loaded libtpu)"
        cells = (Cell(label), Cell(str(one.pid)), Cell(one.user), _age(one.age), Cell(held))
        yield (*cells, Cell(where + one.command, style=style))
    lock = seen.lock_file
    if lock is not None and not any(one.has_lock_file for one in seen.holders):
        yield (Cell(label), Cell("-"), Cell(lock.user), _age(lock.age), Cell("lock file"), Cell(lock.path))


def to_json(worker: int, seen: Found | Silence, after: Found | Silence | None) -> dict[str, Any]:
    """Return a worker, what holds its TPU, and the outcome of the termination. Ages are in seconds."""
    if isinstance(seen, Silence):
        return {"worker": worker, "error": seen.why}
    outcomes = after.outcomes if isinstance(after, Found) else {}
    lock = seen.lock_file
    body: dict[str, Any] = {
        "worker": worker,
        "holders": [
            {
                "pid": one.pid,
                "user": one.user,
                "age": round(one.age.total_seconds()),
                "state": one.state,
                "command": one.command,
                "devices": [f"/dev/{device}" for device in one.devices],
                "lockFile": one.has_lock_file,
                "library": one.maps_library,
                "container": one.container,
                **({"outcome": outcome} if (outcome := outcomes.get((one.pid, one.start))) else {}),
            }
            for one in seen.holders
        ],
        "lockFile": {"path": lock.path, "user": lock.user, "age": round(lock.age.total_seconds())} if lock else None,
        "hiddenProcesses": 0 if seen.is_root else seen.hidden,
    }
    if lock is not None and isinstance(after, Found):
        body["lockFile"]["outcome"] = after.lock_outcome
    if isinstance(after, Silence):
        body["error"] = after.why
    return body


def _age(age: timedelta) -> Cell:
    return Cell(f"{format_duration(age)}", plain=str(round(age.total_seconds())))
