"""Simulate very many lives of nodes and check them: `python -m benchmarks.simulation [--lives 50000]`; not a measurement.

A fifth of them looks for capacity: through the queue, in several zones and tiers. A twentieth has a job of `run --keep`,
through preemptions, crashes, hangs, and deaths of its supervisor. `make test` runs the first 128 of them;
CI also runs `make simulation`, 2,000. Prints each error with the command that repeats its world.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

_LIVES_IN_A_WORLD = 10
_SHARE_OF_CAPACITY, _SHARE_OF_JOBS = 5, 20  # one life of so many


def main() -> int:
    """Simulate the worlds in parallel. Return 1 if an error was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--lives", type=int, default=50_000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first world")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    searches = arguments.lives // _SHARE_OF_CAPACITY
    jobs = arguments.lives // _SHARE_OF_JOBS
    worlds = -(-(arguments.lives - searches - jobs) // _LIVES_IN_A_WORLD)
    first = arguments.first
    started, faults = time.perf_counter(), 0
    with multiprocessing.Pool(arguments.jobs) as pool:
        kinds = (
            (_check_world, "tests.nodes.simulation --seed {} -v", worlds),
            (_check_search, "tests.nodes.simulation --capacity --seed {} -v", searches),
            (_check_job, "tests.workers.kept_life {}", jobs),
        )
        for check, command, count in kinds:
            for seed, wrong in pool.imap_unordered(check, range(first, first + count), chunksize=4):
                for fault in wrong:
                    print(f"{fault}\n    python -m {command.format(seed)}", flush=True)
                faults += len(wrong)
    took = time.perf_counter() - started
    lives = worlds * _LIVES_IN_A_WORLD + searches + jobs
    kinds_of = f"{searches} of which looked for capacity, and {jobs} had a job"
    print(f"{lives} lives, {kinds_of}: {faults} faults, {took:.0f} s with {arguments.jobs} processes")
    return 1 if faults else 0


def _check_world(seed: int) -> tuple[int, list[str]]:
    from tests.nodes.simulation.oracle import judge  # noqa: PLC0415  # in the process that simulates the world
    from tests.nodes.simulation.run import live  # noqa: PLC0415  # as above
    from tests.nodes.simulation.schedule import draw  # noqa: PLC0415  # as above

    return seed, judge(live(draw(seed, lives=_LIVES_IN_A_WORLD)))


def _check_search(seed: int) -> tuple[int, list[str]]:
    from tests.nodes.simulation.capacity_life import draw_capacity_life  # noqa: PLC0415  # as above
    from tests.nodes.simulation.capacity_oracle import judge_capacity  # noqa: PLC0415  # as above
    from tests.nodes.simulation.capacity_run import live_capacity  # noqa: PLC0415  # as above

    return seed, judge_capacity(live_capacity(draw_capacity_life(seed)))


def _check_job(seed: int) -> tuple[int, list[str]]:
    from tests.workers.kept_life import live_kept  # noqa: PLC0415  # as above

    return seed, live_kept(seed)


if __name__ == "__main__":
    sys.exit(main())
