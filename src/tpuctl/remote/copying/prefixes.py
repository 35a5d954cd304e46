"""Digests of the first bytes of files. Each byte is read once for all workers."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from tpuctl.remote.onboard.copy_frames import STEP, digest


class Prefixes:
    """Digests of the first bytes of all files of a run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, _Prefix] = {}

    def digest_of(self, path: bytes, length: int) -> str:
        """Return the digest of the first `length` bytes, as `digest` does. Raises `OSError`."""
        with self._lock:
            prefix = self._known.setdefault(path, _Prefix(path))
        return prefix.digest(length)


class _Prefix:
    """One file, read as far as needed so far. The digest at every step is kept."""

    def __init__(self, path: bytes) -> None:
        self._path, self._lock = path, threading.Lock()
        self._hash, self._read = hashlib.blake2b(digest_size=20), 0
        self._known: dict[int, str] = {}

    def digest(self, length: int) -> str:
        with self._lock:
            if length > self._read:
                with Path(os.fsdecode(self._path)).open("rb", buffering=0) as file:
                    file.seek(self._read)
                    while self._read < length:
                        block = file.read(min(STEP - self._read % STEP, length - self._read))
                        if not block:
                            break
                        self._hash.update(block)
                        self._read += len(block)
                        self._known[self._read] = self._hash.hexdigest()
            known = self._known.get(length)
        return digest(self._path, length) if known is None else known
