"""The state of one node at any time, from the record of the sandbox: facts for the oracle, unknown to the judged code."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta

from tests.nodes.simulation.disturbances import ASKED
from tests.nodes.simulation.ledger import Change, Happening, deaf
from tests.nodes.simulation.plan import Life
from tests.nodes.simulation.run import History
from tpuctl.sandbox.lifecycle import LifecyclePhase, phase_at
from tpuctl.sandbox.state_session import NodeRecord, OperationRecord

DEAD = frozenset({"PREEMPTED", "TERMINATED"})
STUCK = frozenset({"STARTING", "RESTARTING", "REPAIRING"})
DEFECTIVE = frozenset({"TIMEOUT", "UNHEALTHY_TENSORFLOW"})


class Truth:
    """The true history of one node."""

    def __init__(self, history: History, life: Life) -> None:
        ledger, name = history.ledger, life.name
        self.history, self.life = history, life
        self._snapshots = ledger.snapshots[name]
        self._times = [at for at, _ in self._snapshots]
        shows_it = {name, name.rpartition("/nodes/")[0]}
        self._looks = [read.at for read in ledger.reads if read.about in shows_it and read.status in {200, 404}]
        self.changes: list[Change] = [change for change in ledger.changes if change.name == name]
        self.happenings: list[Happening] = [happening for happening in ledger.happenings if happening.name == name]
        self.operations: list[OperationRecord] = [found for found in ledger.operations if found.target == name]
        self.reboots = [(at, run) for at, about, run in ledger.reboots if about == name]

    def record(self, at: datetime) -> NodeRecord | None:
        """Return the newest record at a time, if the node existed then."""
        index = bisect_right(self._times, at) - 1
        record = self._snapshots[index][1] if index >= 0 else None
        return record if record and phase_at(record.timeline, at) else None

    def phase(self, at: datetime) -> LifecyclePhase | None:
        record = self.record(at)
        return phase_at(record.timeline, at) if record else None

    def since(self, record: NodeRecord, at: datetime, *, with_health: bool) -> datetime:
        """Return since when a node has been in its state, with `with_health` also in its health.

        A phase that begins and ends between two looks at the node cannot be known.
        """
        begun, before = at, None
        phases = [phase for phase in record.timeline if phase.at <= at]
        ends = [*(phase.at for phase in phases[1:]), at]
        for phase, end in zip(phases, ends, strict=True):
            if before is not None and end != at and not any(phase.at <= look < end for look in self._looks):
                continue
            kind = (phase.state, phase.health if with_health else "")
            begun, before = (begun if kind == before else phase.at), kind
        return begun

    def is_deaf(self, at: datetime, record: NodeRecord | None = None) -> bool:
        record = record or self.record(at)
        return record is None or deaf(self.history.ledger, self.life, record, at)

    def deaf_since(self, record: NodeRecord, at: datetime) -> datetime:
        """Return the earliest time since which the workers do not answer."""
        begun = self.since(record, at, with_health=False)
        marks = [
            since for number, since, _ in self.history.ledger.silences.get(self.life.name, ()) if since <= at and number
        ]
        lagged = begun if at < begun + self.life.ssh_lag else None
        return lagged or min([mark for mark in marks if mark >= begun], default=begun)

    def is_usable(self, at: datetime) -> bool:
        """Return whether the node meets the goal."""
        phase, record, goal = self.phase(at), self.record(at), self.life.goal.condition
        if phase is None or record is None or phase.state != "READY":
            return False
        can_ask = self.history.plan.can_ask
        match goal:
            case "ready":
                return True
            case "healthy":
                return phase.health == "HEALTHY" or (not phase.health and can_ask and not self.is_deaf(at))
            case _:
                return phase.health in {"HEALTHY", ""} and can_ask and not self.is_deaf(at)

    def usable_throughout(self, begin: datetime, end: datetime) -> bool:
        """Return whether it was usable at each moment between two times, sampled closely."""
        step = max((end - begin) / 12, timedelta(seconds=1))
        at = begin
        while at < end:
            if not self.is_usable(at):
                return False
            at += step
        return self.is_usable(end)

    def was_calm(self, begin: datetime, end: datetime) -> bool:
        """Return whether each call succeeded between two times."""
        return not any(begin <= at <= end for at in self.history.ledger.troubles)

    def differs(self, record: NodeRecord) -> bool:
        """Return whether a node differs from the requested one."""

        wanted = (self.life.accelerator_type, ASKED)
        found = (record.document["acceleratorType"], record.document["runtimeVersion"])
        return self.life.goal.has_spec and wanted != found

    def creation_failed(self, record: NodeRecord, at: datetime) -> bool:
        """Return whether the creation of the node has failed by a time."""
        return any(
            operation.verb == "create" and operation.incarnation == record.incarnation
            and operation.error and operation.ended and operation.ended <= at
            for operation in self.operations
        )  # fmt: skip

    def creation_failed_at(self, at: datetime) -> bool:
        """Return whether any creation of this node has failed by a time."""
        return any(op.verb == "create" and op.error and op.ended and op.ended <= at for op in self.operations)
