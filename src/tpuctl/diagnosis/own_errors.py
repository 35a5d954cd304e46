"""What each id means that tpuctl prints: of messages, of its own errors, of findings, and of exit codes.

The texts of its own errors are package data, `data/own_errors.yaml`; messages are in `data/messages/`, findings in their rules.
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
    """What there is to say about one id. All placeholders are filled.

    `causes` is what usually is behind one of tpuctl's own errors; `exit_code` what the process then ends with, where that is
    always the same. `title` is a finding's. Of a message `message` holds all else, such as its action and topics. `related` are
    ids of what may also be meant.
    """

    id: str
    origin: Origin
    meaning: str
    causes: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()
    exit_code: int | None = None
    title: str | None = None
    message: Message | None = None
    related: tuple[str, ...] = ()


def look_up(id_: str, known: Mapping[str, str] = MappingProxyType({})) -> Entry | None:
    """Return what there is to say about an id; nothing where nobody has it.

    Takes it as JSON and people write it: `no_capacity`, `tpu101` and `exit 7` are understood. `known` fills placeholders, such
    as `node`; one that is not known becomes its name in capitals. A message goes before an error of tpuctl of the same id.
    """
    id_ = _written(id_)
    if found := by_id(id_):
        return _of_message(found, known)
    return _own(known).get(id_) or _findings().get(id_)


def near(id_: str, count: int = 3) -> tuple[str, ...]:
    """Return the known ids that are most like an unknown one, the likest first; none where none is like it."""
    by_lower = {known.lower(): known for known in ids()}
    found = difflib.get_close_matches(_written(id_).lower(), by_lower, n=count, cutoff=0.6)
    return tuple(by_lower[word] for word in found)


def ids() -> tuple[str, ...]:
    """Return every id that can be looked up: messages, own errors, exit codes, findings."""
    own = _own(MappingProxyType({}))
    return tuple(dict.fromkeys((*(message.id for message in messages()), *own, *_findings())))


def _written(id_: str) -> str:
    word = "-".join(id_.strip().replace("_", "-").lower().split())
    return word.upper() if word.startswith("tpu") and word[3:].isdigit() else word


def _of_message(message: Message, known: Mapping[str, str]) -> Entry:
    own = _texts().get(message.kind.replace("_", "-")) if message.kind != "failure" else None
    return Entry(
        id=message.id,
        origin=Origin.MESSAGE,
        meaning=message.said(message.meaning, known),
        remedy=tuple(message.said(line, known) for line in message.remedy),
        exit_code=own["exit_code"] if own else None,
        message=message,
        related=tuple(sorted(message.explained_by)),
    )


def _own(known: Mapping[str, str]) -> dict[str, Entry]:
    return {id_: _of_text(text, known) for id_, text in _texts().items()}


def _of_text(text: Mapping[str, Any], known: Mapping[str, str]) -> Entry:
    id_, code = text["id"], text["exit_code"]
    is_code = id_.startswith(_EXIT)
    same = (one["id"] for one in _texts().values() if one["exit_code"] == code and not one["id"].startswith(_EXIT))
    return Entry(
        id=id_,
        origin=Origin.EXIT_CODE if is_code else Origin.ERROR,
        meaning=text["meaning"],
        causes=tuple(text.get("causes", ())),
        remedy=tuple(_filled(line, known) for line in text.get("remedy", ())),
        exit_code=code,
        related=tuple(same) if is_code else (),
    )


def _filled(text: str, known: Mapping[str, str]) -> str:
    for name in ("node", "job"):
        text = text.replace(f"{{{name}}}", known.get(name, name.upper()))
    return text


@functools.cache
def _texts() -> Mapping[str, Mapping[str, Any]]:
    from importlib import resources  # noqa: PLC0415  # only who asks for an id needs it

    import yaml  # noqa: PLC0415  # likewise

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files("tpuctl.data").joinpath("own_errors.yaml").read_text("utf-8")
    return {entry["id"]: entry for entry in yaml.load(text, Loader=loader)}  # noqa: S506  # a safe loader, the C one where there is


@functools.cache
def _findings() -> Mapping[str, Entry]:
    from tpuctl.checkup import catalogue  # noqa: PLC0415  # 60 ms, and only for the ids of findings
    from tpuctl.preflight import ai_platform, rules  # noqa: PLC0415  # as above

    known: tuple[Rule[Any], ...] = (*rules.RULES, *ai_platform.RULES, *catalogue.OWN)
    return {rule.id: Entry(rule.id, Origin.FINDING, rule.text, title=rule.title) for rule in known}
