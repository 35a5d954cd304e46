"""What one message of the service, or of ssh, means. Pure: a text goes in, a verdict comes out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tpuctl.diagnosis.messages import Action, By, Message, Where, messages

# A message is a few lines; what is longer is a page of HTML, whose end says nothing.
_LONGEST = 8000


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


# A queued resource carries the errors of its operations, an operation those of the API, and the reverse.
_ORDER: Mapping[Where, tuple[Where, ...]] = MappingProxyType(
    {
        Where.API: (Where.API, Where.OPERATION),
        Where.OPERATION: (Where.OPERATION, Where.API),
        Where.QUEUED_RESOURCE: (Where.QUEUED_RESOURCE, Where.OPERATION, Where.API),
        Where.SSH: (Where.SSH,),
        Where.TRAINING_LOG: (Where.TRAINING_LOG,),
        Where.NODE: (Where.NODE,),
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


def _in_order(where: Where) -> Iterator[Message]:
    for by in By:
        for place in _ORDER[where]:
            yield from (message for message in messages() if message.where is place and message.by is by)


def _verdict(message: Message, facts: Mapping[str, str]) -> Verdict:
    return Verdict(
        message.id,
        message.kind,
        message.said(message.meaning, facts),
        tuple(message.said(line, facts) for line in message.remedy),
        message.action,
        message.retriable,
        MappingProxyType(dict(facts)),
    )
