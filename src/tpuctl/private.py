"""Folders for the owner only: what tpuctl remembers may hold secrets."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


# Far more than anything that tpuctl writes: what is larger is not its own, or would fill the memory.
_MOST = 64 << 20


def read_bounded(path: Path) -> bytes:
    """Return a file's content. Raises `OSError`, also for one of more than 64 MiB."""
    with path.open("rb") as file:
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise OSError(errno.EFBIG, f"it has more than {_MOST >> 20} MiB", str(path))
    return content


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, all for the owner only."""
    if folder.is_dir():
        return
    # `Path.mkdir(parents=True)` gives its mode to the last folder alone.
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
