"""When a command fails, one line explains a known message in its output; without one there is no line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workers.running import Slice
from tpuctl.models.node import Node
from tpuctl.ssh.connection import Connection, Target
from tpuctl.workers.execution import OutputTail, diagnose_output
from tpuctl.workers.worker_session import WorkerOutcome, WorkerResult

SAID = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.0G of 15.5G hbm. Exceeded hbm capacity by 4.5G."
)
FAILED = "error: the command failed on 1 of 8 workers: 5 (exit 1)"


def test_diagnosis_of_failed_worker_is_the_last_line(pod: Slice) -> None:
    line = f'test $TPUCTL_WORKER_ID != 5 || {{ echo "{SAID}" >&2; exit 1; }}'
    _, err, code = pod.run("--", line)

    *_, error, diagnosis = err.splitlines()
    assert (error, code) == (FAILED, 11)
    assert diagnosis.startswith("diagnosis: hbm-oom on worker 5: ")
    assert diagnosis.endswith(" (more: `tpuctl explain hbm-oom`)")


def test_diagnosis_is_part_of_the_json(pod: Slice) -> None:
    line = f'echo "{SAID}"; exit 134'
    out, err, code = pod.run("--worker", "3", "-o", "json", "--", line)

    told = json.loads(out)["diagnosis"]
    assert (told["id"], told["worker"], told["action"], told["confidence"], code) == (
        "hbm-oom",
        "3",
        "fix-training-code",
        "high",
        11,
    )
    assert set(told) == {"id", "worker", "action", "confidence", "meaning", "remedy"}
    assert "diagnosis: " not in err


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("echo all is well, loss 0.1; exit 1", 11),
        # Nothing has failed, whatever was printed.
        (f'echo "{SAID}"', 0),
    ],
)
def test_diagnosis_without_known_message_is_absent(pod: Slice, line: str, code: int) -> None:
    _, err, ended = pod.run("--worker", "0", "--", line)
    report = json.loads(pod.run("--worker", "0", "-o", "json", "--", line)[0])

    assert ("diagnosis" in err, ended, report["diagnosis"]) == (False, code, None)


def test_diagnosis_with_quiet_is_not_shown(pod: Slice) -> None:
    _, err, code = pod.run("--quiet", "--worker", "0", "--", f'echo "{SAID}" >&2; exit 1')

    assert (err, code) == (f"{SAID}\nerror: the command failed on worker 0 (exit 1)\n", 11)


def target(worker: int) -> Target:
    endpoints = [{"ipAddress": f"10.0.0.{number}"} for number in range(4)]
    node = Node.from_api({"name": "projects/p/locations/us-x1-b/nodes/pod", "networkEndpoints": endpoints})
    return Target(
        node, worker, Connection("ada", "10.0.0.1", "tpu.1-0", (Path("/a"), Path("/b")), Path("/k")), str(worker)
    )


def test_output_tail_is_bounded_and_begins_with_a_whole_line() -> None:
    tail, one = OutputTail(1), target(0)
    for number in range(60_000):
        tail.add(one, b"line %d\n" % number, is_error=False)
    kept, errors = tail.of(one)

    lines = kept.splitlines()
    assert len(kept) <= 2 * 64 * 1024
    assert lines == [b"line %d" % number for number in range(60_000 - len(lines), 60_000)]
    assert errors == b""


def test_output_tail_of_many_workers_shares_the_memory() -> None:
    tail = OutputTail(1024)
    tail.add(target(0), b"x" * 1_000_000, is_error=True)

    assert sum(map(len, tail.of(target(0)))) <= 2 * 4096


@pytest.mark.parametrize(
    ("outcome", "code", "known"),
    [
        (WorkerOutcome.EXITED, 1, "hbm-oom"),
        (WorkerOutcome.SIGNALED, 134, "hbm-oom"),
        (WorkerOutcome.LOST, None, "hbm-oom"),
        (WorkerOutcome.EXITED, 0, None),
        (WorkerOutcome.UNREACHABLE, None, None),
        (WorkerOutcome.NOT_STARTED, None, None),
        (WorkerOutcome.DETACHED, None, None),
    ],
)
def test_diagnosis_needs_a_failed_command(outcome: WorkerOutcome, code: int | None, known: str | None) -> None:
    tail = OutputTail(1)
    tail.add(target(0), SAID.encode(), is_error=True)

    found = diagnose_output([WorkerResult(target=target(0), outcome=outcome, code=code)], tail)

    assert (found.id if found else None) == known
