"""The identity of a worker: what a TPU VM learns from its metadata server and finds in `/dev`.

There is no metadata server on a sandbox worker: `metadata.google.internal` belongs to the machine on which it runs. The
values of a TPU VM are files instead, below the folder of TPUCTL_METADATA_ROOT, with the server's own paths. The names of
the attributes and the form of their values are observed (marin's published log of a v5p-8, JAX's and torch_xla's source).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.accelerators import parse_accelerator_type
from tpuctl.sandbox.catalog import number_of_project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.worker_lookup import SandboxWorker

# The topology of a worker's chips; the first and third observed, the second in test data of JAX users.
_CHIP_BOUNDS = {4: (2, 2, 1), 8: (2, 4, 1), 1: (1, 1, 1)}


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The identity of a worker.

    `environment` are variables of a session. `metadata` are files by their path at the metadata server, below
    `computeMetadata/v1`. `devices` are paths of device files without the leading slash. `framework` is the folder
    of the stand-in that is installed.
    """

    environment: Mapping[str, str]
    metadata: Mapping[str, str]
    devices: tuple[str, ...]
    framework: str


def identify_worker(worker: SandboxWorker, host_name: str) -> WorkerIdentity:
    """Return the identity of a worker."""
    node = worker.node
    accelerator_type = str(node.document["acceleratorType"])
    topology = str(node.document.get("acceleratorConfig", {}).get("topology", ""))
    project_number = number_of_project(node.project)
    accelerator = parse_accelerator_type(accelerator_type)
    chips = accelerator.chips_per_worker
    bounds = _CHIP_BOUNDS.get(chips, (chips, 1, 1))
    # The topology of the workers; a row if the slice's topology is not a multiple of the worker's.
    sides = [int(side) for side in (topology or accelerator.topology or "").split("x") if side.isdecimal()]
    sides += [1] * (3 - len(sides))
    hosts = tuple(max(side // bound, 1) for side, bound in zip(sides, bounds, strict=False))
    if hosts[0] * hosts[1] * hosts[2] != accelerator.workers:
        hosts = (1, 1, accelerator.workers)
    zone = f"projects/{project_number}/zones/{node.zone}"
    # Up to v4 `/dev/accel0` on, from v5e `/dev/vfio/0` on and `/dev/vfio/vfio` (observed).
    pattern = accelerator.generation.devices.lstrip("/")
    devices = tuple(
        pattern.replace("*", str(chip)) for chip in range(chips - (worker.phase.lacks_chip == worker.index))
    )
    if "vfio" in pattern:
        devices = (*devices, pattern.replace("*", "vfio"))
    scheduling = node.document.get("schedulingConfig") or {}
    is_preemptible = bool(scheduling.get("preemptible") or scheduling.get("spot"))
    # The keys were seen on a v4-256 [observed: cambrian's test_tpu.py]; the values of ALT to UID here are unverified.
    tpu_env = {
        "ACCELERATOR_TYPE": accelerator_type,
        "AGENT_BOOTSTRAP_IMAGE": "gcr.io/cloud-tpu-v2-images/tpu_agents",
        "ALT": "false",
        "CHIPS_PER_HOST_BOUNDS": _comma_separated(bounds),
        "CONSUMER_PROJECT_ID": node.project,
        "CONSUMER_PROJECT_NUMBER": str(project_number),
        "ENABLE_ICI_RESILIENCY": "false",
        "HOST_BOUNDS": _comma_separated(hosts),
        "NODE_ID": node.node_id,
        "PREEMPTIBLE": str(is_preemptible).lower(),
        "RUNTIME_VERSION": str(node.document.get("runtimeVersion", "")),
        "SOURCE": "tpu",
        "TOPOLOGY": topology,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _comma_separated(bounds),
        "TPU_PROCESS_BOUNDS": _comma_separated(hosts),
        "TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434",
        "TPU_TOPOLOGY_ALT": "false",
        "TPU_TOPOLOGY_WRAP": "false,false,false",
        "TYPE": accelerator.generation.config_type,
        "UID": node.number,
        "WORKER_ID": str(worker.index),
        "WRAP": "false,false,false",
        "ZONE": node.zone,
        **worker.megascale,
    }
    # For the stand-ins of the frameworks.
    faults = {
        "TPUCTL_SANDBOX_STRAGGLER": worker.phase.straggler,
        "TPUCTL_SANDBOX_DUTY_ZERO": worker.phase.hanging_worker,
    }
    return WorkerIdentity(
        # libtpu uses these in place of the metadata server [JAX source; observed: marin]. A real TPU VM does not set them for a
        # session (observed: marin); here a program has no other source.
        {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_ID": str(worker.index),
            "TPU_WORKER_HOSTNAMES": ",".join(worker.addresses),
            "TPU_ACCELERATOR_TYPE": accelerator_type,
            "TPU_CHIPS_PER_HOST_BOUNDS": _comma_separated(bounds),
            "TPU_HOST_BOUNDS": _comma_separated(hosts),
            **{name: "1" for name, index in faults.items() if index == worker.index},
        },
        {
            "instance/attributes/accelerator-type": accelerator_type,
            "instance/attributes/agent-worker-number": str(worker.index),
            # Since 2026 there are two forms [JAX, 7a97854af3]. Which node has which is the sandbox's choice.
            "instance/attributes/worker-network-endpoints": ",".join(
                worker.addresses if worker.megascale else (f"unknown:unknown:{ip}" for ip in worker.addresses)
            ),
            "instance/attributes/tpu-env": "".join(f"{key}: '{value}'\n" for key, value in tpu_env.items() if value),
            "instance/description": node.node_id,
            "instance/hostname": f"{host_name}.{node.zone}.c.{node.project}.internal",
            "instance/name": host_name,
            # TRUE from the notice of a preemption on.
            "instance/preempted": "FALSE",
            "instance/zone": zone,
            "project/project-id": node.project,
            "project/numeric-project-id": str(project_number),
        },
        devices,
        # The images `tpu-vm-pt-*` have PyTorch/XLA [Google's documentation]; that the others have JAX is the sandbox's choice.
        "torch_xla" if str(node.document.get("runtimeVersion", "")).startswith("tpu-vm-pt") else "jax",
    )


def _comma_separated(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
