"""Read and write the journal of one node while it is reconciled.

A node that tpuctl created or started and never saw usable is not in use yet, so that a repair interrupts no work; any other
node may be in use. A set-up that has not succeeded on a node that tpuctl created runs again.
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

# After this time, a user may have begun to work on the node.
_RECENT = timedelta(hours=1)
_BEGINNINGS = frozenset({"bringing-up", "reboot", "restart", "start"})
# The maximum difference between the clocks of this machine and the service.
_SKEW = timedelta(minutes=5)


class History:
    """The journal of one node. A line that cannot be written is skipped: none of them is needed to undo a deletion."""

    def __init__(self, journal: Journal, name: NodeName) -> None:
        self._journal = journal
        self._name = name
        self._unfinished: str | None = None
        self._stopped: str | None = None
        self._asked: datetime | None = None
        self._set_up: set[str] = set()
        self._created: tuple[datetime, str | None] | None = None

    def read(self, now: datetime) -> None:
        """Read the entries of earlier runs."""
        for entry in self._journal.entries(self._name):
            at, event = parse_timestamp(entry.get("at")), entry.get("event")
            if event in {"restart", "usable"}:
                self._stopped = entry.get("id") if event == "restart" else None
            if event in _BEGINNINGS and at is not None and now - at < _RECENT:
                self._unfinished = entry.get("id")
            elif event == "usable" or (event == "gave-up" and entry.get("error") == BrokenNodeError.kind):
                # After any other end, such as a timeout, the next run continues with the node.
                self._unfinished = self._asked = None
            elif event == "note" and entry.get("refused") == "stop":
                self._stopped = None
            elif event == "create" and at is not None:
                self.created(at, (entry.get("spec") or {}).get("setup"))
                # `tpuctl create` gives no reason: it does not wait until the node is usable.
                self._asked = at if entry.get("reason") and now - at < _RECENT else None
            elif event == "delete":
                self._asked = None
            elif event == "setup" and entry.get("ok"):
                self._set_up.add(str(entry.get("id")))

    def created(self, at: datetime, setup: str | None) -> None:
        """Remember that a node was requested, and the set-up that its workers run once it is usable."""
        self._created = (at, setup)

    @property
    def setup(self) -> str | None:
        """The set-up of the node that tpuctl created last."""
        return self._created[1] if self._created else None

    def spec_as_it_is(self, node: Node) -> NodeSpec:
        """Return the spec of an existing node, with its set-up, which only the journal knows."""
        return replace(NodeSpec.from_node(node), setup=self.setup)

    def setup_to_do(self, node: Node) -> str | None:
        """Return the set-up that has not run yet on a node that tpuctl created; None for any other node."""
        if self._created is None or node.id in self._set_up:
            return None
        at, setup = self._created
        return setup if setup and node.created is not None and node.created >= at - _SKEW else None

    def record_setup(self, node: Node, now: datetime, *, ok: bool) -> None:
        """Write the result of the set-up of a node."""
        self.write("setup", now, id=node.id, ok=ok)
        if ok:
            self._set_up.add(node.id)

    def is_unfinished(self, node_id: str) -> bool:
        """Return whether tpuctl created or started this node and has not seen it usable since."""
        return self._unfinished == node_id

    def was_asked_for(self, node: Node) -> bool:
        """Return whether an earlier run requested this node and ended before it observed it."""
        is_of_tpuctl = REQUEST_LABEL in node.labels
        return (
            is_of_tpuctl
            and self._asked is not None
            and node.created is not None
            and node.created >= self._asked - _SKEW
        )

    def record_stop(self, node_id: str) -> None:
        """Remember that tpuctl stops this node in order to start it again."""
        self._stopped = node_id

    def record_refused_stop(self, text: str, now: datetime) -> None:
        """Write that the service refused to stop the node, so that no later run starts it again."""
        self._stopped = None
        self.write("note", now, text=text, refused="stop")

    def was_stopped(self, node_id: str) -> bool:
        """Return whether tpuctl stopped this node in order to start it again, and has not seen it usable since."""
        return self._stopped == node_id

    def begin(self, node_id: str, now: datetime) -> None:
        """Write that a run is bringing the node up."""
        if not self.is_unfinished(node_id):
            self.write("bringing-up", now, id=node_id)
        self._unfinished = node_id

    def finish(self, node_id: str, now: datetime, **data: Any) -> None:  # JSON
        """Write that the node that a run was bringing up is usable."""
        self._stopped = None
        if self.is_unfinished(node_id):
            self.write("usable", now, id=node_id, **data)
            self._unfinished = None

    def write(self, event: str, now: datetime, **data: Any) -> None:  # JSON
        """Write an entry."""
        with suppress(JournalError):
            self._journal.append(self._name, event, now, durable=False, **data)


def is_being_made_anew(journal: Journal, name: NodeName) -> bool:
    """Return whether an earlier run deleted the node in order to create it again, and ended before it did."""
    is_between = False
    for entry in journal.entries(name):
        if entry.get("event") == "delete":
            is_between = entry.get("reason") != "asked for"
        elif entry.get("event") in {"bringing-up", "usable", "gave-up"}:
            is_between = False
    return is_between


def spec_as_it_is(journal: Journal, node: Node, now: datetime) -> NodeSpec:
    """Return the spec of an existing node, with its set-up, which only the journal knows."""
    history = History(journal, node.name)
    history.read(now)
    return history.spec_as_it_is(node)
