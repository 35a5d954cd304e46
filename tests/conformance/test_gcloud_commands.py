"""The commands of gcloud for TPUs, by group: output and exit code. Errors are at the end."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest

from tests.conformance.conftest import ZONE, Answer, Service
from tpuctl.sandbox import administration, catalog
from tpuctl.sandbox.administration import set_tpu_quota
from tpuctl.sandbox.catalog import number_of_project, zone_names
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault

pytestmark = pytest.mark.gcloud

SPEC = "--accelerator-type=v4-8 --version=tpu-ubuntu2204-base"
QUEUED_SPEC = "--accelerator-type=v4-8 --runtime-version=tpu-ubuntu2204-base"
JSON = "--format=json"
OLD_ZONE = "us-central1-b"  # has the v2 of TPU Nodes


class Gcloud:
    """gcloud, in a project of its own for each test."""

    def __init__(self, service: Service, project: str) -> None:
        self._service, self._project = service, project

    def __call__(self, line: str) -> Answer:
        """Run a command line; `tpus` stands for `compute tpus`."""
        track, found, rest = line.partition("tpus ")
        words = f"{track}compute {found}{rest}" if found else line
        return self._service.any_gcloud(*words.split(" "), project=self._project)

    def read(self, line: str) -> Any:
        """Return the JSON output of a command."""
        answer = self(f"{line} {JSON}")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    def get(self, path: str) -> Any:
        """Return the response of the API to a GET."""
        with urlopen(f"{self._service.url}/{path}") as answer:  # noqa: S310  # the sandbox
            return json.load(answer)

    def run_all(self, *lines: str) -> list[Answer]:
        """Return the results of independent commands. Two run at a time."""
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(self, lines))

    def outputs(self, *lines: str) -> list[tuple[str, int]]:
        """Return stdout and exit code of independent commands."""
        return [(answer.out, answer.code) for answer in self.run_all(*lines)]


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def test_gcloud_update_changes_labels_description_and_disks(service: Service) -> None:
    gcloud = Gcloud(service, "changed")
    node = administration.add_node(
        service.state, "node", project="changed", zone=ZONE, labels={"team": "vision", "old": "x"}
    )
    disk = f"projects/changed/zones/{ZONE}/disks/data"
    administration.add_disk(service.state, "data", zone=ZONE, project="changed")

    words = gcloud("tpus tpu-vm update node --update-labels=run=7 --remove-labels=old --description=hers")
    attached = gcloud(f"tpus tpu-vm update node --attach-disk=source={disk},mode=read-only")

    closed = gcloud("tpus tpu-vm update node --internal-ips")
    has_addresses = gcloud.get(f"v2/{node['name']}")["networkConfig"]["enableExternalIps"]
    opened = gcloud("tpus tpu-vm update node --no-internal-ips")

    assert (closed.code, has_addresses, opened.code) == (0, False, 0)
    assert (words.out, words.messages, words.code) == ("", ["Request issued for: [node]", "Updated tpu [node]."], 0)
    assert (attached.out, attached.messages, attached.code) == (words.out, words.messages, 0)
    assert gcloud.get(f"v2/{node['name']}") == {
        **node,
        "labels": {"team": "vision", "run": "7"},
        "description": "hers",
        "dataDisks": [{"sourceDisk": disk, "mode": "READ_ONLY"}],
    }


def test_gcloud_lists_nodes_versions_types_and_locations(service: Service) -> None:
    gcloud = Gcloud(service, "listed")
    nodes = [
        administration.add_node(service.state, "a", project="listed", zone=ZONE),
        administration.add_node(service.state, "b", project="listed", zone="us-east5-a", acceleratorType="v5p-8"),
        administration.add_node(service.state, "c", project="listed", zone=ZONE),
    ]
    names = sorted(node["name"] for node in nodes)
    parent = f"projects/listed/locations/{ZONE}"

    assert gcloud.outputs(
        "tpus tpu-vm list --zone=- --page-size=1 --uri",
        "tpus tpu-vm versions describe tpu-ubuntu2204-base",
        "tpus tpu-vm accelerator-types describe v4-16",
        "tpus tpu-vm accelerator-types list --limit=3",
        f"tpus locations describe {ZONE}",
        "tpus tpu-vm service-identity create",
        "tpus tpu-vm get-guest-attributes a --format=value(key,value) --filter=namespace:tpu --sort-by=key",
    ) == [
        ("".join(f"{service.url}/v2/{name}\n" for name in names), 0),
        (f"name: {parent}/runtimeVersions/tpu-ubuntu2204-base\nversion: tpu-ubuntu2204-base\n", 0),
        (
            f"acceleratorConfigs:\n- topology: 2x2x2\n  type: V4\nname: {parent}/acceleratorTypes/v4-16\ntype: v4-16\n",
            0,
        ),
        ("ACCELERATOR_TYPE\nv4-16\nv4-32\nv4-8\n", 0),
        (
            f"labels:\n  cloud.googleapis.com/region: us-central2\nlocationId: {ZONE}\nname: {parent}\n",
            0,
        ),
        (f"identity:\n  email: service-{number_of_project('listed')}@cloud-tpu.iam.gserviceaccount.com\n", 0),
        ("accelerator-type\tv4-8\nagent-worker-number\t0\n", 0),
    ]


def test_gcloud_catalogue_lists_are_complete(service: Service) -> None:
    versions, topologies, locations, none = Gcloud(service, "catalogues").outputs(
        "tpus tpu-vm versions list", "tpus topologies list", "tpus locations list", "tpus execution-groups list"
    )

    assert versions == ("\n".join(["RUNTIME_VERSION", *catalog.RUNTIME_VERSIONS, ""]), 0)
    assert topologies[0].splitlines()[:3] == [
        "TOPOLOGY  TYPE  ACCELERATOR_TYPE",
        "2x2x1     V4    v4-8",
        "2x2x2     V4    v4-16",
    ]
    assert [line.split()[0] for line in locations[0].splitlines()] == ["LOCATION", *sorted(zone_names())]
    assert none == ("", 0)


def test_gcloud_alpha_commands_work(service: Service) -> None:
    gcloud = Gcloud(service, "alpha")
    node = administration.add_node(service.state, "node", project="alpha", zone=ZONE)
    due = {"maintenanceStatus": "PENDING", "canReschedule": True, "type": "SCHEDULED"}
    administration.add_node(service.state, "due", project="alpha", zone=ZONE, upcomingMaintenance=due)
    disk = f"projects/alpha/zones/{ZONE}/disks/data"
    administration.add_disk(service.state, "data", zone=ZONE, project="alpha")
    administration.set_setting(
        service.state, "reservations", [{"name": f"projects/alpha/locations/{ZONE}/reservations/ours"}]
    )

    with ThreadPoolExecutor(2) as pool:
        others = pool.map(
            gcloud,
            (
                f"alpha tpus tpu-vm create new {SPEC}",
                f"alpha tpus tpu-vm perform-maintenance due {JSON}",
                "alpha tpus reservations list --format=value(name.basename())",
            ),
        )
        attached = gcloud.read(f"alpha tpus tpu-vm attach-disk node --disk={disk} --mode=read-only")
        detached = gcloud.read(f"alpha tpus tpu-vm detach-disk node --disk={disk}")
        simulated = gcloud.read("alpha tpus tpu-vm simulate-maintenance-event node --workers=0")
        created, performed, reservations = others
    described = gcloud.get(f"v2alpha1/projects/alpha/locations/{ZONE}/nodes/new")

    assert (created.out, created.messages[-1], created.code) == ("", "Created tpu [new].", 0)
    assert (described["apiVersion"], described["state"]) == ("V2_ALPHA1", "READY")
    assert described["schedulingConfig"]["provisioningModel"] == "STANDARD"
    assert attached == {**detached, "dataDisks": [{"sourceDisk": disk, "mode": "READ_ONLY"}]}
    assert {field: detached[field] for field in ("id", "name", "state")} == {
        field: node[field] for field in ("id", "name", "state")
    }
    verbs = [operation["metadata"]["verb"] for operation in (simulated, json.loads(performed.out))]
    assert verbs == ["simulateMaintenanceEvent", "performMaintenance"]
    assert (reservations.out, reservations.code) == ("ours\n", 0)


def test_gcloud_manages_tpu_nodes_of_v1(service: Service) -> None:
    administration.set_setting(service.state, "legacy_nodes", True)
    gcloud = Gcloud(service, "legacy")
    at = f"--zone={OLD_ZONE}"
    spec = f"--accelerator-type=v2-8 --version=2.12.0 {at}"

    ga, alpha, versions, kinds = gcloud.run_all(
        f"tpus create ga {spec}",
        f"alpha tpus create alpha {spec}",
        f"tpus versions list {at} --limit=2",
        f"tpus accelerator-types list {at} --limit=2",
    )
    assert [(answer.out, answer.messages[-1], answer.code) for answer in (ga, alpha)] == [
        ("", "Created tpu [ga].", 0),
        ("", "Created tpu [alpha].", 0),
    ]
    service.settle()
    listed = gcloud(f"alpha tpus list {at}")
    assert [line.split() for line in listed.out.splitlines()] == [
        ["NAME", "ZONE", "ACCELERATOR_TYPE", "NETWORK", "RANGE", "STATUS", "API_VERSION"],
        ["alpha", OLD_ZONE, "v2-8", "default", "10.128.0.0/20", "READY", "V1_ALPHA1"],
        ["ga", OLD_ZONE, "v2-8", "default", "10.128.0.0/20", "READY", "V1"],
    ]
    assert (versions.out, versions.code) == ("TENSORFLOW_VERSION\n2.12.0\n2.13.0\n", 0)
    assert (kinds.out, kinds.code) == ("ACCELERATOR_TYPE\nv2-8\nv3-8\n", 0)

    reimaged_at = gcloud.get(f"v1/projects/legacy/locations/{OLD_ZONE}/nodes/alpha")["ipAddress"]
    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(gcloud, f"tpus reimage alpha --version=2.13.0 {at}")
        stopped = gcloud.read(f"tpus stop ga {at}")["response"]
        started = gcloud.read(f"tpus start ga {at}")["response"]
        reimaged = changed.result()
    described, deleted = gcloud.run_all(f"tpus describe alpha {at} {JSON}", f"tpus delete ga {at}")
    node = json.loads(described.out)
    assert (stopped["state"], started["state"], reimaged.code) == ("STOPPED", "READY", 0)
    assert (node["tensorflowVersion"], node["port"], node["ipAddress"]) == ("2.13.0", "8470", reimaged_at)
    assert (deleted.out, deleted.messages[-1], deleted.code) == ("", "Deleted tpu [ga].", 0)


def test_gcloud_manages_queued_resources(service: Service) -> None:
    gcloud = Gcloud(service, "queued")
    group = "tpus queued-resources"
    one, two = gcloud.run_all(
        f"{group} create one --node-id=alone {QUEUED_SPEC}",
        f"{group} create two --node-count=2 --node-prefix=slice {QUEUED_SPEC}",
    )
    service.settle()
    nodes = gcloud.get(f"v2/projects/queued/locations/{ZONE}/nodes")["nodes"]
    listed, described, refused = gcloud.run_all(
        f"{group} list --zone=-", f"{group} describe two {JSON}", f"{group} delete two"
    )
    deleted, reset = gcloud.run_all(f"{group} delete two --force", f"{group} reset one {JSON}")
    reset_metadata = json.loads(reset.out)["metadata"]
    left = gcloud.get(f"v2/projects/queued/locations/{ZONE}/queuedResources")["queuedResources"]

    assert (one.out, one.messages[-1], one.code) == ("", "Created queued_resource [one].", 0)
    assert (two.out, two.messages[-1], two.code) == ("", "Created queued_resource [two].", 0)
    assert [line.split() for line in listed.out.splitlines()] == [
        ["NAME", "ZONE", "NODE_COUNT", "ACCELERATOR_TYPE", "TYPE", "TOPOLOGY", "STATE"],
        ["one", ZONE, "1", "v4-8", "ACTIVE"],
        ["two", ZONE, "1", "v4-8", "ACTIVE"],  # gcloud counts specs, not nodes
    ]
    assert sorted(_last(node["name"]) for node in nodes) == ["alone", "slice-0", "slice-1"]
    assert json.loads(described.out)["tpu"]["nodeSpec"][0]["multisliceParams"] == {
        "nodeCount": 2,
        "nodeIdPrefix": "slice",
    }
    assert (refused.out, refused.code) == ("", 1)
    assert refused.messages[0].startswith(
        f"ERROR: (gcloud.compute.{group.replace(' ', '.')}.delete) FAILED_PRECONDITION: "
    )
    assert (deleted.out, deleted.messages[-1], deleted.code) == ("", "Deleted queued_resource [two].", 0)
    assert (reset_metadata["verb"], _last(reset_metadata["target"])) == ("reset", "one")
    assert [_last(request["name"]) for request in left] == ["one"]


def test_gcloud_create_without_quota_permission_or_capacity_prints_the_error(service: Service) -> None:
    administration.set_services(service.state, {"tpu.googleapis.com": "DISABLED"}, project="unprepared")
    with service.state.write() as session:
        set_tpu_quota(session, generation="v4", tier="on-demand", limit=4, project="poor")
        add_fault(session, Fault(FaultKind.OPERATION_ERROR, project="crowded", code=8))
    number = number_of_project("unprepared")

    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(
            lambda project: Gcloud(service, project)(f"tpus tpu-vm create node {SPEC}"),
            ("poor", "unprepared", "crowded"),
        )
        poor, unprepared, crowded = answers

    assert (poor.out, poor.code, unprepared.out, unprepared.code, crowded.out, crowded.code) == ("", 1, "", 1, "", 1)
    refusal = "ERROR: (gcloud.compute.tpus.tpu-vm.create) "
    quota = "Quota limit 'TPUV4sPodPerProjectPerRegionForTPUAPI' has been exceeded. Limit: 4 in region us-central2."
    assert poor.messages == [f"{refusal}RESOURCE_EXHAUSTED: {quota}"]
    assert unprepared.messages[0].startswith(
        f"{refusal}PERMISSION_DENIED: Cloud TPU API has not been used in project {number} "
    )
    failed = json.loads(crowded.err.partition(refusal)[2])
    assert (failed["code"], failed["message"].partition(" in the zone")[0]) == (8, "There is no more capacity")


def test_remaining_gcloud_commands_list_or_are_rejected(service: Service) -> None:
    gcloud = Gcloud(service, "rest")
    for name in ("a", "b"):
        administration.add_node(service.state, name, project="rest", zone=ZONE)
    administration.add_bucket(service.state, "rest-bucket", project="rest", location="US-CENTRAL2")

    limited, legacy, buckets, beta, attach = gcloud.run_all(
        f"tpus tpu-vm list --zone={ZONE} --limit=1 --format=value(name)",
        f"tpus list --zone={ZONE} --format=value(name)",
        "storage buckets list --format=value(name,location)",
        f"beta tpus tpu-vm list --zone={ZONE}",
        f"tpus tpu-vm attach-disk a --zone={ZONE} --disk=d",
    )

    assert [(answer.out, answer.code) for answer in (limited, legacy, buckets)] == [
        ("a\n", 0),
        ("a\nb\n", 0),
        ("rest-bucket\tUS-CENTRAL2\n", 0),
    ]
    assert (beta.code, attach.code) == (2, 2)
