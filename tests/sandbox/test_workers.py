"""Workers: their identity, their devices, and access for an ssh that does not know the sandbox."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tpuctl.clock import ManualClock
from tpuctl.sandbox import administration
from tpuctl.sandbox.embedding import Sandbox
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.shims import gcloud_environment
from tpuctl.sandbox.sshd.worker_identity import identify_worker
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.worker_lookup import find_worker

ZONE = "projects/sandbox/locations/us-central2-b"
LAST = "sandbox/us-central2-b/node/3"


def devices(sandbox_state: SandboxState, address: str) -> tuple[str, ...]:
    with sandbox_state.read() as session:
        worker = find_worker(session, address)
    assert worker is not None
    return identify_worker(worker, "host").devices


def tpu_env(text: str) -> dict[str, str]:
    return {key: value.strip("'") for key, _, value in (line.partition(": ") for line in text.splitlines())}


@pytest.mark.parametrize(
    ("accelerator_type", "expected"),
    [
        ("v2-8", "dev/accel0 dev/accel1 dev/accel2 dev/accel3"),
        ("v4-32", "dev/accel0 dev/accel1 dev/accel2 dev/accel3"),
        ("v5litepod-1", "dev/vfio/0 dev/vfio/vfio"),
        ("v6e-8", "dev/vfio/0 dev/vfio/1 dev/vfio/2 dev/vfio/3 dev/vfio/4 dev/vfio/5 dev/vfio/6 dev/vfio/7 dev/vfio/vfio"),
    ],
)  # fmt: skip
def test_worker_has_the_devices_of_its_type(sandbox_state: SandboxState, accelerator_type: str, expected: str) -> None:
    node = administration.add_node(sandbox_state, "node", acceleratorType=accelerator_type)

    zone = node["name"].split("/")[3]
    assert " ".join(devices(sandbox_state, f"sandbox/{zone}/node/0")) == expected


def test_metadata_files_have_the_values_of_the_metadata_server(sandbox_state: SandboxState) -> None:
    administration.add_node(sandbox_state, "node", zone="us-central2-b", acceleratorType="v4-32")
    with sandbox_state.read() as session:
        worker = find_worker(session, LAST)
    assert worker is not None

    identity = identify_worker(worker, "t1v-n-1-w-3")

    attributes = {key.rpartition("/")[2]: text for key, text in identity.metadata.items() if "attributes" in key}
    environment = tpu_env(attributes.pop("tpu-env"))
    assert attributes == {
        "accelerator-type": "v4-32",
        "agent-worker-number": "3",
        "worker-network-endpoints": ",".join(f"unknown:unknown:{address}" for address in worker.addresses),
    }
    assert environment.keys() == {
        *("ACCELERATOR_TYPE", "AGENT_BOOTSTRAP_IMAGE", "ALT", "CHIPS_PER_HOST_BOUNDS", "CONSUMER_PROJECT_ID"),
        *(
            "CONSUMER_PROJECT_NUMBER",
            "ENABLE_ICI_RESILIENCY",
            "HOST_BOUNDS",
            "NODE_ID",
            "PREEMPTIBLE",
            "RUNTIME_VERSION",
        ),
        *("SOURCE", "TOPOLOGY", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS", "TPU_RUNTIME_METRICS_PORTS"),
        *("TPU_TOPOLOGY_ALT", "TPU_TOPOLOGY_WRAP", "TYPE", "UID", "WORKER_ID", "WRAP", "ZONE"),
    }
    assert (
        environment
        | {
            "ACCELERATOR_TYPE": "v4-32",
            "CHIPS_PER_HOST_BOUNDS": "2,2,1",
            "HOST_BOUNDS": "1,1,4",
            "NODE_ID": "node",
            "PREEMPTIBLE": "false",
            "TOPOLOGY": "2x2x4",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
            "TPU_PROCESS_BOUNDS": "1,1,4",
            "WORKER_ID": "3",
            "ZONE": "us-central2-b",
        }
        == environment
    )
    assert dict(identity.environment) == {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_ID": "3",
        "TPU_WORKER_HOSTNAMES": ",".join(worker.addresses),
        "TPU_ACCELERATOR_TYPE": "v4-32",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "TPU_HOST_BOUNDS": "1,1,4",
    }


def test_nodes_of_a_multislice_request_know_the_slices(
    sandbox_state: SandboxState, api: Any, clock: ManualClock
) -> None:
    """JAX's cloud_tpu_cluster.py: the service sets these for a request of several nodes only; endpoints have two forms."""
    node = {"acceleratorType": "v4-16", "runtimeVersion": "tpu-ubuntu2204-base"}
    spec = {"parent": ZONE, "node": node, "multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "part"}}
    api("queuedResources.create", {"tpu": {"nodeSpec": [spec]}}, parent=ZONE, queuedResourceId="part")
    clock.sleep(timedelta(minutes=15))

    found = []
    for index in range(2):
        with sandbox_state.read() as session:
            worker = find_worker(session, f"sandbox/us-central2-b/part-{index}/1")
        assert worker is not None
        attributes = identify_worker(worker, "host").metadata
        assert attributes["instance/attributes/worker-network-endpoints"] == ",".join(worker.addresses)
        found.append(tpu_env(attributes["instance/attributes/tpu-env"]))

    first = api("nodes.get", name=f"{ZONE}/nodes/part-0")["networkEndpoints"][0]["ipAddress"]
    assert [
        {key: value for key, value in environment.items() if key.startswith("MEGASCALE_")} for environment in found
    ] == [
        {
            "MEGASCALE_COORDINATOR_ADDRESS": f"{first}:8080",
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": str(index),
        }
        for index in range(2)
    ]


def test_guest_attributes_identify_the_worker(sandbox_state: SandboxState, api: Any) -> None:
    administration.add_node(sandbox_state, "node", zone="us-central2-b", acceleratorType="v4-32")

    answer = api("nodes.getGuestAttributes", {"workerIds": ["2"], "queryPath": "tpu/"}, name=f"{ZONE}/nodes/node")

    items = [
        {"namespace": "tpu", "key": "agent-worker-number", "value": "2"},
        {"namespace": "tpu", "key": "accelerator-type", "value": "v4-32"},
    ]
    assert answer == {"guestAttributes": [{"queryPath": "tpu", "queryValue": {"items": items}}]}


def test_missing_chip_lasts_until_a_restart(sandbox_state: SandboxState, api: Any) -> None:
    administration.add_node(sandbox_state, "node", zone="us-central2-b", acceleratorType="v4-8")
    address = "sandbox/us-central2-b/node/0"
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.MISSING_CHIP, node="node"))
    lacking = devices(sandbox_state, address)

    for verb in ("stop", "start"):
        api(f"nodes.{verb}", name=f"{ZONE}/nodes/node")
        sandbox_state.advance(timedelta(minutes=5))

    assert (lacking, devices(sandbox_state, address)) == (
        ("dev/accel0", "dev/accel1", "dev/accel2"),
        ("dev/accel0", "dev/accel1", "dev/accel2", "dev/accel3"),
    )


@pytest.mark.sshd
def test_shim_ssh_accepts_a_project_key_and_leaves_other_hosts_unchanged(
    tmp_path: Path,
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    login = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    with Sandbox(tmp_path / "a 100% sandbox", speed=1) as sandbox:
        items = [{"key": "ssh-keys", "value": f"{login}:{public}"}]
        project = {"projectId": "sandbox", "commonInstanceMetadata": {"items": items}}
        sandbox.seed({"projects": [project], "nodes": [{"name": "node", "zone": "us-central2-b"}]})
        nodes = sandbox.http().request(f"https://tpu.googleapis.com/v2/{ZONE}/nodes")[1].decode()
        address = nodes.partition('"externalIp": "')[2].partition('"')[0]
        environ = {
            **os.environ,
            **gcloud_environment(
                tmp_path / "a 100% sandbox" / "world.sqlite3", "http://x", project="p", zone="z", environ=os.environ
            ),
        }
        options = [
            "-i",
            str(key),
            "-o",
            "StrictHostKeyChecking=accept-new",
            "-o",
            f"UserKnownHostsFile={tmp_path}/hosts",
        ]

        said = subprocess.run(
            ["ssh", *options, f"{login}@{address}", "--", 'ls "$TPUCTL_DEVICE_ROOT/dev"; echo $TPU_WORKER_ID'],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        other = subprocess.run(["ssh", "-G", "example.org"], env=environ, capture_output=True, text=True, check=True)

    assert (said.stdout, said.returncode) == ("accel0\naccel1\naccel2\naccel3\n0\n", 0), said.stderr
    assert "proxycommand" not in other.stdout


def test_workers_on_the_network_loopback_have_addresses_of_this_machine(sandbox_state: SandboxState) -> None:
    """Programs of different workers reach one another there, as on a network of Google's."""
    administration.add_network(sandbox_state, "loopback")
    config = {"network": "loopback"}
    node = administration.add_node(
        sandbox_state, "node", zone="us-central2-b", acceleratorType="v4-16", networkConfig=config
    )
    addresses = [endpoint["ipAddress"] for endpoint in node["networkEndpoints"]]
    with sandbox_state.read() as session:
        worker = find_worker(session, addresses[1])

    assert worker is not None
    assert all(address.startswith("127.128.0.") for address in addresses)
    assert (worker.index, list(worker.addresses), len({*addresses})) == (1, addresses, 2)
