"""The known messages in a log, each once, with all its occurrences. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.diagnosis.memory_use import MemoryUse
    from tpuctl.diagnosis.messages import Message

# Characters. A longer line of evidence is shown in part.
LONGEST_EVIDENCE = 400


@dataclass(frozen=True, slots=True)
class Place:
    """One place in a log."""

    line: int  # counted from 1, as an editor does
    text: str  # without colours and header
    worker: str | None = None  # the worker's number, or its name if the log gives no number
    time: datetime | None = None  # naive if the log gives no time zone
    source: str | None = None  # the file, if several are read


@dataclass(frozen=True, slots=True)
class Sighting:
    """One known message and where it occurs.

    `quoted` of the `count` occurrences only quote the message: documentation, the output of a test, a search. `first` and
    `facts` belong to an occurrence that is not a quote, if there is one.
    """

    message: Message
    first: Place
    last: Place
    count: int = 1
    quoted: int = 0
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # For each worker that logged the message the first place, in the order of the log.
    workers: Mapping[str, Place] = field(default_factory=lambda: MappingProxyType({}))
    memory: MemoryUse | None = None  # parsed from the lines that follow a memory message

    @property
    def is_quoted(self) -> bool:
        """Whether all occurrences are quotes."""
        return self.quoted == self.count


@dataclass(frozen=True, slots=True)
class Seen:
    """The content of a log: the known messages by first occurrence, and a few lines that look like errors."""

    sightings: tuple[Sighting, ...]
    suspicious: tuple[Place, ...]
    lines: int
    size: int  # bytes of the log
    is_binary: bool = False  # not text
