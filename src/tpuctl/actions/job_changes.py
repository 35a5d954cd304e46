"""Signals to jobs, and the removal of those that have ended: done on all workers, and what came of it put together."""

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
    """What a signal met: the job as it is now, the workers it was sent on, and those that did not tell."""

    job: Job
    sent: tuple[Member, ...]
    silent: tuple[Silence, ...]

    @property
    def errors(self) -> list[TpuctlError]:
        """Why workers did not tell."""
        return failures(self.silent)


@dataclass(frozen=True, slots=True)
class Removal:
    """The jobs that were removed; why others, which were named, were not, and why workers did not tell."""

    removed: tuple[str, ...]
    errors: tuple[TpuctlError, ...]


def signal_job(workers: Workers, name: str, number: int, *, wait: timedelta, nodes: str) -> Signaling:
    """Send a signal to all processes of a job on all workers where it runs, and wait so long for its end.

    Raises `NotFoundError` where no worker has it; where workers did not tell, why they did not.
    """
    answers = workers.signal(name, number, wait=wait)
    silent = tuple(answer for answer in answers if isinstance(answer, Silence))
    met = [answer for answer in answers if isinstance(answer, Signaled)]
    if not met:
        raise failures(silent)[0] if silent else missing(name, nodes)
    sent = tuple(one.share.member for one in met if one.was_sent)
    return Signaling(Job(name, tuple(one.share for one in met)), sent, silent)


def remove_jobs(workers: Workers, names: Sequence[str], *, older: timedelta, nodes: str) -> Removal:
    """Remove the jobs that are named, or all that ended so long ago, with what they have printed.

    A job that runs anywhere is left everywhere, and where a worker does not tell nothing is removed. Raises
    `SshProgramMissingError`.
    """
    answers = workers.ended(names, older=older)
    if silent := [answer for answer in answers if isinstance(answer, Silence)]:
        return Removal((), tuple(failures(silent)))
    outcomes: dict[str, dict[str, list[Member]]] = {}
    told = [answer for answer in answers if not isinstance(answer, Silence)]
    for member, answer in zip(workers.members, told, strict=True):
        for name, outcome in answer.items():
            outcomes.setdefault(name, {}).setdefault(outcome, []).append(member)
    errors = [error for name in names if (error := _obstacle(name, outcomes.get(name, {}), nodes))]
    ended = sorted(
        name for name, found in outcomes.items() if "ended" in found and not {"running", "followed"} & set(found)
    )
    if not ended:
        return Removal((), tuple(errors))
    # Each worker removes what it has itself said to have: what one says moves nothing on another.
    theirs = [[name for name in ended if answer.get(name) == "ended"] for answer in told]
    removed = workers.remove(theirs, older=older)
    silent = [answer for answer in removed if isinstance(answer, Silence)]
    return Removal(tuple(ended), (*errors, *failures(silent)))


def _obstacle(name: str, found: dict[str, list[Member]], nodes: str) -> TpuctlError | None:
    """Return why a job that was named is not removed."""
    for outcome, what, hint in (
        ("running", "runs", f"`tpuctl kill {nodes} {name}` ends it"),
        ("followed", "is being read", "try again when that has ended"),
    ):
        if members := found.get(outcome):
            where = ", ".join(member.label for member in members)
            return ConflictError(f"job `{name}` {what} on worker {where}; nothing of it was removed", hint=hint)
    return None if "ended" in found else missing(name, nodes)
