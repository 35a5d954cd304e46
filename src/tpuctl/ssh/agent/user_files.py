"""Runs on a worker: files of other users, and folders that no other user may change.

A program that runs as root reads what any user has put there. It opens no link, no pipe and no device, writes nothing, and runs
no program that others could have replaced. It must run under Python 3.8.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Collection

_OPENING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_below(home: str, *names: str) -> int:
    """Open a folder or a plain file below the home of a user for reading, and return its descriptor.

    Each step is checked: it is of the owner of the home, and no link. Raises `OSError`.
    """
    file = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        owner = os.fstat(file).st_uid
        for name in names:
            inner = open_entry(file, name, owner)
            os.close(file)
            file = inner
    except BaseException:
        os.close(file)
        raise
    return file


def open_entry(folder: int, name: str, owner: int | None = None) -> int:
    """Open an entry of an open folder, a folder or a plain file of its `owner`. Raises `OSError`."""
    owner = os.fstat(folder).st_uid if owner is None else owner
    # Opening a device may have an effect: one for /dev/watchdog reboots the machine.
    before = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not (stat.S_ISREG(before.st_mode) or stat.S_ISDIR(before.st_mode)) or before.st_uid != owner:
        raise OSError(errno.ELOOP, "no plain file or folder of its user", name)
    file = os.open(name, _OPENING, dir_fd=folder)
    after = os.fstat(file)
    if (before.st_dev, before.st_ino, after.st_uid) != (after.st_dev, after.st_ino, owner):
        os.close(file)
        raise OSError(errno.ELOOP, "replaced while it was opened", name)
    return file


def is_trusted(path: str, users: Collection[int], top: str = "/") -> bool:
    """Return whether only these users can have put a file or folder there: it may be run as root.

    Examined are `path`, which must have no links, and the folders above it up to `top`. In a folder such as /tmp others may
    create files, but not replace those of these users.
    """
    is_last = True
    while True:
        try:
            found = os.lstat(path)
        except OSError:
            return False
        is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX and not is_last
        if found.st_uid not in users or (is_open and not is_sticky):
            return False
        if path in {top, "/"}:
            return True
        path, is_last = os.path.dirname(path), False
