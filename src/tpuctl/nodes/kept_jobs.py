"""What the journal says about kept jobs: each attempt, how it ended and why. Pure.

The entries of a kept job stand in the journal of one node, in their order; no two clocks are compared. `job` begins a job,
also one that has the name of an earlier job; `job-start`, `job-running` and `job-end` describe an attempt, and `job-hang` says
that it is ended because it hangs; `job-stop` says that a user has ended the job, and `job-over` that its supervisor is done
with it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from tpuctl.durations import format_timestamp, parse_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from tpuctl.names import NodeName

# All entries of kept jobs; none of them says anything about the node itself.
JOB_EVENTS: Final = frozenset({"job", "job-start", "job-running", "job-hang", "job-end", "job-stop", "job-over"})


class Verdict(StrEnum):
    """Why an attempt ended."""

    SUCCEEDED = "succeeded"  # with 0 on all workers
    PREEMPTED = "preempted"
    MACHINE = "machine"  # a worker, or the node, failed
    CONSEQUENCE = "consequence"  # the first worker that ended had lost another one, which reports no end of its own
    PROGRAM = "program"
    HANG = "hang"
    TIMED_OUT = "timed-out"
    DELETED = "deleted"  # another client deleted or stopped the node
    STOPPED = "stopped"  # `tpuctl kill` ended the job
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempt:
    """One start of a job on all workers of its nodes. Without a verdict it has not ended as far as the journal says."""

    number: int
    began: datetime
    node_id: str  # of the service; of several slices that of the first
    others: tuple[tuple[str, str], ...] = ()  # the names of the other slices, each with its id
    zone: str
    tier: str = ""
    token: str = ""  # the worker starts one token at most once; not a secret
    reason: str = ""
    price: float | None = None  # USD for an hour
    has_started: bool = False  # on all workers
    hung: str = ""  # how it was seen that it hangs, before it was ended for that
    late_worker: str = ""  # for which the others waited
    ended: datetime | None = None
    verdict: Verdict | None = None
    worker: str = ""  # that ended first
    code: int | None = None
    is_same_code: bool = False  # it ended with this code on all workers
    ran: timedelta | None = None  # from the start to the end on the worker that ended first
    evidence: str = ""

    @property
    def lasted(self) -> timedelta | None:
        """The running time; None if it has not ended.

        By the clocks of its supervisors, which may differ, only if no worker reported it and none followed it to its end.
        """
        if self.ran is not None or self.ended is None:
            return self.ran
        return max(self.ended - self.began, timedelta())

    @property
    def cost(self) -> float | None:
        """The price of the node from the start of the attempt to its end, in USD."""
        if self.price is None or self.ended is None:
            return None
        return self.price * max((self.ended - self.began).total_seconds(), 0) / 3600

    def to_json(self) -> dict[str, Any]:
        """Return the form for scripts."""
        return {
            "attempt": self.number,
            "reason": self.reason,
            "started": format_timestamp(self.began),
            "ended": format_timestamp(self.ended) if self.ended else None,
            "nodeId": self.node_id,
            "zone": self.zone,
            "tier": self.tier or None,
            "verdict": str(self.verdict) if self.verdict else None,
            "worker": self.worker or None,
            "exitCode": self.code,
            "seconds": self.ran.total_seconds() if self.ran is not None else None,
            "evidence": self.evidence or None,
            "cost": round(self.cost, 2) if self.cost is not None else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptJob:
    """A job and its attempts, oldest first. `outcome` and `exit_code` say how it ended for good.

    `stopped`: how a user ended it; its supervisor, if there is one, does the rest.
    """

    name: str
    began: datetime
    command: str = ""
    attempts: tuple[JobAttempt, ...] = ()
    stopped: str | None = None
    outcome: str | None = None
    exit_code: int | None = None
    ended: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether no further attempt follows."""
        last = self.attempts[-1] if self.attempts else None
        has_succeeded = last is not None and last.verdict is Verdict.SUCCEEDED
        return has_succeeded or self.outcome is not None or self.stopped is not None

    @property
    def words(self) -> str:
        """One line: how it stands, and why its attempts ended."""
        ends = ", ".join(str(one.verdict) for one in self.attempts if one.verdict)
        number = len(self.attempts)
        return f"{self.name}: {self.outcome or f'attempt {max(number, 1)}'}{f' ({ends})' if ends else ''}"

    @property
    def cost(self) -> float:
        """The price of all attempts that ended, as far as it is known, in USD."""
        return sum(attempt.cost or 0 for attempt in self.attempts)

    def to_json(self) -> dict[str, Any]:
        """Return the form for scripts."""
        return {
            "job": self.name,
            "command": self.command,
            "started": format_timestamp(self.began),
            "ended": format_timestamp(self.ended) if self.ended else None,
            "outcome": self.outcome,
            "exitCode": self.exit_code,
            "cost": round(self.cost, 2),
            "attempts": [attempt.to_json() for attempt in self.attempts],
        }


@dataclass(frozen=True, slots=True)
class JobPlace:
    """A kept job, and the node in whose journal its entries stand: that of its first start, although it may move."""

    home: NodeName
    job: KeptJob


def kept_jobs_of(entries: Iterable[Mapping[str, Any]]) -> dict[str, KeptJob]:
    """Fold the entries of a node, oldest first. Of several jobs of one name the last counts."""
    jobs: dict[str, KeptJob] = {}
    for entry in entries:
        event, name, at = entry.get("event"), entry.get("job"), parse_timestamp(entry.get("at"))
        if event not in JOB_EVENTS or not name or at is None:
            continue
        if event == "job":
            jobs.pop(name, None)
            jobs[name] = KeptJob(name=name, began=at, command=str(entry.get("text") or ""))
        elif name in jobs:
            jobs[name] = _after(jobs[name], event, at, entry)
    return jobs


def _after(job: KeptJob, event: str, at: datetime, entry: Mapping[str, Any]) -> KeptJob:
    if event == "job-over":
        code = entry.get("code")
        return replace(job, outcome=str(entry.get("text")), exit_code=code, ended=at)
    if event == "job-stop":
        return replace(job, stopped=str(entry.get("text")))
    number = int(entry.get("attempt") or 0)
    if event == "job-start":
        price = entry.get("price")
        begun = JobAttempt(
            number=number,
            began=at,
            node_id=str(entry.get("node")),
            others=_others_of(entry),
            zone=str(entry.get("zone")),
            tier=str(entry.get("tier") or ""),
            token=str(entry.get("token") or ""),
            reason=str(entry.get("reason") or ""),
            price=None if price is None else float(price),
        )
        # One that could not be prepared has its end in the same entry.
        begun = _changed(begun, "job-end", at, entry) if entry.get("verdict") else begun
        return replace(job, attempts=(*job.attempts, begun))
    # Of an attempt whose start a rotation has dropped nothing is known.
    attempts = tuple(_changed(one, event, at, entry) if one.number == number else one for one in job.attempts)
    return replace(job, attempts=attempts)


def _others_of(entry: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    others = entry.get("others")
    return tuple((str(name), str(value)) for name, value in others.items()) if isinstance(others, dict) else ()


def _changed(attempt: JobAttempt, event: str, at: datetime, entry: Mapping[str, Any]) -> JobAttempt:
    if event == "job-running":
        return replace(attempt, has_started=True)
    if attempt.verdict is not None:
        return attempt
    if event == "job-hang":
        return replace(attempt, hung=str(entry.get("text")), late_worker=str(entry.get("worker") or ""))
    verdict, ran = str(entry.get("verdict")), entry.get("took")
    return replace(
        attempt,
        ended=at,
        # A later version may know more verdicts.
        verdict=Verdict(verdict) if verdict in {*Verdict} else Verdict.UNKNOWN,
        worker=str(entry.get("worker") or ""),
        code=entry.get("code"),
        is_same_code=bool(entry.get("same")),
        ran=None if ran is None else timedelta(seconds=float(ran)),
        evidence=str(entry.get("text") or ""),
    )
