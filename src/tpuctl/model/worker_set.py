"""The value of `--worker`: `all`, `0`, `1,3-5`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpuctl.errors import InvalidInputError

_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """A set of workers as the user wrote it. `ranges` has the first and last worker of each part; None means all workers."""

    text: str
    ranges: tuple[tuple[int, int], ...] | None

    @classmethod
    def parse(cls, text: str) -> WorkerSet:
        """Parse a set of workers. Raises `InvalidInputError` for an invalid or empty one."""
        if text.strip() == "all":
            return cls("all", None)
        parts = [part.strip() for part in text.split(",")]
        matches = [_PART.fullmatch(part) for part in parts]
        ranges = [(int(match[1]), int(match[2] or match[1])) for match in matches if match]
        if len(ranges) < len(parts) or any(first > last for first, last in ranges):
            raise InvalidInputError(
                f"`{text}` is not a set of workers", hint="use worker numbers like `0` or `1,3-5`, or `all`"
            )
        return cls(text, tuple(ranges))

    def of(self, node_id: str, workers: int) -> tuple[int, ...]:
        """Return the numbers of the workers of a node with `workers` workers, ascending, each once.

        Raises `InvalidInputError`, with the existing numbers, for a worker that the node does not have.
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
