"""Read a log of any size in a process of its own; print its memory: `python -m benchmarks.explain_memory NAME BYTES`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.explain_logs import LOGS, log
from tpuctl.explain.scanner import LogReader

_PIECE = 8_000_000


def main(name: str, size: int) -> None:
    """Read a log of about `size` bytes."""
    reader = LogReader()
    # The same piece repeatedly, so that only the memory of the reader is measured.
    data = log(name, _PIECE) if name in LOGS else b"all in one line " * (_PIECE // 16)
    before = _mebibytes()
    started = time.process_time()
    left = size
    while left > 0:
        for start in range(0, len(data), 1 << 18):
            reader.feed(data[start : start + (1 << 18)])
        left -= len(data)
    reader.so_far()
    print(json.dumps({"memory": _mebibytes(), "before": before, "seconds": time.process_time() - started}))


def _mebibytes() -> float:
    # getrusage's value starts with the memory of the process that started this one.
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


main(sys.argv[1], int(sys.argv[2]))
