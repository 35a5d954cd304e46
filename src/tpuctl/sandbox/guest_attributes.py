"""The guest attributes of workers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tpuctl.sandbox.api_calls import answers, invalid
from tpuctl.sandbox.sshd.daemon import host_key
from tpuctl.sandbox.tpu_nodes import find_node
from tpuctl.sandbox.worker_lookup import find_worker, worker_directory, worker_host_name

if TYPE_CHECKING:
    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

_STATES_BOOTED = frozenset({"READY", "REPAIRING"})  # states in which the guest agent answers; unverified
_HOST_KEY_NAMESPACE = "hostkeys"


@answers("tpu.projects.locations.nodes.getGuestAttributes")
def _get_guest_attributes(session: StateSession, call: Call) -> Json:
    """Return the host key (one per node) and host name of each worker.

    Before the guest has started there are none: 400 (observed). An empty worker id means all (observed in gcloud's requests).
    """
    node = find_node(session, call["name"])
    if node.state(session.now) not in _STATES_BOOTED:
        raise invalid('Cloud TPU received an invalid argument. The "GuestAttributes" value "" was not found.')
    worker_ids = [str(index) for index in call.body.get("workerIds") or () if str(index)]
    known = [str(index) for index in range(node.workers)]
    if unknown := [index for index in worker_ids if index not in known]:
        raise invalid(f'Cloud TPU received an invalid argument. The "WorkerId" value "{unknown[0]}" was not found.')
    worker = find_worker(session, f"{node.project}/{node.zone}/{node.node_id}/0")
    host_keys = []
    if worker and shutil.which("ssh-keygen"):
        key = host_key(worker_directory(session.path, worker))
        host_keys = [{"namespace": _HOST_KEY_NAMESPACE, "key": "ssh-ed25519", "value": key}]
    query = str(call.body.get("queryPath") or "").strip("/")
    attributes = []
    for index in worker_ids or known:
        items = [
            *host_keys,
            # The key is gcloud's (528 source); that it is in the namespace of the OS inventory is unverified.
            {"namespace": "guestInventory", "key": "hostname", "value": worker_host_name(node.number, int(index))},
            # As attributes of the instance these are observed (marin's log, JAX source); as guest attributes unverified.
            {"namespace": "tpu", "key": "agent-worker-number", "value": str(int(index))},
            {"namespace": "tpu", "key": "accelerator-type", "value": str(node.document["acceleratorType"])},
        ]
        matching = [item for item in items if f"{item['namespace']}/{item['key']}".startswith(query)]
        attributes.append({"queryPath": query, "queryValue": {"items": matching}})
    return {"guestAttributes": attributes}
