"""Folders and lock files for the owner only, whatever the umask, for they may hold secrets; files that no link redirects."""

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


# Far more than anything that tpuctl writes: what is larger is not its own, or would fill the memory.
_MOST = 64 << 20


def read_bounded(path: Path) -> bytes:
    """Return a file's content. Raises `OSError`, also for what is no regular file and for more than 64 MiB."""
    return read_file(path, longest=_MOST)[0]


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, all for the owner only."""
    if folder.is_dir():
        return
    # `Path.mkdir(parents=True)` gives its mode to the last folder alone.
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        try:
            missing.mkdir(mode=0o700)
        except FileExistsError:
            if not missing.is_dir():
                raise
        else:
            missing.chmod(0o700)  # whatever the umask takes away


def open_private(path: Path) -> int:
    """Return a descriptor of a file that is made, in a folder of the same kind, where there is none.

    A file that an older version left open to others is closed to them, as far as it is ours.
    """
    make_private(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    seen = os.fstat(descriptor)
    if seen.st_mode & 0o077 and seen.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o600)
    return descriptor


def create_file(path: Path) -> BinaryIO:
    """Open an empty file to be written, in place of the content of one that is there.

    A repository may hold symlinks: none is followed but to a device such as `/dev/null`. Raises `OSError`, also for what is
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
    """Hold the lock of a file that is there for nothing else."""
    descriptor = open_private(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
