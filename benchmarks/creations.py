"""How late tpuctl notices a READY node, in simulated time: `python -m benchmarks.creations COUNT SEED`, a process of its own.

The real loop, client and journal on a sandbox in process; with a manual clock, an hour takes only the time of its requests.
Prints a JSON list of creations.
"""

from __future__ import annotations

import io
import json
import math
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.gcloud_waiter import notice_time
from tpuctl.app.app import App, Invocation
from tpuctl.clock import ManualClock
from tpuctl.cloud.tpu import TpuClient
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.conditions import Condition, Policy
from tpuctl.nodes.controller import reconcile_node
from tpuctl.nodes.journal import Journal
from tpuctl.output.terminal import StandardStreams
from tpuctl.sandbox.faults import store_node
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.lifecycle import GONE, LifecyclePhase

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.models.operation import Operation
    from tpuctl.sandbox.state import SandboxState

PROJECT, ZONE, TYPE, VERSION = "sandbox", "us-central2-b", "v4-8", "tpu-ubuntu2204-base"
_SHORTEST, _LONGEST = 20.0, 1200.0  # seconds
_IN_MEMORY = "/dev/shm"  # noqa: S108  # Linux's file system in memory; it holds only temporary data
_LEARNED, _MEASURED, _SPREAD = 12, 8, 0.1


@dataclass(frozen=True, slots=True)
class Creation:
    """One creation: how long the service took (seconds), and how late and after how many calls each program noticed."""

    is_learned: bool
    length: float
    late: float
    calls: int
    gcloud_late: float
    gcloud_calls: int


class _CountingHttp(SandboxHttp):
    """The sandbox, with a count of its requests."""

    calls = 0

    def request(self, *arguments: Any, **options: Any) -> Any:  # httplib2's signature
        self.calls += 1
        return super().request(*arguments, **options)


class _Cloud(TpuClient):
    """The real client; a node that it creates is READY after `length` seconds."""

    def __init__(self, sandbox_state: SandboxState) -> None:
        self.http = _CountingHttp(sandbox_state)
        super().__init__(lambda: self.http, sandbox_state.clock)
        self._state, self.length = sandbox_state, 0.0
        self.is_ready = sandbox_state.clock.now()

    def create_node(self, name: NodeName, spec: NodeSpec) -> Operation:
        operation = super().create_node(name, spec)
        self.is_ready = set_creation_time(self._state, name, self.length)
        return operation


def set_creation_time(sandbox_state: SandboxState, name: NodeName, seconds: float) -> datetime:
    """Let a node that was just requested be CREATING for so long; return when it will be READY."""
    with sandbox_state.write() as session:
        node = session.node(name.project, name.zone, name.node_id)
        assert node is not None
        ready = node.timeline[0].at + timedelta(seconds=seconds)
        store_node(session, node, (node.timeline[0], LifecyclePhase(ready, "READY", "HEALTHY")))
    return ready


class _Simulation:
    """Creations one after the other, in one sandbox."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._folder, self._random, self._number = folder, random, count()
        self._app = App(
            Invocation(
                (),
                {"HOME": str(folder), "TPUCTL_STATE_DIR": str(folder / "state"), "TPUCTL_SANDBOX": "1"},
                StandardStreams(io.StringIO(), io.StringIO(), io.StringIO()),
                folder,
                ManualClock(),
                random,
            )
        )
        self._cloud = _Cloud(self._app.services.sandbox)
        self._context = replace(self._app.services.context(lambda _: None), cloud=self._cloud)
        self._spec = NodeSpec(accelerator_type=TYPE, runtime_version=VERSION)

    def unlearned(self) -> Creation:
        """Create a node with an empty journal."""
        return self._create(self._length(), self._journal(), is_learned=False)

    def learned(self) -> list[Creation]:
        """Create nodes of one kind: the first ones fill the journal, the others are returned."""
        usual, journal = self._length(), self._journal()
        lengths = [self._random.gauss(usual, usual * _SPREAD) for _ in range(_LEARNED + _MEASURED)]
        return [self._create(max(1.0, length), journal, is_learned=True) for length in lengths][_LEARNED:]

    def _create(self, length: float, journal: Path, *, is_learned: bool) -> Creation:
        name = NodeName(PROJECT, ZONE, f"node-{next(self._number)}")
        self._cloud.length, before = length, self._cloud.http.calls
        policy = Policy(goal=Condition.READY, may_create=True, timeout=None)
        # Each run of the program reads the journal from the file.
        context = replace(self._context, journal=Journal(journal))
        reconcile_node(context, name, policy, spec=self._spec, purpose="up")
        late = (self._context.clock.now() - self._cloud.is_ready).total_seconds()
        calls = self._cloud.http.calls - before - 1  # gcloud, too, sends the create
        self._remove(name)
        seen, reads = notice_time(length, self._random)
        return Creation(is_learned, length, late, calls, seen - length, reads)

    def _remove(self, name: NodeName) -> None:
        with self._app.services.sandbox.write() as session:
            node = session.node(name.project, name.zone, name.node_id)
            assert node is not None
            store_node(session, node, (LifecyclePhase(session.now, GONE),))

    def _length(self) -> float:
        return math.exp(self._random.uniform(math.log(_SHORTEST), math.log(_LONGEST)))

    def _journal(self) -> Path:
        return self._folder / f"journal-{next(self._number)}"


def main(wanted: int, seed: int) -> list[Creation]:
    """Return so many creations with an empty journal, and as many with a filled one."""
    in_memory = _IN_MEMORY if Path(_IN_MEMORY).is_dir() else None  # the speed of the disk is not measured
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-", dir=in_memory) as folder:
        simulation = _Simulation(Path(folder), Random(seed))  # noqa: S311  # a simulation
        found = [simulation.unlearned() for _ in range(wanted)]
        for _ in range(wanted // _MEASURED):
            found += simulation.learned()
        return found


if __name__ == "__main__":
    print(json.dumps([asdict(creation) for creation in main(int(sys.argv[1]), int(sys.argv[2]))]))
