"""What readiness decides: frozen values, no rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.errors import TpuctlError
    from tpuctl.readiness.values import Goal


@dataclass(frozen=True, slots=True)
class Reached:
    """The node is where it is wanted; `level` is what was found. `note` says what should be known about it."""

    level: Goal
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """What will be done if nothing changes, and in how long."""

    what: str
    after: timedelta


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after `delay`."""

    delay: timedelta
    reason: str
    next: Next | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """Create the node from its spec."""

    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start the stopped node."""

    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Stop the node; once it is stopped, the next decision is to start it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reboot:
    """Reboot every worker from inside."""

    reason: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the node whose id was just seen; once it is gone, the next decision is to create it.

    `is_repair` counts it against the budget: a dead record and a failed creation's do not.
    """

    reason: str
    node_id: str
    is_repair: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop trying; the error says why and what can be done."""

    error: TpuctlError


Decision = Reached | Wait | Create | Start | Restart | Reboot | Delete | GiveUp
