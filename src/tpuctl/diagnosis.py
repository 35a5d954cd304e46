"""What a message of the service means and what helps: the only module that reads message text.

Codes alone do not tell: a full zone, a used-up quota and a bad request share them. The messages are package data
(`data/errors.yaml`). Pure: a text goes in, a verdict comes out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

# A message is a few lines; what is longer is a page of HTML, whose end says nothing.
_LONGEST = 8000


class Where(StrEnum):
    """Where a message was met."""

    API = "api"
    OPERATION = "operation"
    QUEUED_RESOURCE = "queued-resource"
    SSH = "ssh"


class By(StrEnum):
    """What a message is known by, the surest first."""

    TEXT = "text"
    WORD = "word"
    STATUS = "status"


class Action(StrEnum):
    """What kind of thing helps."""

    NONE = "none"
    WAIT = "wait"
    FIX_AUTH = "fix-auth"
    FIX_IAM = "fix-iam"
    ENABLE_API = "enable-api"
    FIX_REQUEST = "fix-request"
    QUOTA = "quota"
    CAPACITY_TRY_ELSEWHERE = "capacity-try-elsewhere"
    RECREATE_NODE = "recreate-node"
    HOST_MEMORY = "host-memory"
    FIX_TRAINING_CODE = "fix-training-code"
    KILL_STALE_PROCESS = "kill-stale-process"
    FIX_SSH = "fix-ssh"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a message means. `kind` is the word of the exception class in `errors`; `facts` are the words it named.

    `retriable` says that the same request may succeed later, not that it should be sent again at once.
    """

    id: str
    kind: str
    meaning: str
    remedy: tuple[str, ...]
    action: Action
    retriable: bool
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Message:
    """A known message. `source` says who has met it; "unverified" is our reading alone."""

    id: str
    where: Where
    match: str
    kind: str
    meaning: str
    remedy: tuple[str, ...]
    action: Action
    retriable: bool
    source: str
    reasons: frozenset[str] = frozenset()
    by: By = By.TEXT


# A queued resource carries the errors of its operations, an operation those of the API, and the reverse.
_ORDER: Mapping[Where, tuple[Where, ...]] = MappingProxyType(
    {
        Where.API: (Where.API, Where.OPERATION),
        Where.OPERATION: (Where.OPERATION, Where.API),
        Where.QUEUED_RESOURCE: (Where.QUEUED_RESOURCE, Where.OPERATION, Where.API),
        Where.SSH: (Where.SSH,),
    }
)


def classify(
    text: str, *, where: Where, reason: str | None = None, known: Mapping[str, str] = MappingProxyType({})
) -> Verdict | None:
    """Return what a message means, or nothing for one that is not known.

    `text` is `STATUS: message`; for ssh it is what ssh wrote to stderr. `reason` is `google.rpc.ErrorInfo.reason`: where it
    is known it beats the text, which then only chooses among the messages that share it. `known` are facts that the message
    need not name; its own words win.
    """
    collapsed = " ".join(text[:_LONGEST].split())
    by_reason = [message for message in messages() if reason is not None and reason in message.reasons]
    for candidates in (by_reason, _in_order(where)):
        for message in candidates:
            if found := re.search(message.match, collapsed):
                return _verdict(message, {**known, **{key: value for key, value in found.groupdict().items() if value}})
        # Specific comes before generic: the last that shares the reason assumes least.
        if by_reason:
            return _verdict(by_reason[-1], known)
    return None


@functools.cache
def messages() -> tuple[Message, ...]:
    """Return every known message, specific before generic."""
    from importlib import resources  # noqa: PLC0415  # only who meets an error needs it

    import yaml  # noqa: PLC0415  # likewise

    text = resources.files("tpuctl.data").joinpath("errors.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(_message(entry) for entry in yaml.load(text, Loader=loader))  # noqa: S506  # both loaders are safe


def _message(entry: Mapping[str, Any]) -> Message:
    return Message(
        id=entry["id"],
        where=Where(entry["where"]),
        match=entry["match"],
        kind=entry["kind"],
        meaning=entry["meaning"],
        remedy=tuple(entry["remedy"]),
        action=Action(entry["action"]),
        retriable=entry["retriable"],
        source=entry["source"],
        reasons=frozenset(entry.get("reasons", ())),
        by=By(entry.get("by", By.TEXT)),
    )


def _in_order(where: Where) -> Iterator[Message]:
    for by in By:
        for place in _ORDER[where]:
            yield from (message for message in messages() if message.where is place and message.by is by)


def _verdict(message: Message, facts: Mapping[str, str]) -> Verdict:
    def fill(placeholder: re.Match[str]) -> str:
        return facts.get(placeholder[1], placeholder[1].upper())

    remedy = tuple(re.sub(r"\{(\w+)\}", fill, line) for line in message.remedy)
    return Verdict(
        message.id,
        message.kind,
        re.sub(r"\{(\w+)\}", fill, message.meaning),
        remedy,
        message.action,
        message.retriable,
        MappingProxyType(dict(facts)),
    )
