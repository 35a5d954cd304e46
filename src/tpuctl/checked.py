"""What was checked lately and found good, in one file for its owner: the same question is not asked again within minutes."""

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
    """Remembers what was said of a question for ten minutes by `clock`. A file that cannot be read or written is no error."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock

    def recall(self, key: str) -> Any:  # JSON, as it was given
        """Return what was said lately; nothing where it was not asked, or too long ago."""
        entry = self._entries().get(key)
        return entry["said"] if entry else None

    def remember(self, key: str, said: Any) -> None:  # JSON
        """Keep what was said; what is too old goes."""
        entries = {**self._entries(), key: {"at": format_timestamp(self._clock.now()), "said": said}}
        self._write(dict(list(entries.items())[-_MOST:]))

    def forget(self, *, but: str = "") -> None:
        """Forget what was said of every question, `but` of one."""
        entries = self._entries()
        if kept := {key: entry for key, entry in entries.items() if key == but}:
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
        return {key: entry for key, entry in found.items() if self._is_fresh(entry["at"])}

    def _is_fresh(self, at: str) -> bool:
        moment = parse_timestamp(at)
        return moment is not None and timedelta() <= self._clock.now() - moment < _LASTS
