"""What happens while tpuctl works on a node, as values: one event for each change, and one for each wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from tpuctl.names import NodeName


class EventKind(StrEnum):
    """What sort of thing happened."""

    STATE = "state"  # the node is seen in another state or health than before
    ACTION = "action"  # a change was requested
    WAIT = "wait"  # nothing to do but to look again later
    NOTE = "note"  # something the user should know
    REACHED = "reached"  # the node is where it is wanted
    SILENT = "silent"  # the API does not answer; nothing is known
    PREEMPTED = "preempted"  # the service took the node back
    RECOVERED = "recovered"  # the node is usable again, after a repair or by itself
    MAINTENANCE = "maintenance"  # a maintenance window was announced, or began
    GAVE_UP = "gave-up"  # nothing more is done for this node


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one node. `data` is for machines, `text` for people."""

    kind: EventKind
    at: datetime
    node: NodeName
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "at": format_timestamp(self.at),
            "event": str(self.kind),
            "node": self.node.node_id,
            "zone": self.node.zone,
            "project": self.node.project,
            "text": self.text,
            **self.data,
        }


def to_all(*listeners: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a listener that tells several of each event, in order."""

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return tell
