"""A sandbox for races: requests get their TPU when a test says so, and the process can be killed at any request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.lifecycle import EventfulClock
from tests.nodes.simulation.stand_ins import FreeLeases, MemoryStore
from tpuctl.cloud.tpu import TpuClient
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import Node, Tier
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.actuator import ActionContext
from tpuctl.nodes.conditions import Policy, SshAnswer, WorkerSnapshot
from tpuctl.nodes.journal import Journal
from tpuctl.nodes.lease import LeaseKeeper
from tpuctl.nodes.ssh_workers import SshWorkers
from tpuctl.sandbox.capacity import requested_nodes
from tpuctl.sandbox.faults import store_node, store_queued_resource
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.lifecycle import GONE, LifecyclePhase
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.tpu_nodes import prepare_node

# ruff: noqa: ARG002, ARG005  # the protocols define the arguments
PROJECT, NODE = "sandbox", "t"
ZONES = ("us-east5-b", "us-east1-d", "asia-northeast1-b", "us-central1-a", "europe-west4-a")
SPEC = NodeSpec(
    accelerator_type="v6e-8",
    runtime_version="v2-alpha-tpuv6e",
    tier=Tier.SPOT,
    queue=True,
    named=frozenset({"accelerator_type", "runtime_version", "tier"}),
)
POLICY = Policy(may_create=True, may_start=True, timeout=timedelta(hours=1))


class Killed(BaseException):
    """The process was killed: none of its code may catch this."""


def name_in(zone: str) -> NodeName:
    return NodeName(PROJECT, zone, NODE)


class AnsweringWorkers(SshWorkers):
    """Workers that answer ssh."""

    def __init__(self) -> None:
        """Workers without a key."""

    def obstacle(self, node: Node | None = None) -> str | None:
        return None

    def key_entry(self, node: Node | None = None) -> str | None:
        return None

    def survey(self, node: Node, **_: object) -> tuple[WorkerSnapshot, ...]:
        return (WorkerSnapshot(SshAnswer.YES),) * node.workers


class Process:
    """The connection of one process, which dies at one of its requests."""

    def __init__(self, bench: RaceBench, killed_at: tuple[int, str] | None) -> None:
        self._bench, self._killed_at = bench, killed_at
        self._sent, self._is_dead, self._turn = 0, False, threading.Lock()

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None, **_: object
    ) -> Any:
        """Answer one request at a time, so that the order is the same in each run; the interface of httplib2."""
        with self._turn:
            self._sent += 1
            self._die("before")
            answer = self._bench.answer(uri, method, body, headers)
            self._die("after")
            return answer

    def _die(self, when: str) -> None:
        if self._is_dead or self._killed_at == (self._sent, when):
            self._is_dead = True
            raise Killed


@dataclass
class RaceBench:
    """The sandbox of a race. `active_after` has the time from a request to its ACTIVE; a zone that it lacks waits for ever."""

    folder: Path
    active_after: Mapping[str, timedelta] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = EventfulClock()
        self.state = SandboxState.open(self.folder / "world.sqlite3", clock=self.clock)
        self.store = MemoryStore()
        self.events: list[NodeEvent] = []
        # Verb, zone, state of the request before, and whether it was forced.
        self.changes: list[tuple[str, str, str, bool]] = []
        self.requests = 0
        # Called before a request with its verb and zone: another client is quicker.
        self.before: Callable[[str, str], object] = lambda verb, zone: None

    def context(self, *, killed_at: tuple[int, str] | None = None, leases: LeaseKeeper | None = None) -> ActionContext:
        """Return the services of a new process. `killed_at` is its last request, and whether that is still carried out."""
        random = Random(self.requests)  # noqa: S311  # keeps no secret
        process = Process(self, killed_at)
        cloud = TpuClient(lambda: process, self.clock, random=random)
        return ActionContext(
            cloud=cloud,
            clock=self.clock,
            journal=Journal(self.store, writer=f"process {self.requests}"),
            workers=AnsweringWorkers(),
            leases=leases or FreeLeases(),
            emit=self.events.append,
            server_now=self.clock.now,
            random=random,
        )

    @property
    def lines(self) -> list[str]:
        """The texts of the events that are lines on a screen."""
        return [event.text for event in self.events if event.kind not in {EventKind.WAIT, EventKind.GAVE_UP}]

    def close(self) -> None:
        self.state.close()

    def answer(self, uri: str, method: str, body: Any, headers: Mapping[str, str] | None) -> Any:
        """Forward a request to the sandbox."""
        self.requests += 1
        parts = urlsplit(uri)
        query = parse_qs(parts.query)
        zone = parts.path.partition("/locations/")[2].partition("/")[0]
        verb = {"GET": "read", "POST": "create", "DELETE": "delete"}.get(method, method)
        self.before(verb, zone)
        if verb == "delete":
            self.changes.append((verb, zone, self.state_in(zone), query.get("force") == ["true"]))
        try:
            return SandboxHttp(self.state).request(uri, method, body, headers)
        finally:
            if verb == "create" and zone not in self._created and self.state_in(zone):
                self.changes.append((verb, zone, "", False))
                self.activate(zone, self.active_after.get(zone))

    @property
    def _created(self) -> set[str]:
        """The zones whose last change is a create."""
        last = {zone: verb for verb, zone, _, _ in self.changes}
        return {zone for zone, verb in last.items() if verb == "create"}

    def activate(self, zone: str, after: timedelta | None) -> None:
        """Let the waiting request of a zone be ACTIVE, with a READY node, after that time; None for never."""
        with self.state.write() as session:
            record = session.queued_resource(PROJECT, zone, NODE)
            if record is None:
                return
            # This bench decides, not the scheduler.
            record = replace(record, not_before=None)
            body = requested_nodes(record.document)[NODE]
            node = session.node(PROJECT, zone, NODE) or prepare_node(
                session, PROJECT, zone, NODE, body=body, queued_resource=record.name
            )
            at = session.now + (after or timedelta())
            begin = record.timeline[0]
            waiting = [begin, LifecyclePhase(begin.at + timedelta(seconds=2), "ACCEPTED")]
            waiting.append(LifecyclePhase(begin.at + timedelta(seconds=12), "WAITING_FOR_RESOURCES"))
            waiting = [phase for phase in waiting if after is None or phase.at < at]
            if after is None:
                planned = LifecyclePhase(session.now + timedelta(days=3650), "CREATING")
                session.put_node(replace(node, timeline=(planned,)))
                store_queued_resource(session, record, tuple(waiting))
                return
            turn = max(begin.at, at - timedelta(seconds=30))
            waiting = [phase for phase in waiting if phase.at < turn] or [begin]
            record = store_queued_resource(session, record, (*waiting, LifecyclePhase(turn, "PROVISIONING")))
            healthy = next((phase for phase in node.timeline if phase.state == "READY"), LifecyclePhase(at, "READY"))
            ready = replace(healthy, at=at, health="HEALTHY")
            store_node(session, node, (LifecyclePhase(turn, "CREATING"), ready))

    def state_in(self, zone: str) -> str:
        """Return the state of the request of a zone now; empty if there is none."""
        with self.state.read() as session:
            record = session.queued_resource(PROJECT, zone, NODE)
            phase = record.phase(session.now) if record else None
            return "" if phase is None or phase.state == GONE else phase.state

    def found(self) -> dict[str, tuple[str, str]]:
        """Return the state of request and node of each zone that has one of them."""
        with self.state.read() as session:
            requests = {
                one.zone: phase.state for one in session.queued_resources() if (phase := one.phase(session.now))
            }
            nodes = {one.zone: phase.state for one in session.nodes() if (phase := one.phase(session.now))}
        zones = sorted(zone for zone in {*requests, *nodes} if {requests.get(zone), nodes.get(zone)} - {GONE, None})
        return {zone: (requests.get(zone, ""), nodes.get(zone, "")) for zone in zones}

    def names(self, zones: Sequence[str] = ZONES) -> list[NodeName]:
        return [name_in(zone) for zone in zones]
