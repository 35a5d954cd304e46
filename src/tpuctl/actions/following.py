"""Follow an existing job: as an additional reader, or in place of the `run` that started it."""

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


def follow_on_workers(
    job: Job,
    others: Sequence[Member] = (),
    *,
    clock: Clock,
    audience: Audience,
    inquire: Callable[[Member], str | None],
    ssh_options: Callable[[Connection], tuple[str, ...]],
    passes_signals: bool = False,
) -> Result:
    """Pass on the output of a job until it has ended on all its workers, from the `starts` of its shares on.

    `others` are workers that may have the job too; their output is passed on from its beginning. Broken connections are
    replaced. With `passes_signals` SIGINT and SIGTERM are sent to the job, as in `tpuctl run`; otherwise the job is left
    alone, a signal has its usual effect here, and the connections are closed. Raises `SshProgramMissingError`.
    """
    places = [(share.member, share.starts) for share in job.shares]
    places += [(member, (0, 0)) for member in others]
    sessions = [
        Post(
            member,
            Order(job=job.name, token="", must_exist=True, start=start),
            audience,
            options=ssh_options(member.way),
        )
        for member, start in places
    ]
    with passed_on(catch=passes_signals) as interrupts:
        runner = Crew(sessions, Limits(), audience, clock, interrupts=interrupts, inquire=inquire)
        endings = runner.work()
    # An additional worker without the job is no part of the result.
    results = [one for one in endings if one.outcome is not Outcome.MISSING or one.member not in others]
    return Result(job.name, tuple(results), runner.stopping.reason)
