"""The workers of nodes: the owner of an address, and the guest attributes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, faults, lifecycle, rendering
from tpuctl.sandbox.nodes.reading import find
from tpuctl.sandbox.refusals import invalid
from tpuctl.sandbox.sshd import host_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import NodeRecord, Session

_BOOTED = frozenset({"READY", "REPAIRING"})  # states in which the guest agent answers; unverified
_NAMESPACE = "hostkeys"


@dataclass(frozen=True, slots=True)
class Worker:
    """One virtual machine of a node. `id` is the node's numeric id, `metadata` the values that its guest agent uses now.

    `health` is empty when unset. `project_metadata` is the Compute Engine metadata of the project. `addresses` are the internal
    addresses of all workers of the node. `lacks_chip`: this worker misses a chip. `up_since` is when the node came up, None for
    long ago; its startup scripts run `startup_delay` longer than usual (None: forever), or fail.
    """

    project: str
    zone: str
    node_id: str
    id: str
    index: int
    state: str
    health: str
    metadata: Mapping[str, str]
    accelerator_type: str
    project_metadata: Mapping[str, str]
    topology: str
    addresses: tuple[str, ...]
    project_number: int
    lacks_chip: bool
    up_since: datetime | None
    startup_delay: timedelta | None
    startup_fails: bool


def find_worker(session: Session, address: str) -> Worker | None:
    """Return the worker with an external or internal address, or with the name `PROJECT/ZONE/NODE/INDEX`. None if none has it.

    A change of the metadata's ssh keys takes effect late under the fault `ssh-key-late`.
    """
    node: NodeRecord | None
    parts = address.split("/")
    if len(parts) == 4 and parts[3].isdecimal():
        node, index = session.node(parts[0], parts[1], parts[2]), int(parts[3])
    else:
        number = rendering.address_number(address)
        node = session.node_at(number) if number is not None else None
        index = number - node.first_address if node and number is not None else 0
    phase = node.phase(session.now) if node else None
    if node is None or phase is None or index >= node.workers:
        return None
    metadata = dict(node.document.get("metadata") or {})
    if session.now < (node.keys_changed or node.timeline[0].at) + faults.ssh_key_delay(session, node):
        metadata["ssh-keys"] = node.keys_before
    items = session.project(node.project).get("items", [])
    return Worker(
        project=node.project,
        zone=node.zone,
        node_id=node.node_id,
        id=node.number,
        index=index,
        state=phase.state,
        health=phase.health,
        metadata=metadata,
        accelerator_type=node.document["acceleratorType"],
        project_metadata={str(item["key"]): str(item.get("value", "")) for item in items},
        topology=str(node.document.get("acceleratorConfig", {}).get("topology", "")),
        addresses=tuple(
            rendering.internal_address(number)
            for number in range(node.first_address, node.first_address + node.workers)
        ),
        project_number=catalog.project_number(node.project),
        lacks_chip=phase.lacks_chip == index,
        up_since=lifecycle.since(node.timeline, session.now),
        startup_delay=timedelta(seconds=phase.startup_delay) if phase.startup_delay >= 0 else None,
        startup_fails=phase.startup_fails,
    )


def node_directory(state_path: Path, worker: Worker) -> Path:
    """Return the folder of one incarnation of a node: its host key and the home folders of its workers."""
    return state_path.parent / "workers" / worker.project / worker.zone / f"{worker.node_id}-{worker.id}"


def get_guest_attributes(session: Session, call: Call) -> Json:
    """Answer nodes.getGuestAttributes: the host key (one per node) and host name of each worker.

    Before the guest has started there are none: 400 (observed). An empty worker id means all (observed in gcloud's requests).
    """
    node = find(session, str(call.params["name"]))
    phase = node.phase(session.now)
    if phase is None or phase.state not in _BOOTED:
        raise invalid('Cloud TPU received an invalid argument. The "GuestAttributes" value "" was not found.')
    wanted = [str(index) for index in call.body.get("workerIds") or () if str(index)]
    known = [str(index) for index in range(node.workers)]
    if unknown := [index for index in wanted if index not in known]:
        raise invalid(f'Cloud TPU received an invalid argument. The "WorkerId" value "{unknown[0]}" was not found.')
    worker = find_worker(session, f"{node.project}/{node.zone}/{node.node_id}/0")
    host_keys = []
    if worker and shutil.which("ssh-keygen"):
        key = host_key(node_directory(session.path, worker))
        host_keys = [{"namespace": _NAMESPACE, "key": "ssh-ed25519", "value": key}]
    query = str(call.body.get("queryPath") or "").strip("/")
    shown = []
    for index in wanted or known:
        items = [
            *host_keys,
            # The key is gcloud's (528 source); that it is in the namespace of the OS inventory is unverified.
            {"namespace": "guestInventory", "key": "hostname", "value": host_name(node.number, int(index))},
            # As attributes of the instance these are observed (marin's log, JAX source); as guest attributes unverified.
            {"namespace": "tpu", "key": "agent-worker-number", "value": str(int(index))},
            {"namespace": "tpu", "key": "accelerator-type", "value": str(node.document["acceleratorType"])},
        ]
        matching = [item for item in items if f"{item['namespace']}/{item['key']}".startswith(query)]
        shown.append({"queryPath": query, "queryValue": {"items": matching}})
    return {"guestAttributes": shown}


def host_name(number: str, index: int) -> str:
    """Return a worker's host name, in the form of TPU VMs."""
    return f"t1v-n-{int(number) % 0xFFFFFFFF:08x}-w-{index}"
