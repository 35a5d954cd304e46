"""Runs on a worker: the small files of a job, and the locks on them."""

from __future__ import annotations

import fcntl
import os

LONGEST = 64 * 1024


def is_locked(path: str) -> bool:
    """Tell whether somebody holds a lock on a file."""
    try:
        # On NFS an exclusive lock needs a file that is open for writing.
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def read(path: str) -> bytes | None:
    """Return what is in a small file; nothing where there is none."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return os.read(file, LONGEST)
    finally:
        os.close(file)


def write(path: str, data: bytes) -> None:
    """Write a small file that only its owner may read."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def remove(folder: str) -> None:
    """Remove a job's folder. There are no folders in it."""
    gone = "%s/.gone.%d" % (os.path.dirname(folder), os.getpid())
    os.rename(folder, gone)
    for name in os.listdir(gone):
        os.unlink(os.path.join(gone, name))
    os.rmdir(gone)
