"""Reads a log as it arrives, in bounded memory, and keeps what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.diagnosis.sightings import Seen


class LogReader:
    """Takes a log in pieces of any size. Pure: it neither opens files nor asks for the time.

    Never fails, whatever the bytes; takes time that is linear in their number, and memory that does not depend on it.
    """

    def feed(self, data: bytes) -> None:
        """Take the next piece; it may end in the middle of a line or of a character."""
        raise NotImplementedError

    def so_far(self) -> Seen:
        """Return what was seen until now, as if the log ended here; more may be fed afterwards."""
        raise NotImplementedError
