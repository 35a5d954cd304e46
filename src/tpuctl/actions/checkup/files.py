"""Read facts about files, folders and programs of this machine, without changing any."""

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

# A program prints its version or a key at once; one that waits for something is terminated.
_PATIENCE_SECONDS = 3.0


class Said(NamedTuple):
    """The exit code and the output of a program."""

    code: int
    out: str
    err: str


def entry(path: Path, *, is_folder: bool = False, is_written: bool = False) -> Entry:
    """Return the status of a file or folder. An absent one has a problem only if it is written and cannot be created."""
    try:
        status = path.stat()
    except FileNotFoundError:
        above, problem = _nearest(path.parent), None
        if not above.is_dir():
            problem = f"`{above}` is no folder"
        elif not os.access(above, os.W_OK | os.X_OK):
            problem = f"it does not exist, and you may not write to `{above}`"
        return Entry(path, problem=problem if is_written else None)
    except OSError as error:
        return Entry(path, problem=_words(error))
    mode, is_own = stat.S_IMODE(status.st_mode), status.st_uid == os.geteuid()
    if stat.S_ISDIR(status.st_mode) != is_folder:
        return Entry(path, mode, is_own, "it is no folder" if is_folder else "it is a folder")
    needed = os.R_OK | (os.X_OK if is_folder else 0) | (os.W_OK if is_written else 0)
    problem = None if os.access(path, needed) else "you may not " + ("write to it" if is_written else "read it")
    return Entry(path, mode, is_own, problem)


def bytes_left(path: Path) -> int | None:
    """Return the free bytes on the disk of a path, which need not exist. None if they cannot be read."""
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
    """Return the path of a program on PATH, None if there is no such program."""
    return shutil.which(name, path=environ.get("PATH"))


def ask_program(argv: list[str], environ: Mapping[str, str]) -> Fact[Said]:
    """Run a program without input and terminal, and return its output. Unknown if it does not end within three seconds."""
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
            # No password prompt, neither at the terminal nor in a window.
            env={**environ, "SSH_ASKPASS_REQUIRE": "never"},
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return Unknown("it did not answer", is_passing=True)
    except OSError as error:
        return Unknown(_words(error))
    return Known(Said(done.returncode, done.stdout, done.stderr))


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
