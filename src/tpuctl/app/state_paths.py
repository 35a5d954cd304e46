"""The folders and files of the state that tpuctl keeps on this machine."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of all state on this machine. Raises `InvalidInputError` if no home directory is known."""
    if named := environ.get("TPUCTL_STATE_DIR"):
        return Path(named)
    # The XDG specification says to ignore relative paths.
    if (base := environ.get("XDG_STATE_HOME", "")).startswith("/"):
        return Path(base) / "tpuctl"
    try:
        home = Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        raise InvalidInputError("HOME is not set", hint="set HOME or TPUCTL_STATE_DIR to a folder") from None
    return home / ".local" / "state" / "tpuctl"


def check_state_folder(environ: Mapping[str, str]) -> None:
    """Raise `InvalidInputError`, naming the variable, if the state folder or a parent of it is not a directory."""
    folder = state_folder(environ)
    variables = ("TPUCTL_STATE_DIR", "XDG_STATE_HOME", "HOME")
    named = next((f"{name}={value}" for name in variables if (value := environ.get(name))), str(folder))
    for place in (folder, *folder.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()
            raise InvalidInputError(f"`{named}` is not a directory: {reason}") from error
        if not stat.S_ISDIR(mode):
            raise InvalidInputError(
                f"`{named}`: `{place}` is not a directory", hint="set it to a directory that you can write to"
            )
        return


def journal_folder(environ: Mapping[str, str], *, sandbox: bool) -> Path:
    """Return the folder of the journal; the sandbox has its own."""
    return state_folder(environ) / ("sandbox/journal" if sandbox else "journal")


def journal_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders of both journals: of the cloud and of the sandbox."""
    return journal_folder(environ, sandbox=False), journal_folder(environ, sandbox=True)


def preflight_cache_file(environ: Mapping[str, str], *, sandbox: bool) -> Path:
    """Return the file that stores the results of recent checks."""
    return state_folder(environ) / ("sandbox/checked.json" if sandbox else "checked.json")


def trusted_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that stores which project files are trusted, for the sandbox too."""
    return state_folder(environ) / "trusted"


def sandbox_state_file(environ: Mapping[str, str]) -> Path:
    """Return the file that holds the state of the sandbox."""
    return state_folder(environ) / "sandbox" / "world.sqlite3"
