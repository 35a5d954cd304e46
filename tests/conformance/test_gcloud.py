"""gcloud against the sandbox: its commands work, and it shows the same nodes as tpuctl."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.conformance.conftest import ZONE, Service
from tpuctl.sandbox import administration

pytestmark = pytest.mark.gcloud

CREATE = ("--accelerator-type", "v4-8", "--version", "tpu-ubuntu2204-base")
JSON = ("--format", "json")
_OPERATION = f"Waiting for operation [projects/sandbox/locations/{ZONE}/operations/…] to complete..."


def test_created_node_is_the_same_in_gcloud_and_tpuctl(service: Service) -> None:
    assert service.tpuctl("create", "ours", "--type", "v4-8", "--zone", ZONE, "--no-wait").code == 0

    created = service.gcloud("create", "theirs", *CREATE, "--labels", "team=vision", "--tags", "a,b", "--spot")
    service.settle()
    listed = service.gcloud("list", *JSON)

    assert (created.out, created.code) == ("", 0)
    assert created.messages == ["Create request issued for: [theirs]", _OPERATION, "done.", "Created tpu [theirs]."]
    assert listed.nodes == service.tpuctl("list", "-o", "json").nodes
    assert [(node["name"].rpartition("/")[2], node["state"], node["health"]) for node in listed.nodes] == [
        ("ours", "READY", "HEALTHY"),
        ("theirs", "READY", "HEALTHY"),
    ]
    for name in ("ours", "theirs"):
        described = service.gcloud("describe", name, *JSON)
        assert (described.err, described.code) == ("", 0)
        assert described.node == service.tpuctl("status", name, "-o", "json").node


def test_node_changed_by_gcloud_is_shown_by_tpuctl(service: Service) -> None:
    administration.add_node(service.state, "worker", zone=ZONE, age=timedelta(hours=2))

    stopped = service.gcloud("stop", "worker", *JSON)
    assert (stopped.node["state"], stopped.code) == ("STOPPED", 0)
    assert stopped.messages == ["Request issued for: [worker]", _OPERATION, "done."]
    assert service.tpuctl("status", "worker", "-o", "json").node == stopped.node

    started = service.gcloud("start", "worker", *JSON)
    service.settle()
    assert (started.node["state"], started.code) == ("READY", 0)
    assert service.tpuctl("status", "worker", "-o", "json").node == {**started.node, "health": "HEALTHY"}

    deleted = service.gcloud("delete", "worker")
    assert (deleted.out, deleted.code) == ("", 0)
    assert deleted.messages == ["Delete request issued for: [worker]", _OPERATION, "done.", "Deleted tpu [worker]."]
    assert service.tpuctl("status", f"{ZONE}/worker").code == 3


NAME = f"projects/refused/locations/{ZONE}/nodes"
BAD_REQUEST = "INVALID_ARGUMENT: Cloud TPU received a bad request."
NOT_OFFERED = (
    f'"v4-7", could not be found in the zonal accelerator configurations for "{ZONE}".; '
    f"the accelerator v4-7 was not found in zone {ZONE} [EID: …]"
)
UNAUTHENTICATED = " This command is unauthenticated because the [auth/disable_credentials] property is True"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("describe", "absent"), f"NOT_FOUND: Resource '{NAME}/absent' was not found.{UNAUTHENTICATED}"),
        (("create", "node", *CREATE), f"ALREADY_EXISTS: Resource '{NAME}/node' already exists"),
        (
            ("create", "odd", "--accelerator-type", "v4-7", "--version", "tpu-ubuntu2204-base"),
            f"{BAD_REQUEST} The requested accelerator configuration for accelerator type, {NOT_OFFERED}",
        ),
        (("stop", "slice"), f"{BAD_REQUEST} This operation is only available with single TPU nodes. [EID: …]"),
    ],
    ids=["absent node", "name in use", "unknown type", "slice"],
)
def test_rejected_gcloud_command_prints_the_error_of_the_api(
    service: Service, words: tuple[str, ...], error: str
) -> None:
    administration.add_node(service.state, "node", project="refused", zone=ZONE)
    administration.add_node(service.state, "slice", project="refused", zone=ZONE, acceleratorType="v4-16")

    answer = service.gcloud(*words, project="refused")

    assert (answer.out, answer.code) == ("", 1)
    assert answer.messages[0] == f"ERROR: (gcloud.compute.tpus.tpu-vm.{words[0]}) {error}"
