"""What the journal needs of the place where it lies, and how it says that it cannot be written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from tpuctl.names import NodeName

# Beyond this many bytes a node's journal is halved.
LIMIT = 1 << 20


class JournalError(TpuctlError):
    """The journal cannot be written, so nothing may be destroyed."""

    kind = "journal"

    def __init__(self, where: object, reason: str, *, remedy: str | None = None) -> None:
        remedy = remedy or "free some space or make the folder writable, or set TPUCTL_STATE_DIR"
        super().__init__(
            f"the journal cannot be written: {where}: {reason}", hint=f"nothing was changed in the cloud; {remedy}"
        )


class UnreadableJournalError(TpuctlError):
    """The journal is there and cannot be read: that nothing is found in it means nothing."""

    kind = "journal"

    def __init__(self, where: object, reason: str) -> None:
        super().__init__(
            f"the journal cannot be read: {where}: {reason}",
            hint="make it readable, or name the folder that holds it: `TPUCTL_STATE_DIR`",
        )


class Store(Protocol):
    """Where the lines lie: one sequence of lines for each node, which several processes may write at once."""

    def append(self, name: NodeName, line: bytes, *, durable: bool) -> None:
        """Add a line. A durable one is safe when this returns; `JournalError` where that is not possible."""

    def read(self, name: NodeName, *, rotated: bool) -> bytes:
        """Return the lines, oldest first, with or without those that were put aside; None if there are none."""

    def names(self) -> list[NodeName]:
        """Return the nodes that have lines, sorted."""

    def recent(self, project: str, zone: str) -> list[NodeName]:
        """Return the nodes of a project: first those of the zone, then the others, each the most recent first."""

    def where(self, name: NodeName) -> str:
        """Return where a node's lines are, in words for a person."""

    def flush(self, *, only_due: bool) -> None:
        """Write what waits to be written; with `only_due` only what has waited for long enough."""
