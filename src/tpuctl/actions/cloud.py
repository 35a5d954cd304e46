"""What the actions need of the world, as protocols. `api/` provides the cloud, `remote/` the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.errors import TpuctlError
    from tpuctl.events import Event
    from tpuctl.journal import Journal
    from tpuctl.model import Node, NodeSpec, Operation, OperationError, QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.readiness import Answer


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

    def can_be_asked(self) -> bool:
        """Tell whether ssh can be used at all from here."""

    def key_entry(self) -> str | None:
        """Return the line of `ssh-keys` metadata that lets us in."""

    def ask(self, node: Node) -> tuple[Answer, ...]:
        """Return, for each worker, whether it answers ssh."""

    def reboot(self, node: Node) -> None:
        """Reboot every worker from inside."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an action works with."""

    cloud: Cloud
    clock: Clock
    journal: Journal
    workers: Workers
    tell: Callable[[Event], None]
