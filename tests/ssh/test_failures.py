"""How failed ssh logins are explained: messages of OpenSSH 8.x and 9.x, and real ones of this machine."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from importlib import resources
from pathlib import Path

import pytest
import yaml

from tests.explain.examples import examples_of
from tpuctl.errors import ExitCode
from tpuctl.explain.messages import MessageOrigin, known_messages
from tpuctl.models.node import Node
from tpuctl.ssh.connection import Connection, Target
from tpuctl.ssh.ssh_errors import FailureContext, explain_ssh_failure, explain_ssh_failures, is_ssh_failure_retriable

EXAMPLES = [(example.match.id, example.text) for example in examples_of("ssh")]
# Messages after which a retry may help, and the one after which it may help if the key is new.
_RETRIABLE = {
    "iap-4003",
    "iap-4047",
    "ssh-banner-timeout",
    "ssh-booting",
    "ssh-closed",
    "ssh-closed-early",
    "ssh-handshakes",
    "ssh-name-for-now",
    "ssh-no-route",
    "ssh-no-route-beyond",
    "ssh-proxy-ended",
    "ssh-refused",
    "ssh-timeout",
}
_RETRIABLE_FOR_A_NEW_KEY = _RETRIABLE | {"ssh-publickey"}


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


@pytest.mark.parametrize(("known", "text"), EXAMPLES, ids=[row[0] for row in EXAMPLES])
def test_each_cause_has_a_stable_id_and_its_own_remedy(known: str, text: str) -> None:
    error = explain_ssh_failure(text, target())

    assert (error.error_id, error.exit_code, bool(error.hint)) == (known, ExitCode.REMOTE_FAILED, True)
    assert is_ssh_failure_retriable(text) == (known in _RETRIABLE)
    assert is_ssh_failure_retriable(text, key_is_new=True) == (known in _RETRIABLE_FOR_A_NEW_KEY)
    assert not re.search(r"[{}]", f"{error.message}{error.hint}")


def test_every_cause_has_examples_and_its_own_texts() -> None:
    """The messages of gcloud about its ssh are in `tests/explain/test_messages_of_gcloud.py`."""
    of_gcloud = gcloud_ids()
    of_ssh = [
        message for message in known_messages() if message.where is MessageOrigin.SSH and message.id not in of_gcloud
    ]

    assert [message.id for message in of_ssh] == list(dict.fromkeys(row[0] for row in EXAMPLES))
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
