"""tpuctl check with one API call at a time, for comparison: `python -m benchmarks.one_by_one check …`."""

from __future__ import annotations

from tpuctl.check import gathering
from tpuctl.cli.main import entry_point

if __name__ == "__main__":
    gathering._MAX_THREADS = 1  # noqa: SLF001  # no user has a reason to set it
    entry_point()
