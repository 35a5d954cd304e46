"""The memory of a running program and of the processes that it started, from Linux's /proc."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING

from benchmarks.measurement import RunFailedError

if TYPE_CHECKING:
    from benchmarks.measurement import Program

_PROC = Path("/proc")
_EVERY = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Footprint:
    """Peak memory in MiB: of the program, and of the others together, with shared pages divided among them."""

    own: float
    others: float
    wall: float
    output: int


def watch(program: Program) -> Footprint:
    """Run a program to its end and return its footprint. Raises `RunFailedError`."""
    own = others = 0.0
    sizes: list[int] = []
    started = time.perf_counter()
    with subprocess.Popen(
        program.command,
        env=dict(program.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdout is not None
        reader = Thread(target=_count, args=(child.stdout, sizes))
        reader.start()
        while child.poll() is None:
            own = max(own, _kibibytes(_PROC / str(child.pid) / "status", "VmHWM") / 1024)
            others = max(others, sum(map(_share, _descendants(child.pid))) / 1024)
            time.sleep(_EVERY)
        reader.join()
    if child.returncode:
        raise RunFailedError(f"{' '.join(program.command)} ended with {child.returncode}")
    return Footprint(own, others, time.perf_counter() - started, sum(sizes))


def _count(stream: IO[bytes], sizes: list[int]) -> None:
    while data := stream.read1(1 << 18):  # type: ignore[attr-defined]  # a pipe's reader is buffered
        sizes.append(len(data))


def _share(process: int) -> float:
    return _kibibytes(_PROC / str(process) / "smaps_rollup", "Pss")


def _descendants(process: int) -> list[int]:
    try:
        text = (_PROC / str(process) / "task" / str(process) / "children").read_text("ascii")
    except OSError:  # it has just ended
        return []
    children = [int(word) for word in text.split()]
    return children + [below for child in children for below in _descendants(child)]


def _kibibytes(path: Path, key: str) -> float:
    try:
        text = path.read_text("ascii")
    except OSError:  # as above
        return 0
    found = re.search(rf"^{key}:\s*(\d+) kB", text, re.MULTILINE)
    return float(found[1]) if found else 0
