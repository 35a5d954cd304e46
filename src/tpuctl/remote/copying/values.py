"""What a copy is to do, how far it is, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.errors import TpuctlError
    from tpuctl.remote.member import Member

_PAUSES = (1, 2, 4, 8)
# A worker that keeps a little more each time and hangs up would never end.
_MOST_LINKS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How to copy: folders too, with times and modes, with so many handshakes at once."""

    recurse: bool = False
    preserve: bool = False
    fanout: int = 64


@dataclass(slots=True)
class Tally:
    """How far the copy of one worker is, in bytes. One thread writes, any may read.

    `there` need not be sent, `moved` was sent over the present link, `ever` over all; `size` is nothing until it is known.
    """

    size: int | None = None
    settled: int = 0
    there: int = 0
    moved: int = 0
    ever: int = 0
    has_ended: bool = False

    def restart(self, settled: int = 0) -> None:
        """Begin again over a new link, with so many bytes in files that are whole."""
        self.settled, self.there, self.moved = settled, 0, 0

    def add(self, there: int, moved: int) -> None:
        """Count bytes that the other end has already, and bytes that were sent."""
        self.there += there
        self.moved += moved
        self.ever += moved

    @property
    def kept(self) -> int:
        """How many bytes the present link found at the other end, or knew to be there."""
        return self.settled + self.there

    @property
    def arrived(self) -> int:
        """How many bytes of all are at their place, or on their way."""
        return self.settled + self.there + self.moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """How the copy of one worker ended.

    `files` and `size` (bytes) count what is whole, `moved` the bytes that went over the link. `problems` are files that could
    not be copied, `notes` what was left out on purpose; `error` is why no more was done, or that there were problems;
    `ssh_said` are the words of an ssh that did not get in.
    """

    member: Member
    files: int
    size: int
    moved: int
    duration: timedelta
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: TpuctlError | None = None
    ssh_said: str = ""


def pause_after(failures: int, links: int) -> timedelta | None:
    """Return how long to wait after so many links in a row that brought nothing, of so many; nothing when it is enough."""
    return timedelta(seconds=_PAUSES[failures - 1]) if 0 < failures <= len(_PAUSES) and links < _MOST_LINKS else None
