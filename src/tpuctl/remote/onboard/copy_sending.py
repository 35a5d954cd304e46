"""The end of a copy that sends: what there is, and its bytes.

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
# The client reads at most 4 MiB at once, in which a byte of a name may take six characters.
_BATCH_ROOM, _NOTES_ROOM = 1 << 19, 1 << 18
_UNFINISHED = re.compile(rb"\..+\.tpuctl-[0-9a-f]{12}", re.DOTALL)


class Listing(NamedTuple):
    """What is to be sent: where each file is, and its entry; what is left out; what cannot be read; how many were asked for."""

    files: list[tuple[bytes, Entry]]
    notes: list[str]
    failed: list[str]
    named: int


def list_files(
    sources: Sequence[bytes], *, recurse: bool, names: Mapping[bytes, bytes] | None = None, hidden: bool = True
) -> Listing:
    """Return all files to send, links followed.

    `names` are those of sources whose path does not tell theirs. Without `hidden`, the hidden files right in a source `.` are
    left out: it has no folder of its own in the target. Raises `RefusedError` for a source that is not there, or a folder
    unasked for.
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
                listing.notes.append(f"`{shown(path)}` is left out: it belongs to a copy that has not ended")
            elif stat.S_ISDIR(found.st_mode) and here in above:
                listing.notes.append(f"`{shown(path)}` is left out: this link leads back to a folder that it is in")
            elif stat.S_ISDIR(found.st_mode):
                inside = sorted(os.listdir(path), reverse=True)
                if name == b"." and not hidden:
                    inside = _without_hidden(listing, path, inside)
                listing.files.append((path, _entry(path, name, found)))
                left += [(os.path.join(path, one), os.path.join(name, one), above | {here}) for one in inside]
            elif not stat.S_ISREG(found.st_mode):
                listing.notes.append(f"`{shown(path)}` is left out: it is no file")
            elif not os.access(path, os.R_OK):
                listing.failed.append(f"`{shown(path)}`: permission denied")
            else:
                listing.files.append((path, _entry(path, name, found)))
        except OSError as error:
            if os.path.islink(path):
                listing.notes.append(f"`{shown(path)}` is left out: this link leads nowhere")
            else:
                listing.failed.append(f"`{shown(path)}`: {reason(error)}")


def _without_hidden(listing: Listing, folder: bytes, names: Sequence[bytes]) -> list[bytes]:
    why = "it is hidden, and the target is not empty: name it to copy it"
    hidden = [os.path.join(folder, name) for name in reversed(names) if name.startswith(b".")]
    listing.notes.extend(f"`{shown(path)}` is left out: {why}" for path in hidden)
    return [name for name in names if not name.startswith(b".")]


def _entry(path: bytes, name: bytes, found: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(found.st_mode)
    version = b"" if is_folder else b"%d %d " % (found.st_size, found.st_mtime_ns)
    key = hashlib.blake2b(version + os.path.abspath(path), digest_size=6).hexdigest()
    size = 0 if is_folder else found.st_size
    known = sample(path, size) if size > STEP else ""
    return Entry(is_folder, to_text(name), size, found.st_mode, found.st_mtime_ns, key, known)


class Sender:
    """Sends a listing.

    `digest_of` reads the beginning of a file; `tell` gets how many bytes need not be sent, and how many were sent. `questions`
    are the kinds of answers that are due, in their order; `listed` and `ended` the files that the receiver knows of, and
    those of which it was sent all: each grows before the frame that makes it so is sent.
    """

    def __init__(
        self,
        channel: Channel,
        listing: Listing,
        *,
        digest_of: Callable[[bytes, int], str] = digest,
        tell: Callable[[int, int], None] = lambda skipped, sent: None,  # noqa: ARG005  # nobody listens
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
            kept = self._agree(answer)
            for number in batch:
                if not entries[number].is_folder and number not in refused:
                    self._send_file(number, kept.get(number, 0), refused)
                self.ended.add(number)
        self._ask(b"Z", b"Z", None)

    def _ask(self, answer: bytes, kind: bytes, value: Any) -> None:  # JSON
        self.questions.append(answer)
        self._channel.send(kind, value)
        self._channel.flush()

    def _agree(self, answer: Callable[[bytes], Any]) -> dict[int, int]:
        """Return how much the receiver keeps of the files of which it has a beginning."""
        held = answer(b"H")
        if not held:
            return {}
        self._ask(b"A", b"K", [[number, self._known(number, length)] for number, length in held])
        kept = set(answer(b"A"))
        return {number: length for number, length in held if number in kept}

    def _known(self, number: int, length: int) -> str | None:
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
                problem = f"`{shown(path)}` was changed while it was copied"
        except OSError as error:
            problem = f"`{shown(path)}`: {reason(error)}"
        self.ended.add(number)
        self._channel.send(b"E", [number, problem])


def _batches(numbers: Sequence[int], entries: Sequence[Entry]) -> Iterator[list[int]]:
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
    """Return as many of the texts as fit into a frame, and how many do not."""
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
    """Return the paths that `~` and wildcards stand for here; one that matches nothing stays as it is."""
    import glob  # noqa: PLC0415  # only where something is fetched

    found = []
    for pattern in patterns:
        path = os.path.expanduser(pattern.encode("utf-8", "surrogateescape"))
        found += [path] if os.path.lexists(path) else sorted(glob.glob(path)) or [path]
    return found
