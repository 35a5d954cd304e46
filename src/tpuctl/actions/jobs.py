"""The jobs of nodes: combine the answers of their workers, and choose a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.errors import NotFoundError
from tpuctl.remote.jobs.asking import Silence, Workers, failures
from tpuctl.remote.jobs.values import Share, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime, timedelta

    from tpuctl.errors import TpuctlError

# Of each worker: enough for all to name the same newest job, although it was started on some of them only.
_NEWEST = 20


@dataclass(frozen=True, slots=True)
class Job:
    """A job on all workers that have it, in their order."""

    name: str
    shares: tuple[Share, ...]

    @property
    def age(self) -> timedelta:
        """Time since its start on its first worker. The workers compute it, so no two clocks are compared."""
        return max(share.age for share in self.shares)

    @property
    def began(self) -> datetime:
        """Its start, by the clock of its first worker."""
        return max(self.shares, key=lambda share: share.age).began

    @property
    def duration(self) -> timedelta | None:
        """Its longest duration so far on any worker; None if no worker knows."""
        return max((share.duration for share in self.shares if share.duration is not None), default=None)

    @property
    def command(self) -> str:
        """Its command; empty if no worker's record of it can be read."""
        return next((share.command for share in self.shares if share.command), "")

    @property
    def is_detached(self) -> bool | None:
        """Whether it continues without a client; None if no worker's record of that can be read."""
        return next((share.is_detached for share in self.shares if share.is_detached is not None), None)

    @property
    def is_followed(self) -> bool:
        """Whether a client streams its output now."""
        return any(share.is_followed for share in self.shares)

    @property
    def is_running(self) -> bool:
        """Whether it runs on any worker."""
        return any(share.state is State.RUNNING for share in self.shares)


@dataclass(frozen=True, slots=True)
class Listing:
    """All jobs, the newest first; the workers that did not answer; and how many jobs were left out, at least."""

    jobs: tuple[Job, ...]
    silent: tuple[Silence, ...] = ()
    left_out: int = 0

    @property
    def errors(self) -> list[TpuctlError]:
        """Why workers did not answer."""
        return failures(self.silent)


def list_jobs(workers: Workers, *, names: Sequence[str] = (), limit: int = _NEWEST, tail: int | None = None) -> Listing:
    """Ask all workers for their newest jobs, or for those in `names`. Raises `SshProgramMissingError`."""
    answers = workers.jobs(names=names, limit=limit, tail=tail)
    lists = [answer for answer in answers if not isinstance(answer, Silence)]
    jobs = gather(share for answer in lists for share in answer.shares)
    left_out = max([len(jobs) - limit, *(answer.total - len(answer.shares) for answer in lists)], default=0)
    silent = tuple(answer for answer in answers if isinstance(answer, Silence))
    return Listing(jobs[:limit], silent, max(0, left_out))


def gather(shares: Iterable[Share]) -> tuple[Job, ...]:
    """Group the workers' answers by job; the newest job first."""
    jobs: dict[str, list[Share]] = {}
    for share in shares:
        jobs.setdefault(share.job, []).append(share)
    return tuple(sorted((Job(name, tuple(found)) for name, found in jobs.items()), key=lambda job: job.age))


def choose(listing: Listing, name: str | None, nodes: str, *, running_first: bool = False) -> Job:
    """Return the job called `name`, or the newest; with `running_first` the newest that runs, if any does.

    Raises `NotFoundError`; if workers did not answer, their error instead, because their jobs are unknown.
    """
    found = [job for job in listing.jobs if name in {None, job.name}]
    running = [job for job in found if job.is_running] if running_first else []
    if found:
        return (running or found)[0]
    if listing.silent:
        raise listing.errors[0]
    raise missing(name, nodes)


def missing(name: str | None, nodes: str) -> NotFoundError:
    """Return the error for a job that no worker has."""
    if name is None:
        return NotFoundError(f"no jobs on `{nodes}`", hint=f"start one: `tpuctl run {nodes} --detach -- COMMAND`")
    return NotFoundError(
        f"no job `{name}` on `{nodes}`",
        hint=f"list them: `tpuctl jobs {nodes}`; the last of several words is the job",
    )
