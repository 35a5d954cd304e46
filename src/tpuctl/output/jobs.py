"""Render jobs: as table rows, as JSON, as text. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_duration, format_timestamp
from tpuctl.output.tables import Cell
from tpuctl.remote.jobs.values import Share, State, signal_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from tpuctl.actions.jobs import Job
    from tpuctl.remote.member import Member

HEADER = ("JOB", "STARTED", "STATE", "DURATION", "KIND", "COMMAND")
# More workers than these are counted, not named.
_NAMED = 3
_ORDER = (State.RUNNING, State.LOST, State.SIGNALED, State.EXITED)


def row(job: Job) -> tuple[Cell, ...]:
    """Return the row of one job."""
    states = {share.state for share in job.shares}
    style = "green" if State.RUNNING in states else ""
    if states & {State.LOST, State.SIGNALED} or any(share.code for share in job.shares):
        style = "red"
    duration = Cell("")
    if job.duration is not None:
        seconds = job.duration.total_seconds()
        text = f"{seconds:.1f}s" if seconds < 10 else format_duration(job.duration)  # below it tenths matter
        duration = Cell(text, f"{seconds:.3f}")
    return (
        Cell(job.name),
        Cell(f"{format_duration(job.age)} ago", format_timestamp(job.began)),
        Cell(state(job.shares), style=style),
        duration,
        Cell({True: "detached", False: "followed", None: ""}[job.is_detached]),
        Cell(job.command),
    )


def state(shares: Sequence[Share]) -> str:
    """Return the state of a job: `running on 8 workers`, `exited 0`, `exited 1 on worker 5, exited 0 on 7 workers`."""
    groups: dict[str, list[Share]] = {}
    # Running first, then failures.
    for share in sorted(shares, key=lambda one: (_ORDER.index(one.state), one.code == 0, one.code or 0)):
        groups.setdefault(_share_state(share), []).append(share)
    if len(groups) == 1 and (len(shares) == 1 or shares[0].state is not State.RUNNING):
        return next(iter(groups))
    where = {how: workers([share.member for share in group], len(shares)) for how, group in groups.items()}
    return ", ".join(f"{how} on {place}" for how, place in where.items())


def to_json(job: Job, *, sandbox: bool) -> dict[str, Any]:
    """Return the form for scripts. Times of day are by the workers' clocks."""
    return {
        "job": job.name,
        "started": format_timestamp(job.began),
        "state": state(job.shares),
        "seconds": _total(job.duration),
        "detached": job.is_detached,
        "command": job.command,
        "workers": [
            {
                "nodeId": share.member.node.name.node_id,
                "zone": share.member.node.name.zone,
                "worker": share.member.worker,
                "state": str(share.state),
                "started": format_timestamp(share.began),
                "exitCode": share.code,
                "signal": share.signal,
                "seconds": _total(share.duration),
                "followed": share.is_followed,
                "stdoutBytes": share.sizes[0],
                "stderrBytes": share.sizes[1],
                **({"timedOut": True} if share.was_late else {}),
                **({"diskFull": True} if share.disk_was_full else {}),
            }
            for share in job.shares
        ],
        **({"sandbox": True} if sandbox else {}),
    }


def _share_state(share: Share) -> str:
    match share.state:
        case State.EXITED | State.SIGNALED if share.was_late:
            return f"timed out (exit {share.code})"
        case State.EXITED:
            return f"exited {share.code}"
        case State.SIGNALED:
            by = f"ended by {signal_name(share.signal or 0)}"
            return f"{by}: no client followed it" if share.was_abandoned else by
        case _:
            return str(share.state)


def workers(members: Sequence[Member], total: int) -> str:
    """Return the workers by name if they are few, else their number: `worker 5`, `workers 2, 3`, `8 workers`."""
    if len(members) > 1 and (len(members) == total or len(members) > _NAMED):
        return f"{len(members)} workers"
    return f"worker{'s' if len(members) > 1 else ''} {', '.join(member.label for member in members)}"


def _total(duration: timedelta | None) -> float | None:
    return None if duration is None else round(duration.total_seconds(), 3)
