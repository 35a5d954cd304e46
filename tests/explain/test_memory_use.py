"""Messages about used-up memory, as they were met: what they tell, and what is advised."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuctl.explain.device_memory import MemoryAllocation, MemoryUsage, memory_advice, parse_memory_usage, parse_size

KIB, MIB, GIB = 1024, 1024**2, 1024**3

# A user's article on TPU training; the mark-up of the web page is as it was.
_PADDED = """\
(0) Resource exhausted: {{function_node __inference_train_function_80576}} Ran out of memory in memory space hbm. **Used 19.46G
of 15.48G hbm. Exceeded hbm capacity by 3.98G**.
Total hbm usage >= 19.98G:
    reserved 530.00M
    program 19.46G
    arguments 0BOutput size 0B; shares 0B with arguments.Program hbm requirement 19.46G:
    HLO temp 19.46G (33.1% utilization: **Unpadded (6.40G) Padded (19.32G)**) **Largest program allocations in hbm**:

  1\\. Size: 14.00G
     Operator: op_type="OneHot" op_name="model/loss/one_hot"
     Shape: s32[29360128,10]{1,0:T(8,128)}
     Unpadded size: 1.09G
     Extra memory due to padding: 12.91G (12.8x expansion)
     XLA label: %iota.2 = s32[29360128,10]{1,0:T(8,128)} iota(), iota_dimension=1
     Allocation type: HLO temp
     ========================== 2\\. Size: 2.62G
     Operator: op_name="model/layer_1/Conv2D"
     Shape: f32[128,256,896,18]{0,3,2,1:T(8,128)}
     Unpadded size: 1.97G
     Extra memory due to padding: 672.00M (1.3x expansion)
     XLA label: %fusion.9.remat.1.remat = f32[128,256,896,18]{0,3,2,1:T(8,128)} fusion(f32[1,1,8,18]{3,2,1,0:T(8,128)} %x)
     Allocation type: HLO temp
"""
# A user's notes on TPUs: no sizes at all.
_VMEM = """\
Compilation failure: Ran out of memory in memory space vmem. It should not be possible to run out of vmem - please file a bug
against XLA.

Largest program allocations in vmem:

XLA label: register allocator spill slots
Allocation type: scoped
"""
# pytorch/xla#1735
_AT_RUN_TIME = """\
Attempting to reserve 3.95G at the bottom of memory. That was not possible. There are 1.92G free, 0B reserved, and
1.92G reservable.;
HBM capacity 8.00G:
       Top-of-Memory reserved:  529.00M (     554,696,704 bytes)
Total hbm usage >= 10.94G:
    reserved(Infeed/Outfeed/Continuations) 529.00M
    heap allocations (without fragmentation)   6.08G
    program                    4.34G
Persistent allocations include some or all of:
    arguments                478.07M (89.4% utilization)
"""


# The form of XLA's text for JAX; names and numbers are made up.
OF_JAX = """\
Ran out of memory in memory space hbm. Used 17.25G of 15.75G hbm. Exceeded hbm capacity by 1.50G.

Largest program allocations in hbm:

  1. Size: 2.00G
     Operator: op_type="dot_general" op_name="jit(train_step)/dot_general" source_file="/home/u/model.py" source_line=42
     Shape: bf16[8,4096,32000]{2,1,0}
     Allocation type: HLO temp
"""


def _bytes(number: str, unit: int) -> int:
    return round(Fraction(number) * unit)


@pytest.mark.parametrize(
    ("text", "use"),
    [
        (
            _PADDED,
            MemoryUsage(
                "hbm",
                _bytes("19.46", GIB),
                _bytes("15.48", GIB),
                _bytes("3.98", GIB),
                0,
                (
                    MemoryAllocation(
                        14 * GIB,
                        "s32[29360128,10]",
                        "model/loss/one_hot",
                        _bytes("1.09", GIB),
                        _bytes("12.91", GIB),
                        Fraction("12.8"),
                    ),
                    MemoryAllocation(
                        _bytes("2.62", GIB),
                        "f32[128,256,896,18]",
                        "model/layer_1/Conv2D",
                        _bytes("1.97", GIB),
                        672 * MIB,
                        Fraction("1.3"),
                    ),
                ),
            ),
        ),
        (_VMEM, MemoryUsage("vmem")),
        (
            _AT_RUN_TIME,
            MemoryUsage(
                "hbm",
                _bytes("3.95", GIB),
                8 * GIB,
                _bytes("3.95", GIB) - _bytes("1.92", GIB),
                _bytes("478.07", MIB),
                free=_bytes("1.92", GIB),
                unbroken=_bytes("1.92", GIB),
                is_per_device=True,
            ),
        ),
        (
            "Ran out of memory in memory space hbm; used:\nYYY; limit: 7.48G.",
            MemoryUsage("hbm", limit=_bytes("7.48", GIB)),
        ),
        (
            "Ran out of memory in memory space hbm; used: 8.60G; limit: 7,48G.",
            MemoryUsage("hbm", _bytes("8.60", GIB), _bytes("7.48", GIB), _bytes("8.60", GIB) - _bytes("7.48", GIB)),
        ),
        (
            "Ran out of memory in memory space hbm. Used 8.60G of 8.00G hbm. Exceeded hbm capacity by 617.00M.",
            MemoryUsage("hbm", _bytes("8.60", GIB), 8 * GIB, 617 * MIB, is_per_device=True),
        ),
        (
            "Attempting to allocate 2.50G. That was not possible. There are 1.25G free.; (0x0x0_HBM0)",
            MemoryUsage(
                "hbm", _bytes("2.5", GIB), over=_bytes("1.25", GIB), free=_bytes("1.25", GIB), is_per_device=True
            ),
        ),
        (
            "TPU TensorCore Hbm usage: 34.00G, SparseCore Hbm usage 174.00G, exceeding available bytes: 95.00G",
            MemoryUsage("hbm", 208 * GIB, 95 * GIB, 113 * GIB, is_per_device=True),
        ),
        (
            "Ran out of memory in memory space vmem. Used 32.50M of 16.00M vmem. Exceeded vmem capacity by 16.50M",
            MemoryUsage("vmem", _bytes("32.5", MIB), 16 * MIB, _bytes("16.5", MIB)),
        ),
        (
            "Scoped allocation with size 17.50M\nand limit 16.00M exceeded scoped vmem limit by 1.50M.",
            MemoryUsage("vmem", _bytes("17.5", MIB), 16 * MIB, _bytes("1.5", MIB)),
        ),
        (
            "Allocation (size=134217728) would exceed memory (size=67108864) :: #allocation25 [shape = 'u8[1]{0}', space=smem]",
            MemoryUsage("smem", 128 * MIB, 64 * MIB, 64 * MIB),
        ),
        ("Ran out of memory in memory space hbm", MemoryUsage("hbm", is_per_device=True)),
        (
            "Ran out of memory in memory space hbm. Used 1.2.3G of garbage. arguments xx",
            MemoryUsage("hbm", is_per_device=True),
        ),
        (
            OF_JAX,
            MemoryUsage(
                "hbm",
                _bytes("17.25", GIB),
                _bytes("15.75", GIB),
                _bytes("1.50", GIB),
                allocations=(
                    MemoryAllocation(
                        2 * GIB, "bf16[8,4096,32000]", "jit(train_step)/dot_general", source="/home/u/model.py:42"
                    ),
                ),
                is_per_device=True,
            ),
        ),
        (
            "Ran out of memory in memory space hbm. Used 9.00G of 8.00G hbm.\n\t [[{{node TPUReplicate/_compile}}]]",
            MemoryUsage("hbm", 9 * GIB, 8 * GIB, GIB),
        ),
        ("Attempting to allocate 2.50G of disk", None),
        ("OOM when allocating tensor with shape[128,128]", None),
        ("", None),
    ],
)
def test_parse_memory_message(text: str, use: MemoryUsage | None) -> None:
    """Of any version of XLA, and with any part missing."""
    assert parse_memory_usage(text) == use


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("17.5G", 17 * GIB + GIB // 2),
        ("17,5G", 17 * GIB + GIB // 2),
        ("276.0K", 276 * KIB),
        ("2T", 2 * 1024 * GIB),
        ("64MiB", 64 * MIB),
        ("4096", 4096),
        ("YYY", None),
        ("1.2.3G", None),
        ("-1G", None),
        ("", None),
    ],
)
def test_parse_size_uses_powers_of_1024(text: str, size: int | None) -> None:
    """XLA itself writes `529.00M ( 554,696,704 bytes)`."""
    assert parse_size(text) == size


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.text(max_size=60), st.lists(st.sampled_from([*_PADDED.split(), "9" * 40, "1e9G", "Size:", "\n"]), max_size=60)
)
def test_parse_garbage_never_fails(noise: str, words: list[str]) -> None:
    """A log may be cut anywhere, and hold anything."""
    use = parse_memory_usage(f"{noise} Ran out of memory in memory space hbm {' '.join(words)}")
    assert use is not None
    assert all(line for line in memory_advice(use))
