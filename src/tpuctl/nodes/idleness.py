"""What happens to a node that is not used for a given time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tpuctl.models.node import Node


# Users get a warning this long before the end.
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
