"""Validate the frames that a worker sends during a copy: their order and their contents.

Every frame of a worker is checked here first; an invalid one raises `UnexpectedAnswerError`. A worker may send only names that
match the request. Pure: touches no files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tpuctl.ssh.agent.copy_files import BATCH, BLOCK, STEP, CopyEntry, CopyTarget, FrameRules, to_bytes
from tpuctl.ssh.answers import (
    UnexpectedAnswerError,
    parse_answer,
    parse_array,
    parse_boolean,
    parse_choice,
    parse_integer,
    parse_path,
    parse_string,
)
from tpuctl.ssh.answers import preview as shown_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.ssh.agent.copy_files import FileListing, FileSender

_LARGE, _SMALL = 4 << 20, 256 << 10
_MAX_TEXT = 16 << 10
_MAX_FILES = 10**9
# Bytes for the folder names of one source, which are kept because their files come later.
_MAX_FOLDER_BYTES = 64 << 20
_KEY, _DIGEST, _EMPTY = re.compile(r"[0-9a-f]{12}"), re.compile(r"[0-9a-f]{40}"), re.compile("")
_WILDCARD = re.compile(r"[*?[]")
_MAX_MODE = 0o177777
_MAX_TIME = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What to fetch from a worker."""

    patterns: tuple[str, ...]
    # The name for the copy of a home folder.
    login: str
    recurse: bool
    # Whether a source `.` includes hidden files.
    hidden: bool

    @property
    def homes(self) -> dict[str, str]:
        """The patterns for a home folder, and the names of their copies."""
        return {pattern: _last(pattern)[1:] or self.login for pattern in self.patterns if _is_home(pattern)}

    @property
    def most(self) -> int | None:
        """The maximum number of sources. None with wildcards, which the worker expands."""
        return None if any(map(_WILDCARD.search, self.patterns)) else len(self.patterns)

    def allows(self, name: str) -> bool:
        """Tell whether a file or folder of that name was requested."""
        return any(_matches(name, pattern, self.login) for pattern in self.patterns)


def _last(pattern: str) -> str:
    return pattern.rstrip("/").rpartition("/")[2] or "."


def _is_home(pattern: str) -> bool:
    return pattern.startswith("~") and "/" not in pattern.rstrip("/")


def _matches(name: str, pattern: str, login: str) -> bool:
    last = _last(pattern)
    if name == last or (_is_home(pattern) and name == (last[1:] or login)):
        return True
    # As in `glob`, a wildcard at the start does not match hidden names.
    may_match = not name.startswith(".") or last.startswith(".")
    is_pattern = bool(_WILDCARD.search(last)) and name not in {".", ".."}
    return is_pattern and may_match and fnmatchcase(to_bytes(name), to_bytes(last))


class SenderFrames(FrameRules):
    """Validates the frames of a worker that sends files."""

    def __init__(self, asked: FetchRequest) -> None:
        self._asked = asked
        self._named = self._count = self._listed = self._top_level = 0
        self._tree: str | None = None
        self._has_begun = self._may_send_digests = self._has_ended = False
        self._folders: set[str] = set()
        self._folder_room = _MAX_FOLDER_BYTES
        # A name may match several patterns: those without wildcards are tried first.
        self._missing = sorted(asked.patterns, key=lambda pattern: bool(_WILDCARD.search(pattern)))
        self._due: list[tuple[int, CopyEntry]] = []  # files without an end frame yet, the next one last
        self._left: int | None = None  # bytes of the current file

    @property
    def missing(self) -> tuple[str, ...]:
        """The patterns without a listed file so far."""
        return tuple(self._missing)

    def check(self, kind: bytes, length: int) -> None:
        """Check the kind and length of a frame before it is read."""
        if kind == b"D":
            if self._left is None:
                raise UnexpectedAnswerError("file data outside of a file")
            if not 0 < length <= min(BLOCK, self._left):
                raise UnexpectedAnswerError(f"{length} bytes of a file where {self._left} are left")
            self._left -= length
            return
        _check_frame(kind, length, b"SLKFEZX", large=b"SLX")

    def parse(self, kind: bytes, payload: bytes) -> Any:  # JSON
        """Return the contents of a frame, if it is valid now."""
        value = parse_answer(payload, longest=_LARGE, deepest=2)
        if kind == b"X":
            return _refusal(value, {"missing", "folder", "refused"})
        is_in_order = {
            b"S": not self._has_begun,
            b"L": self._has_begun and not self._due and self._listed < self._count,
            b"K": self._may_send_digests,
            b"F": bool(self._due) and self._left is None,
            b"E": bool(self._due),
            b"Z": self._has_begun and not self._due and self._listed == self._count,
        }
        if not is_in_order[kind] or self._has_ended:
            raise _out_of_order(kind)
        if kind == b"S":
            return self._parse_start(value)
        if kind == b"L":
            return self._parse_entries(value)
        if kind == b"K":
            return self._parse_digests(value)
        self._may_send_digests = False
        if kind == b"F":
            parse_integer(value, "file", low=self._due[-1][0], high=self._due[-1][0])
            self._left = self._due[-1][1].size
            return value
        if kind == b"E":
            return self._parse_end(value)
        self._has_ended = True
        return None

    def _parse_start(self, value: Any) -> list[Any]:  # JSON
        named, tree, count, size, notes, failed = _row(value, "listing", 6)
        self._has_begun = True
        self._named = parse_integer(
            named, "listing.named", high=_MAX_FILES if self._asked.most is None else self._asked.most
        )
        self._tree = None if tree is None else _matching(tree, "listing.tree", _KEY)
        self._count = parse_integer(count, "listing.count", high=_MAX_FILES)
        if self._tree is not None and (self._named != 1 or not self._asked.recurse or not self._count):
            raise UnexpectedAnswerError("listing.tree: a folder, which was not requested")
        return [
            self._named,
            self._tree,
            self._count,
            parse_integer(size, "listing.size"),
            _texts(notes),
            _texts(failed),
        ]

    def _parse_entries(self, value: Any) -> list[Any]:  # JSON
        rows = parse_array(value, "entries", most=min(BATCH, self._count - self._listed))
        if not rows:
            raise UnexpectedAnswerError("entries: none where at least one is expected")
        found = []
        for row in rows:
            number, *fields = _row(row, "entry", 8)
            parse_integer(number, "entry.number", low=self._listed, high=self._listed)
            entry = self._entry(fields)
            found.append((number, entry))
            self._listed += 1
        self._due = [one for one in reversed(found) if not one[1].is_folder]
        self._may_send_digests = bool(self._due)
        return [[number, *entry] for number, entry in found]

    def _entry(self, fields: Sequence[Any]) -> CopyEntry:
        is_folder, path, size, mode, mtime, key, sample = fields
        parse_boolean(is_folder, "entry.folder")
        parse_path(path, "entry.path")
        size = parse_integer(size, "entry.size", high=0 if is_folder else _MAX_TIME)
        parse_integer(mode, "entry.mode", high=_MAX_MODE)
        parse_integer(mtime, "entry.mtime", low=-_MAX_TIME, high=_MAX_TIME)
        _matching(key, "entry.key", _KEY)
        _matching(sample, "entry.sample", _DIGEST if size > STEP else _EMPTY)
        entry = CopyEntry(is_folder, path, size, mode, mtime, key, sample)
        parent, slash, name = entry.path.rpartition("/")
        if name in {"", ".."} or (name == "." and (slash or not entry.is_folder)):
            raise UnexpectedAnswerError(f"entry.path: {shown_value(entry.path)} is not a valid path for a copy")
        if entry.is_folder and not self._asked.recurse:
            raise UnexpectedAnswerError(f"a folder {shown_value(entry.path)}, but only files were requested")
        if not slash:
            if not self._asked.allows(entry.path):
                raise UnexpectedAnswerError(f"{shown_value(entry.path)} was not requested")
            is_expected = self._match_pattern(entry.path) and self._top_level < self._named
            if not is_expected or (self._named == 1 and entry.is_folder is (self._tree is None)):
                raise UnexpectedAnswerError(f"{shown_value(entry.path)} does not match the listing")
            self._top_level += 1
            self._folders, self._folder_room = set(), _MAX_FOLDER_BYTES
        elif parent not in self._folders:
            raise UnexpectedAnswerError(f"{shown_value(entry.path)} is in a folder that was not listed")
        elif parent == "." and name.startswith(".") and not self._asked.hidden:
            raise UnexpectedAnswerError(f"{shown_value(entry.path)} is hidden, and was not requested")
        if entry.is_folder:
            self._folder_room -= len(entry.path)
            if self._folder_room < 0:
                raise UnexpectedAnswerError("more folders than one copy may have")
            self._folders.add(entry.path)
        return entry

    def _match_pattern(self, name: str) -> bool:
        """Tell whether a name matches a pattern without a file so far, or a pattern with wildcards."""
        login, patterns = self._asked.login, self._asked.patterns
        for at, pattern in enumerate(self._missing):
            if _matches(name, pattern, login):
                del self._missing[at]
                return True
        return any(_WILDCARD.search(pattern) and _matches(name, pattern, login) for pattern in patterns)

    def _parse_digests(self, value: Any) -> list[Any]:  # JSON
        self._may_send_digests = False
        due = {number for number, _ in self._due}
        for row in parse_array(value, "digests", most=len(due)):
            number, known = _row(row, "digest", 2)
            _check_number(number, due)
            due.discard(number)
            if known is not None:
                _matching(known, "digest", _DIGEST)
        return list(value)

    def _parse_end(self, value: Any) -> list[Any]:  # JSON
        number, problem = _row(value, "end", 2)
        parse_integer(number, "end.file", low=self._due[-1][0], high=self._due[-1][0])
        if problem is not None:
            parse_string(problem, "end.problem", longest=_MAX_TEXT)
        elif self._left is None:
            raise _out_of_order(b"E")
        self._due.pop()
        self._left = None
        return [number, problem]


class ReceiverFrames(FrameRules):
    """Validates the frames of a worker that receives files: answers to questions, in order, and reports about files."""

    def __init__(self, listing: FileListing, sender: FileSender) -> None:
        self._listing, self._sender = listing, sender
        self._answered = 0
        self._partial: set[int] = set()
        self._reported: set[int] = set()

    def check(self, kind: bytes, length: int) -> None:
        """Check the kind and length of a frame before it is read."""
        _check_frame(kind, length, b"PHARZX", large=b"")

    def parse(self, kind: bytes, payload: bytes) -> Any:  # JSON
        """Return the contents of a frame, if it is valid now."""
        value = parse_answer(payload, longest=_SMALL, deepest=2)
        if kind == b"X":
            return _refusal(value, {"target", "new folder", "full", "read-only", "disk", "wrong"})
        if kind == b"R":
            return self._parse_report(value)
        if self._sender.questions[self._answered : self._answered + 1] != [kind]:
            raise _out_of_order(kind)
        self._answered += 1
        if kind == b"P":
            root, is_into, final = _row(value, "place", 3)
            name = None if final is None else parse_path(final, "place.final")
            return CopyTarget(parse_path(root, "place.root"), parse_boolean(is_into, "place.into"), name)
        if kind == b"H":
            return self._parse_parts(value)
        if kind == b"A":
            for number in parse_array(value, "kept", most=len(self._partial)):
                _check_number(number, self._partial)
                self._partial.discard(number)
            return list(value)
        if self._sender.listed - self._reported:
            raise UnexpectedAnswerError("an end before the reports of all files")
        return None

    def _parse_parts(self, value: Any) -> list[list[int]]:  # JSON
        self._partial = set()
        found = []
        for row in parse_array(value, "parts", most=BATCH):
            number, length = _row(row, "part", 2)
            _check_number(number, self._sender.listed)
            size = self._listing.files[number][1].size
            if number in self._sender.ended or number in self._partial:
                raise UnexpectedAnswerError(f"file {number} twice")
            parse_integer(length, "part.length", low=1, high=size)
            if length % STEP and length != size:
                raise UnexpectedAnswerError(f"part.length: {length} of {size} bytes")
            self._partial.add(number)
            found.append([number, length])
        return found

    def _parse_report(self, value: Any) -> list[Any]:  # JSON
        number, problem = _row(value, "report", 2)
        _check_number(number, self._sender.listed)
        if number in self._reported:
            raise UnexpectedAnswerError(f"file {number} twice")
        if problem is not None:
            parse_string(problem, "report.problem", longest=_MAX_TEXT)
        elif number not in self._sender.ended and not self._listing.files[number][1].is_folder:
            raise UnexpectedAnswerError(f"file {number} is reported complete before it was sent")
        self._reported.add(number)
        return [number, problem]


def _check_frame(kind: bytes, length: int, known: bytes, *, large: bytes) -> None:
    if kind not in known:
        raise UnexpectedAnswerError(f"a frame {shown_value(kind)}")
    longest = _LARGE if kind in large else _SMALL
    if length > longest:
        raise UnexpectedAnswerError(f"a frame of {length} bytes where at most {longest} are expected")


def _check_number(value: Any, known: set[int]) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in known:
        raise UnexpectedAnswerError(f"a file {shown_value(value)} that was not listed")


def _out_of_order(kind: bytes) -> UnexpectedAnswerError:
    return UnexpectedAnswerError(f"a frame {shown_value(kind)} out of order")


def _refusal(value: Any, kinds: set[str]) -> list[str]:
    kind, message = _row(value, "refusal", 2)
    return [
        parse_choice(kind, "refusal.kind", sorted(kinds)),
        parse_string(message, "refusal.message", longest=_MAX_TEXT),
    ]


def _row(value: Any, where: str, length: int) -> list[Any]:
    row = parse_array(value, where, most=length)
    if len(row) < length:
        raise UnexpectedAnswerError(f"{where}: {len(row)} values where {length} are expected")
    return row


def _texts(value: Any) -> list[str]:
    return [parse_string(text, "note", longest=_MAX_TEXT) for text in parse_array(value, "notes", most=_MAX_FILES)]


def _matching(value: Any, where: str, pattern: re.Pattern[str]) -> str:
    text = parse_string(value, where, longest=64)
    if not pattern.fullmatch(text):
        raise UnexpectedAnswerError(f"{where}: {shown_value(text)}")
    return text
