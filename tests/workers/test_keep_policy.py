"""What a kept job does after an attempt: the rules, in their order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tpuctl.errors import ExitCode, InvalidInputError
from tpuctl.nodes.kept_jobs import JobAttempt, KeptJob, Verdict
from tpuctl.workers.keep_policy import (
    ContinueAttempt,
    EndJob,
    HangStep,
    KeepPolicy,
    StartAttempt,
    decide_next,
    judge_hang,
    parse_codes,
)

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = BEGAN + timedelta(hours=10)
HOUR = timedelta(hours=1)


def attempt(verdict: Verdict | None, code: int | None = None, *, ran: float | None = 3600, **fields: Any) -> JobAttempt:
    """Return an attempt that ran for so many seconds."""
    lasted = None if ran is None else timedelta(seconds=ran)
    values: dict[str, Any] = {
        "number": 1, "began": BEGAN, "ended": BEGAN + HOUR, "node_id": "7", "zone": "z", "evidence": "why", "worker": "0",
    }  # fmt: skip
    return JobAttempt(**{**values, "verdict": verdict, "code": code, "ran": lasted, **fields})


def after(*attempts: JobAttempt, policy: KeepPolicy | None = None) -> StartAttempt | ContinueAttempt | EndJob:
    numbered = tuple(
        JobAttempt(**{**{f: getattr(one, f) for f in one.__slots__}, "number": number})
        for number, one in enumerate(attempts, 1)
    )
    return decide_next(policy or KeepPolicy(), KeptJob(name="train", began=BEGAN, attempts=numbered), NOW)


P, M = Verdict.PROGRAM, Verdict.MACHINE
BUG = attempt(P, 1, ran=20, is_same_code=True)
OTHER_BUG = attempt(P, 2, ran=20, is_same_code=True)
CRASH = attempt(P, 1, ran=600)
HEALTHY_CRASH = attempt(P, 1, ran=3600)
ASKS = attempt(P, 42, ran=20, is_same_code=True)
SEGFAULT = attempt(P, 139, ran=20, is_same_code=True)
PREEMPTED = attempt(Verdict.PREEMPTED, None, ran=600)
BAD = attempt(M, None, ran=60)
LOST_A_PEER = attempt(Verdict.CONSEQUENCE, 134, ran=60, is_same_code=True)
S = {"s": timedelta(seconds=30), "m": timedelta(minutes=2), "l": timedelta(minutes=10), "n": timedelta()}


@pytest.mark.parametrize(
    ("attempts", "pause", "node"),
    [
        pytest.param((), "n", "same", id="first-start"),
        pytest.param((PREEMPTED,), "n", "same", id="preempted"),
        pytest.param((PREEMPTED,) * 50, "n", "same", id="preempted-50-times"),
        pytest.param((CRASH,), "s", "same", id="crash"),
        pytest.param((CRASH, CRASH), "m", "same", id="second-crash"),
        pytest.param((CRASH, CRASH, CRASH), "l", "same", id="third-crash"),
        pytest.param((CRASH, CRASH, CRASH, HEALTHY_CRASH), "s", "same", id="failures-given-back"),
        pytest.param((CRASH, PREEMPTED), "n", "same", id="preempted-after-a-crash"),
        pytest.param((BUG,), "s", "same", id="same-code-once"),
        pytest.param((BUG, OTHER_BUG), "m", "same", id="another-code"),
        pytest.param((BUG, CRASH), "m", "same", id="same-code-later"),
        pytest.param((ASKS,) * 20, "l", "same", id="42-asks-for-a-restart"),
        pytest.param((SEGFAULT,) * 3, "l", "same", id="signal-is-no-bug"),
        pytest.param((BAD,), "s", "same", id="bad-machine-once"),
        pytest.param((BAD, BAD), "m", "tested", id="bad-machine-twice"),
        pytest.param((BAD,) * 3, "l", "new", id="bad-machine-three-times"),
        pytest.param((LOST_A_PEER,) * 30, "l", "new", id="consequences-are-no-failures"),
        pytest.param((BAD, attempt(Verdict.HANG)), "s", "tested", id="bad-machine-then-hang"),
        pytest.param((BAD, attempt(M, None, ran=60, worker="3")), "m", "same", id="two-workers"),
        pytest.param((BAD, attempt(M, None, ran=60, node_id="8")), "m", "same", id="two-nodes"),
        pytest.param((BAD,) * 30, "l", "new", id="bad-machines-have-no-limit"),
    ],
)
def test_job_starts_again_after_a_pause(attempts: tuple[JobAttempt, ...], pause: str, node: str) -> None:
    step = after(*attempts)

    assert isinstance(step, StartAttempt)
    chosen = "new" if step.new_node else "tested" if step.tests_node else "same"
    assert (step.number, step.pause, chosen) == (len(attempts) + 1, S[pause], node)


@pytest.mark.parametrize(
    ("attempts", "policy", "code"),
    [
        pytest.param((attempt(Verdict.SUCCEEDED, 0),), {}, ExitCode.OK, id="done"),
        pytest.param((BUG, BUG), {}, ExitCode.REMOTE_FAILED, id="bug-within-two-attempts"),
        pytest.param(
            (BUG, PREEMPTED, BUG), {}, ExitCode.REMOTE_FAILED, id="bug-within-two-attempts-around-a-preemption"
        ),
        pytest.param((CRASH,) * 4, {}, ExitCode.REMOTE_FAILED, id="failures-used-up"),
        pytest.param((CRASH,), {"max_failures": 0}, ExitCode.REMOTE_FAILED, id="no-failure-allowed"),
        pytest.param(
            (CRASH, PREEMPTED, CRASH, BAD, CRASH, CRASH), {}, ExitCode.REMOTE_FAILED, id="only-failures-count"
        ),
        pytest.param((HEALTHY_CRASH,), {"stop_on": frozenset({1})}, ExitCode.REMOTE_FAILED, id="stop-on"),
        pytest.param((ASKS,), {"stop_on": frozenset({42})}, ExitCode.REMOTE_FAILED, id="stop-on-before-restart-on"),
        pytest.param((attempt(Verdict.DELETED),), {}, ExitCode.NOT_FOUND, id="deleted"),
        pytest.param((attempt(Verdict.STOPPED),), {}, ExitCode.REMOTE_FAILED, id="stopped"),
        pytest.param((attempt(Verdict.TIMED_OUT),), {}, ExitCode.TIMED_OUT, id="timed-out"),
        pytest.param((PREEMPTED,), {"timeout": 10 * HOUR}, ExitCode.TIMED_OUT, id="time-limit-between-attempts"),
        pytest.param((attempt(Verdict.PREEMPTED, price=5.0),) * 2, {"budget": 9.0}, ExitCode.QUOTA, id="budget"),
        pytest.param((), {"timeout": HOUR}, ExitCode.TIMED_OUT, id="time-limit-before-the-first-start"),
    ],
)
def test_job_ends(attempts: tuple[JobAttempt, ...], policy: dict[str, Any], code: ExitCode) -> None:
    step = after(*attempts, policy=KeepPolicy(**policy))

    assert isinstance(step, EndJob)
    assert step.exit_code is code


def test_attempt_without_an_end_is_continued() -> None:
    running = attempt(None, None, ran=None, ended=None)

    step = after(PREEMPTED, running, policy=KeepPolicy(timeout=HOUR, budget=0.01))

    assert isinstance(step, ContinueAttempt)
    assert step.attempt.number == 2


def test_clock_behind_that_of_the_first_supervisor_ends_nothing() -> None:
    late = KeptJob(name="train", began=NOW + HOUR, attempts=(attempt(Verdict.PREEMPTED, ended=NOW + HOUR, price=5.0),))

    step = decide_next(KeepPolicy(timeout=HOUR, budget=100.0), late, NOW)

    assert isinstance(step, StartAttempt)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        pytest.param("", set(), id="none"),
        pytest.param("42", {42}, id="one"),
        pytest.param("42, 128-130", {42, 128, 129, 130}, id="range"),
    ],
)
def test_codes_are_numbers_and_ranges(text: str, codes: set[int]) -> None:
    assert parse_codes(text) == codes


@pytest.mark.parametrize("text", ["0", "256", "9-3", "x", "1-", "-1", "1-300"])
def test_other_codes_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not an exit code"):
        parse_codes(text)


@pytest.mark.parametrize(
    ("running", "silent", "idle", "step"),
    [
        pytest.param(120, 5, 5, HangStep.NONE, id="works"),
        pytest.param(120, 30, None, HangStep.WARN, id="silent-and-chips-unknown"),
        pytest.param(120, 30, 5, HangStep.WARN, id="silent-and-at-work"),
        pytest.param(120, 5, 30, HangStep.WARN, id="idle-with-output"),
        pytest.param(120, 30, 30, HangStep.END, id="silent-and-idle"),
        pytest.param(39, 39, 39, HangStep.NONE, id="within-the-grace-of-the-start"),
    ],
)
def test_hang_needs_silence_and_idle_chips(running: int, silent: int, idle: int | None, step: HangStep) -> None:
    found, _ = judge_hang(
        KeepPolicy(),
        running=timedelta(minutes=running),
        silent=timedelta(minutes=silent),
        idle=None if idle is None else timedelta(minutes=idle),
    )

    assert found is step
