"""The interface of the journal's storage, and its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from tpuctl.names import NodeName

# The journal of a node is halved beyond this size in bytes.
LIMIT = 1 << 20


class JournalError(TpuctlError):
    """The journal cannot be written, so that no node may be deleted."""

    kind = "journal"

    def __init__(self, where: object, reason: str, *, remedy: str | None = None) -> None:
        remedy = remedy or "free some space or make the folder writable, or set TPUCTL_STATE_DIR"
        super().__init__(
            f"cannot write the journal: {where}: {reason}", hint=f"no change was made in the cloud; {remedy}"
        )


class UnreadableJournalError(TpuctlError):
    """The journal exists but cannot be read, so that its entries are unknown."""

    kind = "journal"

    def __init__(self, where: object, reason: str) -> None:
        super().__init__(
            f"cannot read the journal: {where}: {reason}",
            hint="make it readable, or set `TPUCTL_STATE_DIR` to its folder",
        )


class Store(Protocol):
    """Stores a sequence of lines for each node. Several processes may write at the same time."""

    def append(self, name: NodeName, line: bytes, *, durable: bool) -> None:
        """Append a line. A durable line is stored when this returns. Raises `JournalError` if that is not possible."""

    def read(self, name: NodeName, *, rotated: bool) -> bytes:
        """Return the lines, oldest first, with or without those that were rotated; empty if there are none."""

    def names(self) -> list[NodeName]:
        """Return the nodes that have lines, sorted."""

    def recent(self, project: str, zone: str) -> list[NodeName]:
        """Return the nodes of a project: first those of the zone, then the others, each the most recent first."""

    def where(self, name: NodeName) -> str:
        """Return the path or URL of the lines of a node."""

    def flush(self, *, only_due: bool) -> None:
        """Write the waiting lines; with `only_due` only those that have waited long enough."""
