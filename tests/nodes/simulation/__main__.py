"""Repeat simulations: `python -m tests.nodes.simulation --seed 17 [--life n3] [-v]` shows the events of each node."""

from __future__ import annotations

import argparse
import sys

from tests.nodes.simulation.oracle import judge
from tests.nodes.simulation.run import live
from tests.nodes.simulation.schedule import draw
from tests.nodes.simulation.story import story

# ruff: noqa: T201  # a program that prints


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nodes.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--worlds", type=int, default=1, help="how many worlds, from that seed on")
    parser.add_argument("--life", help="only this one, such as n3")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell each life, line by line")
    asked = parser.parse_args()
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.worlds):
        history = live(draw(seed))
        wrong = judge(history)
        failed += bool(wrong)
        for fault in wrong:
            print(f"seed {seed}: {fault}")
        for life in history.plan.lives if asked.verbose else ():
            if asked.life in {None, life.node_id}:
                print("\n".join(story(history, life)))
    return 1 if failed else 0


sys.exit(main())
