"""Signal jobs, and remove jobs that have ended: on all workers, with one combined result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.actions.jobs import Job, missing
from tpuctl.errors import ConflictError
from tpuctl.remote.jobs.asking import Signaled, Silence, Workers, failures

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from tpuctl.errors import TpuctlError
    from tpuctl.remote.member import Member


@dataclass(frozen=True, slots=True)
class Signaling:
    """The job after the signal, the workers that received it, and the workers that did not answer."""

    job: Job
    sent: tuple[Member, ...]
    silent: tuple[Silence, ...]

    @property
    def errors(self) -> list[TpuctlError]:
        """Why workers did not answer."""
        return failures(self.silent)


@dataclass(frozen=True, slots=True)
class Removal:
    """The jobs that were removed; why others that were named were not, and why workers did not answer."""

    removed: tuple[str, ...]
    errors: tuple[TpuctlError, ...]


def signal_job(workers: Workers, name: str, number: int, *, wait: timedelta, nodes: str) -> Signaling:
    """Send a signal to all processes of a job on all workers where it runs, and wait up to `wait` for its end.

    Raises `NotFoundError` if no worker has it; if workers did not answer, their error instead.
    """
    answers = workers.signal(name, number, wait=wait)
    silent = tuple(answer for answer in answers if isinstance(answer, Silence))
    answered = [answer for answer in answers if isinstance(answer, Signaled)]
    if not answered:
        raise failures(silent)[0] if silent else missing(name, nodes)
    sent = tuple(one.share.member for one in answered if one.was_sent)
    return Signaling(Job(name, tuple(one.share for one in answered)), sent, silent)


def remove_jobs(workers: Workers, names: Sequence[str], *, older: timedelta, nodes: str) -> Removal:
    """Remove the jobs in `names`, or all that ended longer ago than `older`, with their output.

    A job that runs on any worker is removed from none. If a worker does not answer, nothing is removed. Raises
    `SshProgramMissingError`.
    """
    answers = workers.ended(names, older=older)
    if silent := [answer for answer in answers if isinstance(answer, Silence)]:
        return Removal((), tuple(failures(silent)))
    outcomes: dict[str, dict[str, list[Member]]] = {}
    states = [answer for answer in answers if not isinstance(answer, Silence)]
    for member, answer in zip(workers.members, states, strict=True):
        for name, outcome in answer.items():
            outcomes.setdefault(name, {}).setdefault(outcome, []).append(member)
    errors = [error for name in names if (error := _obstacle(name, outcomes.get(name, {}), nodes))]
    ended = sorted(
        name for name, found in outcomes.items() if "ended" in found and not {"running", "followed"} & set(found)
    )
    if not ended:
        return Removal((), tuple(errors))
    # Each worker removes only what it reported itself: the answer of one changes nothing on another.
    theirs = [[name for name in ended if answer.get(name) == "ended"] for answer in states]
    removed = workers.remove(theirs, older=older)
    silent = [answer for answer in removed if isinstance(answer, Silence)]
    return Removal(tuple(ended), (*errors, *failures(silent)))


def _obstacle(name: str, found: dict[str, list[Member]], nodes: str) -> TpuctlError | None:
    """Return why a job in `names` cannot be removed, None if it can."""
    for outcome, what, hint in (
        ("running", "runs", f"terminate it: `tpuctl kill {nodes} {name}`"),
        ("followed", "is being followed", "try again when its client has ended"),
    ):
        if members := found.get(outcome):
            where = ", ".join(member.label for member in members)
            return ConflictError(f"job `{name}` {what} on worker {where}; nothing was removed", hint=hint)
    return None if "ended" in found else missing(name, nodes)
