"""The one file that a bundle becomes: written beside its place, and there whole or not at all."""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tpuctl.errors import ConflictError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from tpuctl.actions.bundling.contents import Entry

# Text shrinks to a tenth; more effort takes longer than it saves.
_EFFORT = 6


class FileExistsAlreadyError(ConflictError):
    """There is a file of that name."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"`{path}` is there already", hint="name another with `--file FILE`, or replace it with `--force`"
        )


class NotWrittenError(TpuctlError):
    """This machine's disk did not take the bundle, or what it is made of: it is full, or may not be written to."""

    def __init__(self, error: OSError, folder: str) -> None:
        why = (error.strerror or str(error)).lower()
        where = f" `{error.filename}`" if error.filename else ""
        super().__init__(
            f"the bundle was not written:{where} {why}",
            hint=f"it is gathered in `{folder}` (`TMPDIR` changes that); `--file` names another place, `--max-size` less",
        )


def pack(entries: Sequence[Entry], file: IO[bytes], *, folder: str, created: datetime) -> None:
    """Write the files as a tar archive, compressed by gzip, below one folder."""
    when = int(created.timestamp())
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_EFFORT, fileobj=file, mtime=when) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in entries:
            about = tarfile.TarInfo(f"{folder}/{entry.path}")
            about.size, about.mode = entry.size, 0o600
            about.mtime = max(0, int(entry.modified.timestamp())) if entry.modified else when
            with entry.file.open("rb") as content:
                archive.addfile(about, content)


@contextmanager
def written(path: Path, *, replaces: bool) -> Iterator[IO[bytes]]:
    """Give a file to write to, which gets its name at the end; an error or an interrupt leaves nothing behind.

    It is for its owner only. Raises `FileExistsAlreadyError` where there is one by then, unless it may be replaced, and
    `OSError` where nothing can be written there.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replaces:
            scratch.replace(path)
        else:
            _name(scratch, path)
    finally:
        with suppress(FileNotFoundError):
            scratch.unlink()


def _name(scratch: Path, path: Path) -> None:
    try:
        # A rename would replace what has come there meanwhile.
        os.link(scratch, path)
    except FileExistsError as error:
        raise FileExistsAlreadyError(path) from error
    except OSError:
        # A file system without links.
        if path.exists():
            raise FileExistsAlreadyError(path) from None
        scratch.replace(path)
