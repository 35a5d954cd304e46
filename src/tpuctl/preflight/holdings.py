"""What a project holds: its nodes and the nodes of its queued resources, with type, tier and state.

Dead resources count against quota until they are deleted [observed: marin#87, skypilot PR#1483]. Whether stopped,
waiting or deleting resources count is not documented.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.model.node import Node
from tpuctl.model.states import Tier
from tpuctl.names import short
from tpuctl.preflight import own_commands
from tpuctl.preflight.quota_names import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.model import QueuedResource
    from tpuctl.preflight.facts import Held
    from tpuctl.preflight.wanted import Wanted

# Flex-start nodes use preemptible quota [documentation].
_PREEMPTIBLE_MODELS = frozenset({"SPOT", "FLEX_START"})
_PERHAPS = frozenset(
    {
        *("STOPPING", "STOPPED", "DELETING", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN", "STATE_UNSPECIFIED"),
        *("ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDING"),
    }
)


@dataclass(frozen=True, slots=True)
class Holding:
    """The nodes of one kind that one resource holds. `delete` is the command that frees them."""

    label: str
    zone: str
    accelerator: AcceleratorType
    tier: Tier
    state: str
    is_dead: bool
    count: int
    delete: str

    @property
    def pool(self) -> Pool:
        """The quota that the nodes count against."""
        return Pool.of(self.accelerator, self.tier)

    @property
    def surely_counts(self) -> bool:
        """Return whether the nodes are known to count against quota: live nodes, and dead ones that were not deleted."""
        return self.state not in _PERHAPS

    @property
    def size(self) -> int:
        """The amount held, in the unit of the type's number: cores or chips."""
        return self.count * self.accelerator.size

    @property
    def chips(self) -> int:
        """The number of chips held."""
        return self.count * self.accelerator.chips


def holdings(held: Held, wanted: Wanted) -> tuple[Holding, ...]:
    """Return what the project holds, without the node that will be replaced and without types unknown to the table.

    A queued resource counts all its nodes, in every state, waiting ones included (unverified). A node whose queued
    resource is not listed counts itself.
    """
    gone = wanted.replaces
    listed = {request.name for request in held.requests}
    found = [holding for request in held.requests for holding in _of_request(request, wanted)]
    for node in held.nodes:
        is_counted = node.queued_resource in listed or (gone is not None and node.name == gone.name)
        if node.accelerator and not is_counted:
            holding = Holding(
                f"`{node.name.zone}/{node.name.node_id}`",
                node.name.zone,
                node.accelerator,
                node.tier,
                str(node.state),
                is_dead=node.is_preempted or node.state.is_dead,
                count=1,
                delete=own_commands.delete(wanted.project, node.name.zone, node.name.node_id),
            )
            found.append(holding)
    return tuple(found)


def _of_request(request: QueuedResource, wanted: Wanted) -> Iterator[Holding]:
    for spec, ids in _specs(request):
        node = Node.from_api({**(spec.get("node") or {}), "name": f"{_parent(request)}/nodes/{ids[0]}"})
        is_replaced = wanted.replaces is not None and wanted.replaces.name in {
            Node.from_api({"name": f"{_parent(request)}/nodes/{node_id}"}).name for node_id in ids
        }
        count = len(ids) - is_replaced
        if node.accelerator and count:
            several = len(request.node_ids) > 1
            yield Holding(
                f"queued resource `{request.zone}/{short(request.name)}`",
                request.zone,
                node.accelerator,
                _tier(request, node),
                str(request.state),
                is_dead=request.state.is_dead,
                count=count,
                delete=own_commands.take_down(wanted.project, request.zone, ids[0], all_nodes=several),
            )


def _specs(request: QueuedResource) -> Iterator[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """Yield each kind of node that is requested, with the ids of its nodes."""
    rest = list(request.node_ids)
    for spec in (request.raw.get("tpu") or {}).get("nodeSpec") or ():
        several = spec.get("multisliceParams") or spec.get("multiNodeParams") or {}
        count = int(several.get("nodeCount", 0)) if several else 1
        ids, rest = tuple(rest[:count]), rest[count:]
        if ids:
            yield spec, ids


def _tier(request: QueuedResource, node: Node) -> Tier:
    raw, scheduling = request.raw, node.raw.get("schedulingConfig") or {}
    models = {str(raw.get("provisioningModel")), str(scheduling.get("provisioningModel"))}
    if "spot" in raw or models & _PREEMPTIBLE_MODELS:
        return Tier.SPOT
    if (raw.get("guaranteed") or {}).get("reserved"):
        return Tier.RESERVED
    return node.tier


def _parent(request: QueuedResource) -> str:
    return request.name.rpartition("/queuedResources/")[0]
