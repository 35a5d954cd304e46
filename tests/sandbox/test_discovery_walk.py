"""Every method of the four TPU documents, called with valid parameters: served as declared, or rejected as Google does."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.sandbox.bodies import ZONE, message, value
from tests.sandbox.response_schema import VERSIONS, is_googles_error, schema_errors, schema_errors_of_all
from tpuctl.clock import ManualClock
from tpuctl.sandbox import administration
from tpuctl.sandbox.api_calls import Request, Response
from tpuctl.sandbox.discovery import load_document
from tpuctl.sandbox.service import METHODS, answer_request
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tpuctl.sandbox.discovery import ApiMethod

ALL = [(version, method) for version in VERSIONS for method in load_document("tpu", version).methods]
IDS = [f"{version} {method.id.removeprefix('tpu.projects.locations.')}" for version, method in ALL]
OPERATION = f"{ZONE}/operations/operation-1"
BODY = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
LEGACY = {"acceleratorType": "v3-8", "tensorflowVersion": "2.12.0"}
# By the last words of a path: what is there for the smallest request that is carried out, and what to send in it.
THERE = {
    "nodes/*": f"{ZONE}/nodes/node",
    "queuedResources/*": f"{ZONE}/queuedResources/queued",
    "acceleratorTypes/*": f"{ZONE}/acceleratorTypes/v4-8",
    "runtimeVersions/*": f"{ZONE}/runtimeVersions/tpu-ubuntu2204-base",
    "tensorflowVersions/*": f"{ZONE}/tensorflowVersions/2.12.0",
}
# No shrinking: it takes minutes here, and the request is printed as it was made.
REPRODUCIBLE = settings(
    phases=(Phase.generate,), derandomize=True, database=None, deadline=None, suppress_health_check=tuple(HealthCheck)
)
STATE_OF = {"start": "STOPPED"}  # by verb: where the node must be; elsewhere READY


@pytest.fixture
def sandbox_state(tmp_path: Path) -> Iterator[SandboxState]:
    """A sandbox with resources of every kind, in which API v1 may create nodes."""
    with SandboxState.open(tmp_path / "sandbox.db", clock=ManualClock()) as sandbox_state:
        administration.set_setting(sandbox_state, "legacy_nodes", value=True)
        usage = {"capacityUnits": "CHIPS", "resourceType": "v4-8", "size": 4, "usage": {"total": "0"}}
        reservation = {"name": f"{ZONE}/reservations/mine", "state": "ACTIVE", "standard": usage}
        administration.set_setting(sandbox_state, "reservations", [reservation])
        yield sandbox_state


def furnish(sandbox_state: SandboxState, verb: str = "") -> str:
    """Restore the resources of the requests, and return the name of an operation."""
    version: dict[str, Any] = {"apiVersion": "V1"} if verb == "reimage" else {}
    announced = {"maintenanceStatus": "PENDING", "canReschedule": True, "type": "SCHEDULED"}
    administration.add_node(sandbox_state, state=STATE_OF.get(verb, "READY"), upcomingMaintenance=announced, **version)
    administration.add_node(sandbox_state, "owned", queued_resource="queued", upcomingMaintenance=announced)
    administration.add_queued_resource(sandbox_state, node_ids=("owned",))
    administration.add_node(sandbox_state, "spare")
    _, operation = send(sandbox_state, "DELETE", f"/v2/{ZONE}/nodes/spare")
    return str(operation["name"])


def send(
    sandbox_state: SandboxState, verb: str, path: str, query: dict[str, str] | None = None, body: Any = None
) -> tuple[int, Any]:
    content = b"" if body is None else json.dumps(body).encode()
    answer = answer_request(
        sandbox_state, Request(verb, quote(path, safe="/:~"), tuple((query or {}).items()), {}, content)
    )
    assert isinstance(answer, Response)
    return answer.status, json.loads(answer.body)


def path_of(method: ApiMethod, version: str, name: str) -> str:
    """Return the path of a method with a resource name in it: `v2/{+name}:start`."""
    before, _, after = method.template.partition("{")
    return f"/{version}/{before}{name}{after.partition('}')[2]}"


def named(method: ApiMethod, operation: str) -> str:
    """Return the name of an existing resource for a method."""
    pattern = method.parameters["name" if "name" in method.parameters else "parent"]["pattern"].strip("^$")
    words = pattern.replace("[^/]+", "*").split("/")[4:]
    if method.id.endswith("locations.list"):
        return "projects/sandbox"
    return {"": ZONE, "operations/*": operation}.get("/".join(words)) or THERE.get("/".join(words), ZONE)


def smallest(method: ApiMethod, version: str) -> tuple[dict[str, str], Any]:
    """Return the query and the body of the smallest valid request."""
    if method.id.endswith("nodes.create"):
        return {"nodeId": "new"}, LEGACY if version.startswith("v1") else BODY
    if method.id.endswith("queuedResources.create"):
        spec = {"parent": ZONE, "nodeId": "queued-node", "node": BODY}
        return {"queuedResourceId": "new"}, {"tpu": {"nodeSpec": [spec]}}
    if method.id.endswith("queuedResources.delete"):
        return {"force": "true"}, None
    if method.id.endswith("nodes.patch"):
        return {"updateMask": "description"}, {"description": "new"}
    return {}, {} if method.request else None


def test_every_method_is_served_or_listed_with_the_reason() -> None:
    documented = {method.id for _, method in ALL}

    served = {name for name in METHODS if name.startswith("tpu.")}
    assert served == documented


@pytest.mark.parametrize(("version", "method"), ALL, ids=IDS)
def test_smallest_request_gets_an_answer_in_the_schema(
    sandbox_state: SandboxState, version: str, method: ApiMethod
) -> None:
    operation = furnish(sandbox_state, method.id.rpartition(".")[2])
    query, body = smallest(method, version)
    name = named(method, operation)
    if method.id.endswith("nodes.create") and version.startswith("v1"):
        name = name.replace("us-central2-b", "us-central1-a")  # where there are v3

    status, answer = send(sandbox_state, method.http_method, path_of(method, version, name), query, body)

    assert (status, schema_errors(version, method.id, answer) if status == 200 else answer) == (200, [])


@pytest.mark.parametrize(("version", "method"), ALL, ids=IDS)
def test_valid_requests_get_an_answer_in_the_schema_or_googles_error(
    sandbox_state: SandboxState, version: str, method: ApiMethod
) -> None:
    operation = furnish(sandbox_state)
    here = named(method, operation)
    places = st.sampled_from((here, here, here, here.replace("us-central2-b", "-"), here + "x"))
    declared = {name: value(version, spec, name) for name, spec in method.query_parameters.items()}
    bodies = message(version, method.request) if method.request else st.none()

    @settings(REPRODUCIBLE, max_examples=12 if method.request else 4)
    @given(place=places, query=st.fixed_dictionaries({}, optional=declared), body=bodies)
    def call(place: str, query: dict[str, Any], body: Any) -> None:
        if "nodes/" in place or "queuedResources/" in place:
            furnish(sandbox_state, method.id.rpartition(".")[2])
        text = {name: str(given).lower() if isinstance(given, bool) else str(given) for name, given in query.items()}
        status, answer = send(sandbox_state, method.http_method, path_of(method, version, place), text, body)
        assert is_googles_error(status, answer) if status != 200 else schema_errors(version, method.id, answer) == []

    call()
    for _ in range(2):
        assert schema_errors_of_all(sandbox_state) == []
        sandbox_state.advance(timedelta(minutes=9))
