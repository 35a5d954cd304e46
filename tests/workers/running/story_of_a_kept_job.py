"""Kept jobs on a real sshd through all faults, in ten minutes: `make story` runs them, `make test` one like them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lifecycle import ZONE
from tests.workers.running.test_keep_real import real  # noqa: F401  # a fixture
from tests.workers.running.test_left_alone import until

# The limits of the sandbox's time, such as that for the first answer of ssh, leave a busy machine a minute.
SPEED = "120"
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
@pytest.mark.timeout(500)
def test_hanging_worker_is_restarted_then_tested_then_replaced(
    real: Callable[..., subprocess.Popen[str]],  # noqa: F811  # the fixture
    tmp_path: Path,
) -> None:
    """A restart of the processes does not help, and the test of the chips hangs, too."""
    (tmp_path / "code" / "train.py").write_text(COLLECTIVE)
    limits = ("--hang-after", "12s", "--start-grace", "12s")
    job = real(
        *("run", "trainer", "--keep", "--name", "train", "--type", "v4-16", "--zone", ZONE, "--sync", "."),
        *(*limits, "--on-job-stall", f"cat >> '{tmp_path}/stalls'", "--", "python3 train.py"),
    )
    until(lambda: sum(b"step" in log.read_bytes() for log in tmp_path.glob("state/**/train.logs/1/*.log")) == 2, 150)
    assert real("sandbox", "fault", "duty-zero", "--node", "trainer", "--worker", "1").wait(60) == 0
    err = job.communicate(timeout=300)[1]

    assert job.returncode == 0, err
    record = json.loads(real("history", "trainer", "--job", "train", "-o", "json").communicate(timeout=60)[0])
    attempts = record["attempts"]
    assert [(one["verdict"], one["worker"]) for one in attempts] == [("hang", "1"), ("hang", "1"), ("succeeded", None)]
    assert attempts[0]["nodeId"] == attempts[1]["nodeId"] != attempts[2]["nodeId"]
    assert "the test did not end within 12s" in err
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
@pytest.mark.timeout(500)
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
    real: Callable[..., subprocess.Popen[str]],  # noqa: F811  # the fixture
    tmp_path: Path,
    sign: str,
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (tmp_path / "code" / "train.sh").write_text(STEPS)
    job = real(
        *("run", "trainer", "--keep", "--name", "train", "--type", "v4-16", "--spot", "--zone", ZONE, "--sync", "."),
        *("--setup", f"touch {saved}/setup; sleep 1", "--env", f"SAVED={saved}", "--rm", "--", "sh train.sh"),
    )
    until(lambda: any(True for _ in tmp_path.glob(sign)), 150)
    assert real("sandbox", "fault", "preempt", "--node", "trainer").wait(60) == 0
    err = job.communicate(timeout=300)[1]

    assert job.returncode == 0, err
    record = json.loads(real("history", "trainer", "--job", "train", "-o", "json").communicate(timeout=60)[0])
    verdicts = [one["verdict"] for one in record["attempts"]]
    assert verdicts[-1] == "succeeded"
    assert set(verdicts[:-1]) <= {"preempted"}, err
    assert real("list", "-o", "json").communicate(timeout=60)[0].strip() == "[]"


# A hundred steps of all workers together; the checkpoint outlives the nodes, as a bucket does. At some steps it waits, and says
# so, until the test has done something to it: most of the time that is its end. At step 30 it crashes once.
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
        while step in (5, 12, 35, 45, 55, 70) and not (saved / f"gate-{step}").exists():
            print("waits", flush=True)
            time.sleep(0.2)
        if step == 30 and not (saved / "crashed").exists():
            (saved / "crashed").touch()
            sys.exit(1)
    time.sleep(0.02)
"""


@pytest.mark.sshd
@pytest.mark.timeout(900)
def test_job_of_100_steps_ends_with_0_through_everything(
    real: Callable[..., subprocess.Popen[str]],  # noqa: F811  # the fixture
    tmp_path: Path,
) -> None:
    """Three preemptions, a crash, a bad host, a hang, and two deaths of its supervisor: `history` tells it in ten lines."""
    saved = tmp_path / "saved"
    saved.mkdir()
    (tmp_path / "code" / "train.py").write_text(STORY)

    def await_step(step: int) -> None:
        until(lambda: (saved / "step").exists() and (saved / "step").read_text() == str(step + 1), 150)

    def open_gate(step: int) -> None:
        (saved / f"gate-{step}").touch()

    def add_fault(*words: str) -> None:
        assert real("sandbox", "fault", *words, "--node", "trainer").wait(60) == 0

    def await_end(number: int) -> None:
        """Wait until the journal has the end of so many attempts: nothing of them runs any more."""
        (journal,) = tmp_path.glob("state/sandbox/journal/**/trainer.jsonl")
        until(lambda: journal.read_text().count('"event": "job-end"') == number, 150)

    first = real(
        *("run", "trainer", "--keep", "--name", "train", "--type", "v4-16", "--spot", "--zone", ZONE, "--sync", "."),
        *("--hang-after", "15s", "--start-grace", "15s", "--env", f"SAVED={saved}", "--rm", "--", "python3 train.py"),
    )
    await_step(5)
    first.send_signal(signal.SIGKILL)
    second = real("watch", "trainer", "--job", "train")
    open_gate(5)
    await_step(12)
    add_fault("preempt")
    await_step(35)
    await_end(2)
    add_fault("preempt")
    await_step(45)
    lost = max(tmp_path.glob("state/sandbox/workers/**/1/.tpuctl/jobs/train.1"), key=lambda path: path.stat().st_mtime)
    group = int((lost / "pid").read_text().split()[0])
    lost.rename(tmp_path / "lost")
    os.killpg(group, signal.SIGKILL)
    await_step(55)
    await_end(4)
    add_fault("duty-zero", "--worker", "1")
    until(lambda: any("duty-zero" in path.read_text() for path in tmp_path.glob("state/**/chip-faults")), 60)
    open_gate(55)
    await_step(70)
    await_end(5)
    second.send_signal(signal.SIGKILL)
    third = real("watch", "trainer", "--job", "train")
    add_fault("preempt")
    err = third.communicate(timeout=300)[1]

    assert third.returncode == 0, err
    lines = real("history", "trainer", "--job", "train").communicate(timeout=60)[0].splitlines()
    assert [line.split("\t")[5] for line in lines] == [
        *("preempted", "program", "preempted", "machine", "hang", "preempted", "succeeded"),
    ], "\n".join(lines)
    assert (saved / "step").read_text() == "100"
    assert real("list", "-o", "json").communicate(timeout=60)[0].strip() == "[]"
