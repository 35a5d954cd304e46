"""OS Login: the profile of an account, and its ssh keys."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
from typing import TYPE_CHECKING

from tpuctl.sandbox.api_calls import answers, error_of, invalid
from tpuctl.sandbox.worker_lookup import OS_LOGIN_ACCOUNT, OS_LOGIN_KIND

if TYPE_CHECKING:
    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession


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
    key = session.resources.fetch(OS_LOGIN_KIND, user, fingerprint, missing=error_of(404))  # unverified words
    mask = str(call.params.get("updateMask") or ",".join(call.body)).split(",")
    changed = {
        name: value for name, value in call.body.items() if name in mask and name in {"key", "expirationTimeUsec"}
    }
    document = {**key, **changed}
    session.resources.put(OS_LOGIN_KIND, user, fingerprint, document)
    return document


def _login_profile(session: StateSession, user: str) -> Json:
    if user in {"", "None"}:
        # gcloud asks for this user when it has no credentials; the answer is unverified.
        raise error_of(403)
    keys = {key.name: key.document for key in session.resources.list_records(OS_LOGIN_KIND, user)}
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
