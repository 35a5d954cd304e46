"""A cache of the projects' OS Login switches on this machine, so that not every command has to fetch them.

It stores only the switches, because metadata may contain secrets.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_timestamp, parse_timestamp
from tpuctl.private import make_private, read_bounded
from tpuctl.remote.keys.os_login import SWITCHES
from tpuctl.shapes import MapOf, ShapeError, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.clock import Clock

# After a change of OS Login in a project, every tpuctl notices within this time.
LIFETIME = timedelta(minutes=10)
_FILE = MapOf(MapOf(str))


class RememberedSwitches:
    """A file of switches by project. If it cannot be read or written, they are fetched each time."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock

    def of(self, project: str) -> Mapping[str, str] | None:
        """Return the cached switches of a project. None if there are none or they are expired."""
        entry = self._read().get(project, {})
        fetched_at = parse_timestamp(entry.get("at"))
        if fetched_at is None or not timedelta() <= self._clock.now() - fetched_at < LIFETIME:
            return None
        return {str(name): str(value) for name, value in entry.items() if name in SWITCHES}

    def remember(self, project: str, metadata: Mapping[str, str]) -> Mapping[str, str]:
        """Store the switches of a project's metadata, and return them."""
        found = {name: metadata[name] for name in SWITCHES if name in metadata}
        with suppress(OSError):
            entries = {**self._read(), project: {"at": format_timestamp(self._clock.now()), **found}}
            make_private(self._path.parent)
            descriptor, scratch = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}-")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(entries, file)
            Path(scratch).replace(self._path)
        return found

    def _read(self) -> dict[str, Any]:
        try:
            found = parse_json(read_bounded(self._path))
            _FILE.check(found)
        except (OSError, ShapeError):
            return {}
        return dict(found)
