"""The services that node actions use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpuctl.models.events import EventKind, NodeEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from random import Random

    from tpuctl.check.gate import PreflightCheck
    from tpuctl.clock import Clock
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.journal import Journal
    from tpuctl.nodes.lease import LeaseKeeper
    from tpuctl.nodes.ssh_workers import SshWorkers


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The services of an action."""

    cloud: TpuClient
    clock: Clock
    journal: Journal
    workers: SshWorkers
    leases: LeaseKeeper
    # Receives each event.
    emit: Callable[[NodeEvent], None]
    # The time of the service's clock.
    server_now: Callable[[], datetime]
    random: Random
    # None: nothing is checked before a creation.
    preflight: PreflightCheck | None = None
    # The name of the project file, and the settings of the node that come from it.
    project_file: str = ""
    chosen_by_file: Mapping[str, str] = field(default_factory=dict)

    def check(self, name: NodeName, spec: NodeSpec, *, replaces: Node | None = None) -> None:
        """Raise `CheckFailedError` if the node must not be created. `replaces` is the node that is deleted before."""
        if self.preflight is not None:
            self.preflight.check(name, spec, replaces=replaces, tell=self.emit)

    def report(self, kind: EventKind, name: NodeName, text: str, **data: object) -> None:
        """Report an event of a node."""
        self.emit(NodeEvent(kind, self.clock.now(), name, text, data))

    def record(self, name: NodeName, event: str, **data: Any) -> None:
        """Write a durable entry to the journal. Raises `JournalError`: the caller must not delete a node then."""
        self.journal.append(name, event, self.clock.now(), **data)
