"""Google's Python library over REST against the sandbox."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import ZONE, Service

google_tpu = pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.api_core.client_options import ClientOptions  # noqa: E402  # comes with it
from google.api_core.exceptions import NotFound  # noqa: E402  # as above
from google.auth.credentials import AnonymousCredentials  # noqa: E402  # as above

PARENT = f"projects/sandbox/locations/{ZONE}"


def test_cloud_tpu_library_creates_reads_and_deletes_a_node(service: Service) -> None:
    options = ClientOptions(api_endpoint=service.url)
    anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]  # google-auth's signature has none
    client = google_tpu.TpuClient(transport="rest", client_options=options, credentials=anonymous)
    node = google_tpu.Node(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base", labels={"team": "vision"})

    created = client.create_node(parent=PARENT, node_id="library", node=node).result(timeout=30)
    service.settle()
    read = client.get_node(name=f"{PARENT}/nodes/library")
    seen = service.tpuctl("status", "library", "-o", "json").node

    assert (created.name, created.state.name) == (f"{PARENT}/nodes/library", "READY")
    assert (read.state.name, read.health.name, dict(read.labels)) == ("READY", "HEALTHY", {"team": "vision"})
    assert (str(read.id), read.accelerator_type, read.accelerator_config.type_.name) == (seen["id"], "v4-8", "V4")
    assert [(end.ip_address, end.port) for end in read.network_endpoints] == [
        (end["ipAddress"], end["port"]) for end in seen["networkEndpoints"]
    ]

    client.delete_node(name=read.name).result(timeout=30)
    with pytest.raises(NotFound, match="was not found"):
        client.get_node(name=read.name)
    assert service.tpuctl("status", f"{ZONE}/library").code == 3
