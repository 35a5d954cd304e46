"""Files, folders and programs of this machine, looked at without changing any."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.bounded_input import read_file
from tpuctl.checkup.surroundings.facts import Entry
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

# A program that tells its version, or a key, does so at once; one that waits for something is ended.
_PATIENCE_SECONDS = 3.0


class Said(NamedTuple):
    """How a program has ended, and what it wrote."""

    code: int
    out: str
    err: str


def entry(path: Path, *, is_folder: bool = False, is_written: bool = False) -> Entry:
    """Return a file or folder as it is; what is absent has a problem only where it could not be made."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return Entry(path, problem=_why_not_made(path) if is_written else None)
    except OSError as error:
        return Entry(path, problem=_words(error))
    mode, is_own = stat.S_IMODE(status.st_mode), status.st_uid == os.geteuid()
    if stat.S_ISDIR(status.st_mode) != is_folder:
        return Entry(path, mode, is_own, "it is no folder" if is_folder else "it is a folder")
    needed = os.R_OK | (os.X_OK if is_folder else 0) | (os.W_OK if is_written else 0)
    problem = None if os.access(path, needed) else "you may not " + ("write to it" if is_written else "read it")
    return Entry(path, mode, is_own, problem)


def bytes_left(path: Path) -> int | None:
    """Return the room on the disk that a path is on, or would be; nothing where that cannot be told."""
    try:
        return shutil.disk_usage(_nearest(path)).free
    except OSError:
        return None


def text_of(path: Path, *, most: int = 1 << 20) -> Fact[str]:
    """Return the text of a regular file of at most `most` bytes."""
    try:
        return Known(read_file(path, longest=most)[0].decode("utf-8"))
    except FileNotFoundError:
        return Absent("there is no such file")
    except OSError as error:
        return Unknown(_words(error))
    except UnicodeDecodeError:
        return Unknown("it is not text")


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """Return where a program is on PATH."""
    return shutil.which(name, path=environ.get("PATH"))


def ask_program(argv: list[str], environ: Mapping[str, str]) -> Fact[Said]:
    """Return what a program says that gets no input and no terminal; unknown where it says nothing for three seconds."""
    import subprocess  # noqa: PLC0415  # only for this command

    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PATIENCE_SECONDS,
            # Nobody is there to be asked, in a window neither.
            env={**environ, "SSH_ASKPASS_REQUIRE": "never"},
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return Unknown("it says nothing", is_passing=True)
    except OSError as error:
        return Unknown(_words(error))
    return Known(Said(done.returncode, done.stdout, done.stderr))


def _why_not_made(path: Path) -> str | None:
    above = _nearest(path.parent)
    if not above.is_dir():
        return f"`{above}` is no folder"
    return None if os.access(above, os.W_OK | os.X_OK) else f"it is not there, and you may not write to `{above}`"


def _nearest(path: Path) -> Path:
    for one in (path, *path.parents):
        try:
            one.stat()
        except OSError:
            continue
        return one
    return Path("/")


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
