"""The messages that tpuctl knows: how to recognize one, what it means, what helps. Package data under `data/messages/`.

One source for all: refusals of the API, failed operations, stderr of ssh, and the logs of training programs. `classify` decides
what a single message means.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from tpuctl.command_text import NEVER_FROM_TEXT, fill_text
from tpuctl.yaml_reader import load_data

# Within a file, and from one file to the next, specific comes before generic.
MESSAGE_FILES = (
    "storage",
    "cluster",
    "api",
    "operations",
    "ssh",
    "gcloud",
    "memory",
    "libtpu",
    "jax",
    "torch_xla",
    "tensorflow",
    "host",
    "node",
)


class MessageOrigin(StrEnum):
    """Where a message comes from; `node` is the current state of the node. A contract with scripts."""

    API = "api"
    OPERATION = "operation"
    QUEUED_RESOURCE = "queued-resource"
    SSH = "ssh"
    TRAINING_LOG = "training-log"
    NODE = "node"


class MatchedBy(StrEnum):
    """How a message is recognized, the most reliable way first."""

    TEXT = "text"
    WORD = "word"
    STATUS = "status"


class Action(StrEnum):
    """The kind of remedy. A contract with scripts."""

    NONE = "none"
    WAIT = "wait"
    FIX_AUTH = "fix-auth"
    FIX_IAM = "fix-iam"
    ENABLE_API = "enable-api"
    FIX_REQUEST = "fix-request"
    QUOTA = "quota"
    CAPACITY_TRY_ELSEWHERE = "capacity-try-elsewhere"
    RESTART_NODE = "restart-node"
    RECREATE_NODE = "recreate-node"
    HOST_MEMORY = "host-memory"
    FIX_TRAINING_CODE = "fix-training-code"
    FIX_BUCKET = "fix-bucket"
    KILL_STALE_PROCESS = "kill-stale-process"
    FIX_SSH_KEY = "fix-ssh-key"


class MessageRole(StrEnum):
    """What a message usually is in the course of a failure."""

    CAUSE = "cause"
    SYMPTOM = "symptom"  # what others see of a failure elsewhere
    WRAPPER = "wrapper"  # only carries another message, which stands near it
    PROGRESS = "progress"  # something is still being tried
    RECOVERY = "recovery"  # the messages in its `ends` are over
    HARMLESS = "harmless"  # needs no remedy, even if it looks alarming


class CheckFirst(StrEnum):
    """Where to look before acting on a message that is usually a symptom."""

    NODE_STATE = "node-state"
    NODE_HEALTH = "node-health"
    OTHER_WORKERS_LOG = "other-workers-log"
    SEVERAL_CAUSES = "several-causes"


class Detail(StrEnum):
    """What can be parsed from the lines that follow a message."""

    MEMORY = "memory"
    TASKS = "tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A known message."""

    id: str
    where: MessageOrigin
    match: str  # a pattern, searched in text whose white space is collapsed
    kind: str = "failure"
    meaning: str
    remedy: tuple[str, ...]
    action: Action
    retriable: bool
    source: str  # who has met the message; "unverified" is our reading alone
    reasons: frozenset[str] = frozenset()
    by: MatchedBy = MatchedBy.TEXT
    # Literals of which every match holds at least one, in upper or lower case and across wrapped lines. A message without
    # anchors is not searched for in logs.
    anchors: tuple[str, ...] = ()
    role: MessageRole = MessageRole.CAUSE
    check_first: CheckFirst | None = None
    explained_by: frozenset[str] = frozenset()  # ids of the messages that usually cause this one
    ends: frozenset[str] = frozenset()
    latest: frozenset[str] = frozenset()  # facts of which the last occurrence counts; of others the first
    detail: Detail | None = None
    lasts: bool = False  # a program that goes on does not show that it is over
    of_the_node: bool = False  # the node itself has changed, which explains every program that lost it
    topics: tuple[str, ...] = ()


def fill_message(text: str, known: Mapping[str, str], found: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a text of a message with its placeholders filled: from the words that were found, else from what the caller knows.

    Who is granted a role is never taken from the words that were found.
    """
    words = {name: text for name, text in found.items() if name not in NEVER_FROM_TEXT}
    return fill_text(text, {**known, **words})


@functools.cache
def known_messages() -> tuple[Message, ...]:
    """Return every known message, specific before generic."""
    entries = (entry for name in MESSAGE_FILES for entry in load_data(f"messages/{name}.yaml"))
    return tuple(
        Message(**{key: _FIELDS[key](value) if key in _FIELDS else value for key, value in entry.items()})
        for entry in entries
    )


# The fields that are neither text nor a flag.
_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "where": MessageOrigin,
    "by": MatchedBy,
    "action": Action,
    "role": MessageRole,
    "check_first": CheckFirst,
    "detail": Detail,
    **dict.fromkeys(("remedy", "anchors", "topics"), tuple),
    **dict.fromkeys(("reasons", "explained_by", "ends", "latest"), frozenset),
}


def message_by_id(id_: str) -> Message | None:
    """Return the message with that id, None if there is none."""
    return next((message for message in known_messages() if message.id == id_), None)


# A message is a few lines; a longer text is a page of HTML, whose end says nothing.
_MAX_MESSAGE_LENGTH = 8000


@dataclass(frozen=True, slots=True)
class Classification:
    """What a message means."""

    id: str
    kind: str  # the word of the exception class in `errors`
    meaning: str
    remedy: tuple[str, ...]
    action: Action
    retriable: bool  # the same request may succeed later; not: send it again at once
    facts: Mapping[str, str]  # the words that the message named


# A queued resource carries the errors of its operations, an operation those of the API, and the reverse.
_SEARCHED_ORIGINS: Mapping[MessageOrigin, tuple[MessageOrigin, ...]] = MappingProxyType(
    {
        MessageOrigin.API: (MessageOrigin.API, MessageOrigin.OPERATION),
        MessageOrigin.OPERATION: (MessageOrigin.OPERATION, MessageOrigin.API),
        MessageOrigin.QUEUED_RESOURCE: (MessageOrigin.QUEUED_RESOURCE, MessageOrigin.OPERATION, MessageOrigin.API),
        MessageOrigin.SSH: (MessageOrigin.SSH,),
        MessageOrigin.TRAINING_LOG: (MessageOrigin.TRAINING_LOG,),
        MessageOrigin.NODE: (MessageOrigin.NODE,),
    }
)


def classify(
    text: str, *, where: MessageOrigin, reason: str | None = None, known: Mapping[str, str] = MappingProxyType({})
) -> Classification | None:
    """Return what a message means, None if it is not known.

    `text` is `STATUS: message`; for ssh it is the stderr of ssh. `reason` is `google.rpc.ErrorInfo.reason`: a known reason
    beats the text, which then only chooses among the messages that share the reason. `known` are facts that the message need
    not name; the words of the message win.
    """
    collapsed = " ".join(text[:_MAX_MESSAGE_LENGTH].split())
    by_reason = [message for message in known_messages() if reason is not None and reason in message.reasons]
    in_order = [
        message
        for by in MatchedBy
        for origin in _SEARCHED_ORIGINS[where]
        for message in known_messages()
        if message.where is origin and message.by is by
    ]
    for candidates in (by_reason, in_order):
        for message in candidates:
            if match := re.search(message.match, collapsed):
                return _classification(message, known, {key: text for key, text in match.groupdict().items() if text})
        # Specific comes before generic: the last message that shares the reason assumes least.
        if by_reason:
            return _classification(by_reason[-1], known, {})
    return None


def _classification(message: Message, known: Mapping[str, str], found: Mapping[str, str]) -> Classification:
    return Classification(
        message.id,
        message.kind,
        fill_message(message.meaning, known, found),
        tuple(fill_message(line, known, found) for line in message.remedy),
        message.action,
        message.retriable,
        MappingProxyType({**known, **found}),
    )
