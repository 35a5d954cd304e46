"""The bodies of queued resources in both versions: tiers, reservations, run duration, boot disk, and repeated requests."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.wire import Wire
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import administration
from tpuctl.sandbox.capacity import quota_usage

if TYPE_CHECKING:
    from tests.sandbox.conftest import Api
    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

ZONE = "projects/sandbox/locations/us-east5-b"
NAME = f"{ZONE}/queuedResources/trainer"
OURS = f"{ZONE}/reservations/ours"
V6E: dict[str, Any] = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"}
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def request(api: Api, name: str = "trainer", *, node: dict[str, Any] | None = None, **fields: Any) -> Any:
    body = {"tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": name, "node": {**V6E, **(node or {})}}]}, **fields}
    return api("queuedResources.create", body, version="v2alpha1", parent=ZONE, queuedResourceId=name)


def state(api: Api, name: str = "trainer") -> tuple[str, str]:
    found = api("queuedResources.get", name=f"{ZONE}/queuedResources/{name}")["state"]
    return found["state"], found.get("stateInitiator", "")


@pytest.mark.parametrize(
    ("fields", "metric"),
    [
        ({"guaranteed": {}}, "TPUV6E"),
        ({"guaranteed": {"reserved": True}}, "TPUV6E"),
        ({"spot": {}}, "TPUV6EPreemptible"),
        ({"bestEffort": {}}, "TPUV6EPreemptible"),
        ({"provisioningModel": "FLEX_START"}, "TPUV6EPreemptible"),
    ],
    ids=["on-demand", "reserved", "spot", "best-effort", "flex-start"],
)
def test_tier_uses_its_quota(sandbox_state: SandboxState, api: Api, fields: dict[str, Any], metric: str) -> None:
    request(api, **fields)

    with sandbox_state.read() as session:
        assert {name for name, _ in quota_usage(session, "sandbox")} == {
            f"{metric}PerProjectPer{place}ForTPUAPI" for place in ("Region", "Zone")
        }


@pytest.mark.parametrize(
    ("fields", "life"),
    [
        ({"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "7200s"}}, 2 * HOUR),
        ({"provisioningModel": "FLEX_START"}, 7 * DAY),
        ({"provisioningModel": "FLEX_START", "runDuration": {"terminationTime": "2026-01-01T03:00:00Z"}}, None),
    ],
    ids=["max run duration", "longest", "termination time"],
)
def test_flex_start_ends_after_its_run(
    api: Api, clock: ManualClock, fields: dict[str, Any], life: timedelta | None
) -> None:
    """Documented: the nodes are deleted, and the request is SUSPENDED."""
    begin = clock.now()
    request(api, **fields)
    clock.sleep(20 * MINUTE)
    assert (state(api), api("nodes.get", name=f"{ZONE}/nodes/trainer")["state"]) == (("ACTIVE", ""), "READY")
    clock.sleep((life or begin + 3 * HOUR - clock.now()) - 20 * MINUTE)
    before = state(api)
    clock.sleep(22 * MINUTE)

    assert (before, state(api)) == (("ACTIVE", ""), ("SUSPENDED", "SERVICE"))
    assert api("nodes.get", name=f"{ZONE}/nodes/trainer")[0] == 404


@pytest.mark.parametrize(
    "fields",
    [
        {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "604801s"}},
        {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "0s"}},
        {"runDuration": {"terminationTime": "2025-01-01T00:00:00Z"}},
        {"provisioningModel": "RESERVATION_BOUND"},
        {"spot": {}, "bestEffort": {}},
        {"reservationName": "ours"},
        {"reservationName": OURS.replace("us-east5-b", "us-east5-a")},
    ],
    ids=["over a week", "no time", "past", "bound to none", "two tiers", "short name", "other zone"],
)
def test_impossible_request_is_rejected(api: Api, fields: dict[str, Any]) -> None:
    assert request(api, **fields)[0] == 400


def reserve(sandbox_state: SandboxState, **fields: Any) -> None:
    standard = {"capacityUnits": "CHIPS", "size": 16, "usage": {"total": "8"}, **fields.pop("standard", {})}
    administration.add_reservation(sandbox_state, **{"name": OURS, "state": "ACTIVE", **fields, "standard": standard})


def test_request_of_a_reservation_gets_its_node(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    reserve(sandbox_state)
    assert "name" in request(api, provisioningModel="RESERVATION_BOUND", reservationName=OURS)
    clock.sleep(10 * MINUTE)
    (listed,) = api("reservations.list", version="v2alpha1", parent=ZONE)["reservations"]
    node = api("nodes.get", version="v2alpha1", name=f"{ZONE}/nodes/trainer")["schedulingConfig"]

    assert (state(api)[0], listed["standard"]["usage"]) == ("ACTIVE", {"total": "8"})
    assert node == {"provisioningModel": "RESERVATION_BOUND", "reservationName": OURS, "reserved": True}


@pytest.mark.parametrize(
    ("wanted", "fields", "code", "words"),
    [
        ("ours", {}, None, ""),
        ("-", {}, None, ""),
        ("theirs", {}, 404, "was not found"),
        ("ours", {"state": "EXPIRED"}, 400, "is in state EXPIRED."),
        ("ours", {"standard": {"interval": {"endTime": "2025-12-31T00:00:00Z"}}}, 400, "is in state EXPIRED."),
    ],
    ids=["known", "any", "unknown", "expired", "past its end"],
)
def test_reservation_is_checked(
    sandbox_state: SandboxState, api: Api, *, wanted: str, fields: dict[str, Any], code: int | None, words: str
) -> None:
    reserve(sandbox_state, **fields)
    name = f"{ZONE}/reservations/{wanted}"
    node = {**V6E, "schedulingConfig": {"reservationName": name}}

    answers = [
        request(api, reservationName=name),
        api("nodes.create", node, version="v2alpha1", parent=ZONE, nodeId="n"),
    ]
    found = [(a[0], a[1].endswith(words)) if isinstance(a, tuple) else (None, "name" in a) for a in answers]
    assert found == [(code, True)] * 2


def test_malformed_reservations_are_rejected(sandbox_state: SandboxState) -> None:
    for value in ("ours", [{"name": "ours"}], [3], [{"name": OURS, "standard": {"size": "many"}}]):
        with pytest.raises(InvalidInputError):
            administration.set_setting(sandbox_state, "reservations", value)


def test_boot_disk_size_needs_v2alpha1(sandbox_state: SandboxState) -> None:
    wire = Wire(sandbox_state)
    spec = {"parent": ZONE, "nodeId": "trainer", "node": {**V6E, "bootDiskConfig": {"diskSizeGb": "500"}}}
    answers = {
        version: wire(
            "POST", f"/{version}/{ZONE}/queuedResources?queuedResourceId=trainer", {"tpu": {"nodeSpec": [spec]}}
        )
        for version in ("v2", "v2alpha1")
    }

    field = "queued_resource.tpu.node_spec[0].node.boot_disk_config"
    assert answers["v2"] == (
        400,
        "INVALID_ARGUMENT",
        f"Invalid JSON payload received. Unknown name \"diskSizeGb\" at '{field}': Cannot find field.",
    )
    shown = wire("GET", f"/v2alpha1/{NAME}")["tpu"]["nodeSpec"][0]["node"]["bootDiskConfig"]
    assert (shown, "bootDiskConfig" in wire("GET", f"/v2/{NAME}")["tpu"]["nodeSpec"][0]["node"]) == (
        {"diskSizeGb": "500"},
        True,
    )


def test_request_id_decides_whatever_the_body_says(api: Api) -> None:
    """That another body with the id of an accepted create changes nothing is unverified."""
    answers = []
    for size in ("v6e-8", "v6e-16"):
        body = {"tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": "trainer", "node": {**V6E, "acceleratorType": size}}]}}
        answers.append(
            api("queuedResources.create", body, parent=ZONE, queuedResourceId="trainer", requestId="one")["name"]
        )

    assert answers[0] == answers[1]
    spec = api("queuedResources.get", name=NAME)["tpu"]["nodeSpec"][0]
    assert spec["node"]["acceleratorType"] == "v6e-8"


def test_ids_follow_the_text_of_the_parameter(api: Api) -> None:
    assert ("name" in request(api, "Trainer_1.q"), request(api, "a b")[0]) == (True, 400)
