"""Google's own command line against the sandbox: it works, and what it says of a node is what tpuctl says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.conformance.conftest import ZONE, Service
from tpuctl.sandbox import administration

pytestmark = pytest.mark.gcloud

CREATE = ("--accelerator-type", "v4-8", "--version", "tpu-ubuntu2204-base")
JSON = ("--format", "json")
_OPERATION = f"Waiting for operation [projects/sandbox/locations/{ZONE}/operations/…] to complete..."


def test_a_node_lives_and_both_programs_say_the_same_of_it(service: Service) -> None:
    assert service.tpuctl("create", "ours", "--type", "v4-8", "--zone", ZONE, "--no-wait").code == 0

    created = service.gcloud("create", "theirs", *CREATE, "--labels", "team=vision", "--tags", "a,b", "--spot")
    service.settle()
    listed = service.gcloud("list", *JSON)

    assert (created.out, created.code) == ("", 0)
    assert created.story == ["Create request issued for: [theirs]", _OPERATION, "done.", "Created tpu [theirs]."]
    assert listed.nodes == service.tpuctl("list", "-o", "json").nodes
    assert [(node["name"].rpartition("/")[2], node["state"], node["health"]) for node in listed.nodes] == [
        ("ours", "READY", "HEALTHY"),
        ("theirs", "READY", "HEALTHY"),
    ]
    for name in ("ours", "theirs"):
        described = service.gcloud("describe", name, *JSON)
        assert (described.err, described.code) == ("", 0)
        assert described.node == service.tpuctl("status", name, "-o", "json").node


def test_what_gcloud_stops_starts_and_deletes_tpuctl_sees_so(service: Service) -> None:
    administration.add_node(service.state, "worked", zone=ZONE, age=timedelta(hours=2))

    stopped = service.gcloud("stop", "worked", *JSON)
    assert (stopped.node["state"], stopped.code) == ("STOPPED", 0)
    assert stopped.story == ["Request issued for: [worked]", _OPERATION, "done."]
    assert service.tpuctl("status", "worked", "-o", "json").node == stopped.node

    started = service.gcloud("start", "worked", *JSON)
    service.settle()
    assert (started.node["state"], started.code) == ("READY", 0)
    assert service.tpuctl("status", "worked", "-o", "json").node == {**started.node, "health": "HEALTHY"}

    deleted = service.gcloud("delete", "worked")
    assert (deleted.out, deleted.code) == ("", 0)
    assert deleted.story == ["Delete request issued for: [worked]", _OPERATION, "done.", "Deleted tpu [worked]."]
    assert service.tpuctl("status", f"{ZONE}/worked").code == 3


NAME = f"projects/refused/locations/{ZONE}/nodes"
BAD = "INVALID_ARGUMENT: Cloud TPU received a bad request."
NOT_OFFERED = (
    f'"v4-7", could not be found in the zonal accelerator configurations for "{ZONE}".; '
    f"the accelerator v4-7 was not found in zone {ZONE} [EID: …]"
)
UNAUTHENTICATED = " This command is unauthenticated because the [auth/disable_credentials] property is True"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("describe", "absent"), f"NOT_FOUND: Resource '{NAME}/absent' was not found.{UNAUTHENTICATED}"),
        (("create", "node", *CREATE), f"ALREADY_EXISTS: Resource '{NAME}/node' already exists"),
        (
            ("create", "odd", "--accelerator-type", "v4-7", "--version", "tpu-ubuntu2204-base"),
            f"{BAD} The requested accelerator configuration for accelerator type, {NOT_OFFERED}",
        ),
        (("stop", "slice"), f"{BAD} This operation is only available with single TPU nodes. [EID: …]"),
    ],
    ids=["absent", "taken", "no such type", "slice"],
)
def test_gcloud_reads_a_refusal(service: Service, words: tuple[str, ...], complaint: str) -> None:
    administration.add_node(service.state, "node", project="refused", zone=ZONE)
    administration.add_node(service.state, "slice", project="refused", zone=ZONE, acceleratorType="v4-16")

    answer = service.gcloud(*words, project="refused")

    assert (answer.out, answer.code) == ("", 1)
    assert answer.story[0] == f"ERROR: (gcloud.compute.tpus.tpu-vm.{words[0]}) {complaint}"
