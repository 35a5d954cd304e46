"""A detached job on a real sshd: it outlives connections and clients."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lifecycle import ZONE
from tests.tpuctl_process import TpuctlProcess
from tpuctl.errors import ExitCode
from tpuctl.sandbox import administration
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.state import SandboxState


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The program in a process of its own, on a sandbox slice of two workers, with the machine's own ssh and sshd."""
    with SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        administration.add_node(sandbox_state, "demo", zone=ZONE, acceleratorType="v4-16")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(tmp_path / "state"),
        "TPUCTL_SANDBOX": "1",
    }
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = TpuctlProcess(
            arguments,
            env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.sshd
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ssh of another process in /proc")
def test_detached_job_outlives_connections_and_clients(
    real: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    line = "seq 5; while [ ! -e go ]; do sleep 0.05; done; seq 6 9; exit $TPUCTL_WORKER_ID"
    begun = real("run", "demo", "--detach", "--name", "long", "--", line)
    assert begun.communicate(timeout=60)[0] == "long\n"
    told = [f"[{worker}] {number}\n" for worker in (0, 1) for number in range(1, 6)]

    first, second = real("logs", "demo", "-f"), real("attach", "demo", "long")
    outs = [process.stdout for process in (first, second) if process.stdout]
    assert [sorted(out.readline() for _ in told) for out in outs] == [told, told]
    for pid in children(first.pid):
        os.kill(pid, signal.SIGKILL)
    second.send_signal(signal.SIGINT)

    # Who only looks on may leave.
    assert second.communicate(timeout=60)[1].endswith(
        "interrupted: job `long` continues; nothing was undone\n"
        "  resume: tpuctl logs demo long -f\n  undo:   tpuctl kill demo long\n"
    )
    # A link that was cut is made again, and brings what the other has not.
    assert first.stderr is not None
    assert [first.stderr.readline().endswith("; reconnecting\n") for _ in told[:2]] == [True, True]
    for home in (tmp_path / "state" / "sandbox" / "workers").glob("*/*/demo-*/[01]"):
        (home / "go").touch()
    rest = [f"[{worker}] {number}\n" for worker in (0, 1) for number in range(6, 10)]
    assert sorted(outs[0].readlines()) == rest
    assert (first.wait(60), second.returncode) == (11, 130)


@pytest.mark.sshd
def test_preemption_ends_a_run_that_no_other_command_watches(
    real: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    running = real("run", "demo", "--", "echo begun; exec sleep 300")
    assert running.stdout is not None
    assert sorted(running.stdout.readline() for _ in (0, 1)) == ["[0] begun\n", "[1] begun\n"]
    with SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3") as state, state.write() as session:
        add_fault(session, Fault(FaultKind.PREEMPT, node="demo"))

    errors = running.communicate(timeout=60)[1]
    assert "error: `demo` was PREEMPTED: the command failed on " in errors
    assert running.returncode == ExitCode.BROKEN
