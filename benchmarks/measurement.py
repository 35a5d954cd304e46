"""What a program costs: wall time, CPU and peak memory, as the kernel counts them for it and the processes that it waited for.

Linux hands the peak memory of whoever starts a program on to it, so this process must stay small: nothing heavy is
imported here, and the worlds are filled by another process.
"""

from __future__ import annotations

import fcntl
import os
import statistics
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TAIL = 4096  # bytes of output that are kept for the story of a failure
_SIZE = struct.pack("HHHH", 50, 200, 0, 0)  # lines, columns


class RunFailedError(Exception):
    """A program that is measured did not do its work."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of wall time, seconds of CPU, MiB of peak memory."""

    wall: float
    cpu: float
    memory: float

    @classmethod
    def median(cls, costs: Sequence[Cost]) -> Cost:
        """Return the median of each figure by itself."""
        return cls(*(statistics.median(getattr(cost, name) for cost in costs) for name in ("wall", "cpu", "memory")))


class Measurable(Protocol):
    """What can be run again and again, and costs something each time."""

    def run(self, number: int) -> Cost:
        """Run it once; the first run has number 0."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command line with its environment. `{run}` in it stands for the number of the run."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    on_terminal: bool = False

    def run(self, number: int) -> Cost:
        """Run it to its end and return what that cost. Raises `RunFailedError` with its last words."""
        command = [word.replace("{run}", str(number)) for word in self.command]
        ours, its = _terminal() if self.on_terminal else os.pipe()
        started = time.perf_counter()
        child = subprocess.Popen(
            command,
            env=dict(self.environ),
            stdin=its if self.on_terminal else subprocess.DEVNULL,
            stdout=its,
            stderr=its,
        )
        os.close(its)
        words = _drain(ours)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        os.close(ours)
        child.returncode = os.waitstatus_to_exitcode(status)  # it was waited for here, not by Popen
        if child.returncode:
            raise RunFailedError(
                f"{' '.join(command)} ended with {child.returncode}:\n{words.decode(errors='replace')}"
            )
        unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
        return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """A program that measures something itself and prints the seconds. What it costs besides is not counted."""

    program: Program

    def run(self, number: int) -> Cost:  # noqa: ARG002  # each run is the same
        """Run it and return what it printed. Raises `RunFailedError` with its last words."""
        done = subprocess.run(
            self.program.command, env=dict(self.program.environ), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RunFailedError(f"{' '.join(self.program.command)} ended with {done.returncode}:\n{done.stderr}")
        return Cost(float(done.stdout), 0, 0)


def compare(programs: Mapping[str, Measurable], *, runs: int, tell: Callable[[str], None]) -> dict[str, Cost]:
    """Return the median cost of each program. They take turns, so that a busy moment meets them all; the first turn is lost."""
    costs: dict[str, list[Cost]] = {name: [] for name in programs}
    for number in range(runs + 1):
        tell(f"run {number} of {runs}")
        for name, program in programs.items():
            cost = program.run(number)
            if number:
                costs[name].append(cost)
    return {name: Cost.median(measured) for name, measured in costs.items()}


def _terminal() -> tuple[int, int]:
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, _SIZE)
    return ours, its


def _drain(descriptor: int) -> bytes:
    """Read until the other side is closed and return the end of it."""
    words = b""
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:  # a pseudo-terminal reports this when no process is left
            return words
        if not chunk:
            return words
        words = (words + chunk)[-_TAIL:]
