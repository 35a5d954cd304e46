"""Following a job from the command line: for `logs -f` and `attach`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.actions.following import Follower
from tpuctl.cli.running import why_gone
from tpuctl.clock import SystemClock
from tpuctl.output.streams import Streams
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.actions.jobs import Job
    from tpuctl.actions.running import Result
    from tpuctl.cli.app import App
    from tpuctl.cli.job_choice import Choice
    from tpuctl.remote.jobs.asking import Silence


def follow(app: App, choice: Choice, job: Job, silent: Sequence[Silence], *, passes_signals: bool = False) -> Result:
    """Show what a job prints until it has ended. Left by a signal, say that the job goes on and how to come back."""
    members = [share.member for share in job.shares] + [one.member for one in silent]
    lasting = "goes on as long as somebody follows it" if job.is_detached is False else "goes on without us"
    what = f"job `{job.name}` {lasting}"
    resume, undo = f"tpuctl logs {choice.nodes} {job.name} -f", f"tpuctl kill {choice.nodes} {job.name}"
    to_stderr = app.format in {Format.JSON, Format.YAML}
    with (
        Streams(app.terminal, members, to_stderr=to_stderr) as streams,
        app.going_on(what, resume=resume, undo=undo),
    ):
        # Links and commands live in real time, also where the cloud's clock is the sandbox's.
        follower = Follower(
            SystemClock(),
            streams,
            inquire=lambda member: why_gone(app, member),
            ssh_options=choice.workers.ssh_options,
        )
        return follower.follow(job, silent, passes_signals=passes_signals)
