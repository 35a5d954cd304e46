"""The virtual machines of nodes: which one has an address, and which keys it accepts.

Every ssh connection to a sandbox worker begins with this module: it imports little.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from tpuctl.sandbox import representation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from tpuctl.sandbox.lifecycle import LifecyclePhase
    from tpuctl.sandbox.state_session import NodeRecord, StateSession

OS_LOGIN_KIND = "oslogin.sshPublicKey"
# The sandbox's sshd can only log in the user who runs it. This account stands for that user and has their local login name;
# the login names of other accounts are derived from their addresses, as the service does, and give no access.
OS_LOGIN_ACCOUNT = "you@example.com"


@dataclass(frozen=True, slots=True)
class SandboxWorker:
    """One virtual machine of a node. `metadata` are the values that its guest agent uses now."""

    node: NodeRecord
    phase: LifecyclePhase
    index: int
    metadata: Mapping[str, str]
    project_metadata: Mapping[str, str]
    # Of a node of a multislice request: what its `tpu-env` has about the slices.
    megascale: Mapping[str, str] = field(default_factory=dict)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The internal addresses of all workers of the node."""
        first = self.node.first_address
        numbers = range(first, first + self.node.workers)
        return tuple(representation.internal_address(number, self.node.document) for number in numbers)


def find_worker(session: StateSession, address: str) -> SandboxWorker | None:
    """Return the worker with an external or internal address, or with the name `PROJECT/ZONE/NODE/INDEX`. None if none has it.

    A change of the metadata's ssh keys takes effect late under the fault `ssh-key-late`.
    """
    node: NodeRecord | None
    parts = address.split("/")
    if len(parts) == 4 and parts[3].isdecimal():
        node, index = session.node(parts[0], parts[1], parts[2]), int(parts[3])
    else:
        number = representation.address_number(address)
        node = session.node_at(number) if number is not None else None
        index = number - node.first_address if node and number is not None else 0
    phase = node.phase(session.now) if node else None
    if node is None or phase is None or index >= node.workers:
        return None
    metadata = dict(node.document.get("metadata") or {})
    key_delay = timedelta()
    if session.faults():
        from tpuctl.sandbox.faults import ssh_key_delay  # noqa: PLC0415  # 8 ms for each ssh connection

        key_delay = ssh_key_delay(session, node)
    if session.now < (node.keys_changed or node.timeline[0].at) + key_delay:
        metadata["ssh-keys"] = node.keys_before
    items = session.project(node.project).get("items", [])
    project_metadata = {str(item["key"]): str(item.get("value", "")) for item in items}
    return SandboxWorker(node, phase, index, metadata, project_metadata, _slices_of(session, node))


def _slices_of(session: StateSession, node: NodeRecord) -> dict[str, str]:
    """Return the variables of a multislice: only nodes of one request have them [JAX's cloud_tpu_cluster.py].

    The coordinator is worker 0 of slice 0. That the address has a port is unverified; readers take both.
    """
    if not node.document.get("multisliceNode"):
        return {}
    owner = session.queued_resource(node.project, node.zone, node.queued_resource.rpartition("/")[2])
    first = session.node(node.project, node.zone, owner.node_ids[0]) if owner else None
    if owner is None or first is None or node.node_id not in owner.node_ids:
        return {}
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": f"{representation.internal_address(first.first_address, first.document)}:8080",
        "MEGASCALE_NUM_SLICES": str(len(owner.node_ids)),
        "MEGASCALE_SLICE_ID": str(owner.node_ids.index(node.node_id)),
    }


def worker_directory(state_path: Path, worker: SandboxWorker) -> Path:
    """Return the folder of one incarnation of a node: its host key and the home folders of its workers."""
    node = worker.node
    return incarnation_directory(state_path, node.project, node.zone, node.node_id, node.number)


def incarnation_directory(state_path: Path, project: str, zone: str, node_id: str, number: str) -> Path:
    """Return the folder of one incarnation of a node by its names and number."""
    return state_path.parent / "workers" / project / zone / f"{node_id}-{number}"


@lru_cache(maxsize=16)
def boots_folder(state_path: Path) -> Path:
    """Return the folder with a file for each worker that had a connection since it was booted."""
    return state_path.absolute().parent / "boots"


def worker_host_name(number: str, index: int) -> str:
    """Return a worker's host name, in the form of TPU VMs."""
    return f"t1v-n-{int(number) % 0xFFFFFFFF:08x}-w-{index}"


def os_login_keys(session: StateSession, now: datetime) -> list[str]:
    """Return the keys, `TYPE BASE64`, with which OS Login accepts the user who runs the sandbox now."""
    micros = int(now.timestamp() * 1e6)
    keys = (key.document for key in session.resources.list_records(OS_LOGIN_KIND, OS_LOGIN_ACCOUNT))
    lasting = (key for key in keys if int(key.get("expirationTimeUsec") or micros + 1) > micros)
    return [" ".join(str(key["key"]).split()[:2]) for key in lasting]


def is_os_login_enforced(
    metadata: Mapping[str, str], project_metadata: Mapping[str, str], key: str = "enable-oslogin"
) -> bool:
    """Return whether a metadata switch of OS Login is on: the machine's value, FALSE too, overrides the project's.

    Source: gcloud 528, and the guest agent's tests (case-insensitive).
    """
    return metadata.get(key, project_metadata.get(key, "")).lower() == "true"
