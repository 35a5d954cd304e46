"""Kill `tpuctl run --up --rm --ttl` at 20 moments, and let each enforcer alone end its node; not a measurement.

SIGKILL ends the process: before the create, during the creation, the start of the guard, the run and the deletion. Then the
time of the node passes, and `gc --expired --yes`, `watch` or the guard on worker 0 acts, which is a process over real ssh. No
node and no request may be left, and nothing else may be deleted. `make test` has nine of these lives.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.tpuctl_process import run_tpuctl
from tests.workers.running.kill_moments import MOMENTS, Enforcer, Left, LifeResult, prove

from tpuctl.sandbox.sshd.daemon import find_sshd


def main() -> int:
    """Prove it for the chosen moments and enforcers. Return 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.killed_runs", description=__doc__)
    parser.add_argument("--enforcer", type=Enforcer, choices=list(Enforcer), action="append", help="default: all three")
    parser.add_argument("--moment", type=int, choices=range(1, len(MOMENTS) + 1), metavar="N", action="append")
    parser.add_argument(
        "--repeat",
        type=int,
        default=2,
        metavar="N",
        help="lives for each; in every second one the enforcer runs on another machine (default: 2)",
    )
    parser.add_argument("--queue", action="store_true", help="request the nodes through the queue")
    parser.add_argument("--jobs", type=int, default=4, help="lives at the same time (default: 4)")
    arguments = parser.parse_args()
    find_sshd()
    enforcers = arguments.enforcer or list(Enforcer)
    chosen = [(number, MOMENTS[number - 1]) for number in arguments.moment or range(1, len(MOMENTS) + 1)]
    run_tpuctl(["--version"])  # starts the process that forks, once for all threads
    started = time.perf_counter()
    # Not in memory: `watch` wants a journal that outlives the machine.
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tpuctl-killed-") as folder,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        lives = [
            pool.submit(
                prove,
                Path(folder) / f"{enforcer}-{number}-{again}",
                moment,
                enforcer,
                elsewhere=again % 2 == 1,
                is_queued=arguments.queue,
            )
            for again in range(arguments.repeat)
            for number, moment in chosen
            for enforcer in enforcers
        ]
        results = []
        for life in lives:
            result = life.result()
            results.append(result)
            print(_line(result), flush=True)
    print("\n".join(_summary(results)))
    faults = sum(len(result.faults) for result in results)
    print(f"{len(results)} lives: {faults} faults, {time.perf_counter() - started:.0f} s")
    return 1 if faults else 0


def _line(result: LifeResult) -> str:
    number = MOMENTS.index(result.moment) + 1
    ended = f", ended by {result.ended_by}" if result.ended_by else ""
    faults = "".join(f"\n    {fault}" for fault in result.faults)
    where = f"{number:2} {result.moment.phase}, {result.moment.text}"
    return f"{where:54} {result.enforcer:6} {result.left}{ended}{faults}"


def _summary(results: list[LifeResult]) -> list[str]:
    lines = []
    for enforcer in Enforcer:
        of_it = [result for result in results if result.enforcer is enforcer]
        left = Counter(result.left for result in of_it)
        by_it = sum(result.ended_by is enforcer for result in of_it)
        to_others = sum(result.ended_by not in {None, enforcer} for result in of_it)
        if of_it:
            lines.append(
                f"{enforcer}: {len(of_it)} lives: {left[Left.NOTHING]} without a node, {left[Left.DELETING]} already being "
                f"deleted, {by_it} ended by {enforcer}, {to_others} left to gc or watch, because no guard had begun"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
