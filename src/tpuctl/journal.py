"""What tpuctl did to each node, on this machine: append-only JSON lines, one file for each node.

The journal is written before anything is destroyed, so that a crash between delete and create loses nothing. Files are 0600:
a spec may hold secrets in its metadata.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_timestamp, parse_timestamp
from tpuctl.errors import TpuctlError
from tpuctl.model import NodeSpec
from tpuctl.names import NodeName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime


class JournalError(TpuctlError):
    """The journal cannot be written, so nothing may be destroyed."""

    kind = "journal"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the journal cannot be written: {path}: {reason}",
            hint="nothing was changed in the cloud; free some space or make the folder writable, or set TPUCTL_STATE_DIR",
        )


@dataclass(frozen=True, slots=True)
class Remembered:
    """A spec from the journal, and when it was used."""

    spec: NodeSpec
    at: datetime | None


class Journal:
    """The journal under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, name: NodeName, event: str, at: datetime, **data: Any) -> None:  # JSON
        """Write one line and wait until it is on the disk.

        Raises `JournalError` where that is not possible.
        """
        path = self._path(name)
        line = json.dumps({"at": format_timestamp(at), "event": event, **data}, sort_keys=True) + "\n"
        try:
            _make_private(path.parent)
            # One write to a file opened for append is whole, also with several writers.
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                text = (_end_of_torn_line(handle) + line).encode()
                if os.write(handle, text) < len(text):
                    raise JournalError(path, "the disk is full")
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise JournalError(path, error.strerror or str(error)) from error

    def entries(self, name: NodeName) -> Iterator[dict[str, Any]]:
        """Yield what was written about a node, oldest first; torn lines are skipped, a file that cannot be read is empty."""
        try:
            lines = self._path(name).read_text("utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield entry

    def last_spec(self, name: NodeName) -> Remembered | None:
        """Return the spec that the node was last created from, or was seen to have before it was deleted."""
        found = None
        for entry in self.entries(name):
            if not entry.get("spec"):
                continue
            with suppress(TypeError, ValueError, KeyError):  # of another version of tpuctl, or not tpuctl's at all
                found = Remembered(NodeSpec.from_json(entry["spec"]), parse_timestamp(entry.get("at")))
        return found

    def names(self) -> list[NodeName]:
        """Return the nodes that past commands named, sorted."""
        found = (path.with_suffix("").parts[-3:] for path in self._folder.glob("*/*/*.jsonl"))
        return sorted(NodeName(project.replace("_", ":"), zone, node_id) for project, zone, node_id in found)

    def _path(self, name: NodeName) -> Path:
        # A domain-scoped project holds a colon, which some file systems refuse. No project holds an underscore.
        return self._folder / name.project.replace(":", "_") / name.zone / f"{name.node_id}.jsonl"


def _make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, all for the owner only."""
    # `Path.mkdir(parents=True)` gives its mode to the last folder alone.
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def _end_of_torn_line(handle: int) -> str:
    """Return what ends the line that a crash left without its end, so that the next one is not lost with it."""
    size = os.fstat(handle).st_size
    return "\n" if size and os.pread(handle, 1, size - 1) != b"\n" else ""
