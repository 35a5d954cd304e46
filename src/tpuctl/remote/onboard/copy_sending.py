"""The sending end of a copy: lists files, and sends them.

Part of a program for workers: Python 3.8, the standard library.
"""
# ruff: noqa: PTH  # paths are bytes here, which pathlib does not know

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.remote.onboard.copy_frames import (
    STEP,
    Channel,
    Entry,
    RefusedError,
    digest,
    reason,
    sample,
    shown,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

BATCH = 512
# The client reads at most 4 MiB at once, and a byte of a name may become six characters.
_BATCH_ROOM, _NOTES_ROOM = 1 << 19, 1 << 18
_UNFINISHED = re.compile(rb"\..+\.tpuctl-[0-9a-f]{12}", re.DOTALL)


class Listing(NamedTuple):
    """The files to send with their entries, what is left out, what cannot be read, and the number of requested sources."""

    files: list[tuple[bytes, Entry]]
    notes: list[str]
    failed: list[str]
    named: int


def list_files(
    sources: Sequence[bytes], *, recurse: bool, names: Mapping[bytes, bytes] | None = None, hidden: bool = True
) -> Listing:
    """Return all files to send, following links.

    `names`: of sources whose path does not contain their name. Without `hidden`, hidden files directly in a source `.` are left
    out: it has no folder of its own in the target. Raises `RefusedError` for a source that does not exist, and for a folder
    without `recurse`.
    """
    listing = Listing([], [], [], len(sources))
    for source in sources:
        name = (names or {}).get(source) or os.path.basename(source.rstrip(b"/")) or b"."
        name = os.path.basename(os.path.realpath(source)) if name == b".." else name
        try:
            found = os.stat(source)
        except OSError as error:
            kind = "missing" if error.errno in {errno.ENOENT, errno.ENOTDIR} else "refused"
            raise RefusedError(kind, f"`{shown(source)}`: {reason(error)}") from error
        if stat.S_ISDIR(found.st_mode) and not recurse:
            raise RefusedError("folder", f"`{shown(source)}` is a folder")
        _walk(listing, source, name, hidden=hidden)
    return listing


def _walk(listing: Listing, top: bytes, name: bytes, *, hidden: bool) -> None:
    left: list[tuple[bytes, bytes, frozenset[tuple[int, int]]]] = [(top, name, frozenset())]
    while left:
        path, name, above = left.pop()
        try:
            found = os.stat(path)
            here = (found.st_dev, found.st_ino)
            if path != top and _UNFINISHED.fullmatch(os.path.basename(path)):
                listing.notes.append(f"`{shown(path)}` is left out: it belongs to an unfinished copy")
            elif stat.S_ISDIR(found.st_mode) and here in above:
                listing.notes.append(f"`{shown(path)}` is left out: this link leads back to a folder that contains it")
            elif stat.S_ISDIR(found.st_mode):
                inside = sorted(os.listdir(path), reverse=True)
                if name == b"." and not hidden:
                    why = "it is hidden, and the target is not empty: name it to copy it"
                    skipped = [os.path.join(path, one) for one in reversed(inside) if one.startswith(b".")]
                    listing.notes.extend(f"`{shown(one)}` is left out: {why}" for one in skipped)
                    inside = [one for one in inside if not one.startswith(b".")]
                listing.files.append((path, _entry(path, name, found)))
                left += [(os.path.join(path, one), os.path.join(name, one), above | {here}) for one in inside]
            elif not stat.S_ISREG(found.st_mode):
                listing.notes.append(f"`{shown(path)}` is left out: it is not a plain file")
            elif not os.access(path, os.R_OK):
                listing.failed.append(f"`{shown(path)}`: permission denied")
            else:
                listing.files.append((path, _entry(path, name, found)))
        except OSError as error:
            if os.path.islink(path):
                listing.notes.append(f"`{shown(path)}` is left out: this link leads nowhere")
            else:
                listing.failed.append(f"`{shown(path)}`: {reason(error)}")


def _entry(path: bytes, name: bytes, found: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(found.st_mode)
    version = b"" if is_folder else b"%d %d " % (found.st_size, found.st_mtime_ns)
    key = hashlib.blake2b(version + os.path.abspath(path), digest_size=6).hexdigest()
    size = 0 if is_folder else found.st_size
    known = sample(path, size) if size > STEP else ""
    return Entry(is_folder, to_text(name), size, found.st_mode, found.st_mtime_ns, key, known)


class Sender:
    """Sends a listing.

    `digest_of` reads the beginning of a file; `tell` gets the bytes that need not be sent, and the bytes sent. `questions`: the
    kinds of the expected answers, in their order; `listed` and `ended`: the files announced to the receiver, and those sent
    completely; each grows before the corresponding frame is sent.
    """

    def __init__(
        self,
        channel: Channel,
        listing: Listing,
        *,
        digest_of: Callable[[bytes, int], str] = digest,
        tell: Callable[[int, int], None] = lambda skipped, sent: None,  # noqa: ARG005  # no listener
    ) -> None:
        self._channel, self._listing, self._digest_of, self._tell = channel, listing, digest_of, tell
        self.questions: list[bytes] = []
        self.listed: set[int] = set()
        self.ended: set[int] = set()

    def send(self, answer: Callable[[bytes], Any], done: Container[int] = (), refused: Container[int] = ()) -> None:
        """Send all files that are not `done`, and stop with one as soon as it is `refused`.

        `answer` waits for a frame of a kind. Raises `LostError`.
        """
        listing = self._listing
        entries = [entry for _, entry in listing.files]
        tree = entries[0].key if listing.named == 1 and entries and entries[0].is_folder else None
        size = sum(entry.size for entry in entries)
        self._ask(b"P", b"S", [listing.named, tree, len(entries), size, _first(listing.notes), _first(listing.failed)])
        answer(b"P")
        left = [number for number in range(len(entries)) if number not in done]
        for batch in _batches(left, entries):
            self.listed.update(batch)
            self._ask(b"H", b"L", [[number, *entries[number]] for number in batch])
            kept: dict[int, int] = {}
            if held := answer(b"H"):
                # The receiver keeps its beginning of a file if the digests match.
                self._ask(b"A", b"K", [[number, self._digest(number, length)] for number, length in held])
                agreed = set(answer(b"A"))
                kept = {number: length for number, length in held if number in agreed}
            for number in batch:
                if not entries[number].is_folder and number not in refused:
                    self._send_file(number, kept.get(number, 0), refused)
                self.ended.add(number)
        self._ask(b"Z", b"Z", None)

    def _ask(self, answer: bytes, kind: bytes, value: Any) -> None:  # JSON
        self.questions.append(answer)
        self._channel.send(kind, value)
        self._channel.flush()

    def _digest(self, number: int, length: int) -> str | None:
        try:
            return self._digest_of(self._listing.files[number][0], length) or None
        except OSError:
            return None

    def _send_file(self, number: int, skipped: int, refused: Container[int]) -> None:
        path, entry = self._listing.files[number]
        problem = None
        self._channel.send(b"F", number)
        try:
            self._tell(skipped, 0)
            left = entry.size - skipped
            with open(path, "rb", buffering=0) as file:
                at = skipped
                while left and number not in refused and (length := self._channel.send_part(file.fileno(), at, left)):
                    self._tell(0, length)
                    at += length
                    left -= length
                now = os.fstat(file.fileno())
            if left or (now.st_size, now.st_mtime_ns) != (entry.size, entry.mtime):
                problem = f"`{shown(path)}` changed during the copy"
        except OSError as error:
            problem = f"`{shown(path)}`: {reason(error)}"
        self.ended.add(number)
        self._channel.send(b"E", [number, problem])


def _batches(numbers: Sequence[int], entries: Sequence[Entry]) -> Iterator[list[int]]:
    """Yield the numbers in batches whose entries fit into a frame."""
    batch: list[int] = []
    room = _BATCH_ROOM
    for number in numbers:
        if len(batch) == BATCH or (batch and len(entries[number].path) > room):
            yield batch
            batch, room = [], _BATCH_ROOM
        batch.append(number)
        room -= len(entries[number].path)
    if batch:
        yield batch


def _first(texts: Sequence[str]) -> list[str]:
    """Return as many texts as fit into a frame, and the number of the others."""
    found: list[str] = []
    room = _NOTES_ROOM
    for text in texts:
        room -= len(text)
        if room < 0:
            found.append(f"{len(texts) - len(found)} more are not listed")
            break
        found.append(text)
    return found


def expand(patterns: Sequence[str]) -> list[bytes]:
    """Expand `~` and wildcards; a pattern without a match stays unchanged."""
    import glob  # noqa: PLC0415  # only where something is fetched

    found = []
    for pattern in patterns:
        path = os.path.expanduser(pattern.encode("utf-8", "surrogateescape"))
        found += [path] if os.path.lexists(path) else sorted(glob.glob(path)) or [path]
    return found
