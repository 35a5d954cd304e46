"""What the journal tells of a node's way up, and what is written there while it is looked at.

A node that tpuctl made or started and never saw usable was not handed over to anybody, so a repair disturbs nobody; any other
may be in use. A set-up that has not ended well on a node that tpuctl made is still to be done.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.clock import parse_timestamp
from tpuctl.errors import BrokenNodeError
from tpuctl.journal import JournalError
from tpuctl.model import REQUEST_LABEL, NodeSpec

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.journal import Journal
    from tpuctl.model import Node
    from tpuctl.names import NodeName

# A node left for longer than this may have been taken into use by hand.
_RECENT = timedelta(hours=1)
_BEGINNINGS = frozenset({"bringing-up", "reboot", "restart", "start"})
# Clocks of this machine and of the service may differ by this much.
_SKEW = timedelta(minutes=5)


class History:
    """What the journal holds of one node. A line that cannot be written is done without: nothing is destroyed for it."""

    def __init__(self, journal: Journal, name: NodeName) -> None:
        self._journal = journal
        self._name = name
        self._unfinished: str | None = None
        self._stopped: str | None = None
        self._asked: datetime | None = None
        self._set_up: set[str] = set()
        self._created: tuple[datetime, str | None] | None = None

    def read(self, now: datetime) -> None:
        """Read what earlier runs wrote."""
        for entry in self._journal.entries(self._name):
            at, event = parse_timestamp(entry.get("at")), entry.get("event")
            if event in {"restart", "usable"}:
                self._stopped = entry.get("id") if event == "restart" else None
            if event in _BEGINNINGS and at is not None and now - at < _RECENT:
                self._unfinished = entry.get("id")
            elif event == "usable" or (event == "gave-up" and entry.get("error") == BrokenNodeError.kind):
                # Any other end, such as a deadline, leaves a node on its way that the next run goes on with.
                self._unfinished = self._asked = None
            elif event == "note" and entry.get("refused") == "stop":
                self._stopped = None
            elif event == "create" and at is not None:
                self.created(at, (entry.get("spec") or {}).get("setup"))
                # `tpuctl create` gives no reason: it hands its node over as it comes.
                self._asked = at if entry.get("reason") and now - at < _RECENT else None
            elif event == "delete":
                self._asked = None
            elif event == "setup" and entry.get("ok"):
                self._set_up.add(str(entry.get("id")))

    def created(self, at: datetime, setup: str | None) -> None:
        """Remember that a node was asked for, and what its workers are to run once it is usable."""
        self._created = (at, setup)

    @property
    def setup(self) -> str | None:
        """What the workers of the node that tpuctl made last were to run."""
        return self._created[1] if self._created else None

    def spec_as_it_is(self, node: Node) -> NodeSpec:
        """Return what would make a node again; what its workers ran once, the API does not know."""
        return replace(NodeSpec.from_node(node), setup=self.setup)

    def setup_to_do(self, node: Node) -> str | None:
        """Return what the workers of a node that tpuctl made have still to run; nothing for any other node."""
        if self._created is None or node.id in self._set_up:
            return None
        at, setup = self._created
        return setup if setup and node.created is not None and node.created >= at - _SKEW else None

    def set_up(self, node: Node, now: datetime, *, ok: bool) -> None:
        """Write down how the set-up of a node ended."""
        self.write("setup", now, id=node.id, ok=ok)
        if ok:
            self._set_up.add(node.id)

    def is_unfinished(self, node_id: str) -> bool:
        """Tell whether tpuctl made or started this node and has not seen it usable since."""
        return self._unfinished == node_id

    def was_asked_for(self, node: Node) -> bool:
        """Tell whether an earlier run asked for this node and ended before it saw it."""
        is_of_tpuctl = REQUEST_LABEL in node.labels
        return (
            is_of_tpuctl
            and self._asked is not None
            and node.created is not None
            and node.created >= self._asked - _SKEW
        )

    def stopping(self, node_id: str) -> None:
        """Remember that tpuctl stops this node, to start it again."""
        self._stopped = node_id

    def refused(self, text: str, now: datetime) -> None:
        """Write down that the service refused to stop the node: it is not to be started again then."""
        self._stopped = None
        self.write("note", now, text=text, refused="stop")

    def was_stopped(self, node_id: str) -> bool:
        """Tell whether tpuctl stopped this node, and has not seen it usable since: it is to start it again."""
        return self._stopped == node_id

    def begin(self, node_id: str, now: datetime) -> None:
        """Write down that a node is on its way up."""
        if not self.is_unfinished(node_id):
            self.write("bringing-up", now, id=node_id)
        self._unfinished = node_id

    def finish(self, node_id: str, now: datetime, **data: Any) -> None:  # JSON
        """Write down that a node that was on its way is usable."""
        self._stopped = None
        if self.is_unfinished(node_id):
            self.write("usable", now, id=node_id, **data)
            self._unfinished = None

    def write(self, event: str, now: datetime, **data: Any) -> None:  # JSON
        """Write down what was seen."""
        with suppress(JournalError):
            self._journal.append(self._name, event, now, durable=False, **data)


def is_being_made_anew(journal: Journal, name: NodeName) -> bool:
    """Tell whether an earlier run deleted the node to create it again, and did not live to do so."""
    is_between = False
    for entry in journal.entries(name):
        if entry.get("event") == "delete":
            is_between = entry.get("reason") != "asked for"
        elif entry.get("event") in {"bringing-up", "usable", "gave-up"}:
            is_between = False
    return is_between


def spec_as_it_is(journal: Journal, node: Node, now: datetime) -> NodeSpec:
    """Return what would make a node again; what its workers ran once only the journal knows."""
    history = History(journal, node.name)
    history.read(now)
    return history.spec_as_it_is(node)
