"""Read files within limits of size and time, parse YAML within limits of size and depth, and write private files.

A path from the user may be a pipe (`--env-file <(generate)`), a device, a directory, or larger than the memory: it is read
within the limits, or raises an `InvalidInputError` (exit 2) with the file and the reason.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

KIB: Final = 1024
MIB: Final = 1024 * KIB
# The largest value of one metadata key [Compute Engine documentation, "Metadata entries"].
METADATA_LIMIT: Final = 256 * KIB
# Enough for configurations that people write by hand.
TEXT_LIMIT: Final = 4 * MIB
# The time for a writer to open a pipe that has none.
_WRITER_SECONDS: Final = 2.0
# The total time for reading a pipe: `<(gcloud secrets versions access …)` takes seconds.
_PIPE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02
# Reopening one of these after its writer has exited gives a pipe at its end, not one without a writer.
_INHERITED: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def read_text(path: Path, *, limit: int = TEXT_LIMIT, what: str | None = None) -> str:
    """Return the text of a UTF-8 file with line ends as `\\n`, as `Path.read_text` does.

    `what` names the file in errors (default: its path). Raises the errors of `read_bytes`, and `InvalidInputError` with the
    line if the text is not UTF-8.
    """
    return decode(read_bytes(path, limit=limit, what=what), what or f"`{path}`")


def read_bytes(path: Path, *, limit: int = TEXT_LIMIT, what: str | None = None) -> bytes:
    """Return the content of a regular file, a pipe, or `/dev/null`; `~` is expanded.

    A pipe without a writer fails after 2 seconds, one that has not ended after 60. Raises `InvalidInputError` for other kinds
    of file, for more than `limit` bytes, and if it cannot be opened or read; its cause is `FileNotFoundError` if there is no
    file.
    """
    name = what or f"`{path}`"
    try:
        # Without O_NONBLOCK opening a pipe waits for a writer.
        file = os.open(expand(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable(name, _reason(error)) from error
    try:
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode):
            if status.st_size > limit:
                raise _too_large(name, limit, status.st_size)
            return _take(lambda: os.read(file, MIB), limit=limit, name=name)
        if stat.S_ISFIFO(status.st_mode):
            is_inherited = str(path).startswith(_INHERITED)
            return _take(_PipeReader(file, name, has_had_writer=is_inherited).read, limit=limit, name=name)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == Path(os.devnull).stat().st_rdev:
            return b""
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a device or a socket"
        raise _unreadable(name, f"it is {kind}", hint="name a regular file")
    except OSError as error:
        raise _unreadable(name, _reason(error)) from error
    finally:
        os.close(file)


def read_stream(stream: TextIO, *, limit: int = TEXT_LIMIT, what: str = "stdin") -> str:
    """Return the text of stdin, at most `limit` characters. Raises `InvalidInputError`."""
    try:
        text = stream.read(limit + 1)
    except UnicodeDecodeError as error:
        raise _unreadable(what, f"not UTF-8 text (byte 0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise _unreadable(what, _reason(error)) from error
    if len(text) > limit:
        raise _too_large(what, limit)
    return text


def decode(content: bytes, what: str) -> str:
    """Decode UTF-8 text, with line ends as `\\n`. Raises `InvalidInputError` with the line."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        place = f"line {line}, byte {column} (0x{content[error.start]:02x})"
        raise _unreadable(what, f"not UTF-8 text: {place}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def expand(path: Path) -> Path:
    """Return a path with `~` expanded; the file need not exist. Raises `InvalidInputError` for an invalid path."""
    try:
        expanded = path.expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            expanded.lstat()
    except RuntimeError:
        raise InvalidInputError(f"`{path}`: no such user", hint=f"write `./{path}` for a file of that name") from None
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"`{path}` is not a path: {_reason(error).lower()}") from error
    return expanded


def _take(read: Callable[[], bytes], *, limit: int, name: str) -> bytes:
    content = bytearray()
    while piece := read():
        content += piece
        if len(content) > limit:
            raise _too_large(name, limit)
    return bytes(content)


class _PipeReader:
    """Reads a non-blocking pipe for a limited time."""

    def __init__(self, file: int, name: str, *, has_had_writer: bool) -> None:
        self._file, self._name, self._has_had_writer = file, name, has_had_writer
        self._begin = time.monotonic()

    def read(self) -> bytes:
        """Return the next bytes, `b""` at the end."""
        while True:
            passed = time.monotonic() - self._begin
            try:
                piece = os.read(self._file, MIB)
            except BlockingIOError:
                self._has_had_writer = True
                if passed > _PIPE_SECONDS:
                    text = f"the pipe has not ended after {_PIPE_SECONDS:.0f} seconds"
                    raise _unreadable(self._name, text, hint="write to a file first, and name that") from None
                select.select([self._file], [], [], 1.0)
                continue
            if piece or self._has_had_writer:
                self._has_had_writer = True
                return piece
            if passed > _WRITER_SECONDS:
                text = f"it is a pipe, and no program opened it for writing within {_WRITER_SECONDS:.0f} seconds"
                raise _unreadable(self._name, text, hint="name a regular file")
            time.sleep(_POLL_SECONDS)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # System calls refuse such a path [the message of CPython depends on its version].
    return "a path must not contain a zero byte" if "null" in str(error) else str(error)


def _unreadable(name: str, reason: str, *, hint: str | None = None) -> InvalidInputError:
    return InvalidInputError(f"{name} cannot be read: {reason}", hint=hint)


def _too_large(name: str, limit: int, size: int | None = None) -> InvalidInputError:
    found = f"{_size(size)}" if size is not None else f"more than {_size(limit)}"
    return InvalidInputError(f"{name} is too large: {found}; the limit is {_size(limit)}")


def _size(size: int) -> str:
    for unit, name in ((1024**3, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"
