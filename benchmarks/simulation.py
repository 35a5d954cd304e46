"""Simulate very many lives of nodes and check them: `python -m benchmarks.simulation [--lives 50000]`; not a measurement.

`make test` runs the first 160 of them; CI also runs `make simulation`, 2,000. Prints each error with the command that repeats
its world.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

_LIVES_IN_A_WORLD = 10


def main() -> int:
    """Simulate the worlds in parallel. Return 1 if an error was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--lives", type=int, default=50_000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first world")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + -(-arguments.lives // _LIVES_IN_A_WORLD))
    started, faults = time.perf_counter(), 0
    with multiprocessing.Pool(arguments.jobs) as pool:
        for seed, wrong in pool.imap_unordered(_check_world, seeds, chunksize=4):
            for fault in wrong:
                print(f"{fault}\n    python -m tests.nodes.simulation --seed {seed} -v", flush=True)
            faults += len(wrong)
    took = time.perf_counter() - started
    lives = len(seeds) * _LIVES_IN_A_WORLD
    print(f"{lives} lives in {len(seeds)} worlds: {faults} faults, {took:.0f} s with {arguments.jobs} processes")
    return 1 if faults else 0


def _check_world(seed: int) -> tuple[int, list[str]]:
    from tests.nodes.simulation.oracle import judge  # noqa: PLC0415  # in the process that simulates the world
    from tests.nodes.simulation.run import live  # noqa: PLC0415  # as above
    from tests.nodes.simulation.schedule import draw  # noqa: PLC0415  # as above

    return seed, judge(live(draw(seed, lives=_LIVES_IN_A_WORLD)))


if __name__ == "__main__":
    sys.exit(main())
