"""A kept job on a real sshd, through preemptions, a crash and the death of its supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lifecycle import ZONE
from tests.tpuctl_process import TpuctlProcess
from tests.workers.running.test_left_alone import until

# Each worker counts the steps in a file that outlives its node, as a bucket does. The first attempt
# waits at step 30 for its preemption, and the next crashes at step 40.
TRAIN = """
saved=$CHECKPOINTS/$TPUCTL_WORKER_ID
step=$(cat $saved 2>/dev/null || echo 0)
echo "begin $TPUCTL_ATTEMPT at $step" >> $saved.log
while [ $step -lt 60 ]; do
    step=$((step + 1)); echo $step > $saved; sleep 0.05
    while [ $TPUCTL_ATTEMPT = 1 ] && [ $step = 30 ]; do sleep 0.05; done
    if [ $step = 40 ] && [ ! -e $CHECKPOINTS/crashed ]; then sleep 0.5; touch $CHECKPOINTS/crashed; exit 1; fi
done
echo done >> $saved.log
"""


@pytest.fixture
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The program in a process of its own, with the machine's own ssh and sshd, in a sandbox whose hours take seconds."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(tmp_path / "state"),
        "TPUCTL_SANDBOX": "1",
        "TPUCTL_SANDBOX_SPEED": getattr(request.module, "SPEED", "600"),
    }
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.sh").write_text(TRAIN)
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = TpuctlProcess(
            arguments,
            env=environ, cwd=code, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for pid in tmp_path.glob("state/sandbox/workers/**/.tpuctl/jobs/*/pid"):
        if not (pid.parent / "exit").exists():
            with suppress(ProcessLookupError):
                os.killpg(int(pid.read_text().split()[0]), signal.SIGKILL)


@pytest.mark.sshd
def test_job_ends_with_0_through_preemption_crash_and_death_of_its_supervisor(
    real: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()

    def steps() -> int:
        return int((saved / "0").read_text() or 0) if (saved / "0").exists() else 0

    first = real(
        *("run", "trainer", "--keep", "--name", "train", "--type", "v4-16", "--spot", "--zone", ZONE, "--sync", "."),
        *("--env", f"CHECKPOINTS={saved}", "--rm", "--", "sh train.sh"),
    )
    until(lambda: steps() >= 10, 60)
    first.send_signal(signal.SIGKILL)
    # What is synced again is what was synced first.
    (tmp_path / "code" / "train.sh").write_text("exit 7\n")
    second = real("watch", "trainer", "--job", "train")
    until(lambda: steps() >= 20, 60)
    assert real("sandbox", "fault", "preempt", "--node", "trainer").wait(30) == 0
    err = second.communicate(timeout=120)[1]

    assert second.returncode == 0, err
    job = json.loads(real("history", "trainer", "--job", "train", "-o", "json").communicate(timeout=30)[0])
    assert [(one["verdict"], one["exitCode"]) for one in job["attempts"]] == [
        ("preempted", None),
        ("program", 1),
        ("succeeded", 0),
    ]
    for worker in (0, 1):
        lines = (saved / f"{worker}.log").read_text().splitlines()
        assert [line.split()[0] for line in lines] == ["begin", "begin", "begin", "done"]
    assert real("list", "-o", "json").communicate(timeout=30)[0].strip() == "[]"
