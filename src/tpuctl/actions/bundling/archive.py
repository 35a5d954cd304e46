"""Pack a bundle into one file, which appears complete or not at all."""

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

# Text shrinks to a tenth; a higher level takes longer than it saves.
_EFFORT = 6


class FileExistsAlreadyError(ConflictError):
    """A file with that name exists."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"`{path}` already exists", hint="name another with `--file FILE`, or replace it with `--force`"
        )


class NotWrittenError(TpuctlError):
    """The bundle could not be written to the disk of this machine: the disk is full, or not writable."""

    def __init__(self, error: OSError, folder: str) -> None:
        why = (error.strerror or str(error)).lower()
        where = f" `{error.filename}`" if error.filename else ""
        super().__init__(
            f"cannot write the bundle:{where} {why}",
            hint=f"its parts are stored in `{folder}` (set `TMPDIR`); `--file` names another place, `--max-size` a limit",
        )


def pack(entries: Sequence[Entry], file: IO[bytes], *, folder: str, created: datetime) -> None:
    """Write the files as a gzip-compressed tar archive, below one folder."""
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
    """Yield a temporary file that gets its name at the end; an error or an interrupt removes it.

    Only its owner may read it. Raises `FileExistsAlreadyError` if the name exists by then, unless `replaces`, and `OSError` if
    the folder is not writable.
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
            return
        try:
            # A rename would replace a file that appeared meanwhile.
            os.link(scratch, path)
        except FileExistsError as error:
            raise FileExistsAlreadyError(path) from error
        except OSError:
            # A file system without links.
            if path.exists():
                raise FileExistsAlreadyError(path) from None
            scratch.replace(path)
    finally:
        with suppress(FileNotFoundError):
            scratch.unlink()
