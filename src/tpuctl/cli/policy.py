"""How flags and settings become the policy of a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.readiness import Goal, Policy, Repair

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.cli.app import App


def ready_policy(
    app: App,
    *,
    goal: str | None,
    forced: bool,
    replace: bool,
    repair: str | None,
    max_restarts: int | None,
    max_recreates: int | None,
    timeout: timedelta | None,
) -> Policy:
    """Return the policy of `up`: it may create, start and repair."""
    flags: dict[str, Any] = {"repair": repair} if repair else {}
    flags |= {"max_restarts": str(max_restarts)} if max_restarts is not None else {}
    flags |= {"max_recreates": str(max_recreates)} if max_recreates is not None else {}
    settings = app.settings_with(flags)
    return Policy(
        goal=reachable_goal(app, goal),
        may_create=True,
        may_start=True,
        replace=replace,
        forced=forced,
        repair=Repair(settings.text("repair") or Repair.RESTART),
        max_restarts=settings.number("max_restarts"),
        max_recreates=settings.number("max_recreates"),
        timeout=deadline(app, timeout),
    )


def reachable_goal(app: App, goal: str | None) -> Goal:
    """Return the goal; without one, ssh where it can be used from here, else healthy, and say so."""
    if goal is not None:
        return Goal(goal)
    obstacle = app.workers.obstacle()
    if obstacle is None:
        return Goal.SSH
    app.terminal.note(f"waiting until it is healthy, not until ssh answers: {obstacle}")
    return Goal.HEALTHY


def deadline(app: App, timeout: timedelta | str | None) -> timedelta | None:
    """Return the deadline that a flag or a setting gives; nothing for `forever`."""
    if timeout == "forever":
        return None
    if timeout is None:
        return app.settings.duration("timeout")
    if isinstance(timeout, str):
        raise TypeError(timeout)
    return timeout
