"""What a message about used-up memory tells in the lines that follow it: used, limit, over, padding, largest allocations."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Allocation:
    """One of the largest allocations. Sizes are in bytes.

    `padding` is what the hardware's layout adds to the tensor, and `expansion` the factor by which that made it larger, where
    the log says so.
    """

    size: int
    shape: str | None = None
    operator: str | None = None
    label: str | None = None
    unpadded: int | None = None
    padding: int | None = None
    expansion: Fraction | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """How much of a memory was asked for. Sizes are in bytes, and are missing where the log does not tell.

    `space` is `hbm`, the memory of a core, `vmem`, a small scratch memory inside it, or `smem`.
    """

    space: str
    used: int | None = None
    limit: int | None = None
    over: int | None = None
    arguments: int | None = None
    program: int | None = None
    allocations: tuple[Allocation, ...] = ()


def read_memory(text: str) -> MemoryUse | None:
    """Return what a message and the lines that follow it tell of memory; nothing where it is not about memory.

    `text` has its line ends; it may end anywhere. Sources: XLA's messages of the HBM allocator and of compilation.
    """
    raise NotImplementedError


def advice(use: MemoryUse) -> tuple[str, ...]:
    """Return what helps in this case, the best first, with its numbers: padding, batch size, features, bfloat16, parallelism."""
    raise NotImplementedError
