"""A hundred and sixty random runs, each judged by the sandbox: usable, or the right exit code.

A failure names its seed and the command that runs that world again. CI runs two thousand lives with `make simulation`.
"""

from __future__ import annotations

import pytest

from tests.nodes.simulation.capacity_life import draw_capacity_life
from tests.nodes.simulation.capacity_oracle import judge_capacity
from tests.nodes.simulation.capacity_run import live_capacity
from tests.nodes.simulation.group_run import judge_group
from tests.nodes.simulation.oracle import judge
from tests.nodes.simulation.run import live
from tests.nodes.simulation.schedule import draw

_WORLDS = 4  # of ten lives each
_LIVES = 4


@pytest.mark.parametrize("first", range(0, 12, _WORLDS))
def test_each_run_ends_usable_or_with_the_right_exit_code(first: int) -> None:
    """No node is leaked or wrongly deleted, and no budget exceeded, under any faults."""
    wrong = [
        f"{fault}\n    python -m tests.nodes.simulation --seed {seed} --life {fault.partition(' ')[0]} -v"
        for seed in range(first, first + _WORLDS)
        for fault in judge(live(draw(seed)))
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("first", range(0, 8, _LIVES))
def test_each_search_for_capacity_has_one_node_at_most_and_leaves_nothing(first: int) -> None:
    """Requests, zones, stock, kills and other clients: the last `up` succeeds, and after `down` the quota is back."""
    wrong = [
        f"{fault}\n    python -m tests.nodes.simulation --capacity --seed {seed} -v"
        for seed in range(first, first + _LIVES)
        for fault in judge_capacity(live_capacity(draw_capacity_life(seed)))
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("first", range(0, 12, _LIVES))
def test_each_group_of_slices_comes_up_as_a_whole_and_leaves_nothing(first: int) -> None:
    """Requests, zones, stock and kills: no slice exists twice, a run that fails leaves none, and the last `up` has them all."""
    wrong = [fault for seed in range(first, first + _LIVES) for fault in judge_group(seed)]

    assert not wrong, "\n".join(wrong)
