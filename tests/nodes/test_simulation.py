"""A hundred and sixty random runs, each judged by the sandbox: usable, or the right exit code.

A failure names its seed and the command that runs that world again. CI runs two thousand lives with `make simulation`.
"""

from __future__ import annotations

import pytest

from tests.nodes.simulation.oracle import judge
from tests.nodes.simulation.run import live
from tests.nodes.simulation.schedule import draw

_WORLDS = 4  # of ten lives each


@pytest.mark.parametrize("first", range(0, 16, _WORLDS))
def test_each_run_ends_usable_or_with_the_right_exit_code(first: int) -> None:
    """No node is leaked or wrongly deleted, and no budget exceeded, under any faults."""
    wrong = [
        f"{fault}\n    python -m tests.nodes.simulation --seed {seed} --life {fault.partition(' ')[0]} -v"
        for seed in range(first, first + _WORLDS)
        for fault in judge(live(draw(seed)))
    ]

    assert not wrong, "\n".join(wrong)
