"""Decide why an attempt of a kept job ended. Pure.

What the API says about the node counts more than the workers, and which worker ended first more than its exit code: the
workers that lose a peer abort or wait for it, whatever the program is like.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import StrEnum, auto
from typing import Final

from tpuctl.nodes.kept_jobs import Verdict

# A worker that ends so soon after the first one ended because of it (JAX waits 100 s for a lost peer).
CONSEQUENCE_WITHIN: Final = timedelta(minutes=2)


class NodeFate(StrEnum):
    """What the API says about the node of an attempt when the attempt has ended."""

    ALIVE = auto()
    PREEMPTED = auto()
    BROKEN = auto()  # it exists and is not usable: unhealthy, in repair or under maintenance
    DELETED = auto()  # or stopped, and not by the service


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How an attempt ended on one worker. `code` is None if that is not known: the worker cannot be reached, or was rebooted.

    `after` is the time from the first start on any worker. `was_stopped`: tpuctl ended it there because another had
    failed.
    """

    worker: str
    code: int | None
    after: timedelta | None = None
    why: str = ""
    _: KW_ONLY
    was_stopped: bool = False
    # It was preempted, and the job got a signal to save its state: 0 does not mean that it is done.
    has_notice: bool = False
    was_refused: bool = False  # the worker answers, and could not start it: a folder is missing, say


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """Everything that is known about the end of an attempt."""

    node: NodeFate
    node_text: str
    workers: tuple[WorkerEnd, ...]
    hung: str = ""  # how that was seen
    late_worker: str = ""  # for which the others waited
    has_timed_out: bool = False
    # What `explain` reads in the end of the log: the id of the message, the first worker that printed it, and whether it says
    # that the machine is bad, or that another worker was lost.
    message: str = ""
    message_worker: str = ""
    blames_machine: bool = False
    blames_peer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Why an attempt ended, and the worker that ended first; `consequences` are workers that ended because of that."""

    verdict: Verdict
    evidence: str
    worker: str = ""
    code: int | None = None
    is_same_code: bool = False
    ran: timedelta | None = None
    consequences: tuple[str, ...] = ()


def judge_end(facts: EndFacts) -> Judgement:
    """Return why an attempt ended. The first rule that matches wins."""
    ends = facts.workers
    was_signaled = bool(facts.hung) or facts.has_timed_out or any(end.has_notice for end in ends)
    if ends and all(end.code == 0 for end in ends) and not was_signaled:
        # What is read counts, also in the second of a preemption.
        text = "it ended with 0 on all workers"
        return Judgement(verdict=Verdict.SUCCEEDED, evidence=text, code=0, is_same_code=True, ran=_longest(ends))
    first = _first(ends)
    worker, code, ran = (first.worker, first.code, first.after) if first else ("", None, None)
    ran = _longest(ends) if ran is None else ran

    is_same_code = code is not None and all(end.code == code for end in ends)

    def judged(verdict: Verdict, evidence: str) -> Judgement:
        return Judgement(
            verdict=verdict,
            evidence=evidence,
            worker=worker,
            code=code,
            is_same_code=is_same_code,
            ran=ran,
            consequences=() if is_same_code else _consequences(ends, first),
        )

    by_api = {
        NodeFate.PREEMPTED: Verdict.PREEMPTED,
        NodeFate.DELETED: Verdict.DELETED,
        NodeFate.BROKEN: Verdict.MACHINE,
    }
    if facts.node in by_api:
        return judged(by_api[facts.node], facts.node_text)
    if any(end.has_notice for end in ends):
        return judged(Verdict.PREEMPTED, "its workers got the notice of a preemption")
    if facts.hung:
        # Its exit codes are those of our own TERM.
        return Judgement(verdict=Verdict.HANG, evidence=facts.hung, worker=facts.late_worker, ran=ran)
    if facts.has_timed_out:
        return judged(Verdict.TIMED_OUT, "its time limit has passed")
    if first is None:
        return judged(Verdict.UNKNOWN, "no worker has reported an end")
    message = f"; {facts.message} in its log" if facts.message else ""
    if all(end.was_refused for end in ends):
        return judged(Verdict.PROGRAM, f"it could not be started on any worker: {first.why}")
    if first.code is None:
        where = f"worker {worker}: " if worker else ""
        return judged(Verdict.MACHINE, f"{where}{first.why or 'its end is unknown'}{message}")
    everywhere = " on all workers" if len(ends) > 1 else ""
    text = f"it ended with {code}{everywhere}" if is_same_code else f"worker {worker} ended first, with {code}"
    text += message
    if facts.blames_peer and facts.message_worker == worker:
        # The workers that a peer has left end themselves; their exit codes say nothing about the program.
        return judged(Verdict.CONSEQUENCE, f"{text}: a consequence of what no worker reports")
    return judged(Verdict.MACHINE if facts.blames_machine else Verdict.PROGRAM, text)


def _first(ends: tuple[WorkerEnd, ...]) -> WorkerEnd | None:
    """Return the worker whose end explains those of the others.

    One without an exit code: a broken connection is noticed minutes after the peers have lost the worker.
    """
    failed = [end for end in ends if end.code != 0 and not end.was_stopped]
    lost = [end for end in failed if end.code is None]
    timed = [end for end in failed if end.after is not None]
    return next(iter(lost), None) or min(timed, key=lambda end: end.after or timedelta(), default=None)


def _longest(ends: tuple[WorkerEnd, ...]) -> timedelta | None:
    return max((end.after for end in ends if end.after is not None), default=None)


def _consequences(ends: tuple[WorkerEnd, ...], first: WorkerEnd | None) -> tuple[str, ...]:
    """Return the workers that ended because the first did."""
    if first is None:
        return ()
    others = [end for end in ends if end is not first and end.code not in {0, None} and end.after is not None]
    begin = first.after
    return tuple(
        end.worker for end in others if begin is None or (end.after or timedelta()) - begin <= CONSEQUENCE_WITHIN
    )
