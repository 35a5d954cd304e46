"""The services that node actions use, as protocols. `cloud` implements the first, `ssh_workers` the second."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta
    from random import Random

    from tpuctl.clock import Clock
    from tpuctl.errors import TpuctlError
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.node import Node
    from tpuctl.models.operation import Operation, OperationError
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.conditions import WorkerSnapshot
    from tpuctl.nodes.journal import Journal
    from tpuctl.nodes.lease import Lease


class NodeListingLike(Protocol):
    """Nodes, and the zones that did not answer."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the zones that answered."""

    @property
    def unreachable(self) -> tuple[str, ...]:
        """The zones of which nothing is known."""


class QueuedListingLike(Protocol):
    """Queued resources, and the zones that did not answer."""

    @property
    def queued_resources(self) -> tuple[QueuedResource, ...]:
        """The queued resources of the zones that answered."""

    @property
    def unreachable(self) -> tuple[str, ...]:
        """The zones of which nothing is known."""


class NodeCloud(Protocol):
    """The service that runs TPU nodes. Every method raises a `TpuctlError` if the service refuses or does not answer."""

    def find_node(self, name: NodeName) -> Node | None:
        """Return the node; None only after a 404 from the API."""

    def list_nodes(self, project: str, zones: Sequence[str] = ()) -> NodeListingLike:
        """Return the nodes of some zones, or of all."""

    def list_queued_resources(self, project: str, zones: Sequence[str] = ()) -> QueuedListingLike:
        """Return the queued resources of some zones, or of all."""

    def create_node(self, name: NodeName, spec: NodeSpec) -> Operation:
        """Request a node, at most once."""

    def delete_node(self, name: NodeName, *, expected_id: str | None = None) -> Operation:
        """Delete a node; succeeds if it is gone. A retry never deletes a node with another id."""

    def start_node(self, name: NodeName) -> Operation:
        """Start a stopped node."""

    def stop_node(self, name: NodeName) -> Operation:
        """Stop a node."""

    def update_node(self, name: NodeName, changes: Mapping[str, Any]) -> Operation:
        """Change labels, tags, metadata or description, by the API's field names."""

    def change_metadata(self, name: NodeName, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Operation:
        """Replace the metadata by the result of `change`, which is called again if another client changed it meanwhile."""

    def delete_queued_resource(self, name: str, *, force: bool) -> Operation:
        """Delete a queued resource; with `force` its nodes too."""

    def accelerator_types(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the accelerator types that a zone offers."""

    def get_operation(self, name: str) -> Operation:
        """Return the current state of an operation."""

    def operation_error(self, error: OperationError) -> TpuctlError:
        """Return the failure of an operation as an exception to raise."""


class NodeWorkers(Protocol):
    """The workers of a node, over ssh."""

    def can_be_asked(self, node: Node | None = None) -> bool:
        """Return whether this machine can use ssh; for a node, whether it has a route to the workers."""

    def key_entry(self, node: Node | None = None) -> str | None:
        """Return our line for the `ssh-keys` metadata; None if the node does not need it."""

    def survey(self, node: Node, *, inspect: bool, probe: str | None, timeout: timedelta) -> tuple[WorkerSnapshot, ...]:
        """Probe each worker within the timeout. With `inspect`, run the inspection script and the user's `probe` on it."""

    def reboot(self, node: Node) -> None:
        """Reboot every worker from inside."""

    def set_up(self, node: Node, script: str, *, timeout: timedelta) -> Sequence[SetupResultLike]:
        """Run shell lines once on every worker, and return the results."""


class SetupResultLike(Protocol):
    """The result of a set-up on one worker."""

    @property
    def worker(self) -> int:
        """The worker."""

    @property
    def code(self) -> int:
        """The exit code; 255 where ssh failed."""

    @property
    def tail(self) -> str:
        """The last lines of its output."""


class NodeLeases(Protocol):
    """The leases that say which process may change a node. Every method raises a `TpuctlError` if the store fails."""

    def holder(self, name: NodeName) -> Lease | None:
        """Return the lease of another holder, or the mark of its end; None if it is free or ours."""

    def acquire(self, name: NodeName, purpose: str, *, force_lease: bool = False) -> Lease | None:
        """Take the lease. Return the other holder; None if it is ours now."""

    def renew(self, name: NodeName) -> bool:
        """Renew the lease; False if it is not ours any more."""

    def begin(self, name: NodeName, verb: str) -> bool:
        """Announce a change; False if it must not be sent."""

    def done(self, name: NodeName) -> None:
        """Record that the announced change has ended."""

    def release(self, name: NodeName) -> None:
        """Release the lease if it is ours."""

    def end(self, name: NodeName, by: str, *, notify: Callable[[str], None]) -> None:
        """End the lease of any holder for good; returns once the holder has no change in flight."""


class CreationCheck(Protocol):
    """The check before something is created."""

    def check(
        self, name: NodeName, spec: NodeSpec, *, replaces: Node | None, tell: Callable[[NodeEvent], None]
    ) -> None:
        """Raise `CheckFailedError` if the node must not be created. `replaces` is the node that is deleted before."""


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The services of an action."""

    cloud: NodeCloud
    clock: Clock
    journal: Journal
    workers: NodeWorkers
    leases: NodeLeases
    # Receives each event.
    emit: Callable[[NodeEvent], None]
    # The time of the service's clock.
    server_now: Callable[[], datetime]
    random: Random
    # None: nothing is checked before a creation.
    preflight: CreationCheck | None = None
    # The name of the project file, and the settings of the node that come from it.
    project_file: str = ""
    chosen_by_file: Mapping[str, str] = field(default_factory=dict)

    def check(self, name: NodeName, spec: NodeSpec, *, replaces: Node | None = None) -> None:
        """Raise `CheckFailedError` if a check says that the node must not be created."""
        if self.preflight is not None:
            self.preflight.check(name, spec, replaces=replaces, tell=self.emit)
