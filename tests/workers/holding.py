"""Processes that hold a file open, as a program holds a TPU."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def holding(path: Path, count: int = 1) -> Iterator[list[str]]:
    """Hold a file open in processes; gives them as holders."""
    with path.open("rb") as file:
        processes = [
            subprocess.Popen(["sleep", "60"], pass_fds=[file.fileno()], stdin=subprocess.DEVNULL) for _ in range(count)
        ]
    try:
        yield [f"{process.pid} sleep" for process in sorted(processes, key=lambda one: one.pid)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
