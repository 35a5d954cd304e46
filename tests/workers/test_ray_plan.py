"""The plan of a Ray cluster: the head, the lines of the jobs, what Ray must have, and what workers report."""

from __future__ import annotations

import subprocess
from typing import Any, cast

import pytest

from tpuctl.errors import ConflictError, InvalidInputError, NotFoundError
from tpuctl.models.node import Node
from tpuctl.ssh.connection import Connection, Target
from tpuctl.workers.ray_plan import (
    InstalledRay,
    RayHost,
    RayPlan,
    check_installed,
    describe_problems,
    install_line,
    parse_installed,
    plan_ray,
)


def slice_of(node_id: str, first: int, *, zone: str = "us-central2-b", **changes: Any) -> Node:
    endpoints = [{"ipAddress": f"10.0.0.{number}"} for number in (first, first + 1)]
    document = {"name": f"projects/p/locations/{zone}/nodes/{node_id}", "networkEndpoints": endpoints}
    return Node.from_api({**document, "acceleratorType": "v4-16", **changes})


def plan_of(*nodes: Node, **options: Any) -> RayPlan:
    connection = cast("Connection", None)  # no worker is reached
    targets = [Target(node, worker, connection, f"{node.name.node_id}-{worker}") for node in nodes for worker in (0, 1)]
    return plan_ray(nodes, targets, **{"head": None, **options})


def two(**options: Any) -> RayPlan:
    return plan_of(slice_of("t-10", 3), slice_of("t-2", 1), **options)


def test_head_is_worker_0_of_the_first_node_by_name() -> None:
    plan = two()

    assert [one.target.label for one in plan.members] == ["t-2-0", "t-2-1", "t-10-0", "t-10-1"]
    assert (plan.address, plan.chips, plan.slices) == ("10.0.0.1:6379", 16, ["t-2", "t-10"])


def test_head_is_that_of_the_user() -> None:
    assert two(head="t-10", port=7000).address == "10.0.0.3:7000"


@pytest.mark.parametrize("options", [{"head": "t-1"}, {"program": "ray; reboot"}, {"program": "$(x)"}])
def test_odd_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        two(**options)


def test_two_nodes_of_one_name_would_be_one_slice() -> None:
    other = slice_of("t-2", 3, zone="us-east5-a")
    with pytest.raises(InvalidInputError, match="two nodes are named `t-2`"):
        plan_of(slice_of("t-2", 1), other)


def test_lines_start_the_head_and_join_it_by_the_address_of_each_worker() -> None:
    plan = two(program="~/venv/bin/ray")
    head, last = plan.line(plan.head), plan.line(plan.members[-1])

    assert head.startswith("ray=~/venv/bin/ray; ip=")
    assert all(
        word in head for word in ("--head", "--port=6379", "--dashboard-host=127.0.0.1", "--disable-usage-stats")
    )
    assert "--address=10.0.0.1:6379" in last
    assert "--resources='{\"TPU\": 4}'" in head
    for line in (head, last, plan.ask_line(), plan.watch_line(5), install_line("ray==2.60.0")):
        assert subprocess.run(["sh", "-n", "-c", line], check=False, capture_output=True).stderr == b""


def test_chips_of_an_unknown_type_are_left_to_ray() -> None:
    plan = plan_of(slice_of("t-0", 1, acceleratorType="v99-16"))

    assert "--resources" not in plan.line(plan.head)


@pytest.mark.parametrize("text", ["2.60.0", "ray", "ray==", "ray==2;reboot", "rays==1", "ray==$(x)"])
def test_version_to_install_is_of_ray(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a version of Ray"):
        install_line(text)


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("motd\n\ntpuctl-ray ray=2.60.0 python=3.10 listens=0\n", InstalledRay("2.60.0", "3.10", listens=False)),
        ("tpuctl-ray ray=2.60.0 python=3.10 listens=1\r\n", InstalledRay("2.60.0", "3.10", listens=True)),
        ("tpuctl-ray missing\n", None),
        ("tpuctl-ray ray=\x1b[31m python=3.10 listens=0\n", None),
        (f"tpuctl-ray ray={'9' * 50} python=3.10 listens=0\n", None),
        ("", None),
    ],
)
def test_report_of_a_worker_is_parsed(output: str, found: InstalledRay | None) -> None:
    assert parse_installed(output) == found


def test_versions_that_differ_are_named() -> None:
    members = two().members
    old, new = InstalledRay("2.58.0", "3.10", listens=False), InstalledRay("2.60.0", "3.10", listens=False)

    with pytest.raises(ConflictError) as caught:
        check_installed([(members[0], new), (members[1], new), (members[2], old)])

    assert caught.value.message == (
        "workers have different versions: Ray 2.60.0 with Python 3.10 on t-2-0, t-2-1; Ray 2.58.0 with Python 3.10 on t-10-0"
    )


def test_worker_without_ray_is_named() -> None:
    members = two().members

    with pytest.raises(NotFoundError, match="Ray is not installed on worker t-2-1"):
        check_installed([(members[0], InstalledRay("2.60.0", "3.10", listens=False)), (members[1], None)])


def host(address: str, *, chips: float = 4, heads: tuple[str, ...] = (), of: str = "t-2") -> RayHost:
    return RayHost(address, chips, heads, of)


GOOD = (
    host("10.0.0.1", heads=("TPU-v4-16-head",)),
    host("10.0.0.2"),
    host("10.0.0.3", heads=("TPU-v4-16-head",), of="t-10"),
    host("10.0.0.4", of="t-10"),
)


@pytest.mark.parametrize(
    ("place", "changed", "problem"),
    [
        (1, (), {"t-2-1": "has not joined"}),
        (1, (host("10.0.0.2", chips=0),), {"t-2-1": "joined with 0 of 4 chips"}),
        (3, (host("10.0.0.4", of="local"),), {"t-10-1": "is of slice `local` for Ray: set by TPU_NAME there"}),
        (2, (host("10.0.0.3", of="t-10"),), {"t-10-0": "has no resource TPU-v4-16-head"}),
        (3, (GOOD[3], host("10.9.9.9")), {}),
    ],
)
def test_what_ray_lacks_is_named(place: int, changed: tuple[RayHost, ...], problem: dict[str, str]) -> None:
    hosts = (*GOOD[:place], *changed, *GOOD[place + 1 :])

    assert describe_problems(two(), hosts) == problem
