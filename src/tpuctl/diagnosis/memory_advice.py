"""What helps when a memory of the TPU is exhausted. Pure: numbers go in, sentences come out."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from tpuctl import accelerators

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.diagnosis.memory_use import Allocation, MemoryUse

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
# Up to v3 each core of a chip is a device of its own; later chips show as one (Cloud TPU documentation, system architecture).
_DEVICE_IS_CORE = frozenset({"v2", "v3"})


def advice(use: MemoryUse) -> tuple[str, ...]:
    """Return what helps, the best first, with numbers: padding, batch size, features, bfloat16, parallelism.

    Sources: Cloud TPU documentation, troubleshooting; openxla/xla docs/errors (0100, 0101, 1000); for vmem also
    jax-ml/jax#38988 and tensorflow/tensorflow#26893.
    """
    if use.space == "hbm":
        return tuple(_for_hbm(use))
    if use.space == "smem":
        return (
            *_amount(use, "the kernel"),
            "smem is a small memory for scalars in a core, not HBM: pass fewer or smaller scalar and index arguments",
            "use a newer version of jaxlib and libtpu, or of TensorFlow and torch_xla",
        )
    return (
        *_amount(use, "the compiled program"),
        f"{use.space} is a small scratch memory inside a core, not HBM: the compiler exceeded it, for any size of the model",
        "try a smaller batch: 512 or 256 in total has helped",
        "use a newer version of TensorFlow, torch_xla or jaxlib, with the matching libtpu",
        "for a kernel of your own, use smaller blocks, or set `vmem_limit_bytes` in its `pltpu.CompilerParams`",
        "raise the limit of all kernels with `LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=KIB`",
    )


def _for_hbm(use: MemoryUse) -> Iterator[str]:
    yield from _about_padding(use)
    yield from _amount(use, "the program")
    yield from _about_largest(use)
    if use.free is not None:
        yield "delete references to unused arrays, and donate inputs: `jax.jit(..., donate_argnums=...)`"
    weights_are_most = bool(use.arguments and use.limit and use.arguments * 2 > use.limit)
    shard = _SHARD_ALL if use.is_per_device else _SHARD
    if weights_are_most and use.arguments:
        yield f"weights and other arguments alone take {_said(use.arguments)} at any batch size: {shard}"
    if use.is_per_device:
        # Programs of JAX and PyTorch, mostly large language models.
        yield _BATCH_OF_DEVICE
        yield _REMAT
        if not weights_are_most:
            yield _SHARD_ALL
        yield _SEQUENCES
        yield from _about_float32(use)
    else:
        # The advice of the guides, which are about TensorFlow.
        yield _BATCH
        yield from _about_float32(use)
        yield (
            "recompute activations instead of keeping them: `jax.checkpoint`, `torch_xla.utils.checkpoint`, "
            "or `tf.recompute_grad`"
        )
        if not weights_are_most:
            yield _SHARD
        yield "if the model does not fit even with a batch of 64, use fewer or smaller layers"
    yield from _about_generations(use)


def _about_float32(use: MemoryUse) -> Iterator[str]:
    if not use.allocations or any((allocation.shape or "f32").startswith("f32") for allocation in use.allocations):
        yield "keep activations and gradients in bfloat16 instead of float32: they take half"


def _about_padding(use: MemoryUse) -> Iterator[str]:
    """Blame the layout if it takes most of the missing memory, or doubles a tensor."""
    worst = max(use.allocations, key=_padding, default=None)
    if worst is None or not (padding := _padding(worst)):
        return
    total = sum(_padding(allocation) for allocation in use.allocations)
    expansion = worst.expansion or Fraction(worst.size, max(worst.size - padding, 1))
    explains = total * 2 >= use.over if use.over else expansion >= 2
    if not explains:
        return
    name = f"`{worst.shape}`" if worst.shape else "the largest tensor"
    times = f"{float(expansion):.1f}".removesuffix(".0")
    plain = worst.unpadded if worst.unpadded is not None else worst.size - padding
    sum_of_all = f" (padding takes {_said(total)} in all)" if total > padding else ""
    shapes = _TILES if use.is_per_device else _SHAPES
    yield f"{name} is padded {times}x: {_said(worst.size)} for {_said(plain)}{sum_of_all}; {shapes}"


def _about_largest(use: MemoryUse) -> Iterator[str]:
    """Name a tensor that alone takes more than half of the memory, or whose operator is known."""
    largest = max(use.allocations, key=lambda allocation: allocation.size, default=None)
    if largest is None:
        return
    location = f" of `{largest.operator}`" if largest.operator else ""
    location += f" at `{largest.source}`" if largest.source else ""
    if use.limit and largest.size * 2 > use.limit:
        name = f"`{largest.shape}`" if largest.shape else "one tensor"
        yield f"{name}{location} alone takes {_said(largest.size)}: shard it, or check whether it must be whole on one core"
    elif use.is_per_device and location:
        name = f"`{largest.shape}`" if largest.shape else "a tensor"
        yield f"the largest allocation is {_said(largest.size)}, {name}{location}: start there"


def _amount(use: MemoryUse, who: str) -> Iterator[str]:
    if use.used is None:
        if use.limit is not None:
            yield f"{who} needs more than the available {_said(use.limit)}"
    elif use.free is not None:
        if use.used > use.free:
            over = _said(use.used - use.free)
            yield f"the program requested {_said(use.used)} more, {over} more than the free {_said(use.free)}"
            return
        is_fragmented = use.unbroken is not None and use.unbroken < use.used
        largest = f": the largest piece was {_said(use.unbroken)}" if is_fragmented and use.unbroken is not None else ""
        yield (
            f"the program requested {_said(use.used)} in one piece; {_said(use.free)} were free, but fragmented{largest}; "
            "load the largest programs and arrays first, and do not keep two models at once"
        )
    elif use.limit is not None and use.over is not None:
        yield f"{who} needs {_said(use.used)}, {_said(use.over)} more than the available {_said(use.limit)}"
    else:
        yield f"{who} needs {_said(use.used)}"


def _about_generations(use: MemoryUse) -> Iterator[str]:
    """Name the generations whose cores, or chips that show as one device, have enough memory."""
    if use.used is None or use.free is not None:
        return
    needed = max(use.used, use.limit or 0)
    fitting: list[str] = []
    for generation in accelerators.load().generations.values():
        cores = generation.cores_per_chip if generation.name in _DEVICE_IS_CORE else 1
        memory = generation.hbm_gib_per_chip // cores
        if memory * _GIB * _USABLE >= needed:
            fitting.append(f"{generation.name} ({memory} GiB)")
    if fitting:
        yield f"or use a TPU with more memory for each core: {', '.join(fitting)}"


def _padding(allocation: Allocation) -> int:
    if allocation.padding is not None:
        return allocation.padding
    return max(allocation.size - allocation.unpadded, 0) if allocation.unpadded is not None else 0


def _said(size: int) -> str:
    """Return a size in the unit that keeps the number short, with two decimals as XLA writes them."""
    amount, unit = Fraction(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{float(amount):.2f}".rstrip("0").rstrip(".") + f" {unit}"
