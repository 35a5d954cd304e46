"""Examine the workers of a node in parallel, each with a timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.checkup.workers.facts import ShutOut, WorkerFacts, WorkersFacts
from tpuctl.remote import examination
from tpuctl.remote.failures import explain_failure, look_around
from tpuctl.remote.holders import everywhere

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from tpuctl.clock import Clock
    from tpuctl.errors import TpuctlError
    from tpuctl.model import Node
    from tpuctl.remote.examination import Examined
    from tpuctl.remote.member import Member


def examine(members: Sequence[Member], clock: Clock, *, patience: timedelta = examination.PATIENCE) -> list[Examined]:
    """Examine the workers in parallel. Return for each, in order, its JSON text (`text`), or `why` there is none.

    Nothing is changed on them. `clock` is the real one, which the workers' clocks are compared with; `patience` is the timeout
    for each worker. Raises `SshProgramMissingError`.
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
    """Return the facts about the workers of a node. `wayless` are the workers without an ssh route, and why."""
    got_in = any(one.ssh_said is None for one in examined)
    failed: dict[int, TpuctlError] = {}
    for one in examined:
        if one.ssh_said is not None:
            evidence = look_around(one.member, accepted_elsewhere=got_in, waited=one.waited)
            failed[one.member.worker] = explain_failure(one.ssh_said, one.member, evidence)
    failed |= wayless
    return WorkersFacts(
        node=node,
        now=now,
        expected=tuple(sorted([*(one.member.worker for one in examined), *wayless])),
        workers=tuple(WorkerFacts(one.member.worker, one.facts) for one in examined if one.ssh_said is None),
        shut_out=_group_by_cause(node, failed),
        has_own_key=has_own_key,
    )


def _group_by_cause(node: Node, failed: Mapping[int, TpuctlError]) -> tuple[ShutOut, ...]:
    """Return the failed workers, those with the same cause together."""
    causes: dict[tuple[str, str | None], list[tuple[int, TpuctlError]]] = {}
    for worker, error in failed.items():
        # The message begins with the worker, followed by the cause.
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
