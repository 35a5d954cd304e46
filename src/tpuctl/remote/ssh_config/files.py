"""Read and write tpuctl's file of entries, and add the line to `~/.ssh/config` that includes it."""

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
    """Read a file of entries. Empty if there is no file. Raises `SshConfigError`."""
    with _named_errors(path, "read"):
        return parse(read_bytes(path).decode("utf-8"), source=path) if path.exists() else Text()


def change(path: Path, decide: Callable[[Text], Text]) -> Text:
    """Replace the contents of a file by what `decide` returns for them, and return that. The file is locked and atomic.

    The file is private; an empty file is removed. Raises `SshConfigError`, and what `decide` raises.
    """
    with _named_errors(path, "written"):
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
    """Return the line that includes a file. It uses `~` if the file is in the `.ssh` of `home`, the account's home."""
    if home is not None and file.parent == home / ".ssh":
        return f"Include ~/.ssh/{file.name}"
    return f'Include "{file}"' if " " in str(file) else f"Include {file}"


def is_included(config: Path, file: Path) -> bool:
    """Tell whether a configuration includes a file for all hosts: before its first `Host` or `Match`."""
    with _named_errors(config, "read"):
        text = read_bytes(config).decode("utf-8", errors="replace") if config.exists() else ""
    for _, keyword, rest in lines_of(text):
        if keyword in {"host", "match"}:
            return False
        if keyword == "include" and any(one.resolve() == file.resolve() for one in included(rest, config.parent)):
            return True
    return False


def add_include(config: Path, line: str) -> None:
    """Insert a line at the top of a configuration, and create the file if it is missing.

    All other bytes and the file mode stay the same; a symbolic link stays a link. Raises `SshConfigError`.
    """
    with _named_errors(config, "written"):
        target = config.resolve()
        make_private(target.parent)
        old = read_bytes(target) if target.exists() else b""
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
        ending = b"\r\n" if b"\r\n" in old.split(b"\n", 1)[0] + b"\n" else b"\n"
        _replace(target, line.encode() + ending + old, mode=mode)


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
def _named_errors(path: Path, what: str) -> Iterator[None]:
    """Convert errors of the file system to `SshConfigError` with the name of the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise SshConfigError(f"`{path}` cannot be {what}: it is not text", hint="rename it") from error
    except OSError as error:
        hint = "make it and its folder readable and writable"
        raise SshConfigError(f"`{path}` cannot be {what}: {error.strerror}", hint=hint) from error
