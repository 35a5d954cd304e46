"""Reads a log as it arrives, in bounded memory, and keeps the known messages in it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tpuctl.diagnosis.anchors import gather
from tpuctl.diagnosis.messages import By, messages
from tpuctl.diagnosis.pieces import Cutter, Lines
from tpuctl.diagnosis.records import Records
from tpuctl.diagnosis.scanner import Scanner
from tpuctl.diagnosis.sightings import Seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.diagnosis.anchors import Anchors
    from tpuctl.diagnosis.messages import Message

_RANKS = list(By)


class LogReader:
    """Takes a log in pieces of any size. Pure: neither opens files nor reads a clock.

    Never fails on any bytes. Takes time linear in their number, and memory that does not depend on it. `known` are the
    messages to search for, specific before generic: of two that share a part of the text the first wins.
    """

    def __init__(self, known: Sequence[Message] | None = None) -> None:
        self._cutter, self._records = Cutter(), Records()
        self._scanner = Scanner(*(_all_known() if known is None else _looked_for(known)))

    def feed(self, data: bytes) -> None:
        """Take the next piece; it may end in the middle of a line or of a character."""
        for lines in self._cutter.feed(data):
            self._scanner.scan(self._records.read(lines))

    def so_far(self) -> Seen:
        """Return the content until now, as if the log ended here; more may be fed afterwards."""
        cutter, records, scanner = self._cutter.copy(), self._records.copy(), self._scanner.copy()
        rest = Lines()
        for lines in cutter.feed(b"", is_last=True):
            rest.extend(records.read(lines))
        rest.extend(records.end())
        scanner.scan(rest, is_last=True)
        sightings = sorted(
            (tally.sighting() for tally in scanner.tallies.values()), key=lambda sighting: sighting.first.line
        )
        return Seen(tuple(sightings), scanner.suspects.places, cutter.lines, cutter.size, cutter.is_binary)


@functools.cache
def _all_known() -> tuple[list[Message], Anchors]:
    return _looked_for(messages())


def _looked_for(known: Sequence[Message]) -> tuple[list[Message], Anchors]:
    """Return the messages that logs are searched for, the most reliable first, and their anchors."""
    wanted = sorted((message for message in known if message.anchors), key=lambda message: _RANKS.index(message.by))
    return wanted, gather(wanted)
