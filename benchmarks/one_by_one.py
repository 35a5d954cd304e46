"""tpuctl with one question to the cloud at a time, for comparison: `python -m benchmarks.one_by_one check …`."""

from __future__ import annotations

from tpuctl.check.gathering import _MAX_THREADS
from tpuctl.cli.main import entry_point

if __name__ == "__main__":
    _MAX_THREADS = 1  # no user has a reason to set it
    entry_point()
