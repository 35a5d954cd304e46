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
    """The jobs of which something was removed; why others, which were named, are still there, or never were."""

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
    """Remove the jobs that are named, or all that ended so long ago, with what they have printed. What runs is left alone."""
    answers = workers.remove(names, older=older)
    silent = [answer for answer in answers if isinstance(answer, Silence)]
    outcomes: dict[str, dict[str, list[str]]] = {}
    for member, answer in zip(workers.members, answers, strict=True):
        for name, outcome in {} if isinstance(answer, Silence) else answer.items():
            outcomes.setdefault(name, {}).setdefault(outcome, []).append(member.label)
    removed = tuple(sorted(name for name, found in outcomes.items() if "removed" in found))
    kept = [_kept(name, outcomes[name], nodes) for name in names if name in outcomes]
    gone = [missing(name, nodes) for name in names if not silent and set(outcomes.get(name, ())) == {"missing"}]
    return Removal(removed, (*[error for error in kept if error], *gone, *failures(silent)))


def _kept(name: str, found: dict[str, list[str]], nodes: str) -> TpuctlError | None:
    """Return why a job that was named is still there on some worker."""
    if runs := found.get("running"):
        where = ", ".join(runs)
        hint = f"`tpuctl kill {nodes} {name}` ends it"
        return ConflictError(f"job `{name}` runs on worker {where}, and is left there", hint=hint)
    if read := found.get("followed"):
        where = ", ".join(read)
        return ConflictError(
            f"job `{name}` is being read on worker {where}, and is left there", hint="try again when that has ended"
        )
    return None
