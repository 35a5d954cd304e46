"""`wait`, for the command and for programs: which nodes to wait for, and until what. The controller does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.nodes.conditions import Policy
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.policies import choose_goal, deadline, retry_until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.nodes.conditions import Condition
    from tpuctl.nodes.lookup import WaitTarget


def plan_wait(
    app: App,
    find_targets: Callable[[Condition], Sequence[WaitTarget]],
    *,
    goal: str | None,
    probe: str | None,
    timeout: timedelta | str | None,
    allow_failed_startup: bool,
) -> list[Goal]:
    """Return what to wait for, of the nodes that `find_targets` returns for the condition. Changes nothing.

    Without a goal that is ssh, where workers can be reached. Retries while the API does not answer; raises `TimedOutError` at
    the time limit.
    """
    since, wanted = app.clock.monotonic(), choose_goal(app, goal, probe=probe)
    policy = Policy(
        goal=wanted,
        probe=probe,
        accepts_healthy=goal is None,
        is_read_only=True,
        refuses_failed_startup=probe is None and not allow_failed_startup,
        timeout=deadline(app, timeout),
    )
    targets = retry_until_answered(app, lambda: find_targets(wanted), timeout=policy.timeout, since=since)
    return [
        Goal(name=name, policy=policy, since=since, is_queued=is_queued) for name, is_queued in dict.fromkeys(targets)
    ]
