"""The project files that the user trusts: one small private file for each, in the state folder.

Its name is the digest of the project file and of the files that it names, its content is the path. So a changed file is not
trusted, two runs never overwrite each other, and a command needs to parse nothing before it begins.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.files import read_regular_file, replace_private_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_PATH = 4096
_MOST = 1000


@dataclass(frozen=True, slots=True)
class TrustedFile:
    """A trusted project file, with its digest at that time."""

    path: Path
    digest: str
    at: datetime


class TrustedFiles:
    """The trusted project files. An entry that cannot be read does not count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, digest: str) -> bool:
        """Return whether the project file with this digest is trusted."""
        return bool(_DIGEST.fullmatch(digest)) and self._read(digest) is not None

    def add(self, path: Path, digest: str) -> None:
        """Trust a project file in its current form, and no older form. Raises `OSError` if that cannot be saved."""
        before = [one.digest for one in self if one.path == path.resolve()]
        replace_private_file(self._folder / digest, os.fsencode(path.resolve()))
        oldest = [one.digest for one in sorted(self, key=lambda one: one.at)][:-_MOST]
        self._remove(old for old in {*before, *oldest} if old != digest)

    def revoke(self, path: Path) -> bool:
        """Stop trusting a project file, which need not exist; return whether any form of it was trusted."""
        found = [one.digest for one in self if one.path == path.resolve()]
        self._remove(found)
        return bool(found)

    def __iter__(self) -> Iterator[TrustedFile]:
        """Iterate over the trusted files, ordered by path."""
        with suppress(OSError):
            names = [path.name for path in self._folder.iterdir() if _DIGEST.fullmatch(path.name)]
            yield from sorted(filter(None, map(self._read, names)), key=lambda one: one.path)

    def _read(self, digest: str) -> TrustedFile | None:
        try:
            content, status = read_regular_file(self._folder / digest, longest=_LONGEST_PATH)
        except OSError:
            return None
        path = os.fsdecode(content)
        is_ours = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022
        if not (is_ours and path.startswith("/") and "\0" not in path):
            return None
        return TrustedFile(Path(path), digest, datetime.fromtimestamp(status.st_mtime, UTC))

    def _remove(self, digests: Iterator[str] | list[str]) -> None:
        for digest in digests:
            with suppress(OSError):
                (self._folder / digest).unlink()
