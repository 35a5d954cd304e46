"""The identity of a worker: its metadata, environment and device files. Pure.

There is no metadata server on a sandbox worker: `metadata.google.internal` belongs to the machine on which it runs.
The values of a TPU VM are files instead, under the folder of TPUCTL_METADATA_ROOT, with the
server's own paths. The names of the attributes and the form of their values: observed (marin's published log of a
v5p-8, JAX's and torch_xla's source).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl import accelerators

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.nodes.workers import Worker

# The topology of a worker's chips; the first and third observed, the second in test data of JAX users.
_SHAPES = {4: (2, 2, 1), 8: (2, 4, 1), 1: (1, 1, 1)}


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a worker.

    `environment` are variables of a session. `metadata` are files by their path at the metadata server, below
    `computeMetadata/v1`. `devices` are paths of device files without the leading slash.
    """

    environment: Mapping[str, str]
    metadata: Mapping[str, str]
    devices: tuple[str, ...]


def identify(worker: Worker, host_name: str) -> Identity:
    """Return the identity of a worker."""
    accelerator = accelerators.parse(worker.accelerator_type)
    chips = accelerator.chips_per_worker
    bounds = _SHAPES.get(chips, (chips, 1, 1))
    # The topology of the workers; a row if the slice's topology is not a multiple of the worker's.
    sides = [int(side) for side in (worker.topology or accelerator.topology or "").split("x") if side.isdecimal()]
    sides += [1] * (3 - len(sides))
    hosts = tuple(max(side // bound, 1) for side, bound in zip(sides, bounds, strict=False))
    if hosts[0] * hosts[1] * hosts[2] != accelerator.workers:
        hosts = (1, 1, accelerator.workers)
    zone = f"projects/{worker.project_number}/zones/{worker.zone}"
    # Up to v4 `/dev/accel0` on, from v5e `/dev/vfio/0` on and `/dev/vfio/vfio` (observed).
    pattern = accelerator.generation.devices.lstrip("/")
    devices = tuple(pattern.replace("*", str(chip)) for chip in range(chips - worker.lacks_chip))
    if "vfio" in pattern:
        devices = (*devices, pattern.replace("*", "vfio"))
    tpu_env = {
        "ACCELERATOR_TYPE": worker.accelerator_type,
        "CHIPS_PER_HOST_BOUNDS": _joined(bounds),
        "HOST_BOUNDS": _joined(hosts),
        "NODE_ID": worker.node_id,
        "TOPOLOGY": worker.topology,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _joined(bounds),
        "TPU_PROCESS_BOUNDS": _joined(hosts),
        "WORKER_ID": str(worker.index),
        "ZONE": worker.zone,
    }
    return Identity(
        _environment(worker, bounds=_joined(bounds), hosts=_joined(hosts)),
        {
            "instance/attributes/accelerator-type": worker.accelerator_type,
            "instance/attributes/agent-worker-number": str(worker.index),
            "instance/attributes/worker-network-endpoints": ",".join(
                f"unknown:unknown:{ip}" for ip in worker.addresses
            ),
            "instance/attributes/tpu-env": "".join(f"{key}: '{value}'\n" for key, value in tpu_env.items() if value),
            "instance/description": worker.node_id,
            "instance/hostname": f"{host_name}.{worker.zone}.c.{worker.project}.internal",
            "instance/name": host_name,
            "instance/zone": zone,
            "project/project-id": worker.project,
            "project/numeric-project-id": str(worker.project_number),
        },
        devices,
    )


def _environment(worker: Worker, *, bounds: str, hosts: str) -> dict[str, str]:
    """Return the variables that libtpu uses in place of the metadata server [JAX source; observed: marin].

    A real TPU VM does not set these for a session (observed: marin); here a program has no other source.
    """
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_ID": str(worker.index),
        "TPU_WORKER_HOSTNAMES": ",".join(worker.addresses),
        "TPU_ACCELERATOR_TYPE": worker.accelerator_type,
        "TPU_CHIPS_PER_HOST_BOUNDS": bounds,
        "TPU_HOST_BOUNDS": hosts,
    }


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
