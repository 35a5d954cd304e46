"""Look into the workers of a node, all at once, each within its time; and what that comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.checkup.workers.facts import ShutOut, WorkerFacts, WorkersFacts
from tpuctl.remote import examination
from tpuctl.remote.failures import explain_failure, look_around
from tpuctl.remote.holders import everywhere

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from tpuctl.clock import Clock
    from tpuctl.errors import TpuctlError
    from tpuctl.model import Node
    from tpuctl.remote.examination import Examined
    from tpuctl.remote.member import Member


def examine(members: Sequence[Member], clock: Clock, *, patience: timedelta = examination.PATIENCE) -> list[Examined]:
    """Look into the workers, side by side; return for each, in their order, its JSON text (`text`), or `why` there is none.

    Nothing is changed there. `clock` is the real one, to which the workers' clocks are compared; each worker has `patience`.
    Raises `SshProgramMissingError`.
    """
    return everywhere(members, lambda member: examination.examine(member, clock, patience=patience))


def facts_of(
    node: Node,
    examined: Sequence[Examined],
    now: datetime,
    *,
    wayless: Mapping[int, TpuctlError],
    has_own_key: bool = False,
) -> WorkersFacts:
    """Return what the workers of a node told, and why others did not; `wayless` are those that no way leads to."""
    return WorkersFacts(
        node=node,
        now=now,
        expected=tuple(sorted([*(one.member.worker for one in examined), *wayless])),
        workers=tuple(WorkerFacts(one.member.worker, one.facts) for one in examined if one.ssh_said is None),
        shut_out=_together(node, [*_shut_out(examined), *wayless.items()]),
        has_own_key=has_own_key,
    )


def _shut_out(examined: Sequence[Examined]) -> Iterator[tuple[int, TpuctlError]]:
    """Yield the workers that ssh did not get into, with what kept it out."""
    got_in = any(one.ssh_said is None for one in examined)
    for one in examined:
        if one.ssh_said is not None:
            seen = look_around(one.member, accepted_elsewhere=got_in, waited=one.waited)
            yield one.member.worker, explain_failure(one.ssh_said, one.member, seen)


def _together(node: Node, failed: Sequence[tuple[int, TpuctlError]]) -> tuple[ShutOut, ...]:
    """Return the workers with the same cause together."""
    causes: dict[tuple[str, str | None], list[tuple[int, TpuctlError]]] = {}
    for worker, error in failed:
        # The message begins with the worker; the cause is what comes after it.
        _, _, why = error.message.partition(f"of `{node.name.node_id}`")
        causes.setdefault((why.lstrip(": ") or error.message, error.error_id), []).append((worker, error))
    return tuple(
        ShutOut(
            workers=tuple(sorted(worker for worker, _ in those)),
            why=why,
            hints=tuple((those[0][1].hint or "").splitlines()),
            error_id=error_id,
            is_passing=getattr(those[0][1], "retriable", False),
        )
        for (why, error_id), those in causes.items()
    )
