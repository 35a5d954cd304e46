"""Google's Python clients against a sandbox on a port: each version by its discovery document, and google-cloud-tpu."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from google.auth.credentials import AnonymousCredentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tests.conformance.conftest import ZONE, Service
from tpuctl.sandbox import administration

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD_ZONE = "us-central1-b"
LEGACY = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.0", "network": "default"}
VM = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}


def _anonymous() -> Any:
    return AnonymousCredentials()  # type: ignore[no-untyped-call]  # google-auth's signature has none


@pytest.fixture
def locations(service: Service, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield `projects.locations` of the test's version."""
    version = request.getfixturevalue("version")
    options = {"api_endpoint": service.url}
    with build("tpu", version, static_discovery=True, credentials=_anonymous(), client_options=options) as client:
        yield client.projects().locations()


@pytest.mark.parametrize(
    ("version", "zone", "body", "expected"),
    [
        ("v1", OLD_ZONE, LEGACY, {"apiVersion": "V1", "tensorflowVersion": "2.12.0", "port": "8470"}),
        ("v1alpha1", OLD_ZONE, LEGACY, {"apiVersion": "V1_ALPHA1", "tensorflowVersion": "2.12.0", "port": "8470"}),
        ("v2", ZONE, VM, {"apiVersion": "V2", "runtimeVersion": "tpu-ubuntu2204-base"}),
        ("v2alpha1", ZONE, VM, {"apiVersion": "V2_ALPHA1", "runtimeVersion": "tpu-ubuntu2204-base"}),
    ],
    ids=["v1", "v1alpha1", "v2", "v2alpha1"],
)
def test_node_life_cycle_works_in_every_version(
    service: Service, locations: Any, *, version: str, zone: str, body: dict[str, Any], expected: dict[str, str]
) -> None:
    administration.set_setting(service.state, "legacy_nodes", True)
    nodes, operations = locations.nodes(), locations.operations()
    parent = f"projects/{version}/locations/{zone}"
    name = f"{parent}/nodes/node"

    def ended(operation: dict[str, Any]) -> dict[str, Any]:
        service.settle()
        result: dict[str, Any] = operations.get(name=operation["name"]).execute()
        assert (result["done"], result.get("error")) == (True, None)
        assert result["metadata"]["@type"] == f"type.googleapis.com/google.cloud.tpu.{version}.OperationMetadata"
        response: dict[str, Any] = result["response"]
        return response

    created = ended(nodes.create(parent=parent, nodeId="node", body=body).execute())
    node = nodes.get(name=name).execute()
    stopped = ended(nodes.stop(name=name, body={}).execute())
    started = ended(nodes.start(name=name, body={}).execute())
    listed = nodes.list(parent=f"projects/{version}/locations/-").execute()
    with pytest.raises(HttpError) as taken:
        nodes.create(parent=parent, nodeId="node", body=body).execute()
    deleted = ended(nodes.delete(name=name).execute())

    assert (node["name"], node["state"], node["health"]) == (name, "READY", "HEALTHY")
    assert {field: node[field] for field in expected} == expected
    assert [answer["state"] for answer in (created, stopped, started)] == ["READY", "STOPPED", "READY"]
    assert created["@type"] == f"type.googleapis.com/google.cloud.tpu.{version}.Node"
    assert listed == {"nodes": [_as_started(started)]}
    assert (taken.value.status_code, json.loads(taken.value.content)["error"]["status"]) == (409, "ALREADY_EXISTS")
    assert deleted == {"@type": "type.googleapis.com/google.protobuf.Empty"}
    assert nodes.list(parent=parent).execute() == {}


def _as_started(response: dict[str, Any]) -> dict[str, Any]:
    """Return the node of a response, with the health that it has by now."""
    return {**{field: value for field, value in response.items() if field != "@type"}, "health": "HEALTHY"}


@pytest.fixture
def library(service: Service) -> Any:
    """Return google-cloud-tpu's client of v2 over REST."""
    google_tpu = pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")
    from google.api_core.client_options import ClientOptions  # noqa: PLC0415  # comes with it

    options = ClientOptions(api_endpoint=service.url)
    return google_tpu.TpuClient(transport="rest", client_options=options, credentials=_anonymous())


def test_cloud_tpu_library_updates_stops_and_starts_a_node(service: Service, library: Any) -> None:
    """The library sends enums as integers, and masks in camelCase."""
    from google.cloud import tpu_v2  # noqa: PLC0415  # the fixture skips the test without it

    parent = f"projects/library/locations/{ZONE}"
    disk = f"projects/library/zones/{ZONE}/disks/data"
    administration.add_disk(service.state, "data", zone=ZONE, project="library")
    config = tpu_v2.AcceleratorConfig(type_=tpu_v2.AcceleratorConfig.Type.V4, topology="2x2x1")
    requested = tpu_v2.Node(accelerator_config=config, runtime_version="tpu-ubuntu2204-base")
    change = tpu_v2.Node(
        name=f"{parent}/nodes/node",
        data_disks=[tpu_v2.AttachedDisk(source_disk=disk, mode=tpu_v2.AttachedDisk.DiskMode.READ_ONLY)],
        labels={"run": "7"},
    )

    created = library.create_node(parent=parent, node_id="node", node=requested).result(timeout=30)
    changed = library.update_node(node=change, update_mask={"paths": ["data_disks", "labels"]}).result(timeout=30)
    stopped = library.stop_node({"name": change.name}).result(timeout=30)
    started = library.start_node({"name": change.name}).result(timeout=30)
    attributes = library.get_guest_attributes({"name": change.name}).guest_attributes

    assert (created.accelerator_type, created.accelerator_config, created.state.name) == ("v4-8", config, "READY")
    assert (changed.data_disks, dict(changed.labels)) == (change.data_disks, {"run": "7"})
    assert (stopped.id, stopped.state.name, started.state.name) == (created.id, "STOPPED", "READY")
    assert [item.key for item in attributes[0].query_value.items if item.namespace == "hostkeys"] == ["ssh-ed25519"]
    assert [node.name for node in library.list_nodes(parent=parent)] == [change.name]


def test_cloud_tpu_library_creates_a_queued_resource(service: Service, library: Any) -> None:
    from google.api_core.exceptions import BadRequest, NotFound  # noqa: PLC0415  # as above
    from google.cloud import tpu_v2  # noqa: PLC0415  # as above

    parent = f"projects/queue/locations/{ZONE}"
    node = tpu_v2.Node(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base")
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node_id="queued", node=node)
    request = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))

    accepted = library.create_queued_resource(
        parent=parent, queued_resource_id="request", queued_resource=request
    ).result(timeout=30)
    service.settle()
    request = library.get_queued_resource(name=accepted.name)
    listed = list(library.list_queued_resources(parent="projects/queue/locations/-"))
    owned = library.get_node(name=f"{parent}/nodes/queued")
    with pytest.raises(BadRequest, match="ACTIVE"):
        library.delete_queued_resource({"name": request.name})
    reset = library.reset_queued_resource({"name": request.name}).result(timeout=30)
    service.settle()
    library.delete_queued_resource({"name": request.name, "force": True}).result(timeout=30)
    service.settle()

    assert accepted.name == request.name == f"{parent}/queuedResources/request"
    assert (request.state.state.name, listed) == ("ACTIVE", [request])
    assert (owned.state.name, owned.queued_resource) == ("READY", request.name)
    assert reset.name == request.name
    for get, name in ((library.get_queued_resource, request.name), (library.get_node, owned.name)):
        with pytest.raises(NotFound, match="was not found"):
            get(name=name)
