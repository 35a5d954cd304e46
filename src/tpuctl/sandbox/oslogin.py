"""OS Login: a user's POSIX account and public keys.

The sandbox's sshd can only log in the user who runs it. The account `ACCOUNT` stands for that user and has their local
login name; the login names of other accounts are derived from their addresses, as the service does, and give no access.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
from typing import TYPE_CHECKING

from tpuctl.sandbox.calls import ApiError
from tpuctl.sandbox.refusals import invalid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

KIND = "oslogin.sshPublicKey"
ACCOUNT = "you@example.com"


def get_login_profile(session: Session, call: Call) -> Json:
    """Answer users.getLoginProfile."""
    return _profile(session, str(call.params["name"]).removeprefix("users/"))


def import_ssh_public_key(session: Session, call: Call) -> Json:
    """Answer users.importSshPublicKey; an existing key is replaced, with its new expiry."""
    user = str(call.params["parent"]).removeprefix("users/")
    session.log_request(call.method, f"users/{user}")
    key = str(call.body.get("key") or "")
    if not re.match(r"(ssh-|ecdsa-|sk-)\S+ \S+", key):
        raise invalid("The SSH public key is not valid.")  # unverified words
    fingerprint = hashlib.sha256(key.encode()).hexdigest()
    document = {"key": key, "fingerprint": fingerprint, "name": f"users/{user}/sshPublicKeys/{fingerprint}"}
    if expires := call.body.get("expirationTimeUsec"):
        document["expirationTimeUsec"] = str(expires)
    session.resources.put(KIND, user, fingerprint, document)
    return {"loginProfile": _profile(session, user)}


def patch_ssh_public_key(session: Session, call: Call) -> Json:
    """Answer users.sshPublicKeys.patch: changes the fields of the mask, by default all given fields; a key has two."""
    user, _, fingerprint = str(call.params["name"]).removeprefix("users/").partition("/sshPublicKeys/")
    session.log_request(call.method, f"users/{user}")
    found = session.resources.get(KIND, user, fingerprint)
    if found is None:
        raise ApiError(404, "NOT_FOUND", "Requested entity was not found.")  # unverified words
    mask = str(call.params.get("updateMask") or ",".join(call.body)).split(",")
    changed = {
        name: value for name, value in call.body.items() if name in mask and name in {"key", "expirationTimeUsec"}
    }
    document = {**found, **changed}
    session.resources.put(KIND, user, fingerprint, document)
    return document


def keys_of_owner(session: Session, now: datetime) -> list[str]:
    """Return the keys, `TYPE BASE64`, with which OS Login accepts the user who runs the sandbox now."""
    micros = int(now.timestamp() * 1e6)
    found = (one.document for one in session.resources.list_records(KIND, ACCOUNT))
    lasting = (one for one in found if int(one.get("expirationTimeUsec") or micros + 1) > micros)
    return [" ".join(str(one["key"]).split()[:2]) for one in lasting]


def is_in_force(metadata: Mapping[str, str], project_metadata: Mapping[str, str], key: str = "enable-oslogin") -> bool:
    """Return whether a metadata switch of OS Login is on: the machine's value, FALSE too, overrides the project's.

    Source: gcloud 528, and the guest agent's tests (case-insensitive).
    """
    return metadata.get(key, project_metadata.get(key, "")).lower() == "true"


def _profile(session: Session, user: str) -> Json:
    if user in {"", "None"}:
        # gcloud asks for this user when it has no credentials; the answer is unverified.
        raise ApiError(403, "PERMISSION_DENIED", "The caller does not have permission")
    keys = {found.name: found.document for found in session.resources.list_records(KIND, user)}
    login = re.sub(r"[^a-z0-9_]", "_", user.lower())[:32]
    if user == ACCOUNT:
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
