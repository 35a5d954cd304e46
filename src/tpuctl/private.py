"""Folders for the owner only: what tpuctl remembers may hold secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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
