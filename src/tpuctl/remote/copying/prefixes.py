"""Digests of the beginnings of files, each byte read once however many workers ask."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from tpuctl.remote.onboard.copy_frames import STEP, digest


class Prefixes:
    """The beginnings of all files of a run. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, _Prefix] = {}

    def digest_of(self, path: bytes, length: int) -> str:
        """Return what `digest` returns. Raises `OSError`."""
        with self._lock:
            prefix = self._known.setdefault(path, _Prefix(path))
        return prefix.digest(length)


class _Prefix:
    """One file, read as far as somebody has asked; the digest at every step is kept."""

    def __init__(self, path: bytes) -> None:
        self._path, self._lock = path, threading.Lock()
        self._made, self._read = hashlib.blake2b(digest_size=20), 0
        self._known: dict[int, str] = {}

    def digest(self, length: int) -> str:
        with self._lock:
            if length > self._read:
                self._read_on(length)
            known = self._known.get(length)
        return digest(self._path, length) if known is None else known

    def _read_on(self, length: int) -> None:
        with Path(os.fsdecode(self._path)).open("rb", buffering=0) as file:
            file.seek(self._read)
            while self._read < length and (block := file.read(min(STEP - self._read % STEP, length - self._read))):
                self._made.update(block)
                self._read += len(block)
                self._known[self._read] = self._made.hexdigest()
