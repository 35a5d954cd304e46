"""Where tpuctl keeps what it remembers: the journal, the sandbox's world, the host keys of workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of everything that is remembered on this machine."""
    if named := environ.get("TPUCTL_STATE_DIR"):
        return Path(named)
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".local" / "state")
    return Path(base) / "tpuctl"


def journal_folder(environ: Mapping[str, str], *, sandbox: bool) -> Path:
    """Return the folder of the journal; what happened in the sandbox is kept apart from what was real."""
    return state_folder(environ) / ("sandbox/journal" if sandbox else "journal")


def journal_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders of both journals, without asking which one a command would use."""
    return journal_folder(environ, sandbox=False), journal_folder(environ, sandbox=True)


def checked_file(environ: Mapping[str, str], *, sandbox: bool) -> Path:
    """Return the file of what was checked lately."""
    return state_folder(environ) / ("sandbox/checked.json" if sandbox else "checked.json")


def trusted_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the project files that are trusted, in the sandbox as elsewhere."""
    return state_folder(environ) / "trusted"


def sandbox_world(environ: Mapping[str, str]) -> Path:
    """Return the file that holds the sandbox's world."""
    return state_folder(environ) / "sandbox" / "world.sqlite3"
