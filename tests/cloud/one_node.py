"""A service with one node, whose answers to changes can get lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.cloud.scripted_api import NODES, Drop, Received, Reply, node, operation, refuse

ABSENT = refuse(404, "NOT_FOUND")
FAULT = refuse(503, "UNAVAILABLE")
TAKEN = refuse(409, "ALREADY_EXISTS", "Resource 'x' already exists")


@dataclass
class Service:
    """A service with one node. `faults` answer the next changes, carried out or (`lost_before`) not."""

    node: dict[str, Any] | None = None
    faults: list[Reply | Drop] = field(default_factory=list)
    lost_before: bool = False
    hidden_looks: int = 0
    changes: list[str] = field(default_factory=list)

    def __call__(self, request: Received) -> Reply | Drop:
        if request.method == "GET":
            return self._read()
        self.changes.append(request.line)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and self.lost_before:
            return fault
        answer = self._change(request)
        return answer if fault is None else fault

    def _read(self) -> Reply:
        self.hidden_looks -= 1
        return ABSENT if self.node is None or self.hidden_looks >= 0 else Reply(self.node)

    def _change(self, request: Received) -> Reply:
        if request.line == f"POST {NODES}":
            if self.node is not None:
                return TAKEN
            self.node = {**node("CREATING"), **request.body}
            return Reply(operation())
        if self.node is None:
            return ABSENT
        match request.method, request.line.rpartition(":")[2]:
            case "POST", "stop":
                self.node["state"] = "STOPPING"
            case "POST", "start":
                self.node["state"] = "STARTING"
            case "PATCH", _:
                self.node.update(request.body)
                return Reply(operation(done=True))
            case _:
                self.node = None
        return Reply(operation())
