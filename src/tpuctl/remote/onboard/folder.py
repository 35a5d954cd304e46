"""The target folder of a sync on a worker, and the record of earlier syncs: part of the program `tree.py`.

Nothing is written, read or deleted outside the folder, nor through a symlink in it. Must run under Python 3.8.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import time
from contextlib import suppress

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any

STAGE = b".tpuctl-sync"
LOCK_PATIENCE = 10.0


class RefusalError(Exception):
    """A refused request; the text says why."""


class Folder:
    """The target folder, and what earlier syncs put there: size and mtime of each file, target of each link."""

    def __init__(self, wish: dict[str, Any]) -> None:
        home = os.path.expanduser(b"~")
        self.root = os.path.realpath(os.path.join(home, os.path.expanduser(raw(wish["folder"]))))
        status = seen(self.root)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise RefusalError(f"`{shown(self.root)}` is a file on the worker")
        self.token = wish["token"]
        key = hashlib.sha256(self.root).hexdigest()[:16]
        self.note = os.path.join(home, b".tpuctl", b"sync", key.encode())
        self.records: dict[str, list[Any]] = {}
        try:
            with open(self.note + b".json", encoding="ascii") as file:
                self.records = json.load(file)["files"]
        except (FileNotFoundError, ValueError, KeyError):
            pass
        self._open: dict[str, bool] = {"": status is not None}
        self._lock = -1

    def path(self, name: str) -> bytes:
        """Return the path of a file of the tree on the worker."""
        return os.path.join(self.root, raw(name))

    def lock(self) -> None:
        """Lock the folder. A sync that lost its client is terminated by the next attempt of the same client."""
        os.makedirs(os.path.dirname(self.note), mode=0o700, exist_ok=True)
        self._lock = os.open(self.note + b".lock", os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > until:
                    message = f"another sync to `{shown(self.root)}` is running on the worker"
                    raise RefusalError(message) from error
            holder = os.pread(self._lock, 200, 0).decode().split()
            if len(holder) == 2 and holder[1] == self.token:
                with suppress(ProcessLookupError):
                    os.kill(int(holder[0]), signal.SIGTERM)
            time.sleep(0.05)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()} {self.token}".encode(), 0)
        os.makedirs(self.root, exist_ok=True)
        self._open = {"": True}
        self.forget_stage()

    def remember(self) -> None:
        """Store the record of what was put here."""
        part = self.note + b".part"
        with open(part, "w", encoding="ascii") as file:
            json.dump({"folder": shown(self.root), "files": self.records}, file)
        os.replace(part, self.note + b".json")

    def forget_stage(self) -> None:
        """Remove unfinished files."""
        shutil.rmtree(os.path.join(self.root, STAGE), ignore_errors=True)

    def stage(self, name: str, number: int) -> bytes:
        """Return the temporary path of a file, on the same file system."""
        parent, scratch = os.path.dirname(self.path(name)), os.path.join(self.root, STAGE)
        os.makedirs(scratch, mode=0o700, exist_ok=True)
        if os.lstat(parent).st_dev == os.lstat(scratch).st_dev:
            return os.path.join(scratch, b"%d" % number)
        return os.path.join(parent, b".tpuctl-sync-%d" % number)

    def stand(self, name: str) -> os.stat_result | None:
        """Return the status of the entry at a path, without following any symlink below the root."""
        return seen(self.path(name)) if self.is_open(name.rpartition("/")[0]) else None

    def is_open(self, parent: str) -> bool:
        """Return whether a folder exists. Any other entry there must come from a sync, or `RefusalError` is raised."""
        if parent not in self._open:
            status = self.stand(parent)
            if status is not None and not stat.S_ISDIR(status.st_mode) and not self.is_ours(parent, status):
                what = "a symlink" if stat.S_ISLNK(status.st_mode) else "a file"
                raise RefusalError(f"`{parent}` is {what} on the worker, and no sync put it there: move it away")
            self._open[parent] = status is not None and stat.S_ISDIR(status.st_mode)
        return self._open[parent]

    def is_ours(self, name: str, status: os.stat_result) -> bool:
        """Return whether an entry is unchanged since a sync put it there."""
        record = self.records.get(name)
        if record is None:
            return False
        if stat.S_ISLNK(status.st_mode):
            return record == [shown(os.readlink(self.path(name)))]
        return stat.S_ISREG(status.st_mode) and record == [status.st_size, status.st_mtime_ns]

    def record(self, name: str) -> None:
        """Record an entry as it is now."""
        status = os.lstat(self.path(name))
        is_link = stat.S_ISLNK(status.st_mode)
        self.records[name] = [shown(os.readlink(self.path(name)))] if is_link else [status.st_size, status.st_mtime_ns]

    def obsolete(self, names: set[str]) -> tuple[list[str], list[str]]:
        """Return what a sync put here and is no longer in the tree: unchanged entries, and changed ones."""
        gone: list[str] = []
        kept: list[str] = []
        for name in sorted(set(self.records) - names):
            try:
                status = self.stand(name)
            except RefusalError:  # its folder was replaced by something else
                status = None
            if status is None:
                del self.records[name]
            else:
                (gone if self.is_ours(name, status) else kept).append(name)
        return gone, kept

    def remove(self, name: str, *, prune: bool = True) -> bool:
        """Delete an unchanged entry of a sync, and folders that become empty; keep a changed one."""
        status = self.stand(name)
        if status is None or not self.is_ours(name, status):
            return False
        os.unlink(self.path(name))
        del self.records[name]
        parent = name.rpartition("/")[0] if prune else ""
        while parent:
            try:
                os.rmdir(self.path(parent))
            except OSError:
                break
            self._open.clear()
            self._open[""] = True
            parent = parent.rpartition("/")[0]
        return True

    def make_room(self, name: str) -> None:
        """Create the folders above a file, and remove a folder in its place if that has only entries of syncs."""
        parent = name.rpartition("/")[0]
        if not self.is_open(parent):
            self.make_room(parent)
            self.remove(parent, prune=False)
            os.mkdir(self.path(parent))
            self._open[parent] = True
        status = self.stand(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            for inside in [one for one in self.records if one.startswith(name + "/")]:
                self.remove(inside)
            if seen(self.path(name)) is not None:
                raise RefusalError(f"`{name}` is a folder on the worker, with files that no sync put there")
            self.make_room(name)


def seen(path: bytes) -> os.stat_result | None:
    """Return the status of a path without following a symlink; None if it does not exist."""
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return None


def raw(name: str) -> bytes:
    """Encode a name, independent of the locale."""
    return name.encode("utf-8", "surrogateescape")


def shown(path: bytes) -> str:
    """Decode a path."""
    return path.decode("utf-8", "surrogateescape")
