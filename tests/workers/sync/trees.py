"""Create trees of files, and list them."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def files(folder: Path) -> dict[str, str]:
    """Return the files of a folder: contents, targets of symlinks, and a star for executables."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_text() + ("*" if path.stat().st_mode & 0o100 else "")
    return found
