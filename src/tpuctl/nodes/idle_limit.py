"""How long a node may be idle, and what happens to it then. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tpuctl.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from tpuctl.models.node import Node

# Users get a warning this long before an idle node ends.
IDLE_WARNING: Final = timedelta(minutes=10)


class IdleAction(StrEnum):
    """What to do with an idle node."""

    STOP = "stop"
    DELETE = "delete"

    @property
    def past(self) -> str:
        """The word for a node on which it was done."""
        return "stopped" if self is IdleAction.STOP else "deleted"


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """How long a node may be idle, and what happens then. `action` None: delete what the user created, stop other nodes."""

    after: timedelta
    action: IdleAction | None = None
    # The label of the user; None if the identity is unknown, and then every node belongs to others.
    owner: str | None = None

    def action_for(self, node: Node) -> IdleAction | None:
        """Return what to do with a node that is idle; None if it is kept, or if the service would refuse to stop it.

        tpuctl labels the nodes that it creates with their owner.
        """
        if node.is_kept:
            return None
        chosen = self.action or (IdleAction.DELETE if node.owner and node.owner == self.owner else IdleAction.STOP)
        return None if chosen is IdleAction.STOP and node.why_not_stoppable() else chosen


@dataclass(frozen=True, slots=True)
class IdleChange:
    """What a run does to the idle limit of a node: set `limit`, or end that of an earlier guard, or leave it as it is."""

    limit: IdleLimit | None = None
    # A flag of this run says so, not a setting.
    is_named: bool = False

    @property
    def removes(self) -> bool:
        """Whether the user wants no limit (`--idle forever`), whatever the settings and an earlier guard say."""
        return self.limit is None and self.is_named

    @property
    def keeps(self) -> bool:
        """Whether the limit of an earlier guard stays."""
        return self.limit is None and not self.is_named


# The use of workers is examined before the node is read; a slow answer makes that too old.
_USE_LASTS = timedelta(seconds=30)


def require_recent_use(what: str, age: timedelta) -> None:
    """Raise `ServiceUnavailableError` if the use of the workers was examined too long ago to end a node for it."""
    if age > _USE_LASTS:
        raise ServiceUnavailableError(f"`{what}`: its use was examined too long before the service answered")
