"""The cost of `tpuctl top` on a slice: `python -m benchmarks.top --workers 64 --seconds 60`.

A slice of the sandbox with the machine's own ssh and sshd, and a terminal of 120 columns. Prints the CPU time, in percent of
one core, of tpuctl, of its ssh connections, and of the program on each worker, after all workers have reported. In the sandbox
the workers share this machine, but each program reads only its own worker, as on a TPU VM.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import struct
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tests.tpuctl_process import run_tpuctl

from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import DEFAULT_ZONE
from tpuctl.sandbox.state import SandboxState

_CORES_PER_WORKER = 8  # in the name of a v4 slice
_TICKS = os.sysconf("SC_CLK_TCK")
_AGENT, _SSH = b"/usr/bin/python3\0-ISc", b"ssh\0"


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its parent, its command, and the CPU time that it has used, in seconds."""

    parent: int
    command: bytes
    cpu: float


def processes() -> dict[int, Process]:
    """Return the processes of this machine by their number."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b") ")[2].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        found[int(entry.name)] = Process(int(fields[1]), command, (int(fields[11]) + int(fields[12])) / _TICKS)
    return found


def measure(workers: int, seconds: float) -> None:
    """Run `tpuctl top` and print what it costs. Raises `AssertionError` if workers do not report."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-top-") as name:
        folder = Path(name)
        state = folder / "state"
        with SandboxState.open(state / "sandbox" / "world.sqlite3", speed=1) as sandbox_state:
            kind = f"v4-{workers * _CORES_PER_WORKER}"
            administration.add_node(sandbox_state, "slice", zone=DEFAULT_ZONE, acceleratorType=kind)
        environ = {"HOME": name, "TPUCTL_STATE_DIR": str(state), "TPUCTL_SANDBOX": "1", "TERM": "xterm-256color"}
        environ["PATH"] = os.environ["PATH"]
        train = "python3 -c 'from sandbox_chips import Chips; import time; chips = Chips(); time.sleep(100000)'"
        started = run_tpuctl(["run", "slice", "--detach", "--name", "train", "--", train], env=environ, cwd=folder)
        assert started.returncode == 0, started.stderr
        try:
            _watch(folder, environ, workers, seconds)
        finally:
            run_tpuctl(["kill", "slice", "--signal", "KILL"], env=environ, cwd=folder)
            run_tpuctl(["down", "slice", "--yes", "--no-wait"], env=environ, cwd=folder)


def _watch(folder: Path, environ: dict[str, str], workers: int, seconds: float) -> None:
    of_the_job = set(processes())
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(sys.executable, [sys.executable, "-m", "tpuctl", "top", "slice", "--interval", "2s"], environ)  # noqa: S606  # the program itself
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 80, 120, 0, 0))
    drawn = threading.Thread(target=_drain, args=(screen,), daemon=True)
    drawn.start()
    until = time.monotonic() + 300
    while len(_agents(processes(), of_the_job)) < workers:
        assert time.monotonic() < until, "not all workers report"
        time.sleep(1)
    time.sleep(20)  # until the last of them has begun
    before = processes()
    time.sleep(seconds)
    after = processes()
    os.write(screen, b"q")
    os.waitpid(pid, 0)

    def used(*, chosen: set[int]) -> list[float]:
        return [100 * (after[one].cpu - before[one].cpu) / seconds for one in chosen if one in before and one in after]

    own = used(chosen={pid})
    links = used(chosen={number for number, one in after.items() if one.parent == pid and one.command.startswith(_SSH)})
    agents = used(chosen=_agents(after, of_the_job))
    print(f"{workers} workers, one look in 2 s, {seconds:g} s, in percent of one core")
    print(f"tpuctl {sum(own):.1f}; its {len(links)} ssh connections together {sum(links):.1f}")
    print(f"the program on a worker, of {len(agents)}: mean {mean(agents):.2f}, most {max(agents):.2f}")


def _agents(found: dict[int, Process], others: set[int]) -> set[int]:
    return {number for number, one in found.items() if number not in others and one.command.startswith(_AGENT)}


def _drain(screen: int) -> None:
    try:
        while os.read(screen, 1 << 16):
            pass
    except OSError:
        return


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.top", description=__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    measure(arguments.workers, arguments.seconds)


if __name__ == "__main__":
    main()
