"""What is advised when a memory of the TPU is used up, for each case."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.explain.test_memory_use import GIB, MIB, OF_JAX
from tpuctl.explain.device_memory import MemoryAllocation, MemoryUsage, memory_advice, parse_memory_usage, parse_size

_SHAPES = (
    "make feature dimensions multiples of 128 and the batch a multiple of 64 (8 per core), "
    "or the batch a multiple of 1024 (128 per core) and features multiples of 8"
)
_BATCH = "reduce the batch size: start at 1024 in total (128 per core), and go down in multiples of 64 (8 per core)"
_BFLOAT16 = "keep activations and gradients in bfloat16 instead of float32: they take half"
_AGAIN = (
    "recompute activations instead of keeping them: `jax.checkpoint`, `torch_xla.utils.checkpoint`, "
    "or `tf.recompute_grad`"
)
_SHARD = "shard the model, so that each core holds a part of the weights (model parallelism, FSDP)"
_LAYERS = "if the model does not fit even with a batch of 64, use fewer or smaller layers"
_DONATE = "delete references to unused arrays, and donate inputs: `jax.jit(..., donate_argnums=...)`"
_ORDER = "load the largest programs and arrays first, and do not keep two models at once"
_PADDED_BY = MemoryAllocation(4 * GIB, "f32[8192,1]", None, 32 * MIB, 4 * GIB - 32 * MIB, Fraction(128))


@pytest.mark.parametrize(
    ("use", "advice"),
    [
        (
            MemoryUsage("hbm", 18 * GIB, 16 * GIB, 2 * GIB, allocations=(_PADDED_BY,)),
            (
                f"`f32[8192,1]` is padded 128x: 4 GiB for 32 MiB; {_SHAPES}",
                "the program needs 18 GiB, 2 GiB more than the available 16 GiB",
                _BATCH,
                _BFLOAT16,
                _AGAIN,
                _SHARD,
                _LAYERS,
                "or use a TPU with more memory for each core: v4 (32 GiB), v5p (95 GiB), v6e (32 GiB)",
            ),
        ),
        # Padding that explains less than half of what is missing is not worth a change of shapes.
        (
            MemoryUsage(
                "hbm", 40 * GIB, 8 * GIB, 32 * GIB, allocations=(MemoryAllocation(3 * GIB, "bf16[9]", padding=2 * GIB),)
            ),
            (
                "the program needs 40 GiB, 32 GiB more than the available 8 GiB",
                _BATCH,
                _AGAIN,
                _SHARD,
                _LAYERS,
                "or use a TPU with more memory for each core: v5p (95 GiB)",
            ),
        ),
        # Weights that leave no room are no matter of the batch.
        (
            MemoryUsage("hbm", 100 * GIB, 16 * GIB, 84 * GIB, arguments=12 * GIB),
            (
                "the program needs 100 GiB, 84 GiB more than the available 16 GiB",
                f"weights and other arguments alone take 12 GiB at any batch size: {_SHARD}",
                _BATCH,
                _BFLOAT16,
                _AGAIN,
                _LAYERS,
            ),
        ),
        (
            MemoryUsage(
                "hbm",
                100 * GIB,
                16 * GIB,
                84 * GIB,
                allocations=(MemoryAllocation(9 * GIB, "bf16[5]", "loss/one_hot"),),
            ),
            (
                "the program needs 100 GiB, 84 GiB more than the available 16 GiB",
                "`bf16[5]` of `loss/one_hot` alone takes 9 GiB: shard it, or check whether it must be whole on one core",
                _BATCH,
                _AGAIN,
                _SHARD,
                _LAYERS,
            ),
        ),
        (
            MemoryUsage("hbm", 3 * GIB, over=GIB, free=2 * GIB),
            (
                "the program requested 3 GiB more, 1 GiB more than the free 2 GiB",
                *(_DONATE, _BATCH, _BFLOAT16, _AGAIN, _SHARD, _LAYERS),
            ),
        ),
        (
            MemoryUsage("hbm", 3 * GIB, free=4 * GIB, unbroken=2 * GIB),
            (
                (
                    "the program requested 3 GiB in one piece; 4 GiB were free, but fragmented: the largest piece was 2 GiB; "
                    f"{_ORDER}"
                ),
                *(_DONATE, _BATCH, _BFLOAT16, _AGAIN, _SHARD, _LAYERS),
            ),
        ),
        (
            MemoryUsage("hbm", limit=8 * GIB),
            ("the program needs more than the available 8 GiB", _BATCH, _BFLOAT16, _AGAIN, _SHARD, _LAYERS),
        ),
    ],
)
def test_advice_for_hbm_names_padding_first(use: MemoryUsage, advice: tuple[str, ...]) -> None:
    """Padding first where it is the reason; then what is missing, and the batch."""
    assert memory_advice(use) == advice


_TILES = "make its last dimension a multiple of 128, and the one before it a multiple of 8 (16 in bfloat16)"
_OF_DEVICES = (
    "reduce the batch of each device, if possible to a multiple of 8, and accumulate gradients over microbatches",
    (
        "recompute activations in the backward pass: `jax.checkpoint` with a policy such as "
        "`jax.checkpoint_policies.nothing_saveable`, or `torch_xla.utils.checkpoint`"
    ),
    (
        "shard weights, gradients and optimizer state over more chips: FSDP, tensor parallelism (`jax.sharding.NamedSharding`, "
        "`torch_xla.distributed.spmd`)"
    ),
    "use shorter sequences; without a flash or splash attention kernel, attention grows with the square of their length",
)
_LARGER = "or use a TPU with more memory for each core: v4 (32 GiB), v5p (95 GiB), v6e (32 GiB)"


@pytest.mark.parametrize(
    ("use", "advice"),
    [
        (
            parse_memory_usage(OF_JAX),
            (
                "the program needs 17.25 GiB, 1.5 GiB more than the available 15.75 GiB",
                (
                    "the largest allocation is 2 GiB, `bf16[8,4096,32000]` of `jit(train_step)/dot_general` at "
                    "`/home/u/model.py:42`: start there"
                ),
                *(*_OF_DEVICES, _LARGER),
            ),
        ),
        (
            MemoryUsage("hbm", 18 * GIB, 16 * GIB, 2 * GIB, allocations=(_PADDED_BY,), is_per_device=True),
            (
                f"`f32[8192,1]` is padded 128x: 4 GiB for 32 MiB; {_TILES}",
                "the program needs 18 GiB, 2 GiB more than the available 16 GiB",
                *(*_OF_DEVICES, _BFLOAT16, _LARGER),
            ),
        ),
        (
            MemoryUsage("hbm", 100 * GIB, 16 * GIB, 84 * GIB, arguments=12 * GIB, is_per_device=True),
            (
                "the program needs 100 GiB, 84 GiB more than the available 16 GiB",
                f"weights and other arguments alone take 12 GiB at any batch size: {_OF_DEVICES[2]}",
                *(*_OF_DEVICES[:2], _OF_DEVICES[3], _BFLOAT16),
            ),
        ),
    ],
)
def test_advice_for_jax_counts_the_batch_of_each_device(use: MemoryUsage, advice: tuple[str, ...]) -> None:
    """No batch of 1024 for a program in JAX."""
    assert memory_advice(use) == advice


@pytest.mark.parametrize(
    ("used", "advice"), [("17.25M", "17.25 MiB"), ("17.5M", "17.5 MiB"), ("16.00M", "16 MiB"), ("100.00M", "100 MiB")]
)
def test_advice_writes_sizes_as_the_log(used: str, advice: str) -> None:
    """So that it can be found there."""
    assert memory_advice(MemoryUsage("vmem", parse_size(used)))[0] == f"the compiled program needs {advice}"


def test_advice_for_vmem_is_a_smaller_batch() -> None:
    """The guide's advice: a smaller batch, or a newer version; never fewer layers."""
    advice = memory_advice(MemoryUsage("vmem", 32 * MIB, 16 * MIB, 16 * MIB))
    assert advice[0] == "the compiled program needs 32 MiB, 16 MiB more than the available 16 MiB"
    assert "not HBM" in advice[1]
    assert "512 or 256" in advice[2]
    assert not any("layers" in line for line in advice)
