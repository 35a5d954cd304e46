"""Parses messages about exhausted device memory, and advises what helps.

The message and the lines that follow it give: used, limit, excess, padding, largest allocations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from tpuctl.diagnosis.memory_advice import advice

__all__ = ["Allocation", "MemoryUse", "advice", "parse_size", "read_memory"]

# Lists are sorted by size: later allocations explain little.
_MOST_ALLOCATIONS = 20

# XLA's units are powers of 1024: "529.00M ( 554,696,704 bytes)" (pytorch/xla#1735).
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE = r"(\d{1,15}(?:[.,]\d{1,12})?[KMGTP]?)(?![\d.,]{0,9}\d)"
_GAP = r"\s{1,80}"
# In a table of sizes, other than in a sentence, a number has its unit.
_SIZE_IN_TABLE = rf"{_GAP}{_SIZE}(?:(?<=[KMGTP])|(?=B))"


@dataclass(frozen=True, slots=True)
class Allocation:
    """One of the largest allocations. Sizes are in bytes; a field is None if the log does not give it."""

    size: int
    shape: str | None = None
    operator: str | None = None
    label: str | None = None
    unpadded: int | None = None
    padding: int | None = None  # added to the tensor by the layout of the hardware
    expansion: Fraction | None = None  # the factor by which the padding enlarged the tensor
    source: str | None = None  # the line of the program that made it, as `FILE:LINE`


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """How much of a memory was requested. Sizes are in bytes; a field is None if the log does not give it."""

    space: str  # `hbm`, the memory of a core; `vmem`, a small scratch memory inside it; or `smem`
    used: int | None = None
    limit: int | None = None
    over: int | None = None
    arguments: int | None = None
    program: int | None = None
    allocations: tuple[Allocation, ...] = ()
    free: int | None = None  # when a running program requested `used` more
    unbroken: int | None = None  # the largest piece of the free memory
    # HBM ran out in a program that seems to use JAX or PyTorch, which count a batch for each device; TensorFlow counts the
    # whole batch.
    is_per_device: bool = False


def read_memory(text: str) -> MemoryUse | None:
    """Parse a message and the lines that follow it; None if it is not about memory.

    `text` has its line ends; it may end anywhere. Sources: XLA's messages of compilation (tensorflow/tpu#385,
    DifferentiableUniverseInitiative/flowpm#27, LargeWorldModel/LWM#60, pytorch/xla#7962), of the allocator at run time
    (pytorch/xla#1735, huggingface/transformers#22328, googlecolab/colabtools#5126) and of scoped memory (libtpu 0.0.52).
    """
    for read in (_of_compilation, _of_scope, _of_allocator, _of_both_cores):
        if use := read(text):
            return replace(use, is_per_device=use.space == "hbm" and _is_per_device(text))
    return None


def parse_size(text: str) -> int | None:
    """Parse a size as XLA writes it, like `15.48G` or `0B`, in bytes; None if it is not a size. A comma is a decimal point."""
    found = re.fullmatch(r"(\d{1,15}(?:[.,]\d{1,12})?)\s?([KMGTP]?)i?B?", text.strip())
    if found is None:
        return None
    factor: int = 1024 ** _UNITS[found[2]]
    return round(Fraction(found[1].replace(",", ".")) * factor)


def _is_per_device(text: str) -> bool:
    """Tell messages of JAX and PyTorch from those of TensorFlow, which have `op_type`, or `used:` in older versions."""
    if re.search(r'op_name="p?(?:jit|map|jvp|vmap|xmap)\(|\bjax|torch|\baten__', text, re.IGNORECASE):
        return True
    return not re.search(r"tensorflow|\bkeras|\[\[\{\{node|TPUReplicate|\bop_type=|;\s{1,9}used:", text)


def _of_compilation(text: str) -> MemoryUse | None:
    head = re.search(
        r"out\s{1,9}of\s{1,9}memory\s{1,9}in\s{1,9}memory\s{1,9}space\s{1,9}([a-z]{1,16})", text, re.IGNORECASE
    )
    if head is None:
        return None
    space = head[1].lower()
    rest = text[head.end() :]
    if scoped := _of_scope(rest):
        return scoped
    used = _size(rf"\bused:?{_GAP}{_SIZE}B?\s{{0,80}}(?:of|;)", rest)
    limit = _size(rf"\bof{_GAP}{_SIZE}B?{_GAP}{space}", rest) or _size(rf"\blimit:{_GAP}{_SIZE}", rest)
    return MemoryUse(
        space,
        used,
        limit,
        _size(rf"\bexceeded{_GAP}{space}{_GAP}capacity{_GAP}by{_GAP}{_SIZE}", rest) or _difference(used, limit),
        _size(rf"(?<![\w/])arguments{_SIZE_IN_TABLE}", rest),
        _size(rf"(?<![\w/])program{_SIZE_IN_TABLE}", rest),
        _allocations(rest),
    )


def _of_scope(text: str) -> MemoryUse | None:
    """Parse the limit of one kernel: XLA's `Scoped allocation with size`, and the check of the compiler."""
    scoped = re.search(
        rf"scoped{_GAP}allocation{_GAP}with{_GAP}size{_GAP}{_SIZE}{_GAP}and{_GAP}limit{_GAP}{_SIZE}"
        rf"{_GAP}exceeded{_GAP}scoped{_GAP}(\w{{1,16}})",
        text,
        re.IGNORECASE,
    )
    checked = re.search(
        r"Allocation\s{1,9}\(size=(\d{1,15})\)\s{1,9}would\s{1,9}exceed\s{1,9}memory\s{1,9}\(size=(\d{1,15})\)"
        r"(?:.{0,300}?\bspace=(\w{1,16}))?",
        text,
        re.DOTALL,
    )
    if not (found := scoped or checked):
        return None
    used, limit = parse_size(found[1]), parse_size(found[2])
    return MemoryUse((found[3] or "vmem").lower(), used, limit, _difference(used, limit))


def _of_allocator(text: str) -> MemoryUse | None:
    """Parse the message of the allocator at run time, which needs one contiguous piece."""
    found = re.search(rf"attempting{_GAP}to{_GAP}(?:allocate|reserve){_GAP}{_SIZE}", text, re.IGNORECASE)
    if found is None:
        return None
    rest = text[found.end() :]
    if not re.search(rf"that{_GAP}was{_GAP}not{_GAP}possible", rest[:400], re.IGNORECASE):
        return None
    used = parse_size(found[1])
    free = _size(rf"there{_GAP}are{_GAP}{_SIZE}B?{_GAP}free", rest)
    unbroken = _size(rf"\band{_GAP}{_SIZE}B?{_GAP}reservable", rest)
    return MemoryUse(
        "hbm",
        used,
        _size(rf"HBM{_GAP}capacity{_GAP}{_SIZE}", rest),
        _difference(used, free if unbroken is None else unbroken),
        _size(rf"(?<![\w/])arguments{_SIZE_IN_TABLE}", rest),
        _size(rf"(?<![\w/])program{_SIZE_IN_TABLE}", rest),
        _allocations(rest),
        free,
        unbroken,
    )


def _of_both_cores(text: str) -> MemoryUse | None:
    """Parse the sum of the TensorCore and the SparseCore (openxla/xla docs/errors/error_1000.md)."""
    found = re.search(
        rf"Hbm{_GAP}usage:?{_GAP}{_SIZE}B?,\s{{0,80}}SparseCore{_GAP}Hbm{_GAP}usage:?{_GAP}{_SIZE}B?,\s{{0,80}}"
        rf"exceeding{_GAP}available{_GAP}bytes:{_GAP}{_SIZE}",
        text,
        re.IGNORECASE,
    )
    if found is None:
        return None
    used = (parse_size(found[1]) or 0) + (parse_size(found[2]) or 0)
    limit = parse_size(found[3])
    return MemoryUse("hbm", used, limit, _difference(used, limit))


def _allocations(text: str) -> tuple[Allocation, ...]:
    """Parse the first list of allocations; a traceback repeats it."""
    lists = re.split(r"Largest\s{1,9}program\s{1,9}allocations\s{1,9}in", text, maxsplit=2)
    if len(lists) == 1:
        return ()
    blocks = re.split(rf"\bSize:\s{{0,80}}{_SIZE}", lists[1], maxsplit=_MOST_ALLOCATIONS + 1)
    pairs = zip(blocks[1::2], blocks[2::2], strict=True)
    read = [_allocation(size, block) for size, block in pairs]
    return tuple(allocation for allocation in read if allocation is not None)[:_MOST_ALLOCATIONS]


def _allocation(size: str, block: str) -> Allocation | None:
    in_bytes = parse_size(size)
    if in_bytes is None:
        return None
    padding = re.search(
        rf"memory{_GAP}due{_GAP}to{_GAP}padding:{_GAP}{_SIZE}B?(?:\s{{0,80}}\((\d{{1,9}}(?:\.\d{{1,9}})?)x)?", block
    )
    shape = re.search(r"\bShape:\s{1,80}(\w{1,16}\[[\d,\s<=]{0,200}\])", block)
    operator = re.search(r'\bOperator:[^\n]{0,600}?\bop_name="([^"\n]{1,300})', block)
    source = re.search(r'\bsource_file="([^"\n]{1,300})"\s{1,9}source_line=(\d{1,9})', block)
    label = re.search(r"\bXLA\s{1,9}label:\s{1,80}([^\n=]{1,200})", block)
    return Allocation(
        in_bytes,
        "".join(shape[1].split()) if shape else None,
        operator[1] if operator else None,
        label[1].strip() if label else None,
        _size(rf"\bUnpadded{_GAP}size:{_GAP}{_SIZE}", block),
        parse_size(padding[1]) if padding else None,
        Fraction(padding[2]) if padding and padding[2] else None,
        f"{source[1]}:{source[2]}" if source else None,
    )


def _size(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text, re.IGNORECASE)
    return parse_size(found[1].upper()) if found else None


def _difference(used: int | None, limit: int | None) -> int | None:
    return used - limit if used is not None and limit is not None and used > limit else None
