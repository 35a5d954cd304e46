"""Which workers of a node are meant: `all`, `0`, `1,3-5`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpuctl.errors import InvalidInputError

_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """Workers as the user named them. `ranges` are first and last worker of each part; nothing stands for all workers."""

    text: str
    ranges: tuple[tuple[int, int], ...] | None

    @classmethod
    def parse(cls, text: str) -> WorkerSet:
        """Read a set. Raises `InvalidInputError` for what is none, and for an empty one."""
        if text.strip() == "all":
            return cls("all", None)
        parts = [part.strip() for part in text.split(",")]
        matches = [_PART.fullmatch(part) for part in parts]
        ranges = [(int(match[1]), int(match[2] or match[1])) for match in matches if match]
        if len(ranges) < len(parts) or any(first > last for first, last in ranges):
            raise InvalidInputError(
                f"`{text}` is no set of workers", hint="name workers by number, like `0`, `1,3-5`, or say `all`"
            )
        return cls(text, tuple(ranges))

    def of(self, node_id: str, workers: int) -> tuple[int, ...]:
        """Return the numbers that are meant of a node with so many workers, ascending, each once.

        Raises `InvalidInputError` naming those that the node has.
        """
        if self.ranges is None:
            return tuple(range(workers))
        last = workers - 1
        highest = max(end for _, end in self.ranges)
        if highest > last:
            has = f"has workers 0 to {last}" if last else "has one worker, number 0"
            raise InvalidInputError(f"`{node_id}` has no worker {highest}", hint=f"it {has}")
        return tuple(sorted({number for first, end in self.ranges for number in range(first, end + 1)}))


ALL_WORKERS = WorkerSet("all", None)
