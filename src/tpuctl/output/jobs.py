"""How jobs are shown: as rows of a table, as JSON, in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tpuctl.clock import format_duration, format_timestamp
from tpuctl.output.tables import Cell
from tpuctl.remote.jobs.values import Share, State, signal_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from tpuctl.remote.member import Member

HEADER = ("JOB", "STARTED", "STATE", "DURATION", "KIND", "COMMAND")
# So many workers are named; of more only their number is told.
_NAMED = 3
_ORDER = (State.RUNNING, State.LOST, State.SIGNALED, State.EXITED)


class Shown(Protocol):
    """A job, as far as it is shown."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def shares(self) -> tuple[Share, ...]:
        """How it is on each worker."""

    @property
    def age(self) -> timedelta:
        """How long ago it began."""

    @property
    def began(self) -> datetime:
        """When it began."""

    @property
    def duration(self) -> timedelta | None:
        """How long it took, or has taken."""

    @property
    def command(self) -> str:
        """What runs."""

    @property
    def is_detached(self) -> bool | None:
        """Whether it goes on by itself, where that is known."""


def row(job: Shown) -> tuple[Cell, ...]:
    """Return the row of one job."""
    return (
        Cell(job.name),
        Cell(f"{format_duration(job.age)} ago", format_timestamp(job.began)),
        Cell(state(job.shares), style=_style(job.shares)),
        Cell(_seconds(job.duration), "" if job.duration is None else f"{job.duration.total_seconds():.3f}"),
        Cell({True: "detached", False: "followed", None: ""}[job.is_detached]),
        Cell(job.command),
    )


def state(shares: Sequence[Share]) -> str:
    """Return how a job is: `running on 8 workers`, `exited 0`, `exited 1 on worker 5, exited 0 on 7 workers`."""
    groups: dict[str, list[Share]] = {}
    for share in sorted(shares, key=_gravity):
        groups.setdefault(_how(share), []).append(share)
    if len(groups) == 1 and (len(shares) == 1 or shares[0].state is not State.RUNNING):
        return next(iter(groups))
    where = {how: workers([share.member for share in group], len(shares)) for how, group in groups.items()}
    return ", ".join(f"{how} on {place}" for how, place in where.items())


def to_json(job: Shown, *, sandbox: bool) -> dict[str, Any]:
    """Return what scripts read. Times of day are by the workers' clocks."""
    return {
        "job": job.name,
        "started": format_timestamp(job.began),
        "state": state(job.shares),
        "seconds": _total(job.duration),
        "detached": job.is_detached,
        "command": job.command,
        "workers": [_share_json(share) for share in job.shares],
        **({"sandbox": True} if sandbox else {}),
    }


def _share_json(share: Share) -> dict[str, Any]:
    name = share.member.node.name
    return {
        "nodeId": name.node_id,
        "zone": name.zone,
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


def _how(share: Share) -> str:
    match share.state:
        case State.EXITED | State.SIGNALED if share.was_late:
            return f"timed out (exit {share.code})"
        case State.EXITED:
            return f"exited {share.code}"
        case State.SIGNALED:
            by = f"ended by {signal_name(share.signal or 0)}"
            return f"{by}: nobody followed it" if share.was_abandoned else by
        case _:
            return str(share.state)


def _gravity(share: Share) -> tuple[int, bool, int]:
    """Sort what runs first, then what went wrong."""
    return _ORDER.index(share.state), share.code == 0, share.code or 0


def _style(shares: Sequence[Share]) -> str:
    states = {share.state for share in shares}
    if states & {State.LOST, State.SIGNALED} or any(share.code for share in shares):
        return "red"
    return "green" if State.RUNNING in states else ""


def workers(members: Sequence[Member], total: int) -> str:
    """Return the workers by name where they are few, else how many: `worker 5`, `workers 2, 3`, `8 workers`."""
    if len(members) > 1 and (len(members) == total or len(members) > _NAMED):
        return f"{len(members)} workers"
    return f"worker{'s' if len(members) > 1 else ''} {', '.join(member.label for member in members)}"


def _seconds(duration: timedelta | None) -> str:
    if duration is None:
        return ""
    seconds = duration.total_seconds()
    return f"{seconds:.1f}s" if seconds < 10 else format_duration(duration)  # below it tenths matter


def _total(duration: timedelta | None) -> float | None:
    return None if duration is None else round(duration.total_seconds(), 3)
