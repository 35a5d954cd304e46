"""Why ssh did not get into a worker, and what helps: each cause with its own words.

The messages are in `data/messages/ssh.yaml` (`where: ssh`) and are read by `diagnosis`. What is asked here is only meant for
an ssh that ended before the remote command began: later its stderr is the command's.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.diagnosis.classify import Verdict, classify
from tpuctl.diagnosis.messages import Where
from tpuctl.errors import RemoteCommandError
from tpuctl.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import timedelta
    from pathlib import Path

    from tpuctl.remote.member import Member

KEY_REFUSED = frozenset(
    {"ssh-publickey", "ssh-too-many-keys", "ssh-second-factor", "ssh-key-mode", "ssh-key-unreadable"}
    | {"ssh-agent-refused", "ssh-key-passphrase"}
)
HOST_KEY_CHANGED = frozenset({"ssh-hostkey-changed", "ssh-hostkey-verification"})
_NO_WAY = frozenset({"ssh-timeout", "ssh-no-route"})
# What ssh says last is what ended it; before it there may be a banner of any length.
_KEPT = 6000
_LOCKED_PEM = re.compile(rb"^-----BEGIN ENCRYPTED |^Proc-Type: 4,ENCRYPTED", re.MULTILINE)
_MAGIC = b"openssh-key-v1\x00"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known beside ssh's words.

    `accepted_elsewhere`: another worker of the node let the same key in. `waited`: how long ssh was given, where it had to be
    ended. `key_is_locked`: the private key has a passphrase; `has_agent`: there is an ssh agent that may hold it.
    """

    accepted_elsewhere: bool = False
    waited: timedelta | None = None
    key_is_locked: bool = False
    has_agent: bool = False


_NOTHING_ELSE = Circumstances()


class SshFailedError(RemoteCommandError):
    """ssh did not get into workers. `error_id` is the cause's stable id; `retriable`: trying again may help, after a while."""

    def __init__(self, message: str, *, hint: str | None, error_id: str | None, retriable: bool) -> None:
        super().__init__(message, hint=hint, error_id=error_id)
        self.retriable = retriable


def explain_failure(stderr: str, member: Member, seen: Circumstances = _NOTHING_ELSE) -> SshFailedError:
    """Return what kept ssh out of one worker. Pure; `look_around` tells the circumstances."""
    return explain_failures([(member, stderr)], seen)[0]


def explain_failures(failed: Sequence[tuple[Member, str]], seen: Circumstances = _NOTHING_ELSE) -> list[SshFailedError]:
    """Return what kept ssh out of several workers: one error for all workers of a node that share a cause. Pure."""
    groups: dict[tuple[str, str], list[tuple[Member, str, Verdict | None]]] = {}
    for member, stderr in failed:
        verdict = _verdict(stderr, member, seen)
        # What nobody knows is told in ssh's own words, so those must agree.
        cause = verdict.id if verdict else telling_line(stderr)
        groups.setdefault((str(member.node.name), cause), []).append((member, stderr, verdict))
    return [_error([member for member, _, _ in group], *group[0][1:], seen) for group in groups.values()]


def is_retriable(stderr: str, *, key_is_new: bool = False) -> bool:
    """Tell whether the same connection may succeed soon: the worker is booting, or too many knocked at once.

    A refused key counts only where it was added within the last minutes (`key_is_new`): it may still be on its way. False for
    what is not known. Only ask before the remote command has begun.
    """
    found = verdict_of(stderr)
    return found is not None and found.retriable and (key_is_new or found.id not in KEY_REFUSED)


def verdict_of(stderr: str) -> Verdict | None:
    """Return what ssh's words mean; nothing where they are not known."""
    return classify(stderr[-_KEPT:], where=Where.SSH)


def telling_line(stderr: str) -> str:
    """Return the line that says most: ssh's last one often only says that the connection is closed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    vague = ("Connection closed by UNKNOWN", "kex_exchange_identification", "ssh_exchange_identification")
    return next((line for line in reversed(lines) if not line.startswith(vague)), lines[-1] if lines else "")


def look_around(member: Member, *, accepted_elsewhere: bool = False, waited: timedelta | None = None) -> Circumstances:
    """Return the circumstances of a failure, with what this machine knows of the key: it reads the key's file."""
    return Circumstances(
        accepted_elsewhere=accepted_elsewhere,
        waited=waited,
        key_is_locked=_is_locked(member.way.identity),
        has_agent=bool(os.environ.get("SSH_AUTH_SOCK")),
    )


def has_passphrase(key: bytes) -> bool:
    """Tell whether a private key needs a passphrase: OpenSSH's own form names its cipher, older ones have a header."""
    if _LOCKED_PEM.search(key):
        return True
    body = re.sub(rb"-----[A-Z ]+-----|\s", b"", key)
    try:
        opened = base64.b64decode(body, validate=True)
    except binascii.Error:
        return False
    cipher = len(_MAGIC) + 4
    return opened.startswith(_MAGIC) and opened[cipher : cipher + 4] != b"none"


def _is_locked(path: Path) -> bool:
    try:
        return has_passphrase(path.read_bytes())
    except OSError:
        return False


def _verdict(stderr: str, member: Member, seen: Circumstances) -> Verdict | None:
    """Return what ssh's words mean for this worker, where ssh said something or had to be ended."""
    way = member.way
    known = {
        "node": member.node.name.node_id,
        "worker": str(member.worker),
        "login": way.login,
        "address": way.address,
        "key": str(way.identity),
        "alias": way.host_alias,
        "known_hosts": str(way.known_hosts[0]),
    }
    if seen.waited is not None and not stderr.strip():
        stderr = f"ssh: connect to host {way.address} port 22: Connection timed out"
    found = classify(stderr[-_KEPT:], where=Where.SSH, known=known)
    if found is not None and found.id == "ssh-publickey" and seen.key_is_locked and not seen.has_agent:
        # Where it may ask nobody ssh passes over such a key without a word (observed: OpenSSH 9.2, BatchMode).
        return classify(f"Enter passphrase for key '{way.identity}'", where=Where.SSH, known=known)
    return found


def _error(members: list[Member], stderr: str, verdict: Verdict | None, seen: Circumstances) -> SshFailedError:
    who = f"{_workers(member.worker for member in members)} of `{members[0].node.name.node_id}`"
    said = telling_line(stderr)
    if verdict is None:
        why = said or "ssh ended without a word"
        if seen.waited is not None:
            # What it said before, such as that a host key is new, did not end it.
            why = f"no answer within {seen.waited.total_seconds():g} s"
        hint = f"look closer with `ssh -v`, or see `tpuctl status {members[0].node.name.node_id}`"
        return SshFailedError(f"{who} cannot be reached: {why}", hint=hint, error_id=None, retriable=False)
    hints = [*_particulars(members[0], verdict, seen), *verdict.remedy, *([f"ssh said: {said}"] if said else [])]
    message = f"{who}: {verdict.meaning}"
    return SshFailedError(
        message, hint="\n".join(map(visible, hints)), error_id=verdict.id, retriable=verdict.retriable
    )


def _particulars(member: Member, verdict: Verdict, seen: Circumstances) -> Iterator[str]:
    """Yield what helps here beside what always helps."""
    node, way = member.node, member.way
    if verdict.id in _NO_WAY and way.proxy_command is None and node.endpoints[member.worker].external is None:
        yield "it has no external address: go through `--iap`, or run tpuctl inside its network with `--internal-ip`"
    if verdict.id == "ssh-publickey":
        if node.metadata.get("enable-oslogin", "").lower() == "true":
            yield (
                "OS Login is on for this node, so keys in metadata do not count: your account needs `roles/compute.osLogin` "
                "and `roles/iam.serviceAccountUser`"
            )
        if seen.accepted_elsewhere:
            yield f"other workers accept it, so this one's guest agent may hang: `tpuctl reset {node.name.node_id}`"
        if seen.key_is_locked:
            yield f"the key has a passphrase: load it into the agent with `ssh-add {way.identity}`"


def _workers(numbers: Iterable[int]) -> str:
    """Return `worker 3`, or `workers 3, 5-7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    texts = [str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts]
    return f"worker{'s' if len(parts) > 1 or len(parts[0]) > 1 else ''} {', '.join(texts)}"
