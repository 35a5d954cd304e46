"""Repeat simulations: `python -m tests.nodes.simulation --seed 17 [--life n3] [-v]` shows the events of each node.

With `--capacity` the seed is that of a life that looks for capacity, with `--group` that of a group of slices.
"""

from __future__ import annotations

import argparse
import sys

from tests.nodes.simulation.capacity_life import draw_capacity_life
from tests.nodes.simulation.capacity_oracle import judge_capacity
from tests.nodes.simulation.capacity_run import live_capacity
from tests.nodes.simulation.group_run import judge_group
from tests.nodes.simulation.oracle import judge
from tests.nodes.simulation.run import live
from tests.nodes.simulation.schedule import draw
from tests.nodes.simulation.story import capacity_story, story

# ruff: noqa: T201  # a program that prints


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nodes.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--worlds", type=int, default=1, help="how many worlds, from that seed on")
    parser.add_argument("--life", help="only this one, such as n3")
    parser.add_argument("--capacity", action="store_true", help="lives that look for capacity, one in each world")
    parser.add_argument("--group", action="store_true", help="lives of a group of slices, one in each world")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell each life, line by line")
    asked = parser.parse_args()
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.worlds):
        if asked.group:
            wrong, lines = list(judge_group(seed)), list[str]()
        else:
            wrong, lines = _capacity_life(seed) if asked.capacity else _world(seed, asked.life)
        failed += bool(wrong)
        for fault in wrong:
            print(f"seed {seed}: {fault}")
        if asked.verbose:
            print("\n".join(lines))
    return 1 if failed else 0


def _capacity_life(seed: int) -> tuple[list[str], list[str]]:
    history = live_capacity(draw_capacity_life(seed))
    return judge_capacity(history), capacity_story(history)


def _world(seed: int, only: str | None) -> tuple[list[str], list[str]]:
    history = live(draw(seed))
    told = [line for life in history.plan.lives if only in {None, life.node_id} for line in story(history, life)]
    return judge(history), told


sys.exit(main())
