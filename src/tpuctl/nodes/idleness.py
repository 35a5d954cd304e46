"""What happens to a node that is not used for a given time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.models.node import Node


class IdleAction(StrEnum):
    """What to do with an idle node."""

    STOP = "stop"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """How long a node may be idle, and what happens then. `action` None: delete what tpuctl created, stop other nodes."""

    after: timedelta
    action: IdleAction | None = None

    def action_for(self, node: Node) -> IdleAction | None:
        """Return what to do with a node that is idle; None if it would be stopped and the service refuses that.

        tpuctl labels the nodes that it creates with their owner.
        """
        chosen = self.action or (IdleAction.DELETE if node.owner else IdleAction.STOP)
        return None if chosen is IdleAction.STOP and node.why_not_stoppable() else chosen
