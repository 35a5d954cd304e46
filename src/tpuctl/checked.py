"""A cache file of recent checks without errors, readable by its owner only. The same check is not repeated for ten minutes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_timestamp, parse_timestamp
from tpuctl.private import make_private, read_bounded
from tpuctl.shapes import ANY, TIME, MapOf, Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.clock import Clock

_LASTS = timedelta(minutes=10)
_MOST = 100
_FILE = MapOf(Shape("", {"at": TIME, "said": ANY}, required=("at", "said")))


class Checked:
    """Keeps entries for ten minutes by `clock`. A file that cannot be read or written is ignored."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock

    def get(self, key: str) -> Any:  # JSON, as it was stored
        """Return the cached value; None if it is missing or too old."""
        entry = self._entries().get(key)
        return entry["said"] if entry else None

    def put(self, key: str, value: Any) -> None:  # JSON
        """Store a value and remove entries that are too old."""
        entries = {**self._entries(), key: {"at": format_timestamp(self._clock.now()), "said": value}}
        self._write(dict(list(entries.items())[-_MOST:]))

    def clear(self, *, keep: str = "") -> None:
        """Remove all entries, except that of the key `keep`."""
        entries = self._entries()
        if kept := {key: entry for key, entry in entries.items() if key == keep}:
            self._write(kept)
        elif entries:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _write(self, kept: dict[str, Any]) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            make_private(self._path.parent)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(kept, file)
            temporary.replace(self._path)

    def _entries(self) -> dict[str, Any]:
        try:
            found = parse_json(read_bounded(self._path))
            _FILE.check(found)
        except (OSError, ShapeError):
            return {}
        now, fresh = self._clock.now(), {}
        for key, entry in found.items():
            moment = parse_timestamp(entry["at"])
            if moment is not None and timedelta() <= now - moment < _LASTS:
                fresh[key] = entry
        return fresh
