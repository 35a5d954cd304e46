"""gcloud alpha and Google's Python library with queued resources of each tier, while the stock is short."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tests.conformance.conftest import Answer, Service
from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import advance_clock

PROJECT, ZONE = "tiers", "us-east5-b"
PARENT = f"projects/{PROJECT}/locations/{ZONE}"
CREATE = f"--zone={ZONE} --accelerator-type=v6e-8 --runtime-version=v2-alpha-tpuv6e"


@pytest.mark.gcloud
def test_gcloud_alpha_queues_lists_and_deletes_each_tier(service: Service) -> None:
    for tier, nodes in (("spot", 0), ("flex-start", 1)):
        administration.set_stock(service.state, zone=ZONE, tier=tier, nodes=nodes, project=PROJECT)

    def queued_resources(line: str) -> Answer:
        return service.any_gcloud(*f"alpha compute tpus queued-resources {line}".split(" "), project=PROJECT)

    with ThreadPoolExecutor(2) as pool:
        created = list(
            pool.map(
                queued_resources,
                (
                    f"create effort --node-id=effort --best-effort {CREATE} --valid-until-duration=6h",
                    f"create spot --node-id=spot --spot {CREATE} --valid-after-duration=1m --valid-until-duration=30m",
                    f"create reserved --node-id=reserved --guaranteed --reserved {CREATE}",
                    f"create flex --node-id=flex --provisioning-model=flex-start --max-run-duration=24h {CREATE}",
                ),
            )
        )
        advance_clock(service.state, timedelta(hours=1))
        listed, described = pool.map(
            queued_resources, (f"list --zone={ZONE}", f"describe flex --zone={ZONE} --format=json")
        )
        deleted = queued_resources(f"delete spot --zone={ZONE}")

    assert [(answer.out, answer.messages[-1], answer.code) for answer in created] == [
        ("", f"Created queued_resource [{name}].", 0) for name in ("effort", "spot", "reserved", "flex")
    ]
    assert [line.split() for line in listed.out.splitlines()[1:]] == [
        ["effort", ZONE, "1", "v6e-8", "ACTIVE"],
        ["flex", ZONE, "1", "v6e-8", "ACTIVE"],
        ["reserved", ZONE, "1", "v6e-8", "ACTIVE"],
        ["spot", ZONE, "1", "v6e-8", "FAILED"],
    ]
    flex = json.loads(described.out)
    assert {key: flex[key] for key in ("provisioningModel", "runDuration", "state")} == {
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": "86400s"},
        "state": {"state": "ACTIVE", "activeData": {}},
    }
    assert (deleted.out, deleted.messages[-1], deleted.code) == ("", "Deleted queued_resource [spot].", 0)


def test_library_waits_for_stock_with_a_queued_resource(service: Service) -> None:
    """By API v2: the library has no REST for v2alpha1."""
    library = pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")
    from google.api_core.client_options import ClientOptions  # noqa: PLC0415  # comes with it
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415  # as above

    parent = PARENT.replace(PROJECT, "library")
    client = library.TpuClient(
        transport="rest",
        client_options=ClientOptions(api_endpoint=service.url),
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]  # google-auth's signature has none
    )
    administration.set_stock(service.state, zone=ZONE, tier="spot", nodes=0, project="library")
    node = library.Node(accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e")
    spec = library.QueuedResource.Tpu.NodeSpec(parent=parent, node_id="waiting", node=node)
    wanted = library.QueuedResource(
        tpu=library.QueuedResource.Tpu(node_spec=[spec]), spot=library.QueuedResource.Spot()
    )

    made = client.create_queued_resource(parent=parent, queued_resource_id="waiting", queued_resource=wanted)
    accepted = made.result(timeout=30)
    states = []
    for nodes in (0, 1):
        administration.set_stock(service.state, zone=ZONE, tier="spot", nodes=nodes, project="library")
        advance_clock(service.state, timedelta(hours=1))
        (found,) = client.list_queued_resources(parent=parent)
        states.append(found.state.state.name)
    seen = client.get_node(name=f"{parent}/nodes/waiting")

    assert (accepted.name, states) == (f"{parent}/queuedResources/waiting", ["WAITING_FOR_RESOURCES", "ACTIVE"])
    assert (seen.state.name, seen.queued_resource, seen.scheduling_config.spot) == ("READY", found.name, True)


@pytest.mark.gcloud
def test_tpuctl_queue_shows_what_gcloud_shows(service: Service) -> None:
    """Also requests of other programs: SkyPilot names one `NODE-q`; one for several slices has a prefix."""
    project = "shown"
    parent = PARENT.replace(PROJECT, project)
    body = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"}
    several = {"nodeCount": 2, "nodeIdPrefix": "slice"}
    specs: dict[str, dict[str, object]] = {"train-q": {"nodeId": "train"}, "sweep": {"multisliceParams": several}}
    for name, params in specs.items():
        administration.add_queued_resource(
            service.state,
            name,
            state="WAITING_FOR_RESOURCES",
            project=project,
            zone=ZONE,
            node_ids=("train",) if name == "train-q" else ("slice-0", "slice-1"),
            tpu={"nodeSpec": [{"parent": parent, "node": body, **params}]},
            bestEffort={},
        )

    def gcloud(line: str) -> Answer:
        words = f"alpha compute tpus queued-resources {line} --zone={ZONE} --format=json"
        return service.any_gcloud(*words.split(" "), project=project)

    with ThreadPoolExecutor(2) as pool:
        listed, described = pool.map(gcloud, ("list", "describe sweep"))
    ours = json.loads(service.tpuctl("queue", "list", "--project", project, "-o", "json").out)
    details = json.loads(service.tpuctl("queue", "status", "slice-1", "--project", project, "-o", "json").out)

    theirs = sorted(json.loads(listed.out), key=lambda entry: str(entry["name"]))
    assert [{key: entry[key] for key in shown} for entry, shown in zip(ours, theirs, strict=True)] == theirs
    assert [(entry["queuedResourceId"], entry["tier"], entry["nodeIds"]) for entry in ours] == [
        ("sweep", "best-effort", ["slice-0", "slice-1"]),
        ("train-q", "best-effort", ["train"]),
    ]
    shown = json.loads(described.out)
    assert {key: details[key] for key in shown} == shown
    cancelled = service.tpuctl("queue", "cancel", "sweep", "train", "--all-nodes", "--project", project, "--no-wait")
    assert (cancelled.out, cancelled.code) == ("sweep\ntrain\n", 0)


@pytest.mark.gcloud
@pytest.mark.parametrize("tier", ["on-demand", "best-effort"])
def test_gcloud_command_of_a_dry_run_requests_the_slices_of_a_group(service: Service, tier: str) -> None:
    """Of API v2 and of v2alpha1, which have different names for the slices."""
    project = f"group-{tier}"
    up = ("up", "train", "--slices", "3", "--type", "v6e-8", "--tier", tier, "--zone", ZONE, "--queue")
    planned = json.loads(service.tpuctl(*up, "--project", project, "--dry-run", "-o", "json").out)

    words = planned[0]["gcloud"][0].split()[1:]
    asked = service.any_gcloud(*words, project=project)
    requests = json.loads(service.tpuctl("queue", "list", "--project", project, "-o", "json").out)

    assert (asked.messages[-1], asked.code) == ("Created queued_resource [train].", 0)
    assert [request["nodeIds"] for request in requests] == [["train-0", "train-1", "train-2"]]
