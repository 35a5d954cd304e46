"""Count the requests to a sandbox: `python -m benchmarks.call_rounds STATE_FILE LATENCY`, in a process of its own.

Prints JSON. `calls` and `distinct` count the entries of the log. `rounds` is the length of the longest chain of calls, each of
which began after the response to the one before, if every call takes LATENCY seconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tpuctl.sandbox.request_log import read_log


def count_calls(state_file: Path, latency: float) -> dict[str, int]:
    """Return the figures."""
    entries = read_log(state_file)
    rounds, last = 0, float("-inf")
    for end in sorted(entry.at.timestamp() for entry in entries):
        if end - latency >= last:
            rounds, last = rounds + 1, end
    distinct = {(entry.method, entry.path) for entry in entries}
    return {"calls": len(entries), "distinct": len(distinct), "rounds": rounds}


if __name__ == "__main__":
    print(json.dumps(count_calls(Path(sys.argv[1]), float(sys.argv[2]))))
