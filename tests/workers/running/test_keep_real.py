"""A kept job on a real sshd, through preemptions, a crash and the death of its supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
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
def real(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The program in a process of its own, with the machine's own ssh and sshd, in a sandbox whose hours take seconds."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(tmp_path / "state"),
        "TPUCTL_SANDBOX": "1",
        "TPUCTL_SANDBOX_SPEED": "600",
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


# Computes with all workers in each step, as a training does. The first attempt goes on until it is ended.
COLLECTIVE = """
import itertools, jax, jax.numpy as jnp, os, time
jax.distributed.initialize()
add = jax.pmap(lambda one: jax.lax.psum(one, "all"), axis_name="all")
for step in itertools.count():
    add(jnp.ones((jax.local_device_count(), 1), jnp.float32)).block_until_ready()
    print("step", step, flush=True)
    time.sleep(0.1)
    if os.environ["TPUCTL_ATTEMPT"] != "1" and step > 10:
        break
"""


@pytest.mark.sshd
def test_hanging_worker_is_restarted_then_tested_then_replaced(
    real: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A restart of the processes does not help, and the test of the chips hangs, too."""
    (tmp_path / "code" / "train.py").write_text(COLLECTIVE)
    limits = ("--hang-after", "4s", "--start-grace", "4s")
    job = real(
        *("run", "trainer", "--keep", "--name", "train", "--type", "v4-16", "--zone", ZONE, "--sync", "."),
        *(*limits, "--on-job-stall", f"cat >> '{tmp_path}/stalls'", "--", "python3 train.py"),
    )
    until(lambda: sum(b"step" in log.read_bytes() for log in tmp_path.glob("state/**/train.logs/1/*.log")) == 2, 60)
    assert real("sandbox", "fault", "collective-hangs", "--node", "trainer", "--worker", "1").wait(30) == 0
    err = job.communicate(timeout=150)[1]

    assert job.returncode == 0, err
    record = json.loads(real("history", "trainer", "--job", "train", "-o", "json").communicate(timeout=30)[0])
    attempts = record["attempts"]
    assert [(one["verdict"], one["worker"]) for one in attempts] == [("hang", "1"), ("hang", "1"), ("succeeded", None)]
    assert attempts[0]["nodeId"] == attempts[1]["nodeId"] != attempts[2]["nodeId"]
    assert "the test did not end within 4s" in err
    (stacks, _) = sorted(tmp_path.glob("state/**/train.logs/*/stacks.txt"))
    assert attempts[0]["evidence"].endswith(f"its stacks: {stacks}")
    text = stacks.read_text()
    assert "worker 1 is at launch" in text
    assert "python3 train.py" in text


# Each worker says where it is. It is done after its tenth step, and works on one more second.
STEPS = """
step=$(cat $SAVED/step-$TPUCTL_WORKER_ID 2>/dev/null || echo 0)
while [ $step -lt 10 ]; do step=$((step + 1)); echo step $step; echo $step > $SAVED/step-$TPUCTL_WORKER_ID; sleep 0.1; done
echo $TPUCTL_ATTEMPT >> $SAVED/ended-$TPUCTL_WORKER_ID
"""


@pytest.mark.sshd
@pytest.mark.parametrize(
    "sign",
    [
        pytest.param("saved/setup", id="set-up"),
        pytest.param("state/sandbox/workers/**/code", id="sync"),
        pytest.param("state/sandbox/workers/**/.tpuctl/jobs/train.1", id="start"),
        pytest.param("saved/step-0", id="output"),
        pytest.param("saved/ended-1", id="end"),
    ],
)
def test_preemption_at_any_moment_leaves_one_job_that_ends_with_0(
    real: Callable[..., subprocess.Popen[str]], tmp_path: Path, sign: str
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (tmp_path / "code" / "train.sh").write_text(STEPS)
    job = real(
        *("run", "trainer", "--keep", "--name", "train", "--type", "v4-16", "--spot", "--zone", ZONE, "--sync", "."),
        *("--setup", f"touch {saved}/setup; sleep 1", "--env", f"SAVED={saved}", "--rm", "--", "sh train.sh"),
    )
    until(lambda: any(True for _ in tmp_path.glob(sign)), 60)
    assert real("sandbox", "fault", "preempt", "--node", "trainer").wait(30) == 0
    err = job.communicate(timeout=150)[1]

    assert job.returncode == 0, err
    record = json.loads(real("history", "trainer", "--job", "train", "-o", "json").communicate(timeout=30)[0])
    verdicts = [one["verdict"] for one in record["attempts"]]
    assert verdicts[-1] == "succeeded"
    assert set(verdicts[:-1]) <= {"preempted"}, err
    assert real("list", "-o", "json").communicate(timeout=30)[0].strip() == "[]"


# A hundred steps of all workers together; the checkpoint outlives the nodes, as a bucket does. At some steps it waits until
# the test has done something to it, and at step 30 it crashes once.
STORY = """
import jax, jax.numpy as jnp, os, pathlib, sys, time
jax.distributed.initialize()
add = jax.pmap(lambda one: jax.lax.psum(one, "all"), axis_name="all")
saved = pathlib.Path(os.environ["SAVED"])
checkpoint = saved / "step"
for step in range(int(checkpoint.read_text()) if checkpoint.exists() else 0, 100):
    add(jnp.ones((jax.local_device_count(), 1), jnp.float32)).block_until_ready()
    print("step", step, flush=True)
    if os.environ["TPU_WORKER_ID"] == "0":
        (saved / "new").write_text(str(step + 1))
        os.replace(saved / "new", checkpoint)
        while step in (12, 35, 45, 55, 70) and not (saved / f"gate-{step}").exists():
            time.sleep(0.05)
        if step == 30 and not (saved / "crashed").exists():
            (saved / "crashed").touch()
            sys.exit(1)
    time.sleep(0.02)
"""


@pytest.mark.sshd
@pytest.mark.timeout(500)
def test_job_of_100_steps_ends_with_0_through_everything(
    real: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Three preemptions, a crash, a lost disk, a hang, and two deaths of its supervisor: `history` tells it in ten lines."""
    saved = tmp_path / "saved"
    saved.mkdir()
    (tmp_path / "code" / "train.py").write_text(STORY)

    def fault_at(step: int, *fault: str) -> None:
        until(lambda: (saved / "step").exists() and (saved / "step").read_text() == str(step + 1), 100)
        if fault:
            assert real("sandbox", "fault", *fault, "--node", "trainer").wait(30) == 0
            time.sleep(2)  # the workers learn of it within a second
        (saved / f"gate-{step}").touch()

    first = real(
        *("run", "trainer", "--keep", "--name", "train", "--type", "v4-16", "--spot", "--zone", ZONE, "--sync", "."),
        *("--hang-after", "6s", "--start-grace", "6s", "--env", f"SAVED={saved}", "--rm", "--", "python3 train.py"),
    )
    until((saved / "step").exists, 60)
    first.send_signal(signal.SIGKILL)
    second = real("watch", "trainer", "--job", "train")
    fault_at(12, "preempt")
    fault_at(35, "preempt")
    until(lambda: (saved / "step").read_text() == "46", 100)
    lost = max(tmp_path.glob("state/sandbox/workers/**/1/.tpuctl/jobs/train.1"), key=lambda path: path.stat().st_mtime)
    group = int((lost / "pid").read_text().split()[0])
    lost.rename(tmp_path / "lost")
    os.killpg(group, signal.SIGKILL)
    fault_at(45)
    fault_at(55, "collective-hangs", "--worker", "1")
    until(lambda: (saved / "step").read_text() == "71", 150)
    second.send_signal(signal.SIGKILL)
    third = real("watch", "trainer", "--job", "train")
    fault_at(70, "preempt")
    err = third.communicate(timeout=150)[1]

    assert third.returncode == 0, err
    lines = real("history", "trainer", "--job", "train").communicate(timeout=30)[0].splitlines()
    assert [line.split("\t")[5] for line in lines] == [
        *("preempted", "program", "preempted", "machine", "hang", "preempted", "succeeded"),
    ], "\n".join(lines)
    assert (saved / "step").read_text() == "100"
    assert real("list", "-o", "json").communicate(timeout=30)[0].strip() == "[]"
