"""What the journal tells of a node's way up: whether an earlier run was still bringing it up when it ended.

Such a node was never handed over as usable, so a repair disturbs nobody; any other may be in use.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import parse_timestamp
from tpuctl.journal import JournalError

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.journal import Journal
    from tpuctl.names import NodeName

# A node left for longer than this may have been taken into use by hand.
_RECENT = timedelta(hours=1)
_BEGINNINGS = frozenset({"bringing-up", "restart"})


class History:
    """What the journal holds of one node. A line that cannot be written is done without: nothing is destroyed for it."""

    def __init__(self, journal: Journal, name: NodeName) -> None:
        self._journal = journal
        self._name = name
        self._unfinished: str | None = None

    def read(self, now: datetime) -> None:
        """Read what earlier runs wrote."""
        for entry in self._journal.entries(self._name):
            at = parse_timestamp(entry.get("at"))
            if entry.get("event") in _BEGINNINGS and at is not None and now - at < _RECENT:
                self._unfinished = entry.get("id")
            elif entry.get("event") == "usable":
                self._unfinished = None

    def is_unfinished(self, node_id: str) -> bool:
        """Tell whether tpuctl made or started this node and has not seen it usable since."""
        return self._unfinished == node_id

    def begin(self, node_id: str, now: datetime) -> None:
        """Write down that a node is on its way up."""
        if not self.is_unfinished(node_id):
            self._write("bringing-up", node_id, now)
        self._unfinished = node_id

    def finish(self, node_id: str, now: datetime) -> None:
        """Write down that a node that was on its way is usable."""
        if self.is_unfinished(node_id):
            self._write("usable", node_id, now)
            self._unfinished = None

    def _write(self, event: str, node_id: str, now: datetime) -> None:
        with suppress(JournalError):
            self._journal.append(self._name, event, now, id=node_id)
