"""What a program costs: wall time, CPU and peak memory, as the kernel counts them for it and the processes that it waited for.

On Linux a program inherits the peak memory of the process that starts it, so this process must stay small: nothing heavy
is imported here, and another process fills the sandboxes.
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

_TAIL = 4096  # bytes of output that are kept for the message of a failure
_SIZE = struct.pack("HHHH", 50, 200, 0, 0)  # lines, columns


class RunFailedError(Exception):
    """A measured program failed."""


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
    """A program that can be run repeatedly, with a cost each time."""

    def run(self, number: int) -> Cost:
        """Run it and return the cost; the first run has number 0."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command line with its environment. `{run}` in it stands for the number of the run."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    on_terminal: bool = False

    def run(self, number: int) -> Cost:
        """Run it to its end and return the cost. Raises `RunFailedError` with the end of its output."""
        command = [word.replace("{run}", str(number)) for word in self.command]
        parent, child_end = _terminal() if self.on_terminal else os.pipe()
        started = time.perf_counter()
        child = subprocess.Popen(
            command,
            env=dict(self.environ),
            stdin=child_end if self.on_terminal else subprocess.DEVNULL,
            stdout=child_end,
            stderr=child_end,
        )
        os.close(child_end)
        output = _drain(parent)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        os.close(parent)
        child.returncode = os.waitstatus_to_exitcode(status)  # `wait4` above has reaped it, not Popen
        if child.returncode:
            raise RunFailedError(
                f"{' '.join(command)} ended with {child.returncode}:\n{output.decode(errors='replace')}"
            )
        unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
        return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """A program that measures something itself and prints the seconds; its own cost is not counted."""

    program: Program

    def run(self, number: int) -> Cost:  # noqa: ARG002  # each run is the same
        """Run it and return the seconds that it printed. Raises `RunFailedError` with its stderr."""
        done = subprocess.run(
            self.program.command, env=dict(self.program.environ), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RunFailedError(f"{' '.join(self.program.command)} ended with {done.returncode}:\n{done.stderr}")
        return Cost(float(done.stdout), 0, 0)


def compare(
    programs: Mapping[str, Measurable], *, runs: int, report_progress: Callable[[str], None]
) -> dict[str, Cost]:
    """Return the median cost of each program. They take turns; the first turn is not counted."""
    costs: dict[str, list[Cost]] = {name: [] for name in programs}
    for number in range(runs + 1):
        report_progress(f"run {number} of {runs}")
        for name, program in programs.items():
            cost = program.run(number)
            if number:
                costs[name].append(cost)
    return {name: Cost.median(measured) for name, measured in costs.items()}


def _terminal() -> tuple[int, int]:
    parent, child_end = os.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, _SIZE)
    return parent, child_end


def _drain(descriptor: int) -> bytes:
    """Read until the other side is closed and return the end of the output."""
    output = b""
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:  # a pseudo-terminal reports so that the other side is closed
            return output
        if not chunk:
            return output
        output = (output + chunk)[-_TAIL:]
