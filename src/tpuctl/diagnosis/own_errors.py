"""Look up what an id or a topic means: known messages, tpuctl's own errors, findings, exit codes, and advice on training.

The texts of tpuctl's own errors are package data, `data/own_errors.yaml`; messages are in `data/messages/`, findings in their
rules.
"""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tpuctl.diagnosis.messages import Message, by_id, messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.preflight.findings import Rule

_EXIT = "exit-"


class Origin(StrEnum):
    """What carries an id."""

    MESSAGE = "message"
    ERROR = "error"
    FINDING = "finding"
    EXIT_CODE = "exit-code"


@dataclass(frozen=True, slots=True)
class Entry:
    """The explanation of one id. All placeholders are filled."""

    id: str
    origin: Origin
    meaning: str
    causes: tuple[str, ...] = ()  # the usual causes of one of tpuctl's own errors
    remedy: tuple[str, ...] = ()
    exit_code: int | None = None  # of the process, if it is always the same
    title: str | None = None  # of a finding
    message: Message | None = None
    related: tuple[str, ...] = ()  # ids that may also be meant


def look_up(id_: str, known: Mapping[str, str] = MappingProxyType({})) -> Entry | None:
    """Return the explanation of an id, None if it is unknown.

    Accepts the spelling of JSON and of users: `no_capacity`, `tpu101` and `exit 7`. `known` fills placeholders, such as
    `node`; an unknown placeholder becomes its name in capitals. A message goes before an error of tpuctl with the same id.
    """
    id_ = _written(id_)
    message = by_id(id_)
    if message is None:
        return _own(known).get(id_) or _findings().get(id_)
    own = _texts().get(message.kind.replace("_", "-")) if message.kind != "failure" else None
    return Entry(
        id=message.id,
        origin=Origin.MESSAGE,
        meaning=message.filled(message.meaning, known),
        remedy=tuple(message.filled(line, known) for line in message.remedy),
        exit_code=own["exit_code"] if own else None,
        message=message,
        related=tuple(sorted(message.explained_by)),
    )


def near(id_: str, count: int = 3) -> tuple[str, ...]:
    """Return the known ids that are most similar to an unknown one, the most similar first."""
    by_lower = {known.lower(): known for known in ids()}
    similar = difflib.get_close_matches(_written(id_).lower(), by_lower, n=count, cutoff=0.6)
    return tuple(by_lower[word] for word in similar)


def ids() -> tuple[str, ...]:
    """Return every id that can be looked up: messages, own errors, exit codes, findings."""
    own = _own(MappingProxyType({}))
    return tuple(dict.fromkeys((*(message.id for message in messages()), *own, *_findings())))


def _written(id_: str) -> str:
    word = "-".join(id_.strip().replace("_", "-").lower().split())
    return word.upper() if word.startswith("tpu") and word[3:].isdigit() else word


def _own(known: Mapping[str, str]) -> dict[str, Entry]:
    """Return tpuctl's own errors and exit codes by id; an exit code is related to the errors that end with it."""
    entries: dict[str, Entry] = {}
    errors = [text for text in _texts().values() if not text["id"].startswith(_EXIT)]
    for id_, text in _texts().items():
        remedy = text.get("remedy", ())
        for name in ("node", "job"):
            remedy = [line.replace(f"{{{name}}}", known.get(name, name.upper())) for line in remedy]
        code, is_code = text["exit_code"], id_.startswith(_EXIT)
        entries[id_] = Entry(
            id=id_,
            origin=Origin.EXIT_CODE if is_code else Origin.ERROR,
            meaning=text["meaning"],
            causes=tuple(text.get("causes", ())),
            remedy=tuple(remedy),
            exit_code=code,
            related=tuple(error["id"] for error in errors if error["exit_code"] == code) if is_code else (),
        )
    return entries


@functools.cache
def _texts() -> Mapping[str, Mapping[str, Any]]:
    from importlib import resources  # noqa: PLC0415  # needed only to look up an id

    import yaml  # noqa: PLC0415  # as above

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files("tpuctl.data").joinpath("own_errors.yaml").read_text("utf-8")
    return {entry["id"]: entry for entry in yaml.load(text, Loader=loader)}  # noqa: S506  # a safe loader, in C if available


@functools.cache
def _findings() -> Mapping[str, Entry]:
    from tpuctl.checkup import catalogue  # noqa: PLC0415  # 60 ms, needed only for the ids of findings
    from tpuctl.preflight import ai_platform, rules  # noqa: PLC0415  # as above

    known: tuple[Rule[Any], ...] = (*rules.RULES, *ai_platform.RULES, *catalogue.OWN)
    return {rule.id: Entry(rule.id, Origin.FINDING, rule.text, title=rule.title) for rule in known}
