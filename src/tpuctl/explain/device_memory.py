"""Parse messages about exhausted device memory, and advise what helps. Pure.

The message and the lines that follow it give: used, limit, excess, padding, largest allocations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from tpuctl.accelerators import load_accelerators

if TYPE_CHECKING:
    from collections.abc import Iterator

# Lists are sorted by size: later allocations explain little.
_MAX_ALLOCATIONS = 20

# XLA's units are powers of 1024: "529.00M ( 554,696,704 bytes)" (pytorch/xla#1735).
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE = r"(\d{1,15}(?:[.,]\d{1,12})?[KMGTP]?)(?![\d.,]{0,9}\d)"
_GAP = r"\s{1,80}"
# In a table of sizes, other than in a sentence, a number has its unit.
_SIZE_IN_TABLE = rf"{_GAP}{_SIZE}(?:(?<=[KMGTP])|(?=B))"


@dataclass(frozen=True, slots=True)
class MemoryAllocation:
    """One of the largest allocations. Sizes are in bytes; a field is None if the log does not give it."""

    size: int
    shape: str | None = None
    operator: str | None = None
    unpadded: int | None = None
    padding: int | None = None  # added to the tensor by the layout of the hardware
    expansion: Fraction | None = None  # the factor by which the padding enlarged the tensor
    source: str | None = None  # the line of the program that made it, as `FILE:LINE`


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """How much of a memory was requested. Sizes are in bytes; a field is None if the log does not give it."""

    space: str  # `hbm`, the memory of a core; `vmem`, a small scratch memory inside it; or `smem`
    used: int | None = None
    limit: int | None = None
    over: int | None = None
    arguments: int | None = None
    allocations: tuple[MemoryAllocation, ...] = ()
    free: int | None = None  # when a running program requested `used` more
    unbroken: int | None = None  # the largest piece of the free memory
    # HBM ran out in a program that seems to use JAX or PyTorch, which count a batch for each device; TensorFlow counts the
    # whole batch.
    is_per_device: bool = False


def parse_memory_usage(text: str) -> MemoryUsage | None:
    """Parse a message and the lines that follow it; None if it is not about memory.

    `text` has its line ends; it may end anywhere. Sources: XLA's messages of compilation (tensorflow/tpu#385,
    DifferentiableUniverseInitiative/flowpm#27, LargeWorldModel/LWM#60, pytorch/xla#7962), of the allocator at run time
    (pytorch/xla#1735, huggingface/transformers#22328, googlecolab/colabtools#5126) and of scoped memory (libtpu 0.0.52).
    """
    for parse in (_parse_compilation, _parse_scoped, _parse_allocator, _parse_both_cores):
        if usage := parse(text):
            # TensorFlow's messages have `op_type`, or `used:` in older versions.
            is_jax_or_torch = _JAX_OR_TORCH.search(text) is not None
            is_per_device = usage.space == "hbm" and (is_jax_or_torch or not _TENSORFLOW.search(text))
            return replace(usage, is_per_device=is_per_device)
    return None


def parse_size(text: str) -> int | None:
    """Parse a size as XLA writes it, like `15.48G` or `0B`, in bytes; None if it is not a size. A comma is a decimal point."""
    found = re.fullmatch(r"(\d{1,15}(?:[.,]\d{1,12})?)\s?([KMGTP]?)i?B?", text.strip())
    if found is None:
        return None
    factor: int = 1024 ** _UNITS[found[2]]
    return round(Fraction(found[1].replace(",", ".")) * factor)


_JAX_OR_TORCH = re.compile(r'op_name="p?(?:jit|map|jvp|vmap|xmap)\(|\bjax|torch|\baten__', re.IGNORECASE)
_TENSORFLOW = re.compile(r"tensorflow|\bkeras|\[\[\{\{node|TPUReplicate|\bop_type=|;\s{1,9}used:")
_OUT_OF_SPACE = re.compile(r"out\s{1,9}of\s{1,9}memory\s{1,9}in\s{1,9}memory\s{1,9}space\s{1,9}([a-z]{1,16})", re.I)
# The limit of one kernel, and the check of the compiler.
_SCOPED = re.compile(
    rf"scoped{_GAP}allocation{_GAP}with{_GAP}size{_GAP}{_SIZE}{_GAP}and{_GAP}limit{_GAP}{_SIZE}"
    rf"{_GAP}exceeded{_GAP}scoped{_GAP}(\w{{1,16}})",
    re.IGNORECASE,
)
_CHECKED = re.compile(
    r"Allocation\s{1,9}\(size=(\d{1,15})\)\s{1,9}would\s{1,9}exceed\s{1,9}memory\s{1,9}\(size=(\d{1,15})\)"
    r"(?:.{0,300}?\bspace=(\w{1,16}))?",
    re.DOTALL,
)
_ALLOCATING = re.compile(rf"attempting{_GAP}to{_GAP}(?:allocate|reserve){_GAP}{_SIZE}", re.IGNORECASE)
_NOT_POSSIBLE = re.compile(rf"that{_GAP}was{_GAP}not{_GAP}possible", re.IGNORECASE)
_BOTH_CORES = re.compile(
    rf"Hbm{_GAP}usage:?{_GAP}{_SIZE}B?,\s{{0,80}}SparseCore{_GAP}Hbm{_GAP}usage:?{_GAP}{_SIZE}B?,\s{{0,80}}"
    rf"exceeding{_GAP}available{_GAP}bytes:{_GAP}{_SIZE}",
    re.IGNORECASE,
)


def _parse_compilation(text: str) -> MemoryUsage | None:
    head = _OUT_OF_SPACE.search(text)
    if head is None:
        return None
    space, rest = head[1].lower(), text[head.end() :]
    if scoped := _parse_scoped(rest):
        return scoped
    used = _find_size(rf"\bused:?{_GAP}{_SIZE}B?\s{{0,80}}(?:of|;)", rest)
    limit = _find_size(rf"\bof{_GAP}{_SIZE}B?{_GAP}{space}", rest) or _find_size(rf"\blimit:{_GAP}{_SIZE}", rest)
    over = _find_size(rf"\bexceeded{_GAP}{space}{_GAP}capacity{_GAP}by{_GAP}{_SIZE}", rest)
    return _with_parts(MemoryUsage(space, used, limit, over or _difference(used, limit)), rest)


def _parse_scoped(text: str) -> MemoryUsage | None:
    if found := _SCOPED.search(text) or _CHECKED.search(text):
        used, limit = parse_size(found[1]), parse_size(found[2])
        return MemoryUsage((found[3] or "vmem").lower(), used, limit, _difference(used, limit))
    return None


def _parse_allocator(text: str) -> MemoryUsage | None:
    """Parse the message of the allocator at run time, which needs one contiguous piece."""
    found = _ALLOCATING.search(text)
    if found is None or not _NOT_POSSIBLE.search(text, found.end(), found.end() + 400):
        return None
    used, rest = parse_size(found[1]), text[found.end() :]
    free = _find_size(rf"there{_GAP}are{_GAP}{_SIZE}B?{_GAP}free", rest)
    unbroken = _find_size(rf"\band{_GAP}{_SIZE}B?{_GAP}reservable", rest)
    limit = _find_size(rf"HBM{_GAP}capacity{_GAP}{_SIZE}", rest)
    over = _difference(used, free if unbroken is None else unbroken)
    return _with_parts(MemoryUsage("hbm", used, limit, over, free=free, unbroken=unbroken), rest)


def _parse_both_cores(text: str) -> MemoryUsage | None:
    """Parse the sum of the TensorCore and the SparseCore (openxla/xla docs/errors/error_1000.md)."""
    found = _BOTH_CORES.search(text)
    if found is None:
        return None
    used, limit = (parse_size(found[1]) or 0) + (parse_size(found[2]) or 0), parse_size(found[3])
    return MemoryUsage("hbm", used, limit, _difference(used, limit))


def _with_parts(usage: MemoryUsage, text: str) -> MemoryUsage:
    return replace(
        usage,
        arguments=_find_size(rf"(?<![\w/])arguments{_SIZE_IN_TABLE}", text),
        allocations=_parse_allocations(text),
    )


def _parse_allocations(text: str) -> tuple[MemoryAllocation, ...]:
    """Parse the first list of allocations; a traceback repeats it."""
    lists = re.split(r"Largest\s{1,9}program\s{1,9}allocations\s{1,9}in", text, maxsplit=2)
    if len(lists) == 1:
        return ()
    blocks = re.split(rf"\bSize:\s{{0,80}}{_SIZE}", lists[1], maxsplit=_MAX_ALLOCATIONS + 1)
    pairs = zip(blocks[1::2], blocks[2::2], strict=True)
    found = [_parse_allocation(size, block) for size, block in pairs]
    return tuple(allocation for allocation in found if allocation is not None)[:_MAX_ALLOCATIONS]


_PADDING = re.compile(
    rf"memory{_GAP}due{_GAP}to{_GAP}padding:{_GAP}{_SIZE}B?(?:\s{{0,80}}\((\d{{1,9}}(?:\.\d{{1,9}})?)x)?"
)


def _parse_allocation(size: str, block: str) -> MemoryAllocation | None:
    in_bytes = parse_size(size)
    if in_bytes is None:
        return None
    padding = _PADDING.search(block)
    shape = re.search(r"\bShape:\s{1,80}(\w{1,16}\[[\d,\s<=]{0,200}\])", block)
    operator = re.search(r'\bOperator:[^\n]{0,600}?\bop_name="([^"\n]{1,300})', block)
    source = re.search(r'\bsource_file="([^"\n]{1,300})"\s{1,9}source_line=(\d{1,9})', block)
    return MemoryAllocation(
        in_bytes,
        shape="".join(shape[1].split()) if shape else None,
        operator=operator[1] if operator else None,
        unpadded=_find_size(rf"\bUnpadded{_GAP}size:{_GAP}{_SIZE}", block),
        padding=parse_size(padding[1]) if padding else None,
        expansion=Fraction(padding[2]) if padding and padding[2] else None,
        source=f"{source[1]}:{source[2]}" if source else None,
    )


def _find_size(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text, re.IGNORECASE)
    return parse_size(found[1].upper()) if found else None


def _difference(used: int | None, limit: int | None) -> int | None:
    return used - limit if used is not None and limit is not None and used > limit else None


_GIB = 1024**3
# XLA reserves some: "Used 17.50G of 15.48G hbm" on chips with 16 GiB.
_USABLE = Fraction(96, 100)
# The guides' rule of thumb for layouts without padding: Cloud TPU documentation, troubleshooting of TensorFlow.
_SHAPES = (
    "make feature dimensions multiples of 128 and the batch a multiple of 64 (8 per core), "
    "or the batch a multiple of 1024 (128 per core) and features multiples of 8"
)
_BATCH = "reduce the batch size: start at 1024 in total (128 per core), and go down in multiples of 64 (8 per core)"
_SHARD = "shard the model, so that each core holds a part of the weights (model parallelism, FSDP)"
# XLA lays an array out in tiles of 8 rows of 128; a row of two-byte numbers counts half (openxla/xla docs/tiled_layout.md).
_TILES = "make its last dimension a multiple of 128, and the one before it a multiple of 8 (16 in bfloat16)"
_BATCH_OF_DEVICE = (
    "reduce the batch of each device, if possible to a multiple of 8, and accumulate gradients over microbatches"
)
_REMAT = (
    "recompute activations in the backward pass: `jax.checkpoint` with a policy such as "
    "`jax.checkpoint_policies.nothing_saveable`, or `torch_xla.utils.checkpoint`"
)
_SHARD_ALL = (
    "shard weights, gradients and optimizer state over more chips: FSDP, tensor parallelism (`jax.sharding.NamedSharding`, "
    "`torch_xla.distributed.spmd`)"
)
_SEQUENCES = (
    "use shorter sequences; without a flash or splash attention kernel, attention grows with the square of their length"
)
_REMAT_ANYWHERE = (
    "recompute activations instead of keeping them: `jax.checkpoint`, `torch_xla.utils.checkpoint`, "
    "or `tf.recompute_grad`"
)
_LAYERS = "if the model does not fit even with a batch of 64, use fewer or smaller layers"
# Up to v3 each core of a chip is a device of its own; later chips show as one (Cloud TPU documentation, system architecture).
_DEVICE_IS_CORE = frozenset({"v2", "v3"})


def memory_advice(usage: MemoryUsage) -> tuple[str, ...]:
    """Return what helps, the best first, with numbers: padding, batch size, features, bfloat16, parallelism.

    Sources: Cloud TPU documentation, troubleshooting; openxla/xla docs/errors (0100, 0101, 1000); for vmem also
    jax-ml/jax#38988 and tensorflow/tensorflow#26893.
    """
    if usage.space == "hbm":
        return tuple(_advise_hbm(usage))
    if usage.space == "smem":
        return (
            *_describe_amount(usage, "the kernel"),
            "smem is a small memory for scalars in a core, not HBM: pass fewer or smaller scalar and index arguments",
            "use a newer version of jaxlib and libtpu, or of TensorFlow and torch_xla",
        )
    return (
        *_describe_amount(usage, "the compiled program"),
        f"{usage.space} is a small scratch memory inside a core, not HBM: the compiler exceeded it, for any size of the model",
        "try a smaller batch: 512 or 256 in total has helped",
        "use a newer version of TensorFlow, torch_xla or jaxlib, with the matching libtpu",
        "for a kernel of your own, use smaller blocks, or set `vmem_limit_bytes` in its `pltpu.CompilerParams`",
        "raise the limit of all kernels with `LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=KIB`",
    )


def _advise_hbm(usage: MemoryUsage) -> Iterator[str]:
    """Yield the advice for programs of JAX and PyTorch; else that of TensorFlow's guides."""
    yield from _advise_padding(usage)
    yield from _describe_amount(usage, "the program")
    yield from _advise_largest(usage)
    if usage.free is not None:
        yield "delete references to unused arrays, and donate inputs: `jax.jit(..., donate_argnums=...)`"
    shard = _SHARD_ALL if usage.is_per_device else _SHARD
    has_other_shapes = usage.allocations and not any(
        (one.shape or "f32").startswith("f32") for one in usage.allocations
    )
    bfloat16 = (
        () if has_other_shapes else ("keep activations and gradients in bfloat16 instead of float32: they take half",)
    )
    weights_are_most = usage.arguments and usage.limit and usage.arguments * 2 > usage.limit
    if usage.arguments and weights_are_most:
        yield f"weights and other arguments alone take {_format_bytes(usage.arguments)} at any batch size: {shard}"
    yield from (_BATCH_OF_DEVICE, _REMAT) if usage.is_per_device else (_BATCH, *bfloat16, _REMAT_ANYWHERE)
    if not weights_are_most:
        yield shard
    yield from (_SEQUENCES, *bfloat16) if usage.is_per_device else (_LAYERS,)
    yield from _advise_generations(usage)


def _advise_padding(usage: MemoryUsage) -> Iterator[str]:
    """Blame the layout if it takes most of the missing memory, or doubles a tensor."""
    worst = max(usage.allocations, key=_padding_of, default=None)
    if worst is None or not (padding := _padding_of(worst)):
        return
    total = sum(_padding_of(allocation) for allocation in usage.allocations)
    expansion = worst.expansion or Fraction(worst.size, max(worst.size - padding, 1))
    explains = total * 2 >= usage.over if usage.over else expansion >= 2
    if not explains:
        return
    name = f"`{worst.shape}`" if worst.shape else "the largest tensor"
    times = f"{float(expansion):.1f}".removesuffix(".0")
    plain = worst.unpadded if worst.unpadded is not None else worst.size - padding
    sum_of_all = f" (padding takes {_format_bytes(total)} in all)" if total > padding else ""
    shapes = _TILES if usage.is_per_device else _SHAPES
    yield f"{name} is padded {times}x: {_format_bytes(worst.size)} for {_format_bytes(plain)}{sum_of_all}; {shapes}"


def _advise_largest(usage: MemoryUsage) -> Iterator[str]:
    """Name a tensor that alone takes more than half of the memory, or whose operator is known."""
    largest = max(usage.allocations, key=lambda allocation: allocation.size, default=None)
    if largest is None:
        return
    location = f" of `{largest.operator}`" if largest.operator else ""
    location += f" at `{largest.source}`" if largest.source else ""
    if usage.limit and largest.size * 2 > usage.limit:
        name = f"`{largest.shape}`" if largest.shape else "one tensor"
        size = _format_bytes(largest.size)
        yield f"{name}{location} alone takes {size}: shard it, or check whether it must be whole on one core"
    elif usage.is_per_device and location:
        name = f"`{largest.shape}`" if largest.shape else "a tensor"
        yield f"the largest allocation is {_format_bytes(largest.size)}, {name}{location}: start there"


def _describe_amount(usage: MemoryUsage, subject: str) -> Iterator[str]:
    if usage.used is None:
        if usage.limit is not None:
            yield f"{subject} needs more than the available {_format_bytes(usage.limit)}"
    elif usage.free is not None:
        if usage.used > usage.free:
            over, free = _format_bytes(usage.used - usage.free), _format_bytes(usage.free)
            yield f"the program requested {_format_bytes(usage.used)} more, {over} more than the free {free}"
            return
        is_known = usage.unbroken is not None and usage.unbroken < usage.used
        largest = f": the largest piece was {_format_bytes(usage.unbroken or 0)}" if is_known else ""
        yield (
            f"the program requested {_format_bytes(usage.used)} in one piece; {_format_bytes(usage.free)} were free, "
            f"but fragmented{largest}; load the largest programs and arrays first, and do not keep two models at once"
        )
    elif usage.limit is not None and usage.over is not None:
        over, limit = _format_bytes(usage.over), _format_bytes(usage.limit)
        yield f"{subject} needs {_format_bytes(usage.used)}, {over} more than the available {limit}"
    else:
        yield f"{subject} needs {_format_bytes(usage.used)}"


def _advise_generations(usage: MemoryUsage) -> Iterator[str]:
    """Name the generations whose cores, or chips that show as one device, have enough memory."""
    if usage.used is None or usage.free is not None:
        return
    needed = max(usage.used, usage.limit or 0)
    fitting: list[str] = []
    for generation in load_accelerators().generations.values():
        cores = generation.cores_per_chip if generation.name in _DEVICE_IS_CORE else 1
        memory = generation.hbm_gib_per_chip // cores
        if memory * _GIB * _USABLE >= needed:
            fitting.append(f"{generation.name} ({memory} GiB)")
    if fitting:
        yield f"or use a TPU with more memory for each core: {', '.join(fitting)}"


def _padding_of(allocation: MemoryAllocation) -> int:
    if allocation.padding is not None:
        return allocation.padding
    return max(allocation.size - allocation.unpadded, 0) if allocation.unpadded is not None else 0


def _format_bytes(size: int) -> str:
    """Return a size in the unit that keeps the number short, with two decimals as XLA writes them."""
    amount, unit = Fraction(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{float(amount):.2f}".rstrip("0").rstrip(".") + f" {unit}"
