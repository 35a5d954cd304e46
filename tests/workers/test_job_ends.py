"""Why an attempt of a kept job ended: the rules, in their order."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tpuctl.nodes.kept_jobs import Verdict
from tpuctl.workers.job_ends import EndFacts, NodeFate, WorkerEnd, judge_end


def end(worker: int, code: int | None, seconds: float | None = None, **fields: object) -> WorkerEnd:
    after = None if seconds is None else timedelta(seconds=seconds)
    return WorkerEnd(str(worker), code, after, **fields)  # type: ignore[arg-type]


ALIVE, PREEMPTED, BROKEN, DELETED = NodeFate.ALIVE, NodeFate.PREEMPTED, NodeFate.BROKEN, NodeFate.DELETED
DONE = (end(0, 0, 60), end(1, 0, 61))
CRASH = (end(0, 1, 60), end(1, 134, 100))
LOST = (end(0, 134, 100), end(1, None))
PEER = {"message": "heartbeat-timeout", "message_worker": "0", "blames_peer": True}


@pytest.mark.parametrize(
    ("node", "workers", "more", "verdict", "worker", "consequences"),
    [
        pytest.param(ALIVE, DONE, {}, Verdict.SUCCEEDED, "", (), id="0-everywhere"),
        pytest.param(PREEMPTED, DONE, {}, Verdict.SUCCEEDED, "", (), id="0-everywhere-in-the-second-of-a-preemption"),
        pytest.param(PREEMPTED, (end(0, 0, 60), end(1, None)), {}, Verdict.PREEMPTED, "1", (), id="0-on-a-part"),
        pytest.param(PREEMPTED, CRASH, {}, Verdict.PREEMPTED, "0", ("1",), id="api-before-exit-codes"),
        pytest.param(DELETED, LOST, {}, Verdict.DELETED, "1", ("0",), id="deleted"),
        pytest.param(BROKEN, CRASH, {}, Verdict.MACHINE, "0", ("1",), id="unhealthy-node"),
        pytest.param(BROKEN, (), {}, Verdict.MACHINE, "", (), id="unhealthy-node-without-workers"),
        pytest.param(ALIVE, CRASH, {"has_timed_out": True}, Verdict.TIMED_OUT, "0", ("1",), id="time-limit"),
        pytest.param(ALIVE, (end(0, 143, 9, was_stopped=True),), {"hung": "idle"}, Verdict.HANG, "", (), id="hang"),
        pytest.param(ALIVE, DONE, {"hung": "idle", "late_worker": "1"}, Verdict.HANG, "1", (), id="hang-that-ends-with-0"),
        pytest.param(
            ALIVE, (end(0, 0, 9, has_notice=True), end(1, 0, 9)), {}, Verdict.PREEMPTED, "", (), id="0-after-the-notice"
        ),
        pytest.param(ALIVE, CRASH, {}, Verdict.PROGRAM, "0", ("1",), id="first-exit-code"),
        pytest.param(ALIVE, (end(0, 134, 200), end(1, 1, 60)), {}, Verdict.PROGRAM, "1", (), id="later-than-2-minutes"),
        pytest.param(ALIVE, LOST, {}, Verdict.MACHINE, "1", ("0",), id="lost-worker-before-survivors"),
        pytest.param(
            ALIVE, (end(0, 143, 1, was_stopped=True), end(1, 3, 2)), {}, Verdict.PROGRAM, "1", ("0",), id="stopped-worker"
        ),
        pytest.param(ALIVE, CRASH, {"blames_machine": True}, Verdict.MACHINE, "0", ("1",), id="log-blames-the-machine"),
        pytest.param(ALIVE, CRASH, PEER, Verdict.CONSEQUENCE, "0", ("1",), id="lost-a-peer-that-reports-nothing"),
        pytest.param(
            ALIVE, CRASH[:1], PEER | {"message_worker": "1"}, Verdict.PROGRAM, "0", (), id="another-worker-lost-its-peer"
        ),
        pytest.param(ALIVE, LOST, PEER, Verdict.MACHINE, "1", ("0",), id="lost-a-peer-that-is-known"),
        pytest.param(PREEMPTED, CRASH, PEER, Verdict.PREEMPTED, "0", ("1",), id="lost-a-peer-in-a-preemption"),
        pytest.param(
            ALIVE, (end(0, None, was_refused=True), end(1, None, was_refused=True)), {}, Verdict.PROGRAM, "0", (),
            id="refused-everywhere",
        ),
        pytest.param(ALIVE, (end(0, None, was_refused=True), end(1, 0, 9)), {}, Verdict.MACHINE, "0", (), id="refused-once"),
        pytest.param(ALIVE, (), {}, Verdict.UNKNOWN, "", (), id="no-worker"),
        pytest.param(ALIVE, (end(0, 0, 9), end(1, 143, 9, was_stopped=True)), {}, Verdict.UNKNOWN, "", (), id="no-failure"),
    ],
)  # fmt: skip
def test_end_is_judged_by_api_then_first_worker_then_code(
    node: NodeFate,
    workers: tuple[WorkerEnd, ...],
    more: dict[str, object],
    *,
    verdict: Verdict,
    worker: str,
    consequences: tuple[str, ...],
) -> None:
    judged = judge_end(EndFacts(node=node, node_text="the API", workers=workers, **more))  # type: ignore[arg-type]

    assert (judged.verdict, judged.worker, judged.consequences) == (verdict, worker, consequences)
    assert judged.evidence == "the API" or node is ALIVE or verdict is Verdict.SUCCEEDED


@pytest.mark.parametrize(
    ("workers", "is_same"),
    [
        pytest.param((end(0, 1, 2), end(1, 1, 3)), True, id="all"),
        pytest.param((end(0, 1, 2), end(1, 2, 3)), False, id="two-codes"),
        pytest.param((end(0, 1, 2), end(1, 143, 9, was_stopped=True)), False, id="one-was-stopped"),
    ],
)
def test_same_code_is_that_of_all_workers(workers: tuple[WorkerEnd, ...], *, is_same: bool) -> None:
    assert judge_end(EndFacts(node=ALIVE, node_text="", workers=workers)).is_same_code is is_same


@pytest.mark.parametrize(
    ("workers", "more", "seconds"),
    [
        pytest.param(DONE, {}, 61, id="done"),
        pytest.param(CRASH, {}, 60, id="first-end"),
        pytest.param(LOST, {}, 100, id="lost-worker"),
        pytest.param((end(0, 143, 90),), {"hung": "idle"}, 90, id="hang"),
    ],
)
def test_running_time_is_that_of_the_workers(
    workers: tuple[WorkerEnd, ...], more: dict[str, str], *, seconds: float
) -> None:
    judged = judge_end(EndFacts(node=ALIVE, node_text="", workers=workers, **more))  # type: ignore[arg-type]

    assert judged.ran == timedelta(seconds=seconds)
