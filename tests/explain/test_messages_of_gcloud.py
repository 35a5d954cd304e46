"""What gcloud, ssh and the API say in the logs of scripts and CI jobs: each entry from an example, and harmless lines."""

from __future__ import annotations

import re

import pytest

from tests.explain.examples import Example, examples_of, ids_of, messages_of
from tpuctl.explain.messages import MatchedBy, MessageOrigin, classify, known_messages, message_by_id

_EXAMPLES = examples_of("gcloud")
_MESSAGES = messages_of("api", "operations", "ssh", "gcloud")


def found_in_log(text: str) -> list[str]:
    """Return the ids of all entries that are looked for in logs and that a text matches."""
    collapsed = " ".join(text.split())
    return [message.id for message in _MESSAGES if message.anchors and re.search(message.match, collapsed)]


@pytest.mark.parametrize("example", _EXAMPLES, ids=ids_of(_EXAMPLES))
def test_gcloud_message_is_recognized_with_facts(example: Example) -> None:
    message = message_by_id(example.match.id)

    assert message is not None
    assert message.id in found_in_log(example.text)
    verdict = classify(example.text, where=message.where)
    assert verdict is not None
    assert (verdict.id, verdict.facts) == example.match


def test_ids_are_unique() -> None:
    assert len({message.id for message in known_messages()}) == len(known_messages())


def test_explained_by_references_exist() -> None:
    ids = {message.id for message in known_messages()}

    assert {one.id: one.explained_by - ids for one in _MESSAGES if one.explained_by - ids} == {}


def test_messages_by_word_or_status_have_no_anchors() -> None:
    assert [message.id for message in _MESSAGES if message.by is not MatchedBy.TEXT and message.anchors] == []


def test_every_quantifier_is_bounded() -> None:
    plain = {message.id: re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]", "x", message.match) for message in _MESSAGES}

    assert [id_ for id_, pattern in plain.items() if re.search(r"[*+]|\{\d*,\}", pattern)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # As gcloud prints the error of an operation.
        (
            (
                'ERROR: (gcloud.compute.tpus.tpu-vm.create) {\n  "code": 8,\n  "message": "There is no more capacity in '
                'the zone \\"us-central1-b\\"; you can try in another zone"\n}'
            ),
            ["capacity-zone"],
        ),
        (
            'ERROR: (gcloud.compute.tpus.tpu-vm.create) {\n  "code": 13,\n  "message": "an internal error has occurred"\n}',
            ["internal-error"],
        ),
        (
            '{"name": "projects/p/x", "done": true, "error": {"code": 13, "message": "an internal error has occurred"}}',
            ["internal-error"],
        ),
        # As `queued-resources describe` prints it: with either of its formats.
        (
            "state:\n  failedData:\n    error:\n      code: 13\n      message: an internal error has occurred\n  state: FAILED",
            ["internal-error-qr", "internal-error"],
        ),
        (
            '"failedData": {"error": {"code": 13, "message": "an internal error has occurred"}}',
            ["internal-error-qr", "internal-error"],
        ),
        ("state:\n  state: SUSPENDED\n  stateInitiator: SERVICE", ["qr-suspended-by-service"]),
        ('"stateInitiator": "SERVICE", "state": "SUSPENDING"', ["qr-suspended-by-service"]),
        # The service has also begun what goes well.
        ("state:\n  state: ACTIVE\n  stateInitiator: SERVICE", []),
        ("state:\n  state: SUSPENDED\n  stateInitiator: USER", []),
        (
            (
                "ERROR: (gcloud.alpha.compute.tpus.queued-resources.create) INVALID_ARGUMENT: Cloud TPU received a bad "
                'request. The requested zone \\"asia-northeast1-a\\" is not supported.'
            ),
            ["zone-not-supported", "gcloud-refused-request"],
        ),
        ("health: UNHEALTHY_MAINTENANCE", ["health-maintenance"]),
        ('"health": "UNHEALTHY_TENSORFLOW"', ["health-unhealthy"]),
        ("the health is one of HEALTHY, TIMEOUT, UNHEALTHY_TENSORFLOW, UNHEALTHY_MAINTENANCE", []),
        ("Connection closed by 10.0.0.1 port 22", ["ssh-closed"]),
        ("ssh: connect to host 10.0.0.1 port 22: No route to host", ["ssh-no-route"]),
        ("ada@10.0.0.1: Permission denied (publickey).", ["ssh-publickey"]),
    ],
)
def test_messages_in_real_logs_are_recognized(text: str, found: list[str]) -> None:
    assert found_in_log(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "I0101 10:00:00 trainer.py:12] checkpoint not found, starting from step 0",
        "NOT_FOUND: no checkpoint under gs://bucket/run",
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
        "OSError: [Errno 113] No route to host",
        "OSError: [Errno 98] Address already in use",
        "curl: (7) Failed to connect to localhost port 8080: Connection refused",
        # To a server of code, not to a worker.
        "git@github.com: Permission denied (publickey).\nfatal: Could not read from remote repository.",
        "ssh: connect to host github.com port 22: Connection timed out\nfatal: Could not read from remote repository.",
        "Host key verification failed.\nfatal: Could not read from remote repository.",
        # What a worker's own sshd notes of other clients.
        "sshd[812]: Connection closed by authenticating user root 203.0.113.9 port 22 [preauth]",
        "sshd[812]: Connection closed by 203.0.113.9 port 51514 [preauth]",
        "sshd[812]: Received disconnect from 203.0.113.9 port 51514:11: disconnected by user",
        "PermissionError: [Errno 13] Permission denied: '/dev/accel0'",
        "bash: ./train.sh: Permission denied",
        "Experiment 7 of project bert has been suspended after 3 epochs",
        "quota: 12 of 100 requests used this minute",
        "roles/iam.serviceAccountUser grants iam.serviceAccounts.actAs and iam.serviceAccounts.get",
        "TF_CONFIG: the job was preempted 0 times, hbm usage 12.1 GiB of 15.5 GiB, health OK",
        "retrying request 1/5 after 0.5s: RESOURCE_EXHAUSTED",
        "symptomType is empty",
    ],
)
def test_ordinary_log_is_not_recognized(text: str) -> None:
    assert found_in_log(text) == []


def test_gcloud_messages_do_not_change_ssh_verdicts() -> None:
    stderr = "ssh: connect to host 192.0.2.1 port 22: Connection refused\nERROR: x exited with return code [255]."
    verdict = classify(stderr, where=MessageOrigin.SSH)

    assert verdict is not None
    assert verdict.id == "ssh-refused"
