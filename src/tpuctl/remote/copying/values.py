"""The options, the progress and the result of a copy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.errors import TpuctlError
    from tpuctl.remote.member import Member

_PAUSES = (1, 2, 4, 8)
# A worker that takes a little more each time and hangs up would never finish.
_MAX_LINKS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How to copy."""

    # Copy folders too.
    recurse: bool = False
    # Keep times and modes.
    preserve: bool = False
    # The maximum number of parallel ssh handshakes.
    fanout: int = 64


@dataclass(slots=True)
class Tally:
    """The progress of one worker's copy, in bytes. One thread writes, any thread may read."""

    # The bytes to copy; None until known.
    size: int | None = None
    # In files that were complete before the current link.
    complete: int = 0
    # Found at the other end, so not sent over the current link.
    present: int = 0
    # Sent over the current link, and over all links.
    moved: int = 0
    total_moved: int = 0
    has_ended: bool = False

    def restart(self, complete: int = 0) -> None:
        """Start with a new link, with `complete` bytes in complete files."""
        self.complete, self.present, self.moved = complete, 0, 0

    def add(self, present: int, moved: int) -> None:
        """Count bytes that the other end already has, and bytes that were sent."""
        self.present += present
        self.moved += moved
        self.total_moved += moved

    @property
    def kept(self) -> int:
        """The bytes that the other end had before the current link."""
        return self.complete + self.present

    @property
    def arrived(self) -> int:
        """The bytes at the other end, or on their way."""
        return self.complete + self.present + self.moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of the copy of one worker."""

    member: Member
    # The number of complete files, and their bytes.
    files: int
    size: int
    # Bytes sent over ssh.
    moved: int
    duration: timedelta
    # Files that could not be copied, with reasons.
    problems: tuple[str, ...] = ()
    # What was skipped on purpose.
    notes: tuple[str, ...] = ()
    # Why the copy stopped, or the summary of the problems; None if all files are complete.
    error: TpuctlError | None = None
    # The stderr of an ssh that could not log in.
    ssh_stderr: str = ""


def pause_after(failures: int, links: int) -> timedelta | None:
    """Return the pause after `failures` links in a row without progress, of `links` in all. None to give up."""
    return timedelta(seconds=_PAUSES[failures - 1]) if 0 < failures <= len(_PAUSES) and links < _MAX_LINKS else None
