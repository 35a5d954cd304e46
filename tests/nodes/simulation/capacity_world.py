"""The sandbox of a life that looks for capacity: its scheduled events, and the record of every write and of all resources."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httplib2

from tests.nodes.simulation.capacity_life import NODE, TYPE, VERSION, CapacityLife, CommandPlan, WorldEvent
from tests.nodes.simulation.clock import Killed, SimulatedClock
from tests.nodes.simulation.plan import PROJECT
from tpuctl.sandbox import administration, faults
from tpuctl.sandbox.capacity import quota_usage
from tpuctl.sandbox.faults import CALL_FAULT_KINDS, Fault, FaultKind
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.lifecycle import Timeline, phase_at
from tpuctl.sandbox.state import SandboxState

# One node, polled in one zone, or in all: more calls than this without a pause would never end.
_MOST_AT_ONCE = 60
_READS_BETWEEN_CHECKS = 50
_API = "https://tpu.googleapis.com/v2"


class ResourceKey(NamedTuple):
    """A node or a queued resource (`kind` is the API's collection), and its number among those of its name."""

    kind: str
    zone: str
    resource_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All resources with their timelines, which hold until the next snapshot."""

    at: datetime
    timelines: Mapping[ResourceKey, Timeline]

    def states(self, at: datetime) -> dict[ResourceKey, str]:
        """Return the states at a time."""
        phases = {key: phase_at(timeline, at) for key, timeline in self.timelines.items()}
        return {key: phase.state for key, phase in phases.items() if phase}


@dataclass(frozen=True, slots=True)
class SentWrite:
    """A request that changes something, and the states of all resources right before it. `status` 0: the answer was lost."""

    at: datetime
    verb: str
    kind: str
    zone: str
    resource_id: str
    request_id: str
    is_forced: bool
    status: int
    before: Mapping[ResourceKey, str]
    run: int

    def target(self) -> str | None:
        """Return the state of its resource right before it; None without one."""
        wanted = (self.kind, self.zone, self.resource_id)
        return next((state for key, state in self.before.items() if key[:3] == wanted), None)


class CapacityWorld:
    """A sandbox on a simulated clock, as the connection of one process after the other."""

    def __init__(self, folder: Path, life: CapacityLife, clock: SimulatedClock) -> None:
        self.life, self.clock = life, clock
        self.state = SandboxState.open(folder / "world.sqlite3", clock=clock)
        self.writes: list[SentWrite] = []
        self.snapshots: list[Snapshot] = []
        self.notes: list[tuple[datetime, str]] = []
        # When a call failed or was slow.
        self.troubles: list[datetime] = []
        # Resources that another client created.
        self.foreign: set[ResourceKey] = set()
        self.run = 0
        self._http = SandboxHttp(self.state)
        self._command: CommandPlan | None = None
        self._sent = self._calls = self._served = 0
        self._moment = clock.now()
        self._is_calm_now = False
        self._is_settled = False
        self._shown: dict[str, tuple[Any, bytes]] = {}
        self._shown_until = clock.now()
        self._observe()
        for event in life.events:
            if event.at:
                clock.at(event.at, lambda event=event: self._happen(event))  # type: ignore[misc]  # a default
            else:
                self._happen(event)

    def begin(self, command: CommandPlan) -> None:
        """Begin a process: its requests are counted."""
        self.run, self._sent, self._command = self.run + 1, 0, command
        if command.interrupted is not None:
            run = self.run
            self.clock.at(self.clock.monotonic() + command.interrupted, lambda: self._interrupt(run))

    def end(self) -> None:
        """End a process: no event interrupts it any more."""
        self._command = None

    def settle(self) -> None:
        """End all disturbances: capacity everywhere, no faults, and no further events."""
        self._is_settled = True
        with self.state.write() as session:
            for number, _ in faults.list_faults(session):
                faults.remove_fault(session, number)
        administration.clear_stock(self.state)
        self.notes.append((self.clock.now(), "the world is calm from now on"))
        self._observe()

    def remove_foreign(self) -> None:
        """Let the other client delete the nodes that it created."""
        for key in self.states():
            if key in self.foreign:
                self._act("DELETE", f"locations/{key.zone}/{key.kind}/{key.resource_id}")

    def states(self) -> dict[ResourceKey, str]:
        """Return the states of all resources now."""
        if self.clock.now() >= self._shown_until:
            self._observe()
        return self.snapshots[-1].states(self.clock.now())

    def usage(self) -> int:
        """Return the chips that count against quotas now."""
        with self.state.read() as session:
            return sum(quota_usage(session, PROJECT).values())

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None, **_: object
    ) -> Any:
        """Forward a request to the sandbox and record it; the interface of httplib2."""
        self._watch_pace()
        self._die("before")
        begun, status = self.clock.now(), 0
        try:
            answer = self._read(uri, headers) if method == "GET" else self._write(uri, method, body, headers)
            status = int(answer[0].status)
        finally:
            if status in {0, 429} or status >= 500 or self.clock.now() > begun:
                self.troubles.append(self.clock.now())
        self._die("after")
        return answer

    def _write(self, uri: str, method: str, body: Any, headers: Mapping[str, str] | None) -> Any:
        parts, status = urlsplit(uri), 0
        query, words = parse_qs(parts.query), parts.path.split("/")
        zone, kind = words[words.index("locations") + 1], words[words.index("locations") + 2].partition(":")[0]
        own = query.get("nodeId") or query.get("queuedResourceId")
        before, at = self.states(), self.clock.now()
        try:
            response, content = self._http.request(uri, method, body, headers)
            status = int(response.status)
        finally:
            self.writes.append(
                SentWrite(
                    at=at,
                    verb="create" if own else {"DELETE": "delete"}.get(method, "change"),
                    kind=kind,
                    zone=zone,
                    resource_id=own[0] if own else words[-1],
                    request_id=query.get("requestId", [""])[0],
                    is_forced=query.get("force") == ["true"],
                    status=status,
                    before=before,
                    run=self.run,
                )
            )
            self._observe()
        return response, content

    def _read(self, uri: str, headers: Mapping[str, str] | None) -> Any:
        """Answer a read; the same answer again while no resource changes: that is many times as fast."""
        now, self._served = self.clock.now(), self._served + 1
        if not self._is_calm_now:
            self._settle_calls()
        shown = self._shown.get(uri) if self._is_calm_now and now < self._shown_until else None
        if shown is None or self._served % _READS_BETWEEN_CHECKS == 0:
            response, content = self._http.request(uri, "GET", None, headers)
            assert shown is None or shown[1] == content, f"{uri} changed unnoticed"
            if self._is_calm_now:
                if now >= self._shown_until:
                    self._observe()
                self._shown[uri] = response, content
            return response, content
        response = httplib2.Response({**shown[0], "date": format_datetime(now, usegmt=True)})
        response.status = shown[0].status
        return response, shown[1]

    def _observe(self) -> None:
        """Record all resources, and until when nothing changes by itself."""
        now = self.clock.now()
        with self.state.read() as session:
            nodes, requests = tuple(session.nodes()), session.queued_resources()
            ends = [op.ended for zone in self.life.zones for _, op in session.operations(PROJECT, zone, limit=100_000)]
            ticks = [event.at for event in session.events()]
        timelines: dict[ResourceKey, Timeline] = {}
        for node in nodes:
            timelines[ResourceKey("nodes", node.zone, node.node_id, node.incarnation)] = node.timeline
        for request in requests:
            key = ResourceKey("queuedResources", request.zone, request.queued_resource_id, request.incarnation)
            timelines[key] = request.timeline
        self.snapshots.append(Snapshot(now, timelines))
        changes = [phase.at for timeline in timelines.values() for phase in timeline]
        later = [at for at in (*changes, *ends, *ticks) if at is not None and at > now]
        self._shown, self._shown_until = {}, min(later, default=now + timedelta(days=1))
        self._settle_calls()

    def _settle_calls(self) -> None:
        with self.state.read() as session:
            self._is_calm_now = not any(fault.kind in CALL_FAULT_KINDS for _, fault in faults.list_faults(session))

    def _happen(self, event: WorldEvent) -> None:
        """Let an event happen, unless the world is calm by now."""
        if self._is_settled:
            return
        self.notes.append((self.clock.now(), f"{event.kind} {event.word} in {event.zone}, {event.number}"))
        zone = f"locations/{event.zone if event.zone != '*' else self.life.zones[0]}"
        match event.kind:
            case "stock":
                administration.set_stock(self.state, nodes=event.number, zone=event.zone, tier=event.word)
            case "delete-node":
                self._act("DELETE", f"{zone}/nodes/{NODE}")
            case "delete-request":
                self._act("DELETE", f"{zone}/queuedResources/{NODE}?force=true")
            case "create-node":
                body = {
                    "acceleratorType": TYPE,
                    "runtimeVersion": VERSION,
                    "schedulingConfig": {"spot": True} if event.word == "spot" else {},
                }
                before = self.states()
                self._act("POST", f"{zone}/nodes?nodeId={NODE}", json.dumps(body))
                self.foreign |= {key for key in self.states() if key not in before}
            case _:
                with self.state.write() as session:
                    number = faults.add_fault(session, _fault(event))
                if event.kind == "unreachable":
                    self.clock.at(self.clock.monotonic() + (event.lasts or timedelta()), lambda: self._clear(number))
        self._observe()

    def _clear(self, number: int) -> None:
        with self.state.write() as session:
            faults.remove_fault(session, number)

    def _act(self, method: str, path: str, body: str | None = None) -> None:
        """Send the request of another client; what it meets is its own affair."""
        with suppress(ConnectionResetError):
            answer, _ = self._http.request(f"{_API}/projects/{PROJECT}/{path}", method, body, None)
            self.notes.append((self.clock.now(), f"another client: {method} {path} -> {answer.status}"))
        self._observe()

    def _interrupt(self, run: int) -> None:
        if self.run == run and self._command is not None:
            raise KeyboardInterrupt

    def _die(self, when: str) -> None:
        """Kill the process at the planned request."""
        if when == "before":
            self._sent += 1
        if self._command is not None and self._command.dies == (self._sent, when):
            raise Killed

    def _watch_pace(self) -> None:
        """Fail if calls follow each other without a pause: the loop would never end."""
        now = self.clock.now()
        self._calls = self._calls + 1 if now == self._moment else 0
        self._moment = now
        assert self._calls < _MOST_AT_ONCE, f"{self._calls} calls at one moment, {now}"


def _fault(event: WorldEvent) -> Fault:
    """Return the fault of the sandbox for an event."""
    kind = FaultKind.OPERATION_ERROR if event.kind == "fails" else FaultKind(event.kind)
    fault = Fault(kind, zone=event.zone, method=event.method, count=event.number)
    match kind:
        case FaultKind.HTTP_ERROR:
            return Fault(kind, zone=event.zone, method=event.method, count=event.number, status=int(event.word))
        case FaultKind.OPERATION_ERROR:
            return Fault(kind, zone=event.zone, method=event.method, count=event.number, code=int(event.word))
        case FaultKind.SUSPEND:
            return Fault(kind, zone=event.zone, initiator=event.word, after=event.lasts or timedelta())
        case FaultKind.PREEMPT:
            return Fault(kind, zone=event.zone, after=event.lasts or timedelta())
        case FaultKind.SLOW | FaultKind.FALL_BACK | FaultKind.LATE_NODE:
            return Fault(kind, zone=event.zone, method=event.method, count=event.number, duration=event.lasts)
    return fault


def moments(snapshots: list[Snapshot]) -> Iterator[tuple[datetime, dict[ResourceKey, str]]]:
    """Yield the states of all resources at each time at which one of them changed."""
    for index, snapshot in enumerate(snapshots):
        end = snapshots[index + 1].at if index + 1 < len(snapshots) else snapshot.at
        changes = {phase.at for timeline in snapshot.timelines.values() for phase in timeline}
        for at in sorted({snapshot.at, *(at for at in changes if snapshot.at < at < end)}):
            yield at, snapshot.states(at)


@contextmanager
def open_world(life: CapacityLife) -> Iterator[tuple[CapacityWorld, SimulatedClock]]:
    """Open the world of a life and its clock, in a folder that is removed at the end."""
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tpuctl-capacity-", dir=folder) as name:
        clock = SimulatedClock()
        world = CapacityWorld(Path(name), life, clock)
        try:
            yield world, clock
        finally:
            world.state.close()
