"""How failed ssh logins are explained: messages of OpenSSH 8.x and 9.x, and real ones of this machine."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from importlib import resources
from pathlib import Path

import pytest
import yaml

from tpuctl.errors import ExitCode
from tpuctl.explain.messages import MessageOrigin, known_messages
from tpuctl.models.node import Node
from tpuctl.ssh.connection import Connection, Target
from tpuctl.ssh.ssh_errors import FailureContext, explain_ssh_failure, explain_ssh_failures, is_ssh_failure_retriable

_EXAMPLES = """
iap-gcloud-missing no
  /bin/sh: 1: exec: gcloud: not found
  kex_exchange_identification: Connection closed by remote host
  Connection closed by UNKNOWN port 65535
iap-not-authorized no
  ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting [4033: 'not authorized'].
  kex_exchange_identification: Connection closed by remote host
  Connection closed by UNKNOWN port 65535
iap-4003 yes
  ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting [4003: 'failed to connect to backend']. (Failed to
  connect to port 22)
  kex_exchange_identification: Connection closed by remote host
  Connection closed by UNKNOWN port 65535
iap-login-needed no
  ERROR: (gcloud.compute.start-iap-tunnel) You do not currently have an active account selected.
  kex_exchange_identification: Connection closed by remote host
ssh-hostkey-changed no
  @    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
  IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
  Offending ECDSA key in /home/deploy/.ssh/known_hosts:42
  Host key verification failed.
ssh-hostkey-verification no
  No ED25519 host key is known for tpu.7-0 and you have requested strict checking.
  Host key verification failed.
ssh-key-mode no
  Permissions 0644 for '/home/ada/key' are too open.
  This private key will be ignored.
  Load key "/home/ada/key": bad permissions
  ada@192.0.2.1: Permission denied (publickey).
ssh-key-unreadable no
  Load key "/home/ada/key": error in libcrypto
  ada@192.0.2.1: Permission denied (publickey).
ssh-agent-refused no
  sign_and_send_pubkey: signing failed for ED25519 "/home/ada/key" from agent: agent refused operation
  ada@192.0.2.1: Permission denied (publickey).
ssh-key-passphrase no
  Load key "/home/ada/key": incorrect passphrase supplied to decrypt private key
  ada@192.0.2.1: Permission denied (publickey).
ssh-too-many-keys no
  Received disconnect from 192.0.2.1 port 22:2: Too many authentication failures
  Disconnected from 192.0.2.1 port 22
ssh-second-factor no
  ada_example_com@192.0.2.1: Permission denied (keyboard-interactive).
ssh-publickey new
  jimmy@104.154.245.121: Permission denied (publickey,gssapi-keyex,gssapi-with-mic).
ssh-booting yes
  "System is booting up. Unprivileged users are not permitted to log in yet. Please come back later. For technical
  details, see pam_nologin(8)."
  Connection closed by 192.0.2.1 port 22
ssh-refused yes
  ssh: connect to host 192.0.2.1 port 22: Connection refused
ssh-timeout yes
  ssh: connect to host 34.91.136.59 port 22: Operation timed out
ssh-no-route yes
  ssh: connect to host 192.0.2.1 port 22: No route to host
ssh-no-route-beyond yes
  channel 0: open failed: connect failed: No route to host
  stdio forwarding failed
  Connection closed by UNKNOWN port 65535
ssh-name-for-now yes
  ssh: Could not resolve hostname bastion: Temporary failure in name resolution
ssh-name-unknown no
  ssh: Could not resolve hostname bastion: nodename nor servname provided, or not known
ssh-banner-timeout yes
  Connection timed out during banner exchange
  Connection to 192.0.2.1 port 22 timed out
ssh-algorithms no
  Unable to negotiate with 192.0.2.1 port 22: no matching host key type found. Their offer: ssh-rsa,ssh-dss
ssh-config-broken no
  /home/ada/.ssh/config: line 3: Bad configuration option: usekeychain
  /home/ada/.ssh/config: terminating, 1 bad configuration options
ssh-config-mode no
  Bad owner or permissions on /home/ada/.ssh/config
ssh-socket-path no
  unix_listener: path "/home/ada/a/long/way/tpu.7-0.Hl6WLELZaKueFrXd" too long for Unix domain socket
ssh-forward-in-use no
  bind [127.0.0.1]:6006: Address already in use
  channel_setup_fwd_listener_tcpip: cannot listen to port: 6006
  Could not request local forwarding.
sandbox-worker no
  tpuctl sandbox: ssh to sandbox workers needs OpenSSH's `sshd`, which was not found
  kex_exchange_identification: Connection closed by remote host
ssh-closed-by-remote no
  client_loop: send disconnect: Broken pipe
ssh-proxy-ended yes
  kex_exchange_identification: Connection closed by remote host
  Connection closed by UNKNOWN port 65535
ssh-handshakes yes
  kex_exchange_identification: read: Connection reset by peer
  Connection reset by 192.0.2.1 port 22
ssh-closed yes
  Connection closed by 192.0.2.1 port 22
ssh-closed-early yes
  Received disconnect from 192.0.2.1 port 2222:11: Bye Bye
"""
EXAMPLES = [row.split(None, 2) for row in re.split(r"\n(?=\S)", _EXAMPLES.strip())]
_OFTEN = {"yes": (True, True), "no": (False, False), "new": (False, True)}


def target(worker: int = 0, *, external: str | None = "192.0.2.1") -> Target:
    endpoint = {"ipAddress": "10.0.0.2"} | ({"accessConfig": {"externalIp": external}} if external else {})
    node = Node.from_api(
        {"name": "projects/p/locations/us-x1-b/nodes/trainer", "state": "READY", "networkEndpoints": [endpoint] * 8}
    )
    files = (Path("/s/known_hosts"), Path("/h/.ssh/google_compute_known_hosts"))
    connection = Connection("ada", external or "10.0.0.2", "tpu.7-0", files, Path("/home/ada/key"))
    return Target(node, worker, connection, str(worker))


def with_os_login(one: Target) -> Target:
    return replace(one, node=Node.from_api({**one.node.raw, "metadata": {"enable-oslogin": "TRUE"}}))


@pytest.mark.parametrize(("known", "retriable", "text"), EXAMPLES, ids=[row[0] for row in EXAMPLES])
def test_each_cause_has_a_stable_id_and_its_own_remedy(known: str, retriable: str, text: str) -> None:
    error = explain_ssh_failure(text, target())

    assert (error.error_id, error.exit_code, bool(error.hint)) == (known, ExitCode.REMOTE_FAILED, True)
    assert (is_ssh_failure_retriable(text), is_ssh_failure_retriable(text, key_is_new=True)) == _OFTEN[retriable]
    assert not re.search(r"[{}]", f"{error.message}{error.hint}")


def test_every_cause_has_one_example_and_its_own_texts() -> None:
    """The messages of gcloud about its ssh are in `tests/explain/test_messages_of_gcloud.py`."""
    of_gcloud = gcloud_ids()
    of_ssh = [
        message for message in known_messages() if message.where is MessageOrigin.SSH and message.id not in of_gcloud
    ]

    assert [message.id for message in of_ssh] == [row[0] for row in EXAMPLES]
    assert len({message.meaning for message in of_ssh}) == len({message.remedy for message in of_ssh}) == len(of_ssh)


def gcloud_ids() -> set[str]:
    text = resources.files("tpuctl.data").joinpath("messages/gcloud.yaml").read_text("utf-8")
    return {entry["id"] for entry in next(yaml.load_all(text, yaml.CSafeLoader))}


REFUSED = "ada@192.0.2.1: Permission denied (publickey).\n"
# Which of two is said depends on who is quicker; both were seen on the same machine (OpenSSH 9.2).
PROXY_ENDED = "banner exchange: Connection to UNKNOWN port 65535: Broken pipe\n"
SILENCE = "ssh: connect to host 192.0.2.1 port 22: Connection timed out\n"


@pytest.mark.parametrize(
    ("stderr", "one", "seen", "known", "first"),
    [
        (REFUSED, target(), FailureContext(), "ssh-publickey", "a new key needs"),
        (REFUSED, target(), FailureContext(accepted_elsewhere=True), "ssh-publickey", "other workers accept the key"),
        (REFUSED, with_os_login(target()), FailureContext(), "ssh-publickey", "OS Login is enabled for this node"),
        (REFUSED, target(), FailureContext(key_is_locked=True), "ssh-key-passphrase", "load it into the agent once"),
        (REFUSED, target(), FailureContext(key_is_locked=True, has_agent=True), "ssh-publickey", "the key has a pass"),
        (SILENCE, target(), FailureContext(), "ssh-timeout", "check whether the node exists"),
        (SILENCE, target(external=None), FailureContext(), "ssh-timeout", "it has no external address"),
        ("", target(), FailureContext(waited=timedelta(seconds=9)), "ssh-timeout", "check whether the node exists"),
        ("", target(), FailureContext(), None, "debug with `ssh -v`"),
        (PROXY_ENDED, target(), FailureContext(), "ssh-proxy-ended", "`tpuctl status trainer` shows"),
        ("Something new.", target(), FailureContext(), None, "debug with `ssh -v`"),
    ],
)
def test_explanation_uses_context_beside_stderr(
    stderr: str, one: Target, seen: FailureContext, known: str | None, first: str
) -> None:
    error = explain_ssh_failure(stderr, one, seen)

    assert error.error_id == known
    assert (error.hint or "").startswith(first)


def test_explanation_of_terminated_session_names_the_timeout() -> None:
    said = "Warning: Permanently added 'tpu.7-0' (ED25519) to the list of known hosts.\n"
    error = explain_ssh_failure(said, target(), FailureContext(waited=timedelta(seconds=1.5)))

    assert error.message == "worker 0 of `trainer` cannot be reached: no answer within 1.5 s"


def test_explanation_groups_workers_with_the_same_cause() -> None:
    stderr = {0: REFUSED, 2: SILENCE, 3: SILENCE, 4: SILENCE, 6: SILENCE, 7: "Something new.\n"}
    errors = explain_ssh_failures([(target(worker), text) for worker, text in stderr.items()])

    assert [error.message for error in errors] == [
        "worker 0 of `trainer`: it does not accept our key `/home/ada/key` for the login `ada`",
        "workers 2-4, 6 of `trainer`: its address does not answer",
        "worker 7 of `trainer` cannot be reached: Something new.",
    ]
    assert errors[0].hint == (
        "a new key needs up to a minute to arrive; try again\n"
        "check with `tpuctl ssh-key show trainer` whether the worker knows the key, and for which login; "
        "with keys in metadata the "
        "login (`--user`) is the one in front of the key, with OS Login that of your account\n"
        "ssh said: ada@192.0.2.1: Permission denied (publickey)."
    )
