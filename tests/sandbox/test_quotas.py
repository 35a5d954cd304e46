"""Quotas and stock-outs: limits of a project, capacity of a zone, and their errors."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import set_tpu_quota
from tpuctl.sandbox.capacity import CapacityTier, Demand, quota_metrics, quota_usage
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault

if TYPE_CHECKING:
    from tests.sandbox.conftest import Api
    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

HOME = "projects/sandbox/locations"
V6E = f"{HOME}/us-east5-b"
MINUTE = timedelta(minutes=1)
BODY: dict[str, Any] = {
    "acceleratorType": "v6e-16",
    "runtimeVersion": "v2-alpha-tpuv6e",
    "schedulingConfig": {"spot": True},
}


def set_quota(sandbox_state: SandboxState, **what: Any) -> None:
    with sandbox_state.write() as session:
        set_tpu_quota(session, **what)


def stock_out(sandbox_state: SandboxState, **what: Any) -> None:
    with sandbox_state.write() as session:
        administration.add_stockout(session, **what)


def create(api: Api, node_id: str, zone: str = V6E, **change: Any) -> Any:
    return api("nodes.create", {**BODY, **change}, parent=zone, nodeId=node_id)


def request(api: Api, name: str, **change: Any) -> Any:
    spec = {"parent": V6E, "nodeId": f"{name}-node", "node": {**BODY, **change}}
    return api("queuedResources.create", {"tpu": {"nodeSpec": [spec]}}, parent=V6E, queuedResourceId=name)


def queued_state(api: Api, name: str = "q") -> str:
    return str(api("queuedResources.get", name=f"{V6E}/queuedResources/{name}")["state"]["state"])


@pytest.mark.parametrize(
    ("accelerator_type", "tier", "metric", "size"),
    [
        ("v2-8", CapacityTier.ON_DEMAND, "TPUV2s", 8),
        ("v2-32", CapacityTier.SPOT, "TPUV2sPreemptiblePod", 32),
        ("v3-32", CapacityTier.ON_DEMAND, "TPUV3sPod", 32),
        ("v4-16", CapacityTier.SPOT, "TPUV4sPreemptiblePod", 16),
        ("v5litepod-8", CapacityTier.ON_DEMAND, "TPUV5sLitepodServing", 8),
        ("v5litepod-16", CapacityTier.SPOT, "TPUV5sPreemptibleLitepod", 16),
        ("v5p-8", CapacityTier.RESERVED, "TPUV5P", 8),
        ("v6e-1", CapacityTier.SPOT, "TPUV6EPreemptible", 1),
    ],
)
def test_type_and_tier_count_against_two_metrics(
    sandbox_state: SandboxState, accelerator_type: str, tier: CapacityTier, metric: str, size: int
) -> None:
    """In the unit of the type's name: cores of v2 to v4 and v5p, chips of v5e and v6e."""
    places = quota_metrics(Demand("p", "us-east5-b", accelerator_type, tier))

    assert places == (
        (f"{metric}PerProjectPerRegionForTPUAPI", "us-east5"),
        (f"{metric}PerProjectPerZoneForTPUAPI", "us-east5-b"),
    )
    scheduling = {CapacityTier.SPOT: {"spot": True}, CapacityTier.RESERVED: {"reserved": True}}.get(tier, {})
    administration.add_node(sandbox_state, acceleratorType=accelerator_type, schedulingConfig=scheduling)
    with sandbox_state.read() as session:
        assert set(quota_usage(session, "sandbox").values()) == {size}


def test_exceeded_region_or_zone_quota_gives_the_error_of_the_service(sandbox_state: SandboxState, api: Api) -> None:
    set_quota(sandbox_state, limit=32, generation="v6e", tier="spot", region="us-east5")
    set_quota(sandbox_state, limit=16, metric="TPUV6EPreemptiblePerProjectPerZoneForTPUAPI", zone="us-east5-b")

    other = create(api, "d", f"{HOME}/us-east1-d")
    answers = [
        create(api, "a"),
        create(api, "b"),
        create(api, "c", f"{HOME}/us-east5-a"),
        create(api, "e", f"{HOME}/us-east5-a"),
    ]

    zonal = "Quota limit 'TPUV6EPreemptiblePerProjectPerZoneForTPUAPI' has been exceeded. Limit: 16 in zone us-east5-b."
    regional = (
        "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 32 in region us-east5."
    )
    assert "name" in other
    assert [answer if isinstance(answer, tuple) else "created" for answer in answers] == [
        *("created", (429, zonal), "created"),
        (429, regional),
    ]
    assert "name" in create(api, "f", schedulingConfig={})  # another tier, another metric


def test_limit_of_zero_without_a_place_applies_everywhere(sandbox_state: SandboxState, api: Api) -> None:
    set_quota(sandbox_state, limit=0, generation="v6e", tier="spot")

    text = "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5."
    assert create(api, "a") == (429, text)


@pytest.mark.parametrize("state", ["SUSPENDED", "FAILED"])
def test_dead_records_count_against_quota_until_deleted(
    sandbox_state: SandboxState, api: Api, clock: ManualClock, state: str
) -> None:
    """Observed: marin#87, skypilot PR#1483."""
    set_quota(sandbox_state, limit=32, generation="v6e", tier="spot", region="us-east5")
    administration.add_node(sandbox_state, "dead", zone="us-east5-b", state="PREEMPTED", **BODY)
    spec = {"parent": V6E, "nodeId": "gone", "node": BODY}
    administration.add_queued_resource(
        sandbox_state, "husk", zone="us-east5-b", state=state, node_ids=("gone",), tpu={"nodeSpec": [spec]}
    )

    text = "Quota 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' exhausted. Limit 32 in region us-east5"
    assert (create(api, "new")[0], request(api, "q")) == (429, (429, text))
    for name in (f"nodes.{V6E}/nodes/dead", f"queuedResources.{V6E}/queuedResources/husk"):
        api(f"{name.partition('.')[0]}.delete", name=name.partition(".")[2])
    clock.sleep(2 * MINUTE)
    assert ("name" in create(api, "new"), "name" in request(api, "q")) == (True, True)


def test_queued_resource_and_its_node_count_once(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    request(api, "q")
    seen = []
    for _ in range(2):
        with sandbox_state.read() as session:
            seen.append(quota_usage(session, "sandbox"))
        clock.sleep(15 * MINUTE)

    stem = "TPUV6EPreemptiblePerProjectPer"
    held = {(f"{stem}RegionForTPUAPI", "us-east5"): 16, (f"{stem}ZoneForTPUAPI", "us-east5-b"): 16}
    assert (seen, queued_state(api)) == ([held] * 2, "ACTIVE")


@pytest.mark.parametrize(
    ("scheduling", "text"),
    [
        ({"spot": True}, 'There is no more capacity in the zone "us-east5-b"; you can try in another zone'),
        ({"reserved": True}, "Insufficient reserved capacity. Contact customer support to increase your reservation."),
    ],
)
def test_stockout_fails_creates_in_their_operation_until_it_ends(
    sandbox_state: SandboxState, api: Api, clock: ManualClock, scheduling: dict[str, bool], text: str
) -> None:
    stock_out(sandbox_state, zone="us-east5-*", accelerator_type="v6e-*", duration=20 * MINUTE)
    ends = []
    for node_id in ("early", "late"):
        operation = create(api, node_id, schedulingConfig=scheduling)
        clock.sleep(19 * MINUTE)
        error = api("operations.get", name=operation["name"]).get("error", {})
        ends.append((error.get("code"), error.get("message", "").startswith(text)))
        clock.sleep(MINUTE)

    assert ends == [(8, True), (None, False)]
    assert "name" in create(api, "elsewhere", f"{HOME}/us-east1-d")


def test_start_of_a_stopped_node_needs_capacity(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    administration.add_node(sandbox_state, state="STOPPED")
    stock_out(sandbox_state, tier="on-demand")
    operation = api("nodes.start", name=f"{api.zone}/nodes/node")
    clock.sleep(2 * MINUTE)

    assert (api("operations.get", name=operation["name"])["error"]["code"], api.state()) == (8, "STOPPED")


@pytest.mark.parametrize("comes", ["before", "after"])
def test_queued_resource_waits_for_the_end_of_a_stockout(
    sandbox_state: SandboxState, api: Api, clock: ManualClock, comes: str
) -> None:
    for step in sorted(("stockout", "request"), reverse=comes == "before"):
        if step == "stockout":
            stock_out(sandbox_state, zone="us-east5-b", duration=20 * MINUTE)
        else:
            request(api, "q")
    seen = []
    for minutes in (19, 2, 15):
        clock.sleep(minutes * MINUTE)
        seen.append(queued_state(api))

    assert seen == ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]


def test_stockout_without_an_end_can_be_removed(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    stock_out(sandbox_state)
    request(api, "q")
    clock.sleep(timedelta(days=30))
    before = queued_state(api)
    with sandbox_state.write() as session:
        count = administration.end_stockouts(session)
    clock.sleep(15 * MINUTE)

    assert (before, count, queued_state(api)) == ("WAITING_FOR_RESOURCES", 1, "ACTIVE")


def test_stockout_does_not_change_failing_or_hanging_requests(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.HANG, node="stuck", state="WAITING_FOR_RESOURCES"))
        add_fault(session, Fault(FaultKind.OPERATION_ERROR, node="doomed", method="*.queuedResources.create"))
    for name in ("doomed", "stuck"):
        request(api, name)
    stock_out(sandbox_state, duration=MINUTE)
    clock.sleep(30 * MINUTE)

    assert [queued_state(api, name) for name in ("doomed", "stuck")] == ["FAILED", "WAITING_FOR_RESOURCES"]


@pytest.mark.parametrize(
    "what",
    [
        {"limit": -1, "generation": "v6e"},
        {"limit": 1, "generation": "v9"},
        {"limit": 1, "generation": "v6e", "tier": "cheap"},
        {"limit": 1, "generation": "v6e", "region": "us-east5", "zone": "us-east5-b"},
        {"limit": 1, "metric": "CPUS"},
        {"limit": 1, "metric": "TPUV6EPerProjectPerZoneForTPUAPI", "region": "us-east5"},
    ],
)
def test_invalid_quota_is_rejected(sandbox_state: SandboxState, what: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        set_quota(sandbox_state, **what)
