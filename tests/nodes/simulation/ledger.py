"""The record of everything that happened in a world: calls as they were sent and answered, blows, and nodes over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tests.nodes.simulation.plan import Life
from tpuctl.sandbox.state_session import NodeRecord, OperationRecord


@dataclass(frozen=True, slots=True)
class Look:
    """What the API last answered about a node: its id and state, or nothing for one that is absent."""

    at: datetime
    node_id: str | None
    state: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """A call that asks for a change, as it was sent and answered. `status` 0: the answer was lost.

    `before` is the world's record when it was sent, `after` the one when it was answered; `met_others`: somebody else changed
    the node in between. `blind`: the last read about it before had failed.
    """

    at: datetime
    answered: datetime
    verb: str
    name: str
    status: int
    before: NodeRecord | None
    after: NodeRecord | None
    look: Look | None
    blind: bool
    met_others: bool
    run: int

    @property
    def is_accepted(self) -> bool:
        return self.status == 200 or (self.status == 0 and self.before != self.after)


@dataclass(frozen=True, slots=True)
class Happening:
    """What the world, or somebody else, did to a node."""

    at: datetime
    kind: str
    name: str
    before: NodeRecord | None
    after: NodeRecord | None


@dataclass(frozen=True, slots=True)
class Read:
    """A call that only reads, and how it was answered; 0: not at all."""

    at: datetime
    about: str
    status: int


@dataclass(slots=True)
class Ledger:
    """Everything that happened. `snapshots` has each node's record whenever it changed; `silences` are deaf workers."""

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
    """Tell whether the workers of a node that is READY would not answer at a time."""
    begun = [phase.at for phase in record.timeline if phase.at <= at and phase.state != "READY"]
    ready = next((p.at for p in record.timeline if p.state == "READY" and (not begun or p.at >= begun[-1])), at)
    if at < ready + life.ssh_lag:
        return True
    for node_id, since, until in ledger.silences.get(life.name, ()):
        cured = any(p.state in {"STARTING", "RESTARTING"} and since <= p.at <= at for p in record.timeline)
        if node_id == record.number and since <= at and (until is None or at < until) and not cured:
            return True
    return False
