"""Following a job that is there already: as somebody who only looks on, or in place of the `run` that started it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.actions.running import Result
from tpuctl.remote.running.crew import Crew
from tpuctl.remote.running.interrupts import passed_on
from tpuctl.remote.running.post import Post
from tpuctl.remote.running.values import Limits, Order, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.actions.jobs import Job
    from tpuctl.clock import Clock
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

    def follow(self, job: Job, others: Sequence[Member] = (), *, passes_signals: bool = False) -> Result:
        """Pass on what a job prints from its shares' `starts` on; from its beginning on others that may have it.

        With `passes_signals` SIGINT and SIGTERM are sent to the job as `tpuctl run` does it. Else the job is left alone: a
        signal raises here what it raises, and the connections are let go. Raises `SshProgramMissingError`.
        """
        places = [(share.member, share.starts) for share in job.shares]
        places += [(member, (0, 0)) for member in others]
        posts = [
            Post(
                member,
                Order(job=job.name, token="", must_exist=True, start=start),
                self._audience,
                options=self._ssh_options(member.way),
            )
            for member, start in places
        ]
        with passed_on(catch=passes_signals) as interrupts:
            crew = Crew(posts, Limits(), self._audience, self._clock, interrupts=interrupts, inquire=self._inquire)
            endings = crew.work()
        # Another worker that has not got the job has no part in it.
        meant = [one for one in endings if one.outcome is not Outcome.MISSING or one.member not in others]
        return Result(job.name, tuple(meant), crew.stopping.reason)
