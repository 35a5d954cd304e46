"""Folders and lock files that only their owner may read, regardless of the umask; files that no symlink redirects."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from tpuctl.bounded_input import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# Far more than tpuctl ever writes: a larger file is not its own, and could exhaust the memory.
_MOST = 64 << 20


def read_bounded(path: Path) -> bytes:
    """Return the content of a file. Raises `OSError`, also if it is not a regular file or has more than 64 MiB."""
    return read_file(path, longest=_MOST)[0]


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, all with mode 0700."""
    if folder.is_dir():
        return
    # `Path.mkdir(parents=True)` sets the mode of the last folder only.
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        try:
            missing.mkdir(mode=0o700)
        except FileExistsError:
            if not missing.is_dir():
                raise
        else:
            missing.chmod(0o700)  # independent of the umask


def open_private(path: Path) -> int:
    """Open a file for reading and writing, with mode 0600; create it and its folder if missing. Return its descriptor.

    The mode of an own file that is readable for others (older versions wrote such) is corrected.
    """
    make_private(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    status = os.fstat(descriptor)
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o600)
    return descriptor


def create_file(path: Path) -> BinaryIO:
    """Open a file for writing, replacing its content.

    A repository may contain symlinks: only those to a device such as `/dev/null` are followed. Raises `OSError`, also if it is
    neither a regular file nor such a device.
    """
    is_link = path.is_symlink()
    if is_link and not path.is_char_device():
        raise OSError(errno.ELOOP, f"`{path.name}` is a symlink")

    def opened(name: str, _: int) -> int:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(name, flags if is_link else flags | os.O_CREAT | os.O_NOFOLLOW, 0o666)

    file = open(path, "wb", opener=opened)  # noqa: SIM115  # pathlib has no opener; the caller closes it
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode) and not is_link:
        file.truncate(0)
    elif not stat.S_ISCHR(mode):
        file.close()
        raise OSError(errno.EINVAL, f"`{path.name}` is no regular file")
    os.set_blocking(file.fileno(), True)
    return file


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file that serves only as a lock."""
    descriptor = open_private(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
