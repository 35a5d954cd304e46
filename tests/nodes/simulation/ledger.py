"""The record of a simulation: calls with their answers, faults, and the nodes over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tests.nodes.simulation.plan import Life
from tpuctl.sandbox.state_session import NodeRecord, OperationRecord


@dataclass(frozen=True, slots=True)
class LastAnswer:
    """The last answer of the API about a node: its id and state, None for a missing node."""

    at: datetime
    node_id: str | None
    state: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """A call that requests a change, and its answer. `status` 0: the answer was lost.

    `before` is the world's record when it was sent, `after` the one when it was answered; `met_others`: another client changed
    the node in between. `blind`: the last read about it before had failed.
    """

    at: datetime
    answered: datetime
    verb: str
    name: str
    status: int
    before: NodeRecord | None
    after: NodeRecord | None
    look: LastAnswer | None
    blind: bool
    met_others: bool
    run: int

    @property
    def is_accepted(self) -> bool:
        return self.status == 200 or (self.status == 0 and self.before != self.after)


@dataclass(frozen=True, slots=True)
class Happening:
    """A change of a node by the service or another client."""

    at: datetime
    kind: str
    name: str
    before: NodeRecord | None
    after: NodeRecord | None


@dataclass(frozen=True, slots=True)
class Read:
    """A call that only reads, and the status of its answer; 0: none."""

    at: datetime
    about: str
    status: int


@dataclass(slots=True)
class Ledger:
    """All events. `snapshots` has the record of each node after each change; `silences` are unreachable workers."""

    changes: list[Change] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    troubles: list[datetime] = field(default_factory=list)
    refused_logins: list[datetime] = field(default_factory=list)
    reboots: list[tuple[datetime, str, int]] = field(default_factory=list)
    snapshots: dict[str, list[tuple[datetime, NodeRecord | None]]] = field(default_factory=dict)
    silences: dict[str, list[tuple[str, datetime, datetime | None]]] = field(default_factory=dict)
    operations: list[OperationRecord] = field(default_factory=list)


def deaf(ledger: Ledger, life: Life, record: NodeRecord, at: datetime) -> bool:
    """Return whether the workers of a READY node would not answer at a time."""
    begun = [phase.at for phase in record.timeline if phase.at <= at and phase.state != "READY"]
    ready = next((p.at for p in record.timeline if p.state == "READY" and (not begun or p.at >= begun[-1])), at)
    if at < ready + life.ssh_lag:
        return True
    for node_id, since, until in ledger.silences.get(life.name, ()):
        cured = any(p.state in {"STARTING", "RESTARTING"} and since <= p.at <= at for p in record.timeline)
        if node_id == record.number and since <= at and (until is None or at < until) and not cured:
            return True
    return False
