"""The workers of nodes: the owner of an address, the guest attributes, and OS Login."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.sandbox import faults, representation
from tpuctl.sandbox.api_calls import ApiError, answers, invalid
from tpuctl.sandbox.catalog import number_of_project
from tpuctl.sandbox.lifecycle import state_since
from tpuctl.sandbox.sshd.daemon import host_key
from tpuctl.sandbox.tpu_nodes import find_node

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import NodeRecord, StateSession

_STATES_BOOTED = frozenset({"READY", "REPAIRING"})  # states in which the guest agent answers; unverified
_HOST_KEY_NAMESPACE = "hostkeys"


@dataclass(frozen=True, slots=True)
class GuestWorker:
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


def find_worker(session: StateSession, address: str) -> GuestWorker | None:
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
    if session.now < (node.keys_changed or node.timeline[0].at) + faults.ssh_key_delay(session, node):
        metadata["ssh-keys"] = node.keys_before
    items = session.project(node.project).get("items", [])
    return GuestWorker(
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
            representation.internal_address(number)
            for number in range(node.first_address, node.first_address + node.workers)
        ),
        project_number=number_of_project(node.project),
        lacks_chip=phase.lacks_chip == index,
        up_since=state_since(node.timeline, session.now),
        startup_delay=timedelta(seconds=phase.startup_delay) if phase.startup_delay >= 0 else None,
        startup_fails=phase.startup_fails,
    )


def worker_directory(state_path: Path, worker: GuestWorker) -> Path:
    """Return the folder of one incarnation of a node: its host key and the home folders of its workers."""
    return state_path.parent / "workers" / worker.project / worker.zone / f"{worker.node_id}-{worker.id}"


@answers("tpu.projects.locations.nodes.getGuestAttributes")
def _get_guest_attributes(session: StateSession, call: Call) -> Json:
    """Return the host key (one per node) and host name of each worker.

    Before the guest has started there are none: 400 (observed). An empty worker id means all (observed in gcloud's requests).
    """
    node = find_node(session, str(call.params["name"]))
    phase = node.phase(session.now)
    if phase is None or phase.state not in _STATES_BOOTED:
        raise invalid('Cloud TPU received an invalid argument. The "GuestAttributes" value "" was not found.')
    wanted = [str(index) for index in call.body.get("workerIds") or () if str(index)]
    known = [str(index) for index in range(node.workers)]
    if unknown := [index for index in wanted if index not in known]:
        raise invalid(f'Cloud TPU received an invalid argument. The "WorkerId" value "{unknown[0]}" was not found.')
    worker = find_worker(session, f"{node.project}/{node.zone}/{node.node_id}/0")
    host_keys = []
    if worker and shutil.which("ssh-keygen"):
        key = host_key(worker_directory(session.path, worker))
        host_keys = [{"namespace": _HOST_KEY_NAMESPACE, "key": "ssh-ed25519", "value": key}]
    query = str(call.body.get("queryPath") or "").strip("/")
    attributes = []
    for index in wanted or known:
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


def worker_host_name(number: str, index: int) -> str:
    """Return a worker's host name, in the form of TPU VMs."""
    return f"t1v-n-{int(number) % 0xFFFFFFFF:08x}-w-{index}"


OS_LOGIN_KIND = "oslogin.sshPublicKey"
# The sandbox's sshd can only log in the user who runs it. This account stands for that user and has their local login name;
# the login names of other accounts are derived from their addresses, as the service does, and give no access.
OS_LOGIN_ACCOUNT = "you@example.com"


@answers("oslogin.users.getLoginProfile")
def _get_login_profile(session: StateSession, call: Call) -> Json:
    return _login_profile(session, str(call.params["name"]).removeprefix("users/"))


@answers("oslogin.users.importSshPublicKey")
def _import_ssh_public_key(session: StateSession, call: Call) -> Json:
    """Add a key; an existing one is replaced, with its new expiry."""
    user = str(call.params["parent"]).removeprefix("users/")
    session.log_request(call.method, f"users/{user}")
    key = str(call.body.get("key") or "")
    if not re.match(r"(ssh-|ecdsa-|sk-)\S+ \S+", key):
        raise invalid("The SSH public key is not valid.")  # unverified words
    fingerprint = hashlib.sha256(key.encode()).hexdigest()
    document = {"key": key, "fingerprint": fingerprint, "name": f"users/{user}/sshPublicKeys/{fingerprint}"}
    if expires := call.body.get("expirationTimeUsec"):
        document["expirationTimeUsec"] = str(expires)
    session.resources.put(OS_LOGIN_KIND, user, fingerprint, document)
    return {"loginProfile": _login_profile(session, user)}


@answers("oslogin.users.sshPublicKeys.patch")
def _patch_ssh_public_key(session: StateSession, call: Call) -> Json:
    """Change the fields of the mask, by default all given fields; a key has two."""
    user, _, fingerprint = str(call.params["name"]).removeprefix("users/").partition("/sshPublicKeys/")
    session.log_request(call.method, f"users/{user}")
    found = session.resources.get(OS_LOGIN_KIND, user, fingerprint)
    if found is None:
        raise ApiError(404, "NOT_FOUND", "Requested entity was not found.")  # unverified words
    mask = str(call.params.get("updateMask") or ",".join(call.body)).split(",")
    changed = {
        name: value for name, value in call.body.items() if name in mask and name in {"key", "expirationTimeUsec"}
    }
    document = {**found, **changed}
    session.resources.put(OS_LOGIN_KIND, user, fingerprint, document)
    return document


def os_login_keys(session: StateSession, now: datetime) -> list[str]:
    """Return the keys, `TYPE BASE64`, with which OS Login accepts the user who runs the sandbox now."""
    micros = int(now.timestamp() * 1e6)
    found = (one.document for one in session.resources.list_records(OS_LOGIN_KIND, OS_LOGIN_ACCOUNT))
    lasting = (one for one in found if int(one.get("expirationTimeUsec") or micros + 1) > micros)
    return [" ".join(str(one["key"]).split()[:2]) for one in lasting]


def is_os_login_enforced(
    metadata: Mapping[str, str], project_metadata: Mapping[str, str], key: str = "enable-oslogin"
) -> bool:
    """Return whether a metadata switch of OS Login is on: the machine's value, FALSE too, overrides the project's.

    Source: gcloud 528, and the guest agent's tests (case-insensitive).
    """
    return metadata.get(key, project_metadata.get(key, "")).lower() == "true"


def _login_profile(session: StateSession, user: str) -> Json:
    if user in {"", "None"}:
        # gcloud asks for this user when it has no credentials; the answer is unverified.
        raise ApiError(403, "PERMISSION_DENIED", "The caller does not have permission")
    keys = {found.name: found.document for found in session.resources.list_records(OS_LOGIN_KIND, user)}
    login = re.sub(r"[^a-z0-9_]", "_", user.lower())[:32]
    if user == OS_LOGIN_ACCOUNT:
        try:
            login = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:  # without an account sshd cannot log in the user either
            login = "you"
    account: Json = {
        "accountId": "sandbox",
        "name": f"users/{user}/projects/sandbox",
        "username": login,
        "uid": str(10**9 + int.from_bytes(hashlib.blake2b(user.encode(), digest_size=3).digest())),
        "homeDirectory": f"/home/{login}",
        "shell": "/bin/bash",
        "operatingSystemType": "LINUX",
        "primary": True,
    }
    account["gid"] = account["uid"]
    profile: Json = {"name": user, "posixAccounts": [account]}
    return {**profile, "sshPublicKeys": keys} if keys else profile
