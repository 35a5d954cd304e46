"""Where tpuctl keeps what it remembers: the journal, the sandbox's world, the host keys of workers."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of everything that is remembered on this machine."""
    if named := environ.get("TPUCTL_STATE_DIR"):
        return Path(named)
    # The XDG specification says that a relative path is to be ignored.
    if (base := environ.get("XDG_STATE_HOME", "")).startswith("/"):
        return Path(base) / "tpuctl"
    return Path(environ.get("HOME") or _home()) / ".local" / "state" / "tpuctl"


def check_state_folder(environ: Mapping[str, str]) -> None:
    """Raise `InvalidInputError`, naming the variable, where something that is no folder stands in place of the state folder."""
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
            raise InvalidInputError(f"`{named}` is no folder: {reason}") from error
        if not stat.S_ISDIR(mode):
            raise InvalidInputError(
                f"`{named}` is no folder: `{place}` is not a directory", hint="name a folder that you may write to"
            )
        return


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise InvalidInputError("HOME is not set", hint="set HOME or TPUCTL_STATE_DIR to a folder") from None


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
