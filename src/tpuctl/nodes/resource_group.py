"""What is deleted together: a node, its queued resources, or both. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpuctl.models.node import Node, NodeState, QueuedState, Tier
from tpuctl.names import NodeName, last_segment
from tpuctl.nodes.queueing import UNDECIDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.race_rules import Race

# A request in these states has created no node: that of its name was created without it.
_WITHOUT_NODES: Final = frozenset({*UNDECIDED, QueuedState.FAILED})
# Raises if what was just read must stay.
StillMeant = Callable[["ResourceGroup"], None]


@dataclass(frozen=True)
class ResourceGroup:
    """A node, or a queued resource with those of its nodes that exist."""

    project: str
    # A node that a user named is the first.
    nodes: tuple[Node, ...]
    # The queued resource that owns the nodes, or will own them.
    request: QueuedResource | None = None
    # tpuctl's own request for the same node, besides the one that owns it: the next try of a run that was killed.
    next_request: QueuedResource | None = None
    # The id that a user typed.
    asked: str = ""
    # The user named the queued resource: a node that does not name it as its owner goes only with it.
    is_request_named: bool = False
    # The race that requested the node in other zones too: those requests are deleted with it.
    race: Race | None = None
    # Zones with other requests of its race, which stay because the user named one zone.
    left_zones: tuple[str, ...] = ()
    # Right before a deletion: nodes with its names that are not from the queued resource.
    foreign: tuple[Node, ...] = ()

    @property
    def name(self) -> NodeName:
        """The node that events are about: the one that a user named, else the first that exists, else the first requested."""
        if self.asked and not self.is_request_named:
            return NodeName(self.project, self.zone, self.asked)
        if self.nodes or self.request is None:
            return self.nodes[0].name
        return self.request.node_name(self.project)

    @property
    def requests(self) -> tuple[QueuedResource, ...]:
        """The queued resources to delete, in this order."""
        return tuple(request for request in (self.next_request, self.request) if request)

    @property
    def resource_name(self) -> str:
        """The resource name in the delete request."""
        return self.request.name if self.request else str(self.name)

    @property
    def other_requests(self) -> tuple[QueuedResource, ...]:
        """The requests of its race in other zones."""
        found = self.race.requests if self.race else {}
        return tuple(request for name, request in found.items() if name != self.name)

    def includes(self, other: ResourceGroup) -> bool:
        """Return whether the other group is deleted with this one."""
        return other.resource_name in {self.resource_name, *(request.name for request in self.other_requests)}

    @property
    def has_own_node(self) -> bool:
        """Whether a node exists, is meant, and belongs to none of the queued resources."""
        return not self.is_request_named and any(self.owner_of(node) is None for node in self.nodes)

    def owner_of(self, node: Node) -> QueuedResource | None:
        """Return which of its queued resources a node names as its owner."""
        return next((request for request in self.requests if is_of(node, request)), None)

    @property
    def zone(self) -> str:
        """Its zone."""
        return self.request.zone if self.request else self.nodes[0].name.zone

    @property
    def label(self) -> str:
        """Zone and id, as commands accept them."""
        return f"{self.zone}/{self.id}"

    @property
    def id(self) -> str:
        """The id of the only node, else of the queued resource."""
        if self.request and (len(self.request.node_ids) != 1 or not self.nodes):
            return self.request.queued_resource_id
        return self.nodes[0].name.node_id

    @property
    def is_being_deleted(self) -> bool:
        """Whether its queued resource, or each of its nodes, is DELETING."""
        if self.request is not None and self.request.state is QueuedState.DELETING:
            return True
        return bool(self.nodes) and all(node.state is NodeState.DELETING for node in self.nodes)

    @property
    def names(self) -> tuple[NodeName, ...]:
        """The names of its nodes, whether they exist or not: each may have a lease."""
        requested = self.request.full_names(self.project) if self.request else ()
        return tuple(dict.fromkeys((*(node.name for node in self.nodes), *requested)))

    @property
    def all_names(self) -> tuple[NodeName, ...]:
        """The names of its nodes, and those of its queued resource as a whole."""
        own = self.request.own_names if self.request else ()
        return *self.names, *(NodeName(self.project, self.zone, name) for name in own)

    @property
    def described(self) -> tuple[Node, ...]:
        """Its nodes; without any a node of each requested spec. Their labels and type count."""
        if self.nodes or self.request is None:
            return self.nodes
        return self.request.requested_nodes(self.project)

    @property
    def tier(self) -> Tier:
        """The capacity type, which only the request of a queued node has."""
        return self.request.tier if self.request else self.nodes[0].tier

    @property
    def accelerator_type(self) -> str:
        """The type of its first node; empty if it is unknown."""
        return self.described[0].accelerator_type

    @property
    def created(self) -> datetime | None:
        """When the last of its nodes, else the request, was created; None if that is unknown."""
        if not self.nodes:
            return self.request.created if self.request else None
        times = [node.created for node in self.nodes if node.created is not None]
        return max(times) if len(times) == len(self.nodes) else None

    @property
    def state(self) -> str:
        """The states of its nodes, then of the request if that differs."""
        states = [str(node.state) for node in self.nodes]
        if self.request and (not self.nodes or self.request.state is not QueuedState.ACTIVE):
            states.append(str(self.request.state))
        return ", ".join(dict.fromkeys(states))

    @property
    def identity(self) -> tuple[object, frozenset[object]]:
        """What must not have changed between the decision and the deletion: which resources, and their states."""
        request = self.request and (self.request.name, self.request.created, self.request.state)
        return request, frozenset((node.name, node.id, node.state) for node in self.nodes)


def group_of(project: str, request: QueuedResource | None, nodes: Sequence[Node]) -> ResourceGroup:
    """Return the group of a request with those of the nodes that belong to it, or of nodes alone, as they were just read."""
    own = tuple(node for node in nodes if request is None or belongs_to(node, request))
    return ResourceGroup(project, own, request, foreign=tuple(node for node in nodes if node not in own))


def belongs_to(node: Node, request: QueuedResource) -> bool:
    """Return whether a node is of a request: it names it, or it names none and the request has a node of its name."""
    if node.name.zone != request.zone:
        return False
    if node.queued_resource:
        return is_of(node, request)
    return request.state not in _WITHOUT_NODES and request.owns(node.name.node_id)


def is_of(node: Node, request: QueuedResource) -> bool:
    """Return whether the node names this request as its owner."""
    return last_segment(node.queued_resource or "") == request.queued_resource_id


def distinct_groups(groups: Iterable[ResourceGroup]) -> list[ResourceGroup]:
    """Return the groups without those that an earlier one includes: the same node or queued resource, or one of its race."""
    found: list[ResourceGroup] = []
    for group in groups:
        if not any(one.includes(group) for one in found):
            found.append(group)
    return found
