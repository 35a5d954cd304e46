"""OS Login: a user's POSIX account and public keys. The sandbox's workers do not read them."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from tpuctl.sandbox.calls import ApiError
from tpuctl.sandbox.refusals import invalid

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

KIND = "oslogin.sshPublicKey"


def get_login_profile(session: Session, call: Call) -> Json:
    """Answer users.getLoginProfile."""
    return _profile(session, str(call.params["name"]).removeprefix("users/"))


def import_ssh_public_key(session: Session, call: Call) -> Json:
    """Answer users.importSshPublicKey; a key that is there is replaced, with its new expiry."""
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


def _profile(session: Session, user: str) -> Json:
    if user in {"", "None"}:
        # gcloud asks for this user when it has no credentials; the answer is unverified.
        raise ApiError(403, "PERMISSION_DENIED", "The caller does not have permission")
    keys = {found.name: found.document for found in session.resources.under(KIND, user)}
    login = re.sub(r"[^a-z0-9_]", "_", user.lower())[:32]
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
