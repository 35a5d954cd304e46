"""Several slices as one job over the data-centre network: which nodes fit, their order, and the variables of each. Pure.

Sources: JAX's `cloud_tpu_cluster.py` (each value comes from the environment, else from the metadata of the machine; process
0 is worker 0 of slice 0; all slices have the same number of workers); the introduction to multislice in Google's
documentation (one type, topology, version and zone, v4 or later); the launchers of levanter, MaxText and Ray (port 8081).

The service gives these values only to the nodes of one queued request for several. They are computed for each start, and no
file of a worker has them: with those of an earlier group JAX waits for a slice that is gone [Ray, pull request 62893].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.accelerators import find_accelerator_type
from tpuctl.errors import ConflictError, InvalidInputError
from tpuctl.models.node import Health, NodeState
from tpuctl.models.worker_ports import MEGASCALE
from tpuctl.names import natural_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.models.node import Node
    from tpuctl.names import NodeName

DEFAULT_PORT = MEGASCALE[-1]
MOST_SLICES = 256  # of one request [API v2, MultisliceParams.nodeCount]
COORDINATOR, COUNT, SLICE, PORT = (
    "MEGASCALE_COORDINATOR_ADDRESS",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_SLICE_ID",
    "MEGASCALE_PORT",
)
NAMES = (COORDINATOR, COUNT, SLICE, PORT)
_WITHOUT = frozenset({"v2", "v3"})
# A slice with one of these may still compute.
_MAY_COMPUTE = frozenset({Health.HEALTHY, Health.HEALTH_UNSPECIFIED})


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The slices of a job in their order, and where they meet."""

    nodes: tuple[Node, ...]
    coordinator: str  # the internal address of worker 0 of slice 0
    port: int

    def variables(self, name: NodeName) -> dict[str, str]:
        """Return the variables of the programs on one of the slices."""
        numbers = {node.name: number for number, node in enumerate(self.nodes)}
        values = (f"{self.coordinator}:{self.port}", str(len(self.nodes)), str(numbers[name]), str(self.port))
        return dict(zip(NAMES, values, strict=True))


def plan_slices(nodes: Sequence[Node], *, port: int = DEFAULT_PORT, checks_types: bool = True) -> SlicePlan:
    """Return the plan of one job over these nodes, in the natural order of their names.

    Raises `InvalidInputError` if these are not several nodes, and `ConflictError` if they cannot be one job: it names the
    difference. Without `checks_types` only what JAX cannot do at all is refused.
    """
    ordered = tuple(sorted(nodes, key=lambda node: natural_key(node.name.node_id)))
    check_count(len(ordered))
    check_alike(ordered, checks_types=checks_types)
    if checks_types:
        for node in ordered:
            if node.state is not NodeState.READY or node.health not in _MAY_COMPUTE:
                state = node.state if node.state is not NodeState.READY else node.health
                raise ConflictError(
                    f"`{node.name.node_id}` is {state}: all slices must be usable before a job starts",
                    hint=f"bring it back: `tpuctl up {node.name.node_id}`",
                )
    address = ordered[0].endpoints[0].internal if ordered[0].endpoints else None
    if address is None:
        raise ConflictError(f"worker 0 of `{ordered[0].name.node_id}` has no internal address for the other slices")
    return SlicePlan(ordered, address, port)


def check_count(count: int) -> None:
    """Raise `InvalidInputError` for fewer or more slices than a job may have."""
    if count < 2:
        raise InvalidInputError(
            f"`--multislice` needs two nodes or more, and selects {count}",
            hint="name them in one command, or leave out `--multislice`",
        )
    if count > MOST_SLICES:
        raise InvalidInputError(
            f"`--multislice` takes {MOST_SLICES} nodes at most, and selects {count}",
            hint="select fewer with a narrower pattern",
        )


def check_alike(nodes: Sequence[Node], *, checks_types: bool = True) -> None:
    """Raise `ConflictError` with the difference if nodes cannot be slices of one job."""
    if checks_types:
        for node in nodes:
            check_generation(node.name, node.accelerator_type)
    _require_same(nodes, "workers", lambda node: str(node.workers))
    if checks_types:
        _require_same(nodes, "type", lambda node: node.accelerator_type)
        _require_same(nodes, "topology", _topology)
        _require_same(nodes, "runtime version", lambda node: node.runtime_version)
        _require_same(nodes, "zone", lambda node: node.name.zone)


def check_generation(name: NodeName, accelerator_type: str) -> None:
    """Raise `ConflictError` for chips of a generation before v4."""
    accelerator = find_accelerator_type(accelerator_type)
    if accelerator is not None and accelerator.generation.prefix in _WITHOUT:
        raise ConflictError(
            f"`{name.node_id}` is a {accelerator_type}: multislice is for v4 and later",
            hint="use one slice of more chips",
        )


def _require_same(nodes: Sequence[Node], what: str, value: Callable[[Node], str]) -> None:
    """Raise `ConflictError` if the nodes do not have the same value."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(value(node), []).append(node.name.node_id)
    if len(groups) > 1:
        most = max(groups, key=lambda text: len(groups[text]))
        others = [f"`{names[0]}` has {text or 'none'}" for text, names in groups.items() if text != most]
        raise ConflictError(
            f"the slices of one job have the same {what}: `{groups[most][0]}` has {most or 'none'}, {', '.join(others[:3])}",
            hint="leave out what differs"
            if what == "workers"
            else "leave out what differs, or use `--skip-validation`",
        )


def _topology(node: Node) -> str:
    return node.topology or (node.accelerator.topology if node.accelerator else None) or ""
