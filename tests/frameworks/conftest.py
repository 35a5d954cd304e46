"""Slices of the sandbox whose workers reach one another: each has an address of its own on the loopback of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tpuctl_process import TpuctlProcess, run_tpuctl
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState

ZONE = "us-central2-b"
NETWORK = {"network": "projects/sandbox/global/networks/loopback", "enableExternalIps": True}


class Slices:
    """The nodes `s-0` and `s-1`, each a v4-16 of two workers, and the program in processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        with SandboxState.open(folder / "state" / "sandbox" / "world.sqlite3", speed=600) as state:
            administration.add_network(state, "loopback")
            for name in ("s-0", "s-1"):
                administration.add_node(state, name, zone=ZONE, acceleratorType="v4-16", networkConfig=NETWORK)
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TPUCTL_STATE_DIR": str(folder / "state"),
            "TPUCTL_SANDBOX": "1",
            "TPUCTL_ZONE": ZONE,
        }

    def tpuctl(self, *arguments: str) -> tuple[str, str, int]:
        """Run the program to its end; return stdout, stderr and the exit code."""
        done = run_tpuctl(arguments, env=self.environ, cwd=self.folder, timeout=150)
        return done.stdout.decode(), done.stderr.decode(), done.returncode

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program, and leave it running."""
        process = TpuctlProcess(
            arguments,
            env=self.environ, cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.started.append(process)
        return process


@pytest.fixture
def slices(tmp_path: Path) -> Iterator[Slices]:
    """Two slices of two workers in a sandbox of their own."""
    made = Slices(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
