"""The services of the loop besides the client: simulated workers, a journal in memory, free leases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from tests.nodes.simulation.stage import Stage
from tpuctl.models.node import Node
from tpuctl.names import NodeName
from tpuctl.nodes.conditions import SshAnswer, WorkerSnapshot
from tpuctl.nodes.lease import Lease, LeaseKeeper, LeasePolicy
from tpuctl.nodes.ssh_workers import SetupResult, SshWorkers

# ruff: noqa: ARG002  # the protocols define the arguments; few of them matter here


class SimulatedWorkers(SshWorkers):
    """Workers with an ssh that takes no time: they answer while their node is READY and without a fault."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def obstacle(self, node: Node | None = None) -> str | None:
        return None if self._stage.plan.can_ask else "this life has no ssh"

    def key_entry(self, node: Node | None = None) -> str | None:
        return None

    def survey(self, node: Node, *, inspect: bool, probe: str | None, timeout: timedelta) -> tuple[WorkerSnapshot, ...]:
        name = str(node.raw["name"])
        phase, record, life = self._stage.phase(name), self._stage.record(name), self._stage.lives[name]
        if record is None or record.number != node.id or phase is None or phase.state != "READY":
            return (WorkerSnapshot(SshAnswer.UNREACHABLE),) * life.workers
        # Of a slice only the last worker stops answering.
        last = WorkerSnapshot(SshAnswer.UNREACHABLE if self._stage.is_deaf(name) else SshAnswer.YES)
        is_held = (
            inspect and life.found is not None and life.found.in_use and is_first(self._stage, name, record.number)
        )
        first = WorkerSnapshot(
            last.answer if life.workers == 1 else SshAnswer.YES, holders=("4711 python3",) if is_held else ()
        )
        return (first,) if life.workers == 1 else (first, *(WorkerSnapshot(SshAnswer.YES),) * (life.workers - 2), last)

    def reboot(self, node: Node) -> None:
        name = str(node.raw["name"])
        self._stage.ledger.reboots.append((self._stage.clock.now(), name, self._stage.run))

    def set_up(self, node: Node, script: str, *, timeout: timedelta) -> tuple[SetupResult, ...]:
        raise AssertionError("no life asks for a set-up")


def is_first(stage: Stage, name: str, number: str) -> bool:
    """Return whether a node is the initial one."""
    known = stage.ledger.snapshots[name]
    return bool(known) and known[0][1] is not None and known[0][1].number == number


class MemoryStore:
    """A journal store in memory that outlives a simulated process."""

    def __init__(self) -> None:
        self._lines: dict[NodeName, bytearray] = {}

    def append(self, name: NodeName, line: bytes, *, durable: bool) -> None:
        self._lines.setdefault(name, bytearray()).extend(line)

    def read(self, name: NodeName) -> bytes:
        return bytes(self._lines.get(name, b""))

    def names(self) -> list[NodeName]:
        return sorted(self._lines)

    def recent(self, project: str, zone: str) -> list[NodeName]:
        return [name for name in self._lines if name.zone == zone]

    def where(self, name: NodeName) -> str:
        return f"memory of {name.node_id}"

    def flush(self, *, only_due: bool) -> None:
        return


class FreeLeases(LeaseKeeper):
    """Leases without other holders: `lease_model` checks the competition for leases."""

    def __init__(self) -> None:
        """Leases without a store."""
        self.policy = LeasePolicy()

    def holder(self, name: NodeName) -> Lease | None:
        return None

    def holds(self, name: NodeName) -> bool:
        return True

    def namesakes(self, name: NodeName) -> list[NodeName]:
        return []

    def acquire(self, name: NodeName, purpose: str, *, force_lease: bool = False) -> Lease | None:
        return None

    def begin(self, name: NodeName, verb: str) -> bool:
        return True

    def done(self, name: NodeName) -> None:
        return

    def release(self, name: NodeName) -> None:
        return

    def end(self, name: NodeName, by: str, *, notify: Callable[[str], None]) -> None:
        return
