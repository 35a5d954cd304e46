"""Runs over a real sshd, with connections that break or hang."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import Chaos
from tests.lifecycle import ZONE
from tests.tpuctl_process import TpuctlProcess
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState

pytestmark = pytest.mark.sshd


class Real:
    """The program in a process of its own, on a slice of four workers with the machine's own ssh and sshd, through a proxy."""

    def __init__(self, folder: Path, chaos: Chaos) -> None:
        self.folder, self.chaos = folder, chaos
        with SandboxState.open(folder / "state" / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
            node = administration.add_node(sandbox_state, "demo", zone=ZONE, acceleratorType="v4-32")
        self.addresses = [point["accessConfig"]["externalIp"] for point in node["networkEndpoints"]]
        self.environ = {
            "PATH": f"{chaos.shims(folder / 'shims')}:{os.environ['PATH']}",
            "HOME": str(folder),
            "TPUCTL_STATE_DIR": str(folder / "state"),
            "TPUCTL_SANDBOX": "1",
            "TPUCTL_SSH_KEEP": "0",
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return TpuctlProcess(
            arguments,
            env=self.environ,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def homes(self) -> list[Path]:
        return sorted((self.folder / "state" / "sandbox" / "workers").glob("*/*/demo-*/[0-9]"))


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Real]:
    with Chaos() as chaos:
        yield Real(tmp_path, chaos)


def test_real_ssh_with_cut_connections_loses_nothing_and_restarts_nothing(real: Real) -> None:
    chaos, (first, second, third, _) = real.chaos, real.addresses
    chaos.cut_after(first, received=3_200)
    chaos.cut_after(second, received=900_000)
    chaos.cut_after(third, sent=3_000)
    line = "echo x >>count; seq 300000; while [ ! -e go ]; do sleep 0.05; done; seq 3; exit $TPUCTL_WORKER_ID"
    with real.start("run", "demo", "--log-dir", "logs", "--", line) as program:
        chaos.wait_until(second, opened=2, received=900_000)
        chaos.wait_until(real.addresses[3], received=1_900_000)
        chaos.cut(real.addresses[3])
        chaos.wait_until(real.addresses[3], opened=2)
        for home in real.homes():
            (home / "go").touch()
        out, err = program.communicate(timeout=60)

    expected = b"".join(b"%d\n" % number for number in (*range(1, 300_001), 1, 2, 3))
    found = [
        hashlib.sha256((real.folder / "logs" / f"worker-{worker}.log").read_bytes()).hexdigest() for worker in range(4)
    ]
    assert found == [hashlib.sha256(expected).hexdigest()] * 4
    assert [(home / "count").read_text() for home in real.homes()] == ["x\n"] * 4
    assert err.decode().splitlines()[-2:] == [
        "error: the command failed on 3 of 4 workers: 1 (exit 1); 2 (exit 2); 3 (exit 3)",
        "  more: tpuctl explain remote-failed",
    ]
    assert (len(out), program.returncode) == (4 * (len(expected) + 4 * 300_003), 11)
