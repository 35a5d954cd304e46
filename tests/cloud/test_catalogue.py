"""Offers of zones: in one call if the service accepts the wildcard, else one call for each zone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cloud.beside import FACES, on_face
from tests.cloud.scripted_api import Received, Reply, Script, client_of, in_turn, refuse
from tests.conftest import Sandbox
from tpuctl.cloud.tpu import TpuClient
from tpuctl.errors import AccessError
from tpuctl.models.project import Reservation
from tpuctl.sandbox import administration

PARENT = "/v2/projects/p/locations"
FIELDS = "fields=acceleratorTypes(name,type),nextPageToken,unreachable"


def kind(zone: str, name: str) -> dict[str, Any]:
    return {"name": f"projects/p/locations/{zone}/acceleratorTypes/{name}", "type": name}


def test_offers_of_all_zones_are_one_call() -> None:
    first = {"acceleratorTypes": [kind("us-central2-b", "v4-8"), kind("us-east5-a", "v6e-1")], "nextPageToken": "t"}
    second = {"acceleratorTypes": [kind("us-central2-b", "v4-16")], "unreachable": [f"{PARENT}/europe-west4-a"]}
    with client_of(in_turn(Reply(first), Reply(second))) as (client, server):
        assert client.offers("p") == {"us-central2-b": ("v4-8", "v4-16"), "us-east5-a": ("v6e-1",)}

    line = f"{PARENT}/-/acceleratorTypes?pageSize=1000"
    assert [request.path for request in server.received] == [f"{line}&{FIELDS}", f"{line}&{FIELDS}&pageToken=t"]


def without_wildcard(*refused: str) -> Script:
    """Return a service that refuses the wildcard `-`, and queries of some zones."""

    def answer(request: Received) -> Reply:
        zone = request.path.partition("/locations/")[2].partition("/")[0]
        if not zone:
            return Reply({"locations": [{"locationId": "a"}, {"locationId": "b"}]})
        if zone in {"-", *refused}:
            return refuse(403, "PERMISSION_DENIED", "no")
        return Reply({"acceleratorTypes": [kind(zone, "v4-8")]})

    return answer


def test_offers_of_each_zone_are_fetched_if_the_wildcard_is_refused() -> None:
    with client_of(without_wildcard("b")) as (client, _):
        assert client.offers("p") == {"a": ("v4-8",)}
    with client_of(without_wildcard("a", "b")) as (client, _), pytest.raises(AccessError):
        client.offers("p")


def test_reservations_are_read_from_v2alpha1() -> None:
    data = {"name": "projects/p/locations/us-east5-a/reservations/mine", "state": "ACTIVE"}
    with client_of(in_turn(Reply({"reservations": [data]}))) as (client, server):
        assert client.reservations("p", "us-east5-a") == (Reservation(data["name"], "ACTIVE"),)

    assert server.lines == ["GET /v2alpha1/projects/p/locations/us-east5-a/reservations"]


@pytest.mark.parametrize("face", FACES)
def test_sandbox_offers_of_all_zones_equal_those_of_each_zone(face: str, sandbox: Sandbox) -> None:
    administration.add_node(sandbox.state, "trainer")
    with on_face(TpuClient, face, sandbox.state) as client:
        offers = client.offers("sandbox")
        assert offers["us-central2-b"] == client.accelerator_types("sandbox", "us-central2-b")
        assert set(offers) <= set(client.locations("sandbox"))
        assert client.reservations("sandbox", "us-central2-b") == ()
