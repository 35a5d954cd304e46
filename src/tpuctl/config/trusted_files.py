"""The project files that the user trusts: one small private file for each, in the state folder.

Its name is the digest of the project file and of the files that it names, its content is that digest and the path. So a changed
file is not trusted, an entry holds for one file and content even if it is renamed, and two runs never overwrite each other. As
with ssh's files, an entry counts only if no other user can write it or its folder.
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

from tpuctl.files import (
    private_folder_problem,
    read_regular_file,
    real_path,
    replace_private_file,
    secure_private_folder,
)

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
    """The trusted project files. An entry that cannot be read does not count.

    `problem`: why no entry counts, as other users could have made it; None if only this user can.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.problem = private_folder_problem(folder)

    def has(self, path: Path, digest: str) -> bool:
        """Return whether this project file is trusted with this digest."""
        entry = self._read(digest) if _DIGEST.fullmatch(digest) else None
        return entry is not None and entry.path == real_path(path)

    def add(self, path: Path, digest: str) -> None:
        """Trust a project file in its current form, and no older form. Raises `OSError` if that cannot be saved."""
        secure_private_folder(self._folder)
        self.problem, path = None, real_path(path)
        before = [one.digest for one in self if one.path == path]
        replace_private_file(self._folder / digest, f"{digest} ".encode() + os.fsencode(path))
        oldest = [one.digest for one in sorted(self, key=lambda one: one.at)][:-_MOST]
        self._remove(old for old in {*before, *oldest} if old != digest)

    def revoke(self, path: Path) -> bool:
        """Stop trusting a project file, which need not exist; return whether any form of it was trusted."""
        found = [one.digest for one in self if one.path == real_path(path)]
        self._remove(found)
        return bool(found)

    def __iter__(self) -> Iterator[TrustedFile]:
        """Iterate over the trusted files, ordered by path."""
        with suppress(OSError):
            names = [path.name for path in self._folder.iterdir() if _DIGEST.fullmatch(path.name)]
            yield from sorted(filter(None, map(self._read, names)), key=lambda one: one.path)

    def _read(self, digest: str) -> TrustedFile | None:
        if self.problem is not None:
            return None
        try:
            content, status = read_regular_file(self._folder / digest, longest=_LONGEST_PATH)
        except OSError:
            return None
        written, _, path = os.fsdecode(content).partition(" ")
        is_ours = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022
        if not (is_ours and written == digest and path.startswith("/") and "\0" not in path):
            return None
        return TrustedFile(Path(path), digest, datetime.fromtimestamp(status.st_mtime, UTC))

    def _remove(self, digests: Iterator[str] | list[str]) -> None:
        for digest in digests:
            with suppress(OSError):
                (self._folder / digest).unlink()
