"""Leases on this machine: one file for each node, and one for each process that holds a lease.

A process keeps its own file locked (`flock`) while it lives, and the kernel unlocks it when the process ends in any way. A
killed process is detected at once, and a living one never expires, even if the clock is wrong.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.clock import parse_timestamp
from tpuctl.errors import PreconditionFailedError
from tpuctl.lease import LeaseError, Record, Stored
from tpuctl.platforms import write_to_disk
from tpuctl.private import open_private, read_bounded
from tpuctl.shapes import ANY, TIME, MapOf, Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from tpuctl.clock import Clock
    from tpuctl.names import NodeName

# Not a valid name of a project.
_PROCESSES = ".processes"
_REQUIRED = ("version", "written", "record")
_DOCUMENT = Shape("", {"version": str, "written": TIME, "record": MapOf(ANY)}, required=_REQUIRED)


class LocalStore:
    """Lease records below a folder, at `PROJECT/ZONE/NODE.json`. The first write creates folders and files."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._alive: dict[str, int] = {}

    def read(self, name: NodeName) -> Stored | None:
        """Return the record of a node, with the information whether its process is alive."""
        with self._explained():
            return self._read(self._file(name))

    def write(self, name: NodeName, record: Record, *, expected: str | None) -> str:
        """Replace a version; see `Store`. After the first record this process counts as alive."""
        version = secrets.token_hex(8)
        written = self._clock.now().isoformat()
        document = {"version": version, "written": written, "record": json.loads(record.to_json())}
        with self._explained():
            self._mark_alive(record.owner)
            with self._locked(name) as file:
                self._expect(file, expected)
                _replace(file, json.dumps(document, indent=1) + "\n")
        return version

    def remove(self, name: NodeName, *, expected: str) -> None:
        """Remove a version; see `Store`."""
        with self._explained(), self._locked(name) as file:
            if file.exists():
                self._expect(file, expected)
                file.unlink()

    def close(self) -> None:
        """Mark this process as dead in all its records."""
        for owner, descriptor in self._alive.items():
            self._process(owner).unlink(missing_ok=True)
            os.close(descriptor)
        self._alive.clear()

    def _read(self, file: Path) -> Stored | None:
        try:
            content = read_bounded(file)
        except FileNotFoundError:
            return None
        try:
            document = _DOCUMENT.read(parse_json(content))
            version, body = document["version"], json.dumps(document["record"]).encode()
            written = parse_timestamp(document["written"])
        except ShapeError:
            version, body, written = "", b"", None
        record = Record.from_json(body, str(file))
        age = max(self._clock.now() - written, timedelta()) if written else timedelta()
        return Stored(record, version, age, is_alive=_is_locked(self._process(record.owner)))

    def _expect(self, file: Path, expected: str | None) -> None:
        found = self._read(file)
        if (found.version if found else None) != expected:
            raise PreconditionFailedError(f"`{file}` was changed by another process meanwhile", hint="try again")

    @contextmanager
    def _locked(self, name: NodeName) -> Iterator[Path]:
        """Lock the file of a node, and yield its path."""
        file = self._file(name)
        descriptor = open_private(file.with_suffix(".lock"))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(descriptor)

    def _mark_alive(self, owner: str) -> None:
        """Lock the file of our own process, and remove those of killed processes."""
        if owner in self._alive:
            return
        file = self._process(owner)
        while True:
            descriptor = open_private(file)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have removed it before it was locked.
            with suppress(FileNotFoundError):
                if file.stat().st_ino == os.fstat(descriptor).st_ino:
                    break
            os.close(descriptor)
        self._alive[owner] = descriptor
        for other in file.parent.iterdir():
            _is_locked(other)

    def _file(self, name: NodeName) -> Path:
        return self._folder / name.project / name.zone / f"{name.node_id}.json"

    def _process(self, owner: str) -> Path:
        # The name is read from a file: it must not lead out of the folder.
        return self._folder / _PROCESSES / f"{owner.replace('/', '_')}.lock"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LeaseError(
                f"cannot write the lease to `{self._folder}`: {error.strerror or error}; no change was made",
                hint="set `TPUCTL_STATE_DIR` to a local folder that can be written, or `lease: gs://BUCKET/PREFIX`",
            ) from error


def _is_locked(file: Path) -> bool:
    """Return whether the process of this file is alive. Remove the file of a dead process."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # Removed while it is locked here, so that no process locks a file that disappears.
        file.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _replace(file: Path, text: str) -> None:
    """Replace a file atomically, also in case of a crash of the machine."""
    draft = file.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        write_to_disk(stream.fileno())
    draft.replace(file)
