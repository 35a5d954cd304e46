"""The plan of one job over several slices: which nodes fit, their order, and their variables."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.errors import ConflictError, InvalidInputError
from tpuctl.models.node import Node
from tpuctl.workers.multislice import plan_slices

ZONE = "us-central2-b"


def slice_of(name: str, address: str = "10.0.0.1", *, zone: str = ZONE, **changes: Any) -> Node:
    document = {
        "name": f"projects/p/locations/{zone}/nodes/{name}",
        "state": "READY",
        "health": "HEALTHY",
        "acceleratorType": "v4-16",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "networkEndpoints": [{"ipAddress": address}, {"ipAddress": "10.9.9.9"}],
    }
    return Node.from_api({**document, **changes})


def test_slices_are_numbered_in_the_natural_order_of_their_names() -> None:
    nodes = [slice_of("train-10", "10.0.0.3"), slice_of("train-2", "10.0.0.2"), slice_of("train-1", "10.0.0.1")]

    plan = plan_slices(nodes)

    assert [node.name.node_id for node in plan.nodes] == ["train-1", "train-2", "train-10"]
    assert plan.variables(nodes[0].name) == {
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1:8081",
        "MEGASCALE_NUM_SLICES": "3",
        "MEGASCALE_SLICE_ID": "2",
        "MEGASCALE_PORT": "8081",
    }


def test_port_is_that_of_the_user() -> None:
    plan = plan_slices([slice_of("a", "10.0.0.7"), slice_of("b")], port=9000)

    variables = plan.variables(plan.nodes[1].name)

    assert (variables["MEGASCALE_COORDINATOR_ADDRESS"], variables["MEGASCALE_PORT"]) == ("10.0.0.7:9000", "9000")


DIFFERENT = [
    ({"acceleratorType": "v4-32"}, "the same workers: `a` has 2, `b` has 4"),
    ({"acceleratorType": "v6e-8"}, "the same workers: `a` has 2, `b` has 1"),
    ({"acceleratorType": "v5p-16"}, "the same type: `a` has v4-16, `b` has v5p-16"),
    ({"acceleratorConfig": {"type": "V4", "topology": "1x2x4"}}, "the same topology: `a` has 2x2x2, `b` has 1x2x4"),
    ({"runtimeVersion": "other"}, "the same runtime version: `a` has tpu-ubuntu2204-base, `b` has other"),
    ({"zone": "us-central2-c"}, "the same zone: `a` has us-central2-b, `b` has us-central2-c"),
]


@pytest.mark.parametrize(("changes", "text"), DIFFERENT)
def test_unequal_slices_are_refused_with_the_difference(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConflictError, match="the slices of one job have") as caught:
        plan_slices([slice_of("a"), slice_of("b", **changes)])

    assert text in caught.value.message


@pytest.mark.parametrize(("changes", "text"), DIFFERENT)
def test_slices_with_as_many_workers_are_not_compared_if_the_user_says_so(changes: dict[str, Any], text: str) -> None:
    nodes = [slice_of("a"), slice_of("b", **changes)]

    if "the same workers" in text:
        with pytest.raises(ConflictError):
            plan_slices(nodes, checks_types=False)
    else:
        assert len(plan_slices(nodes, checks_types=False).nodes) == 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state": "PREEMPTED"}, "`b` is PREEMPTED"),
        ({"health": "UNHEALTHY_TENSORFLOW"}, "`b` is UNHEALTHY_TENSORFLOW"),
        ({"state": "CREATING"}, "`b` is CREATING"),
    ],
)
def test_slice_that_is_not_usable_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConflictError, match=text):
        plan_slices([slice_of("a"), slice_of("b", **changes)])


@pytest.mark.parametrize("kind", ["v2-32", "v3-32"])
def test_generations_before_v4_are_refused(kind: str) -> None:
    with pytest.raises(ConflictError, match="multislice is for v4 and later"):
        plan_slices([slice_of("a", acceleratorType=kind), slice_of("b", acceleratorType=kind)])


@pytest.mark.parametrize("count", [0, 1, 257])
def test_number_of_slices_has_bounds(count: int) -> None:
    with pytest.raises(InvalidInputError, match="`--multislice`"):
        plan_slices([slice_of(f"s-{number}") for number in range(count)])


def test_most_slices_are_planned() -> None:
    assert len(plan_slices([slice_of(f"s-{number}") for number in range(256)]).nodes) == 256


def test_first_slice_without_an_address_is_refused() -> None:
    with pytest.raises(ConflictError, match="worker 0 of `a` has no internal address"):
        plan_slices([slice_of("a", networkEndpoints=[]), slice_of("b")])
