"""The events that tpuctl reports while it works on a node: one for each change and each wait."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from tpuctl.names import NodeName

_DURATION_SUFFIX = re.compile(r" for \d+(?:\.\d+)?[smhd][0-9smhd]*$")


class EventKind(StrEnum):
    """The kind of an event."""

    STATE = "state"  # the state or health of the node has changed
    ACTION = "action"  # a change was requested
    WAIT = "wait"  # waiting until the next poll
    NOTE = "note"  # information for the user
    REACHED = "reached"  # the node has reached its goal
    SILENT = "silent"  # the API does not answer; the state is unknown
    PREEMPTED = "preempted"  # the service preempted the node
    RECOVERED = "recovered"  # the node is usable again, after a repair or by itself
    MAINTENANCE = "maintenance"  # a maintenance window was announced, or began
    EXPIRED = "expired"  # the time of the node has ended, and the node is deleted
    JOB_STALLED = "job-stalled"  # a kept job prints nothing, or its chips are idle
    JOB_ENDED = "job-ended"  # a kept job is over
    GAVE_UP = "gave-up"  # the run stops working on this node
    HOOK_FAILED = "hook-failed"  # a hook of the user failed, or was skipped


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event of one node. `data` is for programs, `text` for users."""

    kind: EventKind
    at: datetime
    node: NodeName
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_step(self) -> bool:
        """Whether a note is about the next step of a search for a zone: no remark, and no warning."""
        return self.kind is EventKind.NOTE and "tried" in self.data

    @property
    def wait_reason(self) -> str:
        """The reason of a wait without its duration; empty if it repeats only the state and health shown beside it."""
        reason = _DURATION_SUFFIX.sub("", self.text)
        state, health = self.data.get("state"), self.data.get("health")
        request = self.data.get("request")
        if request and not state and reason in {f"its queued resource is {request}", f"it is {request}"}:
            return ""
        if state and reason in {f"it is {state}", f"it has been {state}", f"it is {state} but {health}"}:
            return ""
        return reason

    def to_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "at": format_timestamp(self.at),
            "event": str(self.kind),
            "node": self.node.node_id,
            "zone": self.node.zone,
            "project": self.node.project,
            "text": self.text,
            **self.data,
        }


def broadcast(*listeners: Callable[[NodeEvent], None]) -> Callable[[NodeEvent], None]:
    """Return a listener that passes each event to several listeners, in order."""

    def broadcast(event: NodeEvent) -> None:
        for listener in listeners:
            listener(event)

    return broadcast
