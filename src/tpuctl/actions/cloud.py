"""What the actions need of the world, as protocols. `api/` provides the cloud, `remote/` the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta
    from random import Random

    from tpuctl.clock import Clock
    from tpuctl.errors import TpuctlError
    from tpuctl.events import Event
    from tpuctl.journal import Journal
    from tpuctl.lease import Lease
    from tpuctl.model import Node, NodeSpec, Operation, OperationError, QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.readiness import WorkerSeen


class NodeListing(Protocol):
    """Nodes, and the zones that could not be asked."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the zones that answered."""

    @property
    def unreachable(self) -> tuple[str, ...]:
        """The zones of which nothing is known."""


class QueuedListing(Protocol):
    """Queued resources, and the zones that could not be asked."""

    @property
    def queued_resources(self) -> tuple[QueuedResource, ...]:
        """The queued resources of the zones that answered."""

    @property
    def unreachable(self) -> tuple[str, ...]:
        """The zones of which nothing is known."""


class Cloud(Protocol):
    """A service that rents TPU nodes. Every method raises a `TpuctlError` where the service does not do as asked."""

    def find_node(self, name: NodeName) -> Node | None:
        """Return the node, or nothing if there is none; any other failure raises."""

    def list_nodes(self, project: str, zones: Sequence[str] = ()) -> NodeListing:
        """Return the nodes of some zones, or of all."""

    def list_queued_resources(self, project: str, zones: Sequence[str] = ()) -> QueuedListing:
        """Return the queued resources of some zones, or of all."""

    def create_node(self, name: NodeName, spec: NodeSpec) -> Operation:
        """Ask for a node, once."""

    def delete_node(self, name: NodeName, *, expected_id: str | None = None) -> Operation:
        """Delete a node; deleting what is gone succeeds. A repeat never hits a node with another id."""

    def start_node(self, name: NodeName) -> Operation:
        """Start a stopped node."""

    def stop_node(self, name: NodeName) -> Operation:
        """Stop a node."""

    def update_node(self, name: NodeName, changes: Mapping[str, Any]) -> Operation:
        """Change labels, tags, metadata or description, by the API's field names."""

    def change_metadata(self, name: NodeName, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Operation:
        """Set the metadata to what `change` makes of it, which is called again when somebody else was quicker."""

    def delete_queued_resource(self, name: str, *, force: bool) -> Operation:
        """Delete a queued resource; with `force` its nodes too."""

    def accelerator_types(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the accelerator types that a zone offers."""

    def get_operation(self, name: str) -> Operation:
        """Return what has become of an operation."""

    def operation_error(self, error: OperationError) -> TpuctlError:
        """Return the failure of an operation as an exception to raise."""


class Workers(Protocol):
    """The workers of a node, by ssh."""

    def can_be_asked(self, node: Node | None = None) -> bool:
        """Tell whether ssh can be used at all from here; of a node, whether its workers can be reached from here."""

    def key_entry(self, node: Node | None = None) -> str | None:
        """Return the line of `ssh-keys` metadata that lets us in; nothing where a node needs none for that."""

    def survey(self, node: Node, *, inspect: bool, probe: str | None, timeout: timedelta) -> tuple[WorkerSeen, ...]:
        """Return what each worker shows of itself, within the time; `inspect` looks inside, where `probe` runs too."""

    def reboot(self, node: Node) -> None:
        """Reboot every worker from inside."""

    def set_up(self, node: Node, script: str, *, timeout: timedelta) -> Sequence[SetUpResult]:
        """Run shell lines once on every worker, and return how they ended."""


class SetUpResult(Protocol):
    """How the lines of a set-up ended on one worker."""

    @property
    def worker(self) -> int:
        """The worker."""

    @property
    def code(self) -> int:
        """The exit code; 255 where ssh failed."""

    @property
    def tail(self) -> str:
        """The last lines of what it printed."""


class Leases(Protocol):
    """Who may repair which node now. Every method raises a `TpuctlError` where that cannot be told."""

    def holder(self, name: NodeName) -> Lease | None:
        """Return who else holds it, or the mark of its end; nothing when it is free or ours."""

    def acquire(self, name: NodeName, purpose: str, *, steal: bool = False) -> Lease | None:
        """Take it. Returns who else has it; nothing when it is ours now."""

    def renew(self, name: NodeName) -> bool:
        """Keep it; false when it is not ours any more."""

    def begin(self, name: NodeName, verb: str) -> bool:
        """Announce a change; false when it must not be made."""

    def done(self, name: NodeName) -> None:
        """Say that the change was made, or was not."""

    def release(self, name: NodeName) -> None:
        """Let go of it, if it is ours."""

    def end(self, name: NodeName, by: str, *, tell: Callable[[str], None]) -> None:
        """Take it from whoever has it, for good; returns once no change of theirs is under way."""


class Preflight(Protocol):
    """The check before something is created."""

    def check(self, name: NodeName, spec: NodeSpec, *, replaces: Node | None, tell: Callable[[Event], None]) -> None:
        """Return if the node may be created; raise `CheckFailedError` if not. `replaces` is deleted before."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an action works with. `server_now` is the service's time, to which ages are counted.

    Without a `preflight` nothing is checked before a creation. `chosen_by_file` holds what a project file says of where a node
    is made and what it is, by the name of the setting; `project_file` is its name.
    """

    cloud: Cloud
    clock: Clock
    journal: Journal
    workers: Workers
    leases: Leases
    tell: Callable[[Event], None]
    server_now: Callable[[], datetime]
    random: Random
    preflight: Preflight | None = None
    project_file: str = ""
    chosen_by_file: Mapping[str, str] = field(default_factory=dict)

    def check(self, name: NodeName, spec: NodeSpec, *, replaces: Node | None = None) -> None:
        """Raise `CheckFailedError` where a check says that the node must not be created."""
        if self.preflight is not None:
            self.preflight.check(name, spec, replaces=replaces, tell=self.tell)
