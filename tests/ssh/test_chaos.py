"""The network that misbehaves: it does to a connection what a test commands, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import Chaos
from tests.tpuctl_process import TpuctlProcess
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState


@pytest.fixture
def chaos() -> Iterator[Chaos]:
    before = set(threading.enumerate())  # some may be of an earlier test, and end meanwhile
    with Chaos() as chaos:
        yield chaos
    assert set(threading.enumerate()) <= before


def through(chaos: Chaos, name: str, *command: str) -> subprocess.Popen[bytes]:
    """Start a command as ssh would start it as its proxy command."""
    words = [sys.executable, "-m", "tests.chaos", str(chaos.port), name, "--", *command]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_bytes_pass_unharmed_and_the_end_is_passed_on(chaos: Chaos) -> None:
    data = bytes(range(256)) * 4096

    assert through(chaos, "w0", "cat").communicate(data, 20) == (data, b"")

    (link,) = chaos.links("w0")
    assert (link.sent, link.received) == (len(data), len(data))


def test_connection_with_limit_is_cut_after_it_once(chaos: Chaos) -> None:
    chaos.cut_after("w0", received=70_001)
    endless, other = ("sh", "-c", "yes | head -c 200000"), ("echo", "whole")

    first, second, neighbour = (
        through(chaos, name, *command).communicate(timeout=60)[0]
        for name, command in (("w0", endless), ("w0", endless), ("w1", other))
    )

    assert [link.received for link in chaos.links("w0")] == [70_001, 200_000]
    assert (len(first) <= 70_001, len(second), neighbour) == (True, 200_000, b"whole\n")


def test_dropped_connection_passes_once_healed(chaos: Chaos) -> None:
    with through(chaos, "w0", "cat") as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        cat.stdin.write(b"one\n")
        cat.stdin.flush()
        assert cat.stdout.readline() == b"one\n"
        chaos.drop("w0")
        cat.stdin.write(b"two\n")
        cat.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            cat.wait(0.2)
        assert chaos.links("w0")[0].sent == 4
        chaos.heal("w0")
        assert cat.stdout.readline() == b"two\n"
        chaos.cut("w0")
        assert cat.stdout.read() == b""


def test_refused_connection_prints_the_message_of_ssh(chaos: Chaos) -> None:
    chaos.refuse("w0")

    refused = through(chaos, "w0", "cat")

    assert refused.communicate(timeout=60) == (b"", b"ssh: connect to host w0 port 22: Connection refused\n")
    assert (refused.returncode, chaos.links()) == (255, [])


@pytest.mark.sshd
def test_run_on_a_sandbox_worker_survives_a_cut_connection(chaos: Chaos, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with SandboxState.open(state / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        node = administration.add_node(sandbox_state, "demo", zone="us-central1-a", acceleratorType="v5litepod-16")
    address = node["networkEndpoints"][3]["accessConfig"]["externalIp"]
    environ = {
        "PATH": f"{chaos.shims(tmp_path / 'shims')}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(state),
        "TPUCTL_SANDBOX": "1",
        "TPUCTL_SSH_KEEP": "0",
    }
    count = "for i in 1 2 3 4; do echo $i; sleep 0.3; done"
    words = ["run", "demo", "--worker", "3", "--", count]
    with TpuctlProcess(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout is not None
        first = program.stdout.readline()
        before = len(chaos.links(address))
        chaos.cut(address)
        chaos.wait_until(address, opened=before + 1)
        rest = program.stdout.read()
    assert [line.split()[-1] for line in (first + rest).splitlines()] == ["1", "2", "3", "4"]
    assert program.returncode == 0
