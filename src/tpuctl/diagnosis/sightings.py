"""What was seen in a log: each known message once, with all its occurrences. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.diagnosis.memory_use import MemoryUse
    from tpuctl.diagnosis.messages import Message

# An evidence line is shown whole up to so many characters.
LONGEST_EVIDENCE = 400


@dataclass(frozen=True, slots=True)
class Place:
    """One place in a log.

    `line` counts from 1, as an editor does. `worker` is as the log names it, a number where it is one, or nothing.
    `time` is the log's own, with its time zone where it names one, else naive. `text` is the line without colours and header.
    `source` is the file, where several are read.
    """

    line: int
    text: str
    worker: str | None = None
    time: datetime | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """One known message and where it was met.

    `workers` holds for each worker that said it the first place, in the order of the log. `quoted` of the `count` occurrences
    only quote the message: documentation, a test's output, a search; where not all are quotes, `first` and `facts` are of one
    that is not. `memory` is what the lines that follow a memory message tell.
    """

    message: Message
    first: Place
    last: Place
    count: int = 1
    quoted: int = 0
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    workers: Mapping[str, Place] = field(default_factory=lambda: MappingProxyType({}))
    memory: MemoryUse | None = None

    @property
    def is_quoted(self) -> bool:
        """Tell whether nothing but quotes was seen."""
        return self.quoted == self.count


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a log holds: what is known, in the order of first occurrence, and a few lines that look like an error.

    `lines` and `size` (bytes) are those of the log; `is_binary` tells that it is no text.
    """

    sightings: tuple[Sighting, ...]
    suspicious: tuple[Place, ...]
    lines: int
    size: int
    is_binary: bool = False
