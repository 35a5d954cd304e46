"""The decisions, as frozen values without rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.errors import TpuctlError
    from tpuctl.readiness.values import Goal


@dataclass(frozen=True, slots=True)
class Reached:
    """The node has reached its goal."""

    level: Goal
    # A remark for the user.
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """The next action if the state does not change, and the time until then."""

    what: str
    after: timedelta


@dataclass(frozen=True, slots=True)
class Wait:
    """Fetch the node again after `delay`."""

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
    """Stop the node. Once it is STOPPED, the next decision is to start it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reboot:
    """Reboot every worker from inside."""

    reason: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the node with this id. Once it is gone, the next decision is to create it."""

    reason: str
    node_id: str
    # Counts against the budget. The record of a dead node or a failed creation does not.
    is_repair: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop with an error."""

    error: TpuctlError


Decision = Reached | Wait | Create | Start | Restart | Reboot | Delete | GiveUp
