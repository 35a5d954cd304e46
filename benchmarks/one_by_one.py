"""tpuctl with one question to the cloud at a time, for comparison: `python -m benchmarks.one_by_one check …`."""

from __future__ import annotations

from tpuctl.actions.checking import asking
from tpuctl.cli.main import entry_point

if __name__ == "__main__":
    asking._AT_ONCE = 1  # noqa: SLF001  # no user has a reason to set it
    entry_point()
