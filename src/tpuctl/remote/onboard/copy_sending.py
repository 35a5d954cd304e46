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
    from collections.abc import Callable, Container, Sequence

_BATCH = 512
_UNFINISHED = re.compile(rb"\..+\.tpuctl-[0-9a-f]{12}", re.DOTALL)


class Listing(NamedTuple):
    """What is to be sent: where each file is, and its entry; what is left out; what cannot be read; how many were asked for."""

    files: list[tuple[bytes, Entry]]
    notes: list[str]
    failed: list[str]
    named: int


def list_files(sources: Sequence[bytes], *, recurse: bool) -> Listing:
    """Return all files to send, links followed.

    Raises `RefusedError` for a source that is not there, or a folder unasked for.
    """
    listing = Listing([], [], [], len(sources))
    for source in sources:
        name = os.path.basename(source.rstrip(b"/")) or b"."
        name = os.path.basename(os.path.realpath(source)) if name == b".." else name
        try:
            found = os.stat(source)
        except OSError as error:
            kind = "missing" if error.errno in {errno.ENOENT, errno.ENOTDIR} else "refused"
            raise RefusedError(kind, f"`{shown(source)}`: {reason(error)}") from error
        if stat.S_ISDIR(found.st_mode) and not recurse:
            raise RefusedError("folder", f"`{shown(source)}` is a folder")
        _walk(listing, source, name)
    return listing


def _walk(listing: Listing, top: bytes, name: bytes) -> None:
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


def _entry(path: bytes, name: bytes, found: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(found.st_mode)
    version = b"" if is_folder else b"%d %d " % (found.st_size, found.st_mtime_ns)
    key = hashlib.blake2b(version + os.path.abspath(path), digest_size=6).hexdigest()
    size = 0 if is_folder else found.st_size
    known = sample(path, size) if size > STEP else ""
    return Entry(is_folder, to_text(name), size, found.st_mode, found.st_mtime_ns, key, known)


class Sender:
    """Sends a listing.

    `digest_of` reads the beginning of a file; `tell` gets how many bytes need not be sent, and how many were sent.
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

    def send(self, answer: Callable[[bytes], Any], done: Container[int] = (), refused: Container[int] = ()) -> None:
        """Send all files that are not `done`, and stop with one as soon as it is `refused`.

        `answer` waits for a frame of a kind. Raises `LostError`.
        """
        listing, channel = self._listing, self._channel
        entries = [entry for _, entry in listing.files]
        tree = entries[0].key if listing.named == 1 and entries and entries[0].is_folder else None
        size = sum(entry.size for entry in entries)
        channel.send(b"S", [listing.named, tree, len(entries), size, listing.notes, listing.failed])
        channel.flush()
        answer(b"P")
        left = [number for number in range(len(entries)) if number not in done]
        for start in range(0, len(left), _BATCH):
            batch = left[start : start + _BATCH]
            channel.send(b"L", [[number, *entries[number]] for number in batch])
            channel.flush()
            held = {number: (length, known) for number, length, known in answer(b"H")}
            for number in batch:
                if not entries[number].is_folder and number not in refused:
                    self._send_file(number, held.get(number), refused)
        channel.send(b"Z", None)
        channel.flush()

    def _send_file(self, number: int, held: tuple[int, str] | None, refused: Container[int]) -> None:
        path, entry = self._listing.files[number]
        skipped, problem = 0, None
        try:
            if held and self._digest_of(path, held[0]) == held[1]:
                skipped = held[0]
            self._channel.send(b"F", [number, skipped])
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
        self._channel.send(b"E", [number, problem])


def expand(patterns: Sequence[str]) -> list[bytes]:
    """Return the paths that `~` and wildcards stand for here; one that matches nothing stays as it is."""
    import glob  # noqa: PLC0415  # only where something is fetched

    found = []
    for pattern in patterns:
        path = os.path.expanduser(pattern.encode("utf-8", "surrogateescape"))
        found += [path] if os.path.lexists(path) else sorted(glob.glob(path)) or [path]
    return found
