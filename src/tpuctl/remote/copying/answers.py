"""Which frames of a copy a worker may send, in which order, and what may be in them.

Every frame of a worker passes here before anything else sees it; what does not fit raises `UnexpectedAnswerError`. What was
asked for decides which names a worker may send. Pure: nothing here touches a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tpuctl.remote.answers import UnexpectedAnswerError, array, boolean, choice, file_name, integer, parse_json, string
from tpuctl.remote.answers import shown as shown_value
from tpuctl.remote.onboard.copy_frames import BLOCK, STEP, Entry, Frames, Place, to_bytes
from tpuctl.remote.onboard.copy_sending import BATCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.remote.onboard.copy_sending import Listing, Sender

_LARGE, _SMALL = 4 << 20, 256 << 10
_LONGEST_TEXT = 16 << 10
_MOST_FILES = 10**9
# Folders of one source are remembered, for what is in them comes later.
_FOLDER_ROOM = 64 << 20
_KEY, _DIGEST, _EMPTY = re.compile(r"[0-9a-f]{12}"), re.compile(r"[0-9a-f]{40}"), re.compile("")
_MAGIC = re.compile(r"[*?[]")
_MODES = 0o177777
_TIMES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """What is fetched. `login` is what a home is called; `hidden`: whether a source `.` brings hidden files, too."""

    patterns: tuple[str, ...]
    login: str
    recurse: bool
    hidden: bool

    @property
    def homes(self) -> dict[str, str]:
        """The patterns that stand for a home, and the names under which it comes."""
        return {pattern: _last(pattern)[1:] or self.login for pattern in self.patterns if _is_home(pattern)}

    @property
    def most(self) -> int | None:
        """How many sources the patterns stand for at most; nothing where wildcards leave it to the worker."""
        return None if any(map(_MAGIC.search, self.patterns)) else len(self.patterns)

    def allows(self, name: str) -> bool:
        """Tell whether a file or folder of that name was asked for."""
        return any(_matches(name, pattern, self.login) for pattern in self.patterns)


def _last(pattern: str) -> str:
    return pattern.rstrip("/").rpartition("/")[2] or "."


def _is_home(pattern: str) -> bool:
    return pattern.startswith("~") and "/" not in pattern.rstrip("/")


def _matches(name: str, pattern: str, login: str) -> bool:
    last = _last(pattern)
    if name == last or (_is_home(pattern) and name == (last[1:] or login)):
        return True
    # As `glob` has it: a wildcard at the beginning stands for nothing hidden.
    is_shown = not name.startswith(".") or last.startswith(".")
    is_pattern = bool(_MAGIC.search(last)) and name not in {".", ".."}
    return is_pattern and is_shown and fnmatchcase(to_bytes(name), to_bytes(last))


class FromSender(Frames):
    """What a worker may send that sends what was asked for."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._named = self._count = self._listed = self._tops = 0
        self._tree: str | None = None
        self._has_begun = self._may_prove = self._has_ended = False
        self._folders: set[str] = set()
        self._folder_room = _FOLDER_ROOM
        # One name may fit several patterns: those without wildcards have no other.
        self._unmet = sorted(asked.patterns, key=lambda pattern: bool(_MAGIC.search(pattern)))
        self._due: list[tuple[int, Entry]] = []  # files whose end has not come, the next one last
        self._left: int | None = None  # of the file that has begun

    @property
    def unmet(self) -> tuple[str, ...]:
        """What was asked for, and has not been listed."""
        return tuple(self._unmet)

    def check(self, kind: bytes, length: int) -> None:
        """Refuse a frame before it is read, by its length."""
        if kind == b"D":
            if self._left is None:
                raise UnexpectedAnswerError("bytes of no file")
            if not 0 < length <= min(BLOCK, self._left):
                raise UnexpectedAnswerError(f"{length} bytes of a file where {self._left} are left")
            self._left -= length
            return
        _check(kind, length, b"SLKFEZX", large=b"SLX")

    def parse(self, kind: bytes, payload: bytes) -> Any:  # JSON
        """Return what a frame says, if it may come now."""
        value = parse_json(payload, longest=_LARGE, deepest=2)
        if kind == b"X":
            return _refusal(value, {"missing", "folder", "refused"})
        is_in_order = {
            b"S": not self._has_begun,
            b"L": self._has_begun and not self._due and self._listed < self._count,
            b"K": self._may_prove,
            b"F": bool(self._due) and self._left is None,
            b"E": bool(self._due),
            b"Z": self._has_begun and not self._due and self._listed == self._count,
        }
        if not is_in_order[kind] or self._has_ended:
            raise _out_of_order(kind)
        if kind == b"S":
            return self._begin(value)
        if kind == b"L":
            return self._list(value)
        if kind == b"K":
            return self._prove(value)
        self._may_prove = False
        if kind == b"F":
            integer(value, "file", low=self._due[-1][0], high=self._due[-1][0])
            self._left = self._due[-1][1].size
            return value
        if kind == b"E":
            return self._end(value)
        self._has_ended = True
        return None

    def _begin(self, value: Any) -> list[Any]:  # JSON
        named, tree, count, size, notes, failed = _row(value, "listing", 6)
        self._has_begun = True
        self._named = integer(
            named, "listing.named", high=_MOST_FILES if self._asked.most is None else self._asked.most
        )
        self._tree = None if tree is None else _matching(tree, "listing.tree", _KEY)
        self._count = integer(count, "listing.count", high=_MOST_FILES)
        if self._tree is not None and (self._named != 1 or not self._asked.recurse or not self._count):
            raise UnexpectedAnswerError("listing.tree: a folder where none was asked for")
        return [self._named, self._tree, self._count, integer(size, "listing.size"), _texts(notes), _texts(failed)]

    def _list(self, value: Any) -> list[Any]:  # JSON
        rows = array(value, "entries", most=min(BATCH, self._count - self._listed))
        if not rows:
            raise UnexpectedAnswerError("entries: none where at least one is expected")
        found = []
        for row in rows:
            number, *fields = _row(row, "entry", 8)
            integer(number, "entry.number", low=self._listed, high=self._listed)
            entry = self._entry(fields)
            found.append((number, entry))
            self._listed += 1
        self._due = [one for one in reversed(found) if not one[1].is_folder]
        self._may_prove = bool(self._due)
        return [[number, *entry] for number, entry in found]

    def _entry(self, fields: Sequence[Any]) -> Entry:
        is_folder, path, size, mode, mtime, key, sample = fields
        boolean(is_folder, "entry.folder")
        file_name(path, "entry.path")
        size = integer(size, "entry.size", high=0 if is_folder else _TIMES)
        integer(mode, "entry.mode", high=_MODES)
        integer(mtime, "entry.mtime", low=-_TIMES, high=_TIMES)
        _matching(key, "entry.key", _KEY)
        _matching(sample, "entry.sample", _DIGEST if size > STEP else _EMPTY)
        entry = Entry(is_folder, path, size, mode, mtime, key, sample)
        self._check_path(entry)
        return entry

    def _check_path(self, entry: Entry) -> None:
        parent, slash, name = entry.path.rpartition("/")
        if name in {"", ".."} or (name == "." and (slash or not entry.is_folder)):
            raise UnexpectedAnswerError(f"entry.path: {shown_value(entry.path)} is no path that can be kept")
        if entry.is_folder and not self._asked.recurse:
            raise UnexpectedAnswerError(f"a folder {shown_value(entry.path)} where files were asked for")
        if not slash:
            self._check_top(entry)
        elif parent not in self._folders:
            raise UnexpectedAnswerError(f"{shown_value(entry.path)} is in no folder that was listed")
        elif parent == "." and name.startswith(".") and not self._asked.hidden:
            raise UnexpectedAnswerError(f"{shown_value(entry.path)} is hidden, and was not asked for")
        if entry.is_folder:
            self._folder_room -= len(entry.path)
            if self._folder_room < 0:
                raise UnexpectedAnswerError("more folders than one copy may have")
            self._folders.add(entry.path)

    def _check_top(self, entry: Entry) -> None:
        if not self._asked.allows(entry.path):
            raise UnexpectedAnswerError(f"{shown_value(entry.path)} was not asked for")
        is_meant = self._meet(entry.path) and self._tops < self._named
        if not is_meant or (self._named == 1 and entry.is_folder is (self._tree is None)):
            raise UnexpectedAnswerError(f"{shown_value(entry.path)} is not what the listing promised")
        self._tops += 1
        self._folders, self._folder_room = set(), _FOLDER_ROOM

    def _meet(self, name: str) -> bool:
        """Tell whether a name fits a pattern that still waits for one, or one that may stand for many."""
        login, patterns = self._asked.login, self._asked.patterns
        for at, pattern in enumerate(self._unmet):
            if _matches(name, pattern, login):
                del self._unmet[at]
                return True
        return any(_MAGIC.search(pattern) and _matches(name, pattern, login) for pattern in patterns)

    def _prove(self, value: Any) -> list[Any]:  # JSON
        self._may_prove = False
        due = {number for number, _ in self._due}
        for row in array(value, "digests", most=len(due)):
            number, known = _row(row, "digest", 2)
            _check_number(number, due)
            due.discard(number)
            if known is not None:
                _matching(known, "digest", _DIGEST)
        return list(value)

    def _end(self, value: Any) -> list[Any]:  # JSON
        number, problem = _row(value, "end", 2)
        integer(number, "end.file", low=self._due[-1][0], high=self._due[-1][0])
        if problem is not None:
            string(problem, "end.problem", longest=_LONGEST_TEXT)
        elif self._left is None:
            raise _out_of_order(b"E")
        self._due.pop()
        self._left = None
        return [number, problem]


class FromReceiver(Frames):
    """What a worker may say to which a listing is sent: it answers questions in their order, and tells what became of files."""

    def __init__(self, listing: Listing, sender: Sender) -> None:
        self._listing, self._sender = listing, sender
        self._answered = 0
        self._held: set[int] = set()
        self._told: set[int] = set()

    def check(self, kind: bytes, length: int) -> None:
        """Refuse a frame before it is read, by its length."""
        _check(kind, length, b"PHARZX", large=b"")

    def parse(self, kind: bytes, payload: bytes) -> Any:  # JSON
        """Return what a frame says, if it may come now."""
        value = parse_json(payload, longest=_SMALL, deepest=2)
        if kind == b"X":
            return _refusal(value, {"target", "new folder", "full", "read-only", "disk", "wrong"})
        if kind == b"R":
            return self._report(value)
        if self._sender.questions[self._answered : self._answered + 1] != [kind]:
            raise _out_of_order(kind)
        self._answered += 1
        if kind == b"P":
            root, is_into, final = _row(value, "place", 3)
            name = None if final is None else file_name(final, "place.final")
            return Place(file_name(root, "place.root"), boolean(is_into, "place.into"), name)
        if kind == b"H":
            return self._parts(value)
        if kind == b"A":
            return self._kept(value)
        if self._sender.listed - self._told:
            raise UnexpectedAnswerError("an end, with files of which it said nothing")
        return None

    def _parts(self, value: Any) -> list[list[int]]:  # JSON
        self._held = set()
        found = []
        for row in array(value, "parts", most=BATCH):
            number, length = _row(row, "part", 2)
            _check_number(number, self._sender.listed)
            size = self._listing.files[number][1].size
            if number in self._sender.ended or number in self._held:
                raise UnexpectedAnswerError(f"file {number} twice")
            integer(length, "part.length", low=1, high=size)
            if length % STEP and length != size:
                raise UnexpectedAnswerError(f"part.length: {length} of {size} bytes")
            self._held.add(number)
            found.append([number, length])
        return found

    def _kept(self, value: Any) -> list[int]:  # JSON
        for number in array(value, "kept", most=len(self._held)):
            _check_number(number, self._held)
            self._held.discard(number)
        return list(value)

    def _report(self, value: Any) -> list[Any]:  # JSON
        number, problem = _row(value, "report", 2)
        _check_number(number, self._sender.listed)
        if number in self._told:
            raise UnexpectedAnswerError(f"file {number} twice")
        if problem is not None:
            string(problem, "report.problem", longest=_LONGEST_TEXT)
        elif number not in self._sender.ended and not self._listing.files[number][1].is_folder:
            raise UnexpectedAnswerError(f"file {number}, which was not sent yet, is whole")
        self._told.add(number)
        return [number, problem]


def _check(kind: bytes, length: int, known: bytes, *, large: bytes) -> None:
    if kind not in known:
        raise UnexpectedAnswerError(f"a frame {shown_value(kind)}")
    longest = _LARGE if kind in large else _SMALL
    if length > longest:
        raise UnexpectedAnswerError(f"a frame of {length} bytes where at most {longest} are expected")


def _check_number(value: Any, known: set[int]) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in known:
        raise UnexpectedAnswerError(f"a file {shown_value(value)} that was not named")


def _out_of_order(kind: bytes) -> UnexpectedAnswerError:
    return UnexpectedAnswerError(f"a frame {shown_value(kind)} out of order")


def _refusal(value: Any, kinds: set[str]) -> list[str]:
    kind, message = _row(value, "refusal", 2)
    return [choice(kind, "refusal.kind", sorted(kinds)), string(message, "refusal.message", longest=_LONGEST_TEXT)]


def _row(value: Any, where: str, length: int) -> list[Any]:
    row = array(value, where, most=length)
    if len(row) < length:
        raise UnexpectedAnswerError(f"{where}: {len(row)} values where {length} are expected")
    return row


def _texts(value: Any) -> list[str]:
    return [string(text, "note", longest=_LONGEST_TEXT) for text in array(value, "notes", most=_MOST_FILES)]


def _matching(value: Any, where: str, pattern: re.Pattern[str]) -> str:
    text = string(value, where, longest=64)
    if not pattern.fullmatch(text):
        raise UnexpectedAnswerError(f"{where}: {shown_value(text)}")
    return text
