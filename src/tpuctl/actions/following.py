"""Following a job that is there already: as somebody who only looks on, or in place of the `run` that started it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpuctl.actions.running import Result
from tpuctl.remote.running.crew import Crew, Interrupts
from tpuctl.remote.running.interrupts import passed_on
from tpuctl.remote.running.post import Post
from tpuctl.remote.running.values import Limits, Order, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.actions.jobs import Job
    from tpuctl.clock import Clock
    from tpuctl.remote.jobs.asking import Silence
    from tpuctl.remote.member import Member
    from tpuctl.remote.running.values import Audience
    from tpuctl.remote.ssh import Connection


class Follower:
    """Streams what a job prints, until it has ended on all its workers. Connections that break are made again."""

    def __init__(
        self,
        clock: Clock,
        audience: Audience,
        *,
        inquire: Callable[[Member], str | None],
        ssh_options: Callable[[Connection], tuple[str, ...]],
    ) -> None:
        self._clock, self._audience = clock, audience
        self._inquire, self._ssh_options = inquire, ssh_options

    def follow(self, job: Job, silent: Sequence[Silence] = (), *, passes_signals: bool = False) -> Result:
        """Pass on what a job prints from its shares' `starts` on; workers that were silent are tried, too.

        With `passes_signals` SIGINT and SIGTERM are sent to the job as `tpuctl run` does it. Else the job is left alone: a
        signal raises here what it raises, and the connections are let go. Raises `SshProgramMissingError`.
        """
        places = [(share.member, share.starts) for share in job.shares]
        places += [(one.member, (0, 0)) for one in silent]
        posts = [
            Post(
                member,
                Order(job=job.name, token="", must_exist=True, start=start),
                self._audience,
                options=self._ssh_options(member.way),
            )
            for member, start in places
        ]
        with passed_on() if passes_signals else _none() as interrupts:
            crew = Crew(posts, Limits(), self._audience, self._clock, interrupts=interrupts, inquire=self._inquire)
            endings = crew.work()
        # A worker that did not tell whether it has the job, and has not, has no part in it.
        strangers = [one.member for one in silent]
        meant = [one for one in endings if one.outcome is not Outcome.REFUSED or one.member not in strangers]
        return Result(job.name, tuple(meant), crew.stopping.reason)


class _Never:
    """Signals that do not come here."""

    def __init__(self, file: int) -> None:
        self._file = file

    def fileno(self) -> int:
        """Return what never becomes readable."""
        return self._file

    def take(self) -> list[int]:
        """Return none."""
        return []


@contextmanager
def _none() -> Iterator[Interrupts]:
    ends = os.pipe()
    try:
        yield _Never(ends[0])
    finally:
        for end in ends:
            os.close(end)
