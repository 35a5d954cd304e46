"""Decide what a kept job does next: start again, after which pause and on which node, or end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Final

from tpuctl.durations import format_duration
from tpuctl.errors import ExitCode, InvalidInputError
from tpuctl.names import parse_whole_number
from tpuctl.nodes.kept_jobs import JobAttempt, KeptJob, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

# 42 is xpk's and MaxText's "restart me"; above 127 are signals and lost containers.
RESTART_CODES: Final = "42,128-255"
# A program that asks for a restart has not failed.
_REQUESTS_RESTART: Final = 42
_HIGHEST_CODE: Final = 255
# The same code on all workers so soon after the start is a bug, if it comes twice.
_SAME_CODE_WITHIN: Final = timedelta(minutes=2)
# Failures of one machine before it is tested; after one more the job gets a new node.
_MACHINE_FAILURES: Final = 2
_MACHINE_VERDICTS: Final = frozenset({Verdict.MACHINE, Verdict.HANG, Verdict.CONSEQUENCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepPolicy:
    """When a job is restarted, and when it is given up. None is no limit."""

    max_failures: int = 3
    healthy_after: timedelta = timedelta(minutes=30)
    restart_on: frozenset[int] = field(default_factory=lambda: parse_codes(RESTART_CODES))
    stop_on: frozenset[int] = frozenset()
    pauses: tuple[timedelta, ...] = (timedelta(seconds=30), timedelta(minutes=2), timedelta(minutes=10))
    timeout: timedelta | None = None  # from the first start to the end of the last attempt
    budget: float | None = None  # USD, of all attempts
    hang_after: timedelta = timedelta(minutes=30)
    start_grace: timedelta = timedelta(minutes=40)


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start the next attempt after a pause; with `new_node` on a node that is created for it.

    `tests_node`: on a new one unless the node of the last attempt passes the test of its chips.
    """

    number: int
    reason: str
    pause: timedelta = timedelta()
    tests_node: bool = False
    new_node: bool = False


@dataclass(frozen=True, slots=True)
class ContinueAttempt:
    """Go on with an attempt whose end is not known."""

    attempt: JobAttempt


@dataclass(frozen=True, slots=True)
class EndJob:
    """End the job."""

    exit_code: ExitCode
    outcome: str


NextStep = StartAttempt | ContinueAttempt | EndJob


def decide_next(policy: KeepPolicy, job: KeptJob, now: datetime) -> NextStep:
    """Return what comes next. The first rule that matches wins."""
    last = job.attempts[-1] if job.attempts else None
    if last is not None and last.verdict is None:
        return ContinueAttempt(last)
    if job.stopped is not None:
        return EndJob(ExitCode.REMOTE_FAILED, f"stopped: {job.stopped}")
    if last is not None and (end := _end_after(policy, job.attempts, last)):
        return end
    if policy.timeout is not None and now - job.began >= policy.timeout:
        return EndJob(ExitCode.TIMED_OUT, f"given up: not done after {format_duration(policy.timeout)} (`--timeout`)")
    if policy.budget is not None and job.cost >= policy.budget:
        text = f"given up: its attempts have cost about {job.cost:.2f} USD, and `--max-cost` is {policy.budget:g}"
        return EndJob(ExitCode.QUOTA, text)
    if last is None:
        return StartAttempt(1, "first start")
    reason = f"{last.verdict}: {last.evidence}"
    failures = count_machine_failures(job.attempts)
    return StartAttempt(
        last.number + 1,
        reason,
        _pause(policy, job.attempts),
        tests_node=failures == _MACHINE_FAILURES,
        new_node=failures > _MACHINE_FAILURES,
    )


def _end_after(policy: KeepPolicy, attempts: Sequence[JobAttempt], last: JobAttempt) -> EndJob | None:
    """Return the end of a job that the last attempt decides; None if it may start again."""
    match last.verdict:
        case Verdict.SUCCEEDED:
            tries = f" in attempt {last.number}" if last.number > 1 else ""
            return EndJob(ExitCode.OK, f"ended with 0 on all workers{tries}")
        case Verdict.STOPPED:
            return EndJob(ExitCode.REMOTE_FAILED, f"stopped: {last.evidence}")
        case Verdict.DELETED:
            return EndJob(ExitCode.NOT_FOUND, f"given up: {last.evidence}")
        case Verdict.TIMED_OUT:
            return EndJob(ExitCode.TIMED_OUT, f"given up: {last.evidence}")
        case Verdict.PROGRAM | Verdict.UNKNOWN:
            return _end_after_failure(policy, attempts, last)
        case _:
            return None


def _end_after_failure(policy: KeepPolicy, attempts: Sequence[JobAttempt], last: JobAttempt) -> EndJob | None:
    if last.code in policy.stop_on:
        return EndJob(ExitCode.REMOTE_FAILED, f"given up: {last.evidence}, which `--stop-on` names")
    before = next((one for one in reversed(attempts[:-1]) if one.verdict is not Verdict.PREEMPTED), None)
    if (
        before
        and last.code not in policy.restart_on
        and _is_early(last)
        and _is_early(before)
        and last.code == before.code
    ):
        text = (
            f"given up: exit code {last.code} on all workers within 2 minutes of the start, twice: a bug of the program"
        )
        return EndJob(ExitCode.REMOTE_FAILED, text)
    if (failures := count_failures(policy, attempts)) > policy.max_failures:
        text = f"given up after {failures} failures of the program (`--max-failures {policy.max_failures}`): {last.evidence}"
        return EndJob(ExitCode.REMOTE_FAILED, text)
    return None


def _is_early(attempt: JobAttempt) -> bool:
    """Return whether an attempt ended with one code on all workers soon after its start."""
    is_soon = attempt.ran is not None and attempt.ran <= _SAME_CODE_WITHIN
    return attempt.verdict is Verdict.PROGRAM and attempt.is_same_code and is_soon


def count_failures(policy: KeepPolicy, attempts: Sequence[JobAttempt]) -> int:
    """Return the failures of the program since an attempt last ran for long enough."""
    count = 0
    for attempt in attempts:
        if attempt.lasted is not None and attempt.lasted >= policy.healthy_after:
            count = 0
        is_failure = attempt.verdict in {Verdict.PROGRAM, Verdict.UNKNOWN}
        count += is_failure and attempt.code != _REQUESTS_RESTART
    return count


def _pause(policy: KeepPolicy, attempts: Sequence[JobAttempt]) -> timedelta:
    """Return the pause before the next attempt: longer with each that ended early, none after a preemption."""
    early = 0
    for attempt in reversed(attempts):
        if attempt.lasted is not None and attempt.lasted >= policy.healthy_after:
            break
        early += attempt.verdict is not Verdict.PREEMPTED
    if attempts[-1].verdict is Verdict.PREEMPTED or not policy.pauses:
        return timedelta()
    return policy.pauses[min(max(early, 1), len(policy.pauses)) - 1]


def count_machine_failures(attempts: Sequence[JobAttempt]) -> int:
    """Return how many of the last attempts failed in a row because of the same worker, on the same nodes."""
    last, count = attempts[-1], 0
    for attempt in reversed(attempts):
        is_same = (attempt.node_id, attempt.others, attempt.worker) == (last.node_id, last.others, last.worker)
        if not is_same or attempt.verdict not in _MACHINE_VERDICTS:
            break
        count += 1
    return count


class HangStep(StrEnum):
    """What follows from silence and idle chips."""

    NONE = auto()
    WARN = auto()
    END = auto()


def judge_hang(
    policy: KeepPolicy, *, running: timedelta, silent: timedelta, idle: timedelta | None
) -> tuple[HangStep, str]:
    """Return whether an attempt hangs, and why: its output is silent, and all chips are idle, for long enough.

    `running` is the time since its start: compiling and loading are silent. `idle` is the time since any chip last worked,
    None if that is not known. Either alone may be a checkpoint or a wait for data: it is a warning.
    """
    reasons = []
    if silent >= policy.hang_after:
        reasons.append(f"no output for {format_duration(silent)}")
    if idle is not None and idle >= policy.hang_after:
        reasons.append(f"no work on any chip for {format_duration(idle)}")
    if running < policy.start_grace or not reasons:
        return HangStep.NONE, ""
    return (HangStep.END if len(reasons) > 1 else HangStep.WARN), " and ".join(reasons)


def parse_codes(text: str) -> frozenset[int]:
    """Return the exit codes of `42,128-255`. Raises `InvalidInputError`."""
    codes: set[int] = set()
    for part in filter(None, text.split(",")):
        low, dash, high = (word.strip() for word in part.partition("-"))
        first, last = parse_whole_number(low), parse_whole_number(high if dash else low)
        if first is None or last is None or not 0 < first <= last <= _HIGHEST_CODE:
            raise InvalidInputError(
                f"`{part.strip()}` is not an exit code from 1 to 255", hint="write them like `42,128-255`"
            )
        codes |= set(range(first, last + 1))
    return frozenset(codes)
