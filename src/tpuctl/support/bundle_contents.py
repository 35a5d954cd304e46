"""The files of a bundle: written to a temporary folder as they arrive, without secrets, and packed into one file.

File names come from workers and are not trusted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import tarfile
import tempfile
from collections import Counter
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from posixpath import splitext
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.redaction import Redactor, hide_metadata, hide_suspicious_values, redact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from tpuctl.redaction import AccountAliases

# Bytes reserved for the files that describe the bundle.
RESERVED_BYTES = 256 * 1024


class MissingItem(NamedTuple):
    """An item that is missing in the bundle, and why."""

    path: str
    why: str


class BundleContents:
    """The files of one bundle. Safe for several threads."""

    def __init__(self, folder: Path, *, max_bytes: int, accounts: AccountAliases | None = None) -> None:
        self._folder, self.accounts = folder, accounts
        self._bytes_left = max_bytes - RESERVED_BYTES
        self._entries: list[BundleFile] = []
        self._missing: dict[MissingItem, None] = {}
        self._paths = UniquePaths()
        self._is_closed = False
        self._lock = Lock()

    @property
    def entries(self) -> tuple[BundleFile, ...]:
        """The files, in the order of their paths."""
        with self._lock:
            return tuple(sorted(self._entries, key=lambda entry: entry.path))

    @property
    def missing(self) -> tuple[MissingItem, ...]:
        """The missing items, in the order of their paths."""
        with self._lock:
            return tuple(sorted(self._missing, key=lambda item: item.path))

    @property
    def bytes_left(self) -> int:
        """The number of bytes that may still be added."""
        with self._lock:
            return self._bytes_left

    @property
    def redactions(self) -> dict[str, int]:
        """The number of removed secrets of each kind."""
        return dict(sorted(sum((entry.redactions for entry in self.entries), Counter[str]()).items()))

    @property
    def size(self) -> int:
        """The size of all files together, in bytes."""
        return sum(entry.size for entry in self.entries)

    def add_missing(self, path: str, why: str) -> None:
        """Record a missing item."""
        with self._lock:
            self._missing[MissingItem(self.clean(path), self.clean(why))] = None

    def begin(self, path: str, **about: Any) -> BundleFile:
        """Begin a file; its path becomes safe and unique. `about`: see `BundleFile`. Raises `RuntimeError` after `close`."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the bundle is closed")
            file = self._folder / str(len(self._entries))
            entry = BundleFile(self, self._paths.make_unique(self.clean(path)), file, **about)
            self._entries.append(entry)
            return entry

    def close(self) -> None:
        """Let no further files begin: their folder is about to be removed."""
        with self._lock:
            self._is_closed = True

    def add(self, path: str, data: bytes, **about: Any) -> None:
        """Add a small file, beyond the size limit if necessary."""
        writing = self.begin(path, is_limited=False, **about)
        writing.write(data)
        writing.end()

    def add_json(self, path: str, value: Any, *, home: str = "") -> None:  # JSON
        """Add a small document, without the values of metadata, and with `~` for the folder `home`."""
        shown = hide_metadata(value)
        text = dump_json(shown)
        try:
            json.loads(redact(text))
        except ValueError:
            # Redaction would break the JSON: a secret that is not a string, or a name that only looks like that of a secret.
            text = dump_json(hide_suspicious_values(shown))
        if folder := json.dumps(home.rstrip("/"), ensure_ascii=False)[1:-1].encode("utf-8", "replace"):
            text = re.sub(rb"(?<![\w/.\-])%s(?=/|\W|$)" % re.escape(folder), b"~", text)
        self.add(path, text)

    def reserve(self, size: int) -> int:
        """Reserve `size` bytes; return the number granted."""
        with self._lock:
            granted = min(size, self._bytes_left)
            self._bytes_left -= granted
            return granted

    def clean(self, text: str) -> str:
        """Return a text without its secrets."""
        return redact(text.encode("utf-8", "replace"), self.accounts).decode("utf-8", "replace")


def dump_json(value: Any) -> bytes:  # JSON
    """Return a document as it stands in a bundle."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


class BundleFile:
    """One file: written without its secrets, and stored in a temporary folder until it is packed. Sizes are in bytes.

    `announced`: its size at its source, if that is known. `is_own`: tpuctl wrote it about the contents; it has no secrets,
    and words such as `password` are harmless.
    """

    def __init__(
        self,
        contents: BundleContents,
        path: str,
        file: Path,
        *,
        source: str = "",
        announced: int | None = None,
        modified: datetime | None = None,
        is_limited: bool = True,
        is_own: bool = False,
    ) -> None:
        self.path, self.file, self.source, self.modified = path, file, contents.clean(source), modified
        self.size = 0
        self.is_truncated = False
        self.redactions: Counter[str] = Counter()  # removed secrets by kind
        self._contents, self._announced, self._received = contents, announced, 0
        self._is_limited, self._is_own = is_limited, is_own
        self._stream: IO[bytes] = file.open("xb")
        self._redactor = Redactor(contents.accounts)
        self._digest = hashlib.sha256()

    @property
    def original_size(self) -> int:
        """The size before redaction and truncation."""
        return self._received if self._announced is None else self._announced

    @property
    def sha256(self) -> str:
        """The checksum of the stored file."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        """Write bytes without their secrets, up to the size limit."""
        self._received += len(data)
        self._store(data if self._is_own else self._redactor.feed(data))

    def skip(self, size: int) -> None:
        """Record that bytes are omitted here."""
        self._close_part()
        self.is_truncated = True
        self._received += size
        self._write(f"\n[... {size} bytes omitted ...]\n".encode())

    def end(self) -> None:
        """Finish the file."""
        self._close_part()
        self._stream.close()

    def _close_part(self) -> None:
        self._store(self._redactor.close())
        self.redactions += self._redactor.counts
        # The text after a gap is unrelated to the text before it.
        self._redactor = Redactor(self._contents.accounts)

    def _store(self, data: bytes) -> None:
        granted = self._contents.reserve(len(data)) if self._is_limited else len(data)
        self.is_truncated |= granted < len(data)
        self._write(data[:granted])

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self.size += len(data)


_MAX_PART_LENGTH = 120
_MAX_DEPTH = 10
# Besides letters, digits and `_.-~`. All other characters may mean something to a shell, a terminal or another system.
_SAFE_CHARACTERS = " !#$&'()+,;=@[]{}^"


def safe_path(path: str) -> str:
    """Return a relative path without `..`, with `%XX` for unsafe characters; never empty."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if len(parts) > _MAX_DEPTH:
        parts = [*parts[: _MAX_DEPTH - 1], parts[-1]]
    # The end of a name says more than its beginning.
    names = (quote(part, safe=_SAFE_CHARACTERS, errors="replace")[-_MAX_PART_LENGTH:].strip(" ") for part in parts)
    return "/".join(name if name.strip(".") else "_" for name in names) or "unnamed"


class UniquePaths:
    """Makes paths safe and unique."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def make_unique(self, path: str) -> str:
        """Return a safe path that no other file has, ignoring case."""
        safe = safe_path(path)
        # A file cannot be a folder too.
        while above := min(_folders_of(safe) & self._files, key=len, default=""):
            safe = f"{safe[: len(above)]}_{safe[len(above) + 1 :]}"
        stem, suffix = splitext(safe)
        candidates = chain([safe], (f"{stem}~{number}{suffix}" for number in count(2)))
        unique = next(one for one in candidates if one.lower() not in self._files and one.lower() not in self._folders)
        self._files.add(unique.lower())
        self._folders |= _folders_of(unique)
        return unique


def _folders_of(path: str) -> set[str]:
    return {path[:at].lower() for at, char in enumerate(path) if char == "/"}


# Text shrinks to a tenth; a higher level takes longer than it saves.
_COMPRESSION_LEVEL = 6


class BundleExistsError(ConflictError):
    """A file with that name exists."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"`{path}` already exists", hint="name another with `--file FILE`, or replace it with `--force`"
        )


class BundleNotWrittenError(TpuctlError):
    """The bundle could not be written to the disk of this machine: the disk is full, or not writable."""

    def __init__(self, error: OSError, folder: str) -> None:
        why = (error.strerror or str(error)).lower()
        where = f" `{error.filename}`" if error.filename else ""
        super().__init__(
            f"cannot write the bundle:{where} {why}",
            hint=f"its parts are stored in `{folder}` (set `TMPDIR`); `--file` names another place, `--max-size` a limit",
        )


def write_archive(entries: Sequence[BundleFile], file: IO[bytes], *, folder: str, created: datetime) -> None:
    """Write the files as a gzip-compressed tar archive, below one folder."""
    when = int(created.timestamp())
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_COMPRESSION_LEVEL, fileobj=file, mtime=when) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in entries:
            about = tarfile.TarInfo(f"{folder}/{entry.path}")
            about.size, about.mode = entry.size, 0o600
            about.mtime = max(0, int(entry.modified.timestamp())) if entry.modified else when
            with entry.file.open("rb") as content:
                archive.addfile(about, content)


@contextmanager
def replace_atomically(path: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Yield a temporary file that gets its name at the end; an error or an interrupt removes it.

    Only its owner may read it. Raises `BundleExistsError` if the name exists by then, unless `overwrite`, and `OSError` if
    the folder is not writable.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            scratch.replace(path)
            return
        try:
            # A rename would replace a file that appeared meanwhile.
            os.link(scratch, path)
        except FileExistsError as error:
            raise BundleExistsError(path) from error
        except OSError:
            # A file system without links.
            if path.exists():
                raise BundleExistsError(path) from None
            scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
