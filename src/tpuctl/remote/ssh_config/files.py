"""Reading and writing: tpuctl's file of entries, and the one line by which the user's `~/.ssh/config` includes it."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.private import locked, make_private
from tpuctl.remote.ssh_config.entries import SshConfigError, Text, parse
from tpuctl.remote.ssh_config.taken import included, lines_of
from tpuctl.userfile import read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEADER = "# Written by tpuctl: `tpuctl ssh-config` changes it, `up` refreshes it, `down` cleans it.\n"


def read(path: Path) -> Text:
    """Return what a file of entries holds; nothing where there is no file. Raises `SshConfigError`."""
    with _told(path, "read"):
        return parse(read_bytes(path).decode("utf-8"), source=path) if path.exists() else Text()


def change(path: Path, decide: Callable[[Text], Text]) -> Text:
    """Put what `decide` makes of a file in its place, and return it. Nobody sees half of it, and none of two changes is lost.

    The file is for its owner only; one that holds nothing any more is removed. Raises `SshConfigError`, and what `decide` does.
    """
    with _told(path, "written"):
        path = path.resolve()
        with locked(path.with_name(f".{path.name}.lock")):
            old = read(path)
            new = decide(old)
            if new == old:
                return new
            text = str(new).removeprefix(_HEADER)
            if text.strip():
                _replace(path, (_HEADER + text).encode(), mode=0o600)
            else:
                path.unlink(missing_ok=True)
    return new


def include_line(file: Path, *, home: Path | None) -> str:
    """Return the line that includes a file: below `~` where ssh's home (`home`, of the account) is the file's."""
    if home is not None and file.parent == home / ".ssh":
        return f"Include ~/.ssh/{file.name}"
    return f'Include "{file}"' if " " in str(file) else f"Include {file}"


def is_included(config: Path, file: Path) -> bool:
    """Tell whether a configuration includes a file for every host: before its first `Host` or `Match`."""
    for _, keyword, rest in lines_of(_text(config)):
        if keyword in {"host", "match"}:
            return False
        if keyword == "include" and any(one.resolve() == file.resolve() for one in included(rest, config.parent)):
            return True
    return False


def add_include(config: Path, line: str) -> None:
    """Put a line at the very top of a configuration, which is made where there is none.

    All else in it stays byte for byte, with its mode; a symbolic link stays one. Raises `SshConfigError`.
    """
    with _told(config, "written"):
        target = config.resolve()
        make_private(target.parent)
        old = read_bytes(target) if target.exists() else b""
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
        ending = b"\r\n" if b"\r\n" in old.split(b"\n", 1)[0] + b"\n" else b"\n"
        _replace(target, line.encode() + ending + old, mode=mode)


def _text(path: Path) -> str:
    with _told(path, "read"):
        return read_bytes(path).decode("utf-8", errors="replace") if path.exists() else ""


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


@contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    """Turn failures of the file system into words that name the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise SshConfigError(f"`{path}` cannot be {what}: it is not text", hint="move it away") from error
    except OSError as error:
        hint = "make it and its folder readable and writable for you"
        raise SshConfigError(f"`{path}` cannot be {what}: {error.strerror}", hint=hint) from error
