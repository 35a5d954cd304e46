"""What the API says of workers: the guest attributes, and OS Login."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
from typing import TYPE_CHECKING

from tpuctl.sandbox.api_calls import answers, error_of, invalid
from tpuctl.sandbox.guests import OS_LOGIN_ACCOUNT, OS_LOGIN_KIND, find_worker, worker_directory, worker_host_name
from tpuctl.sandbox.sshd.daemon import host_key
from tpuctl.sandbox.tpu_nodes import find_node

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


@answers("oslogin.users.getLoginProfile")
def _get_login_profile(session: StateSession, call: Call) -> Json:
    return _login_profile(session, call["name"].removeprefix("users/"))


@answers("oslogin.users.importSshPublicKey")
def _import_ssh_public_key(session: StateSession, call: Call) -> Json:
    """Add a key; an existing one is replaced, with its new expiry."""
    user = call["parent"].removeprefix("users/")
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
    user, _, fingerprint = call["name"].removeprefix("users/").partition("/sshPublicKeys/")
    found = session.resources.fetch(OS_LOGIN_KIND, user, fingerprint, missing=error_of(404))  # unverified words
    mask = str(call.params.get("updateMask") or ",".join(call.body)).split(",")
    changed = {
        name: value for name, value in call.body.items() if name in mask and name in {"key", "expirationTimeUsec"}
    }
    document = {**found, **changed}
    session.resources.put(OS_LOGIN_KIND, user, fingerprint, document)
    return document


def _login_profile(session: StateSession, user: str) -> Json:
    if user in {"", "None"}:
        # gcloud asks for this user when it has no credentials; the answer is unverified.
        raise error_of(403)
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
