"""Run the training jobs of the examples for CI systems in the sandbox, each until each of its ends; not a measurement.

The command succeeds or fails, the job is cancelled, its time passes, its machine is lost, or it does not start. No node of it
may be left. `make test` has two of these jobs.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.ci.ci_jobs import JOBS, End, expected_result, run_job


def main() -> int:
    """Run all. Return 1 if one did not end as it must."""
    rows = [(job, end) for job in JOBS for end in End]
    # Not in memory: a job wants a journal that outlives the machine.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tpuctl-ci-") as folder, ThreadPoolExecutor(4) as pool:
        places = [Path(folder) / str(number) for number in range(len(rows))]
        results = list(pool.map(lambda place, row: run_job(place, *row), places, rows))
    failed = 0
    for (job, end), result in zip(rows, results, strict=True):
        wanted = expected_result(job, end)
        failed += result != wanted
        print(f"{job.name:20} {end:12} {'ok' if result == wanted else f'{result} instead of {wanted}'}")
        if result != wanted:
            print(result.log)
    print(f"{len(rows)} jobs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
