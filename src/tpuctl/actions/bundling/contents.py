"""The files of a bundle: written to a temporary folder as they arrive, without secrets, and packed into one file.

File names come from workers and are not trusted.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from tpuctl.actions.bundling.paths import Paths
from tpuctl.diagnosis.redaction.documents import without_secrets, without_suspects
from tpuctl.diagnosis.redaction.stream import Redactor, redact

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from tpuctl.diagnosis.redaction.accounts import Accounts

# Bytes reserved for the files that describe the bundle.
RESERVE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the bundle. Sizes are in bytes."""

    path: str
    file: Path  # where it is stored until it is packed
    size: int
    sha256: str
    source: str = ""
    original_size: int | None = None  # before redaction and truncation, if known
    modified: datetime | None = None
    is_truncated: bool = False
    redactions: Mapping[str, int] = field(default_factory=dict)  # removed secrets by kind


@dataclass(frozen=True, slots=True)
class Lack:
    """An item that is missing in the bundle, and why."""

    path: str
    why: str


class Contents:
    """The files of one bundle. Safe for several threads."""

    def __init__(self, folder: Path, *, room: int, accounts: Accounts | None = None) -> None:
        self._folder, self._accounts = folder, accounts
        self._left = room - RESERVE
        self._entries: list[Entry] = []
        self._lacks: dict[Lack, None] = {}
        self._paths = Paths()
        self._number = 0
        self._lock = Lock()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The files, in the order of their paths."""
        with self._lock:
            return tuple(sorted(self._entries, key=lambda entry: entry.path))

    @property
    def lacks(self) -> tuple[Lack, ...]:
        """The missing items, in the order of their paths."""
        with self._lock:
            return tuple(sorted(self._lacks, key=lambda lack: lack.path))

    @property
    def room(self) -> int:
        """The number of bytes that may still be added."""
        with self._lock:
            return max(0, self._left)

    @property
    def accounts(self) -> Accounts | None:
        """The aliases for addresses; None if addresses are not hidden."""
        return self._accounts

    def lacks_of(self, path: str, why: str) -> None:
        """Record a missing item."""
        with self._lock:
            self._lacks[Lack(self._clean(path), self._clean(why))] = None

    def begin(
        self, path: str, *, source: str = "", original_size: int | None = None, modified: datetime | None = None
    ) -> Writing:
        """Begin a file; its path becomes safe and unique."""
        with self._lock:
            self._number += 1
            file = self._folder / str(self._number)
            safe = self._paths.take(self._clean(path))
        return Writing(self, safe, file, source=self._clean(source), original_size=original_size, modified=modified)

    def add(self, path: str, data: bytes) -> None:
        """Add a small file, beyond the size limit if necessary."""
        writing = self.begin(path)
        writing.take(data, is_vital=True)
        writing.end()

    def add_json(self, path: str, value: Any) -> None:  # JSON
        """Add a small document, without the values of metadata."""
        shown = without_secrets(value)
        text = _dumped(shown)
        try:
            json.loads(redact(text))
        except ValueError:
            # Redaction would break the JSON: a secret that is not a string, or a name that only looks like that of a secret.
            text = _dumped(without_suspects(shown))
        self.add(path, text)

    def add_own(self, path: str, data: bytes) -> None:
        """Add a file that tpuctl wrote about the contents: it has no secrets, and words such as `password` are harmless."""
        writing = self.begin(path)
        writing.take_own(data)
        writing.end()

    def claim(self, size: int) -> int:
        """Reserve room for `size` bytes; return the number granted."""
        with self._lock:
            granted = max(0, min(size, self._left))
            self._left -= granted
            return granted

    def settle(self, entry: Entry) -> None:
        """Add a finished file."""
        with self._lock:
            self._entries.append(entry)

    def _clean(self, text: str) -> str:
        return redact(text.encode("utf-8", "replace"), self._accounts).decode("utf-8", "replace")


def _dumped(value: Any) -> bytes:  # JSON
    return json.dumps(value, indent=2, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


class Writing:
    """Writes one file, without its secrets."""

    def __init__(
        self,
        contents: Contents,
        path: str,
        file: Path,
        *,
        source: str,
        original_size: int | None,
        modified: datetime | None,
    ) -> None:
        self._contents, self.path, self._path = contents, path, file
        self._source, self._original_size, self._modified = source, original_size, modified
        self._file: IO[bytes] = file.open("xb")
        self._redactor = Redactor(contents.accounts)
        self._counts: Counter[str] = Counter()
        self._digest = hashlib.sha256()
        self._size = self._taken = 0
        self._is_truncated = self._is_vital = False

    def take(self, data: bytes, *, is_vital: bool = False) -> None:
        """Write bytes without their secrets, up to the size limit unless `is_vital`."""
        self._taken += len(data)
        self._is_vital |= is_vital
        is_full = self._is_truncated and self._contents.room == 0
        if is_full and not is_vital:
            return
        self._keep(self._redactor.feed(data), is_vital=is_vital)

    def take_own(self, data: bytes) -> None:
        """Write bytes that have no secrets."""
        self._taken += len(data)
        self._keep(data, is_vital=True)

    def skip(self, size: int) -> None:
        """Record that bytes are omitted here."""
        self._close_part()
        self._is_truncated = True
        self._taken += max(0, size)
        self._keep(f"\n[... {size} bytes omitted ...]\n".encode(), is_vital=True)

    def end(self) -> None:
        """Finish the file."""
        self._close_part()
        self._file.close()
        original = self._taken if self._original_size is None else self._original_size
        self._contents.settle(
            Entry(
                self.path,
                self._path,
                self._size,
                self._digest.hexdigest(),
                source=self._source,
                original_size=original,
                modified=self._modified,
                is_truncated=self._is_truncated,
                redactions=dict(sorted(self._counts.items())),
            )
        )

    def _close_part(self) -> None:
        self._keep(self._redactor.close(), is_vital=self._is_vital)
        self._counts += self._redactor.counts
        # The text after a gap is unrelated to the text before it.
        self._redactor = Redactor(self._contents.accounts)

    def _keep(self, data: bytes, *, is_vital: bool = False) -> None:
        granted = len(data) if is_vital else self._contents.claim(len(data))
        if granted < len(data):
            self._is_truncated = True
            data = data[:granted]
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)
