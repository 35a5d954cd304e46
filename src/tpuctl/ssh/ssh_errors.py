"""Classify failed ssh logins, and explain each cause with its remedies.

The messages are in `data/messages/ssh.yaml` (`where: ssh`), which `explain.messages` reads. Use these functions only for an ssh
that ended before the remote command started: later the stderr is that of the command.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.command_text import as_quotation, fill_text
from tpuctl.errors import RemoteCommandError
from tpuctl.escaping import escape_unprintable
from tpuctl.explain.messages import Classification, MessageOrigin, classify
from tpuctl.names import number_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from tpuctl.ssh.connection import Target

KEY_REFUSED_IDS = frozenset(
    {"ssh-publickey", "ssh-too-many-keys", "ssh-second-factor", "ssh-key-mode", "ssh-key-unreadable"}
    | {"ssh-agent-refused", "ssh-key-passphrase"}
)
HOST_KEY_CHANGED_IDS = frozenset({"ssh-hostkey-changed", "ssh-hostkey-verification"})
_UNREACHABLE_IDS = frozenset({"ssh-timeout", "ssh-no-route"})
# ssh prints the reason last; a banner of any length may come before it.
_MAX_STDERR = 6000
_ENCRYPTED_PEM = re.compile(rb"^-----BEGIN ENCRYPTED |^Proc-Type: 4,ENCRYPTED", re.MULTILINE)
_OPENSSH_MAGIC = b"openssh-key-v1\x00"


@dataclass(frozen=True, slots=True)
class FailureContext:
    """Facts about a failed login that ssh does not print."""

    # Another worker of the node accepted the same key.
    accepted_elsewhere: bool = False
    # The timeout after which ssh was terminated; None if it ended on its own.
    waited: timedelta | None = None
    # The private key has a passphrase.
    key_is_locked: bool = False
    # An ssh agent runs, which may hold the key.
    has_agent: bool = False


_NO_CONTEXT = FailureContext()


class SshFailedError(RemoteCommandError):
    """ssh could not log in to workers. `error_id` is the stable id of the cause; `retriable`: a later retry may succeed."""

    def __init__(self, message: str, *, hint: str | None, error_id: str | None, retriable: bool) -> None:
        super().__init__(message, hint=hint, error_id=error_id)
        self.retriable = retriable


def explain_ssh_failure(stderr: str, target: Target, context: FailureContext = _NO_CONTEXT) -> SshFailedError:
    """Return the error for a failed login to one worker. Pure; `collect_failure_context` returns the context."""
    return explain_ssh_failures([(target, stderr)], context)[0]


def explain_ssh_failures(
    failed: Sequence[tuple[Target, str]], context: FailureContext = _NO_CONTEXT
) -> list[SshFailedError]:
    """Return the errors for failed logins, one for all workers of a node with the same cause. Pure."""
    groups: dict[tuple[str, str], list[tuple[Target, str, Classification | None]]] = {}
    for target, stderr in failed:
        verdict = _classify_for_worker(stderr, target, context)
        # An unknown failure is reported with ssh's message, so only equal messages form a group.
        cause = verdict.id if verdict else significant_line(stderr)
        groups.setdefault((str(target.node.name), cause), []).append((target, stderr, verdict))
    return [_error([target for target, _, _ in group], *group[0][1:], context) for group in groups.values()]


def is_ssh_failure_retriable(stderr: str, *, key_is_new: bool = False) -> bool:
    """Return whether a retry may succeed soon: the worker is booting, or has too many connections.

    A refused key counts only if it was added within the last minutes (`key_is_new`), because the worker may not have it yet.
    False for unknown failures. Use it only for an ssh that ended before the remote command started.
    """
    found = classify_stderr(stderr)
    return found is not None and found.retriable and (key_is_new or found.id not in KEY_REFUSED_IDS)


def classify_stderr(stderr: str) -> Classification | None:
    """Classify the stderr of ssh. None if the failure is unknown."""
    return classify(stderr[-_MAX_STDERR:], where=MessageOrigin.SSH)


def significant_line(stderr: str) -> str:
    """Return the most specific line of ssh's stderr. The last one often only says that the connection is closed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    vague = ("Connection closed by UNKNOWN", "kex_exchange_identification", "ssh_exchange_identification")
    return next((line for line in reversed(lines) if not line.startswith(vague)), lines[-1] if lines else "")


def collect_failure_context(
    target: Target, *, accepted_elsewhere: bool = False, waited: timedelta | None = None
) -> FailureContext:
    """Return the context of a failed login. Reads the private key file to find out whether it is encrypted."""
    try:
        key_is_locked = has_passphrase(target.connection.identity.read_bytes())
    except OSError:
        key_is_locked = False
    return FailureContext(
        accepted_elsewhere=accepted_elsewhere,
        waited=waited,
        key_is_locked=key_is_locked,
        has_agent=bool(os.environ.get("SSH_AUTH_SOCK")),
    )


def has_passphrase(key: bytes) -> bool:
    """Return whether a private key is encrypted. OpenSSH's format names its cipher; older formats have a header."""
    if _ENCRYPTED_PEM.search(key):
        return True
    body = re.sub(rb"-----[A-Z ]+-----|\s", b"", key)
    try:
        opened = base64.b64decode(body, validate=True)
    except binascii.Error:
        return False
    cipher = len(_OPENSSH_MAGIC) + 4
    return opened.startswith(_OPENSSH_MAGIC) and opened[cipher : cipher + 4] != b"none"


def _classify_for_worker(stderr: str, target: Target, context: FailureContext) -> Classification | None:
    """Classify the stderr of ssh, and fill in the names of this worker. None if the failure is unknown."""
    connection = target.connection
    known = {
        "node": target.node.name.node_id,
        "worker": str(target.worker),
        "login": connection.login,
        "address": connection.address,
        "key": str(connection.identity),
        "alias": connection.host_alias,
        "known_hosts": str(connection.known_hosts[0]),
    }
    if context.waited is not None and not stderr.strip():
        stderr = f"ssh: connect to host {connection.address} port 22: Connection timed out"
    found = classify(stderr[-_MAX_STDERR:], where=MessageOrigin.SSH, known=known)
    if found is not None and found.id == "ssh-publickey" and context.key_is_locked and not context.has_agent:
        # In BatchMode ssh skips such a key without a message (observed: OpenSSH 9.2).
        return classify(f"Enter passphrase for key '{connection.identity}'", where=MessageOrigin.SSH, known=known)
    return found


def _error(
    targets: list[Target], stderr: str, verdict: Classification | None, context: FailureContext
) -> SshFailedError:
    # As text: `worker 3`, or `workers 3, 5-7`.
    ranges = number_ranges(target.worker for target in targets)
    plural = "" if ranges[0].isdigit() and len(ranges) == 1 else "s"
    who = f"worker{plural} {', '.join(ranges)} of `{targets[0].node.name.node_id}`"
    # It may have words of the worker.
    printed = as_quotation(significant_line(stderr))
    if verdict is None:
        why = printed or "ssh ended without a message"
        if context.waited is not None:
            # Earlier output, such as a notice of a new host key, is not the reason.
            why = f"no answer within {context.waited.total_seconds():g} s"
        hint = f"debug with `ssh -v`, or see `tpuctl status {targets[0].node.name.node_id}`"
        return SshFailedError(f"{who} cannot be reached: {why}", hint=hint, error_id=None, retriable=False)
    hints = [
        *_specific_hints(targets[0], verdict, context),
        *verdict.remedy,
        *([f"ssh said: {printed}"] if printed else []),
    ]
    message = f"{who}: {verdict.meaning}"
    return SshFailedError(
        message, hint="\n".join(map(escape_unprintable, hints)), error_id=verdict.id, retriable=verdict.retriable
    )


def _specific_hints(target: Target, verdict: Classification, context: FailureContext) -> Iterator[str]:
    """Yield the remedies that depend on this worker, in addition to those of the message."""
    node, connection = target.node, target.connection
    if (
        verdict.id in _UNREACHABLE_IDS
        and connection.proxy_command is None
        and node.endpoints[target.worker].external is None
    ):
        yield "it has no external address: use `--iap`, or run tpuctl inside its network with `--internal-ip`"
    if verdict.id == "ssh-publickey":
        if node.metadata.get("enable-oslogin", "").lower() == "true":
            yield (
                "OS Login is enabled for this node, so keys in metadata are ignored: your account needs "
                "`roles/compute.osLogin` and `roles/iam.serviceAccountUser`"
            )
        if context.accepted_elsewhere:
            yield f"other workers accept the key, so the guest agent of this one may hang: `tpuctl reset {node.name.node_id}`"
        if context.key_is_locked:
            advice = "the key has a passphrase: add it to the ssh agent with `ssh-add {path}`"
            yield fill_text(advice, {"path": connection.identity})
