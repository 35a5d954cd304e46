"""Follow a job from the command line: for `logs -f` and `attach`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.actions.following import follow_on_workers
from tpuctl.actions.run_diagnosis import LastWords
from tpuctl.cli.running import diagnosed, why_gone
from tpuctl.clock import SystemClock
from tpuctl.output.streams import Streams
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.actions.jobs import Job
    from tpuctl.actions.running import Result
    from tpuctl.cli.app import App
    from tpuctl.cli.job_choice import Choice
    from tpuctl.remote.member import Member

_LASTING = {True: "continues", False: "continues as long as a client follows it", None: "is left running"}


def follow(app: App, choice: Choice, job: Job, others: Sequence[Member], *, passes_signals: bool = False) -> Result:
    """Show the output of a job until it has ended, also of `others` that may have it.

    When a signal ends this process, say what happens to the job and how to follow it again.
    """
    members = [*(share.member for share in job.shares), *others]
    what = f"job `{job.name}` {_LASTING[job.is_detached]}"
    resume, undo = f"tpuctl logs {choice.nodes} {job.name} -f", f"tpuctl kill {choice.nodes} {job.name}"
    to_stderr = app.format in {Format.JSON, Format.YAML}
    with (
        Streams(app.terminal, members, to_stderr=to_stderr) as streams,
        app.going_on(what, resume=resume, undo=undo),
    ):
        tail = LastWords(streams, len(members))
        result = follow_on_workers(
            job,
            others,
            # Connections and commands live in real time, although the clock of the cloud may be the sandbox's.
            clock=SystemClock(),
            audience=tail,
            inquire=lambda member: why_gone(app, member),
            ssh_options=choice.workers.ssh_options,
            passes_signals=passes_signals,
        )
    return diagnosed(result, tail)
