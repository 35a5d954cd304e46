"""What gcloud, ssh and the API say in the logs of scripts and CI jobs: each entry from an example, and harmless lines."""

from __future__ import annotations

import re
from importlib import resources

import pytest
import yaml

from tpuctl.explain.messages import (
    Action,
    CheckFirst,
    MatchedBy,
    Message,
    MessageOrigin,
    MessageRole,
    classify,
    known_messages,
    message_by_id,
)

# id, action, role, what to look at first, as in the sources that the entry names; then the text.
_EXAMPLES = """
ssh-terminal-state recreate-node cause node-state
  ERROR: (gcloud.compute.tpus.tpu-vm.ssh) This TPU has terminal state "PREEMPTED", so it cannot be used anymore.
ssh-unusable-state restart-node cause node-state
  This TPU has state "STOPPED", so it cannot be currently connected to.
ssh-transitional-state wait progress node-state
  WARNING: The TPU VM "my-tpu" is in state "CREATING", therefore the TPU may not be available or reachable. If the
  connection fails, please try again later.
ssh-maintenance wait cause node-health
  !!! This TPU is going through a maintenance event, and might be unavailable !!!
ssh-key-propagation fix-ssh-key wrapper node-state
  ERROR: (gcloud.compute.tpus.tpu-vm.ssh) Could not SSH into the instance.  It is possible that your SSH key has not
  propagated to the instance yet. Try running this command again.
ssh-multi-worker-failed fix-ssh-key wrapper no
  Failed to execute command on multiple workers. This may have happened if you have not added your SSH key to your
  ssh-agent using "ssh-add ~/.ssh/google_compute_engine".
ssh-worker-command-failed fix-training-code wrapper other-workers-log
  ##### Command execution on worker 0 failed with exit status 134. Continuing.
ssh-worker-index fix-request cause no
  worker index 8 is larger than the valid worker indexes on this TPU VM. Please only use indexes in the range [0, 7],
  inclusive.
ssh-needs-command fix-request cause no
  Invalid value for [--worker]: cannot target multiple workers without the `--command` flag.
ssh-copy-from-many fix-request cause no
  Invalid value for [--worker]: cannot target multiple workers while copying files to client.
ssh-worker-list fix-request cause no
  Invalid value for [--worker]: found malformed range "3-1".
ssh-node-index fix-request cause no
  node index 4 is larger than the valid node indices on this TPU Queued Resource.
ssh-not-tpu-vm none cause no
  this command is only available for Cloud TPU VM nodes. To access this node, please see
  https://cloud.google.com/tpu/docs/creating-deleting-tpus.
ssh-no-external-ip fix-request cause no
  Instance [t1v-n-1-w-0] in zone [us-x1-b] does not have an external IP address, so you cannot SSH into it.
iap-unavailable wait cause no
  ERROR: (gcloud.compute.tpus.tpu-vm.ssh) Currently unable to connect to this TPU using IAP tunneling.
ssh-keygen-first wait progress no
  WARNING: You do not have an SSH key for gcloud.
ssh-key-not-in-agent fix-ssh-key cause no
  SSH Key is not present in the SSH agent. Please run "ssh-add /home/ada/.ssh/google_compute_engine" to add it, and
  try again.
ssh-too-many-workers none harmless no
  WARNING: Executing ssh command on too many workers simultaneously is prone to error. Command may fail.
ssh-retrying wait progress node-state
  Retrying: SSH command error: [/usr/bin/ssh] exited with return code [255].
ssh-255 wait wrapper node-state
  ERROR: (gcloud.compute.tpus.tpu-vm.ssh) [/usr/bin/ssh] exited with return code [255].
gcloud-component-manager none cause no
  You cannot perform this action because the Google Cloud CLI component manager
  is disabled for this installation.
gcloud-too-old fix-request cause no
  ERROR: (gcloud.compute.tpus) Invalid choice: 'tpu-vm'.
gcloud-attribute-missing fix-request cause no
  Failed to find attribute [zone]. The attribute can be set in the following ways:
gcloud-property-missing fix-request cause no
  ERROR: (gcloud.compute.tpus.list) The required property [project] is not currently set.
gcloud-reauth-unattended fix-auth cause no
  Reauthentication failed. cannot prompt during non-interactive execution.
gcloud-service-networking fix-request cause no
  Network [default] is invalid for use with Service Networking
gcloud-disk-attached none cause no
  argument --attach-disk: the disk is already attached to the same set of workers of TPU VM.
gcloud-crashed none cause node-state
  ERROR: gcloud crashed (ConnectionError): ('Connection aborted.', RemoteDisconnected('x'))
gcloud-refused-request fix-request wrapper no
  ERROR: (gcloud.compute.tpus.tpu-vm.create) INVALID_ARGUMENT: words that nobody has seen
gcloud-refused-access fix-iam wrapper no
  ERROR: (gcloud.alpha.compute.tpus.queued-resources.create) PERMISSION_DENIED: words that nobody has seen
gcloud-refused-exhausted quota wrapper no
  ERROR: (gcloud.compute.tpus.tpu-vm.create) RESOURCE_EXHAUSTED: words that nobody has seen
"""
EXAMPLES = [row.split(None, 4) for row in re.split(r"\n(?=\S)", _EXAMPLES.strip())]
_FILES = ("api", "operations", "ssh", "gcloud")


def of_file(name: str) -> list[Message]:
    text = resources.files("tpuctl.data").joinpath(f"messages/{name}.yaml").read_text("utf-8")
    ids = [entry["id"] for entry in yaml.load(text, yaml.CSafeLoader)]
    return [message for message in known_messages() if message.id in ids]


OURS = [message for name in _FILES for message in of_file(name)]


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text).lower()


def found_in_log(text: str) -> list[str]:
    """Return the ids of all entries that are looked for in logs and that a text matches."""
    collapsed = " ".join(text.split())
    return [message.id for message in OURS if message.anchors and re.search(message.match, collapsed)]


@pytest.mark.parametrize(("known", "action", "role", "first", "text"), EXAMPLES, ids=[row[0] for row in EXAMPLES])
def test_gcloud_message_is_recognized_from_its_example(
    known: str, action: str, role: str, first: str, text: str
) -> None:
    message = message_by_id(known)

    assert message is not None
    assert (message.action, message.role, message.check_first) == (
        Action(action),
        MessageRole(role),
        CheckFirst(first) if first != "no" else None,
    )
    assert known in found_in_log(text)
    verdict = classify(text, where=message.where)
    assert verdict is not None
    assert verdict.id == known


def test_every_gcloud_message_has_one_example() -> None:
    assert [message.id for message in of_file("gcloud")] == [row[0] for row in EXAMPLES]


def test_ids_are_unique() -> None:
    assert len({message.id for message in known_messages()}) == len(known_messages())


def test_explained_by_references_exist() -> None:
    ids = {message.id for message in known_messages()}

    assert {one.id: one.explained_by - ids for one in OURS if one.explained_by - ids} == {}


def test_messages_by_word_or_status_have_no_anchors() -> None:
    assert [message.id for message in OURS if message.by is not MatchedBy.TEXT and message.anchors] == []


def test_every_quantifier_is_bounded() -> None:
    plain = {message.id: re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]", "x", message.match) for message in OURS}

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
def test_messages_in_real_logs(text: str, found: list[str]) -> None:
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
