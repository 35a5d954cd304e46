"""The sandbox of one simulation, its disturbances, and the record of all events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from email.utils import format_datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httplib2

from tests.nodes.simulation.clock import Killed, SimulatedClock
from tests.nodes.simulation.ledger import Change, LastAnswer, Ledger, Read, deaf
from tests.nodes.simulation.plan import PROJECT, Life, Plan
from tpuctl.sandbox import faults
from tpuctl.sandbox.api_calls import parse_resource_name
from tpuctl.sandbox.faults import CALL_FAULT_KINDS, store_node
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.lifecycle import LifecyclePhase, phase_at
from tpuctl.sandbox.representation import render_node
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.state_session import NodeRecord

_READS = ("tpu.projects.locations.nodes.get", "tpu.projects.locations.nodes.list")
# Ten nodes, each of which may be polled, probed and changed.
_MOST_AT_ONCE = 200


class Stage:
    """A sandbox on a simulated clock, with its nodes."""

    def __init__(self, folder: Path, plan: Plan, clock: SimulatedClock) -> None:
        self.plan, self.clock = plan, clock
        self.state = SandboxState.open(folder / "world.sqlite3", clock=clock)
        self.lives = {life.name: life for life in plan.lives}
        self.ledger = Ledger(snapshots={name: [] for name in self.lives})
        self.run = 0
        self.dies_in_call: str | None = None
        self.interlopers: dict[str, Callable[[], None]] = {}
        self._http = SandboxHttp(self.state)
        self._lists: dict[str, tuple[datetime, bytes]] = {}
        self._looks: dict[str, LastAnswer] = {}
        self._failed: dict[str, datetime] = {}
        self._calls, self._moment = 0, clock.now()
        self._served, self.is_calm, self.is_alive = 0, True, True

    def close(self) -> None:
        with self.state.read() as session:
            for zone in {life.zone for life in self.plan.lives}:
                found = session.operations(PROJECT, zone, limit=100_000)
                self.ledger.operations += [operation for _, operation in found]
        self.state.close()

    def record(self, name: str) -> NodeRecord | None:
        """Return the last recorded state."""
        known = self.ledger.snapshots[name]
        return known[-1][1] if known else None

    def phase(self, name: str) -> LifecyclePhase | None:
        record = self.record(name)
        return phase_at(record.timeline, self.clock.now()) if record else None

    def is_deaf(self, name: str) -> bool:
        """Return whether the workers of a READY node do not answer."""
        record, now = self.record(name), self.clock.now()
        return record is None or deaf(self.ledger, self.lives[name], record, now)

    def keep(self, name: str, timeline: tuple[LifecyclePhase, ...]) -> None:
        """Give a node another timeline from now on."""
        record = self.record(name)
        if record is not None:
            with self.state.write() as session:
                store_node(session, record, timeline)
        self.refresh(name)

    def refresh(self, name: str) -> NodeRecord | None:
        """Read the node from the sandbox, and record it if it has changed."""
        where, now = parse_resource_name(name), self.clock.now()
        with self.state.read() as session:
            record = session.node(*where)
        if record is not None and phase_at(record.timeline, now) is None:
            record = None
        known = self.ledger.snapshots[name]
        if not known or known[-1][1] != record:
            known.append((now, record))
        return record

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None, **_: object
    ) -> Any:
        """Forward a request to the sandbox and record it; the interface of httplib2."""
        self._watch_pace()
        parts = urlsplit(uri)
        resource = parts.path.partition("/v2/")[2]
        if method == "GET":
            return self._read(resource, uri, headers)
        self._die("before")
        verb, name = _meaning(method, resource, parse_qs(parts.query))
        at, before, seen = self.clock.now(), self.refresh(name), len(self.ledger.happenings)
        look = self._look(name)
        failed = self._failed.get(name) or self._failed.get(_zone(name))
        blind = look is None or (failed is not None and failed >= look.at)
        status = 0
        try:
            response, content = self._http.request(uri, method, body, headers)
            status = int(response.status)
        finally:
            if verb == "create" and before is None:
                self._pace(name)
            others = any(happening.name == name for happening in self.ledger.happenings[seen:])
            change = Change(
                *(at, self.clock.now(), verb, name, status, before, self.refresh(name), look, blind, others, self.run)
            )
            self.ledger.changes.append(change)
            self._trouble(status)
        self._die("after")
        return response, content

    def _watch_pace(self) -> None:
        """Fail if calls follow each other without a pause: the loop would never end."""
        now = self.clock.now()
        self._calls = self._calls + 1 if now == self._moment else 0
        self._moment = now
        assert self._calls < _MOST_AT_ONCE, f"{self._calls} calls at one moment, {now}"

    def _read(self, resource: str, uri: str, headers: Any) -> Any:
        about, status = resource.partition("/operations/")[0].removesuffix("/nodes"), 0
        is_look = "/operations/" not in resource
        if resource in self.interlopers and _is_dead(self.phase(resource)):
            self.interlopers.pop(resource)()
        try:
            response, content = self._shown(resource) or self._http.request(uri, "GET", None, headers)
            status = int(response.status)
        finally:
            now = self.clock.now()
            self.ledger.reads.append(Read(now, about, status))
            if status not in {200, 404}:
                self._trouble(status)
                if is_look:
                    self._failed[about] = now
        if is_look and status in {200, 404}:
            self._failed.pop(about, None)
            if about in self.lives:
                node = json.loads(content) if status == 200 else {}
                self._looks[about] = LastAnswer(now, node.get("id"), node.get("state"))
            else:
                self._lists[about] = (now, content)
        return response, content

    def _shown(self, resource: str) -> tuple[httplib2.Response, bytes] | None:
        """Answer like the sandbox, without its checks, while no call meets a fault: that is six times as fast.

        Every hundredth read, and all others, go through the sandbox.
        """
        now, self._served = self.clock.now(), self._served + 1
        if not self.is_calm and self._served % 8 == 0:
            self.settle()
        if not self.is_calm or self._served % 100 == 0:
            return None
        if resource in self.lives:
            record = self._there(resource, now)
            if record is None:
                return None
            return _answer(render_node(record, now, "v2"), now)
        zone = resource.removesuffix("/nodes")
        if zone == resource:
            return None
        found = (self._there(name, now) for name in sorted(self.lives) if _zone(name) == zone)
        shown = [render_node(record, now, "v2") for record in found if record]
        return _answer({"nodes": shown} if shown else {}, now)

    def _there(self, name: str, now: datetime) -> NodeRecord | None:
        record = self.record(name)
        return record if record and phase_at(record.timeline, now) else None

    def settle(self) -> None:
        """Record whether a read would meet a fault."""
        with self.state.read() as session:
            pending = [fault for _, fault in faults.list_faults(session)]
        of_calls = [fault for fault in pending if fault.kind in CALL_FAULT_KINDS]
        self.is_calm = not any(fnmatchcase(method, fault.method) for fault in of_calls for method in _READS)

    def _look(self, name: str) -> LastAnswer | None:
        """Return the last successful read of a node, by itself or in a list."""
        own, listed = self._looks.get(name), self._lists.get(_zone(name))
        if listed is None or (own is not None and own.at >= listed[0]):
            return own
        for node in json.loads(listed[1]).get("nodes", ()):
            if node["name"] == name:
                return LastAnswer(listed[0], node["id"], node["state"])
        return LastAnswer(listed[0], None, None)

    def _trouble(self, status: int) -> None:
        now = self.clock.now()
        if not self.is_calm and status != 200:
            self.settle()
        if status in {401, 403}:
            self.ledger.refused_logins.append(now)
        if status == 0 or status in {401, 403, 429} or status >= 500:
            self.ledger.troubles.append(now)

    def _die(self, when: str) -> None:
        if self.dies_in_call == when:
            self.dies_in_call = None
            raise Killed

    def _pace(self, name: str) -> None:
        """Give a new node the creation time of its plan."""
        life, record = self.lives[name], self.refresh(name)
        ready = next((phase.at for phase in record.timeline if phase.state == "READY"), None) if record else None
        if record is None or ready is None:
            return
        planned = record.timeline[0].at + life.creation
        later = max(ready - planned, timedelta()) if _hangs(life) else ready - planned
        self.keep(name, (record.timeline[0], *(replace(p, at=p.at - later) for p in record.timeline[1:])))


def _answer(body: dict[str, Any], now: datetime) -> tuple[httplib2.Response, bytes]:
    response = httplib2.Response({"status": "200", "date": format_datetime(now, usegmt=True)})
    return response, json.dumps(body).encode()


def _is_dead(phase: LifecyclePhase | None) -> bool:
    return phase is not None and phase.state in {"PREEMPTED", "TERMINATED"}


def _hangs(life: Life) -> bool:
    return any(fault.kind == "hang" and fault.word == "CREATING" for fault in life.faults)


def _meaning(method: str, resource: str, query: Mapping[str, list[str]]) -> tuple[str, str]:
    """Return the verb of a call, and its node."""
    if method == "DELETE":
        return "delete", resource
    if method == "PATCH":
        return "update", resource
    name, _, verb = resource.partition(":")
    return (verb, name) if verb else ("create", f"{resource}/{query['nodeId'][0]}")


def _zone(name: str) -> str:
    return name.partition("/nodes/")[0]
