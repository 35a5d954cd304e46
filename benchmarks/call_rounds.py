"""What a sandbox was asked, as JSON: `python -m benchmarks.call_rounds WORLD LATENCY`, in a process of its own.

`calls` and `distinct` count its log. `rounds` are the calls of which each began when the one before had been answered, where
every call takes LATENCY seconds: the depth of the chain.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tpuctl.sandbox.request_log import read_log


def asked(state_file: Path, latency: float) -> dict[str, int]:
    """Return the figures."""
    entries = read_log(state_file)
    rounds, last = 0, float("-inf")
    for end in sorted(entry.at.timestamp() for entry in entries):
        if end - latency >= last:
            rounds, last = rounds + 1, end
    distinct = {(entry.method, entry.path) for entry in entries}
    return {"calls": len(entries), "distinct": len(distinct), "rounds": rounds}


if __name__ == "__main__":
    print(json.dumps(asked(Path(sys.argv[1]), float(sys.argv[2]))))
