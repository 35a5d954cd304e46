"""What one message of the service, or of ssh, means. Pure: a text goes in, a verdict comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tpuctl.diagnosis.messages import Action, By, Message, Where, messages

# A message is a few lines; a longer text is a page of HTML, whose end says nothing.
_LONGEST = 8000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a message means."""

    id: str
    kind: str  # the word of the exception class in `errors`
    meaning: str
    remedy: tuple[str, ...]
    action: Action
    retriable: bool  # the same request may succeed later; not: send it again at once
    facts: Mapping[str, str]  # the words that the message named


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
    """Return what a message means, None if it is not known.

    `text` is `STATUS: message`; for ssh it is the stderr of ssh. `reason` is `google.rpc.ErrorInfo.reason`: a known reason
    beats the text, which then only chooses among the messages that share the reason. `known` are facts that the message need
    not name; the words of the message win.
    """
    collapsed = " ".join(text[:_LONGEST].split())
    by_reason = [message for message in messages() if reason is not None and reason in message.reasons]
    in_order = [
        message
        for by in By
        for origin in _ORDER[where]
        for message in messages()
        if message.where is origin and message.by is by
    ]
    for candidates in (by_reason, in_order):
        for message in candidates:
            if match := re.search(message.match, collapsed):
                return _verdict(message, {**known, **{key: value for key, value in match.groupdict().items() if value}})
        # Specific comes before generic: the last message that shares the reason assumes least.
        if by_reason:
            return _verdict(by_reason[-1], known)
    return None


def _verdict(message: Message, facts: Mapping[str, str]) -> Verdict:
    return Verdict(
        message.id,
        message.kind,
        message.filled(message.meaning, facts),
        tuple(message.filled(line, facts) for line in message.remedy),
        message.action,
        message.retriable,
        MappingProxyType(dict(facts)),
    )
