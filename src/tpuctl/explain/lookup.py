"""Look up what an id or a topic means: known messages, tpuctl's own errors, findings, exit codes, and advice on training.

The texts are package data: messages in `data/messages/`, tpuctl's own errors in `data/own_errors.yaml`, advice that belongs to
no single message (speed, memory, accuracy, ways of working) in `data/topics.yaml`. Findings are explained by their rules. A
message names the topics that say more about it; a topic names related topics.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tpuctl.command_text import fill_text
from tpuctl.explain.messages import MESSAGE_FILES, Message, known_messages, message_by_id
from tpuctl.explain.unrecognised import kind_by_id, unrecognised_kinds
from tpuctl.spelling import closest_matches
from tpuctl.yaml_reader import load_data, read_data_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.check.findings import CheckRule

_EXIT_PREFIX = "exit-"


class IdKind(StrEnum):
    """What carries an id."""

    MESSAGE = "message"
    ERROR = "error"
    FINDING = "finding"
    EXIT_CODE = "exit-code"


@dataclass(frozen=True, slots=True)
class IdEntry:
    """The explanation of one id. All placeholders are filled."""

    id: str
    origin: IdKind
    meaning: str
    causes: tuple[str, ...] = ()  # the usual causes of one of tpuctl's own errors
    remedy: tuple[str, ...] = ()
    exit_code: int | None = None  # of the process, if it is always the same
    title: str | None = None  # of a finding
    message: Message | None = None
    related: tuple[str, ...] = ()  # ids that may also be meant


def look_up_id(id_: str, known: Mapping[str, str] = MappingProxyType({})) -> IdEntry | None:
    """Return the explanation of an id, None if it is unknown.

    Accepts the spelling of JSON and of users: `no_capacity`, `tpu101` and `exit 7`. `known` fills placeholders, such as
    `node`; an unknown placeholder becomes its name in capitals. A message goes before an error of tpuctl with the same id.
    """
    id_ = _normalize_id(id_)
    message = message_by_id(id_) or kind_by_id(id_)
    if message is None:
        return _own_entry(id_, known) or _finding_entries().get(id_)
    own = _own_texts().get(message.kind.replace("_", "-")) if message.kind != "failure" else None
    return IdEntry(
        id=message.id,
        origin=IdKind.MESSAGE,
        meaning=fill_text(message.meaning, known),
        remedy=tuple(fill_text(line, known) for line in message.remedy),
        exit_code=own["exit_code"] if own else None,
        message=message,
        related=tuple(sorted(message.explained_by)),
    )


def similar_ids(id_: str, count: int = 3) -> tuple[str, ...]:
    """Return the known ids that are most similar to an unknown one, the most similar first."""
    by_lower = {known.lower(): known for known in known_ids()}
    similar = closest_matches(_normalize_id(id_).lower(), by_lower, most=count)
    return tuple(by_lower[word] for word in similar)


def known_ids() -> tuple[str, ...]:
    """Return every id that can be looked up: messages, own errors, exit codes, findings."""
    return tuple(
        dict.fromkeys(
            (
                *(message.id for message in (*known_messages(), *unrecognised_kinds())),
                *_own_texts(),
                *_finding_entries(),
            )
        )
    )


def topic_ids() -> tuple[str, ...]:
    """Return the ids of the topics, without reading the topics."""
    return read_data_ids("topics.yaml")


def completion_ids(begin: str) -> tuple[str, ...]:
    """Return the ids that begin so, without reading what they mean: a user waits for the Tab key."""
    files = ("own_errors", *(f"messages/{name}" for name in MESSAGE_FILES))
    found = [id_ for name in files for id_ in read_data_ids(f"{name}.yaml")]
    if begin.startswith("TPU"):
        # The rules are slower to import.
        found += _finding_entries()
    return tuple(sorted({id_ for id_ in found if id_.startswith(begin)}))


def _normalize_id(id_: str) -> str:
    word = "-".join(id_.strip().replace("_", "-").lower().split())
    return word.upper() if word.startswith("tpu") and word[3:].isdigit() else word


def _own_entry(id_: str, known: Mapping[str, str]) -> IdEntry | None:
    """Return one of tpuctl's own errors or an exit code, None if it is neither.

    An exit code is related to the errors that end with it. Its remedy is that of its error; of several errors, the best
    remedy of each behind its id.
    """
    text = _own_texts().get(id_)
    if text is None:
        return None
    code, is_code = text["exit_code"], id_.startswith(_EXIT_PREFIX)
    ends = [each for each in _own_texts().values() if is_code and _ends_with(each, code)]
    remedy = (
        [f"`{error['id']}`: {error['remedy'][0]}" for error in ends]
        if len(ends) > 1
        else (*ends, text)[0].get("remedy", ())
    )
    return IdEntry(
        id=id_,
        origin=IdKind.EXIT_CODE if is_code else IdKind.ERROR,
        meaning=text["meaning"],
        causes=tuple(text.get("causes", ())),
        remedy=tuple(fill_text(line, known) for line in remedy),
        exit_code=code,
        related=tuple(error["id"] for error in ends),
    )


def _ends_with(text: Mapping[str, Any], code: int) -> bool:
    """Return whether a text is that of an error with an exit code."""
    return not text["id"].startswith(_EXIT_PREFIX) and text["exit_code"] == code


@functools.cache
def _own_texts() -> Mapping[str, Mapping[str, Any]]:
    return {entry["id"]: entry for entry in load_data("own_errors.yaml")}


@functools.cache
def _finding_entries() -> Mapping[str, IdEntry]:
    from tpuctl.check import ai_platform, rules  # noqa: PLC0415  # needed only for the ids of findings
    from tpuctl.doctor.rule_catalogue import DOCTOR_RULES  # noqa: PLC0415  # 60 ms, needed only for the ids of findings

    known: tuple[CheckRule[Any], ...] = (*rules.RULES, *ai_platform.JOB_RULES, *DOCTOR_RULES)
    entries = {rule.id: IdEntry(rule.id, IdKind.FINDING, rule.text, title=rule.title) for rule in known}
    for id_, successor in rules.RETIRED_RULES.items():
        entries[id_] = IdEntry(id_, IdKind.FINDING, f"This rule is retired: {successor}.", title="retired")
    return entries


# The number of similar names that are suggested.
_MAX_SUGGESTIONS = 5


@dataclass(frozen=True, slots=True)
class Topic:
    """Advice on one subject."""

    id: str
    title: str
    words: tuple[str, ...]  # other names by which the topic is found
    text: tuple[str, ...]  # paragraphs
    source: str  # who has said so; "unverified" is our reading alone
    advice: tuple[str, ...] = ()  # the best first
    commands: tuple[str, ...] = ()  # complete but for words in capitals, such as NODE
    see: tuple[str, ...] = ()  # ids of topics and of messages


@functools.cache
def known_topics() -> tuple[Topic, ...]:
    """Return every topic, in reading order."""
    topics: list[Topic] = []
    for entry in load_data("topics.yaml"):
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        topics.append(Topic(**fields))
    return tuple(topics)


def find_topic(name: str) -> Topic | tuple[str, ...]:
    """Return the topic with that name, else up to five similar ids, the most similar first.

    Ignores case, and the difference between blanks, `_` and `-`. A name is the id or one of the topic's `words`, or the
    beginning of the names of exactly one topic.
    """
    wanted = _normalize_topic_name(name)
    known = {_normalize_topic_name(word): topic for topic in known_topics() for word in (*topic.words, topic.id)}
    if wanted in known:
        return known[wanted]
    begun = {topic.id: topic for word, topic in known.items() if wanted and word.startswith(wanted)}
    if len(begun) == 1:
        return next(iter(begun.values()))

    starting = sorted(begun, key=lambda id_: not id_.startswith(wanted))
    similar = [known[word].id for word in closest_matches(wanted, known, most=5, similarity=0.7)]
    containing = [topic.id for word, topic in known.items() if len(wanted) > 3 and wanted in word]
    return tuple(dict.fromkeys((*starting, *similar, *containing)))[:_MAX_SUGGESTIONS]


def messages_about(topic: Topic) -> tuple[Message, ...]:
    """Return the messages that name a topic, and those that the topic names."""
    return tuple(message for message in known_messages() if topic.id in message.topics or message.id in topic.see)


def _normalize_topic_name(name: str) -> str:
    return "-".join(name.replace("_", " ").replace("-", " ").casefold().split())
