"""Scenarios: what happens to a world when, written in a file.

All steps are kept in the world at once, as events that are due at a time of the world; whoever next looks at the world
after that time lets them happen first, each as of its own time. So nothing has to run in between, and a world that is
moved on by hours has had its night.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tpuctl.clock import parse_duration
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.sandbox import admin, afflictions, faults, forecast, request_log, seeding
from tpuctl.sandbox.afflictions import Fault, FaultKind
from tpuctl.sandbox.seeding import wishes
from tpuctl.sandbox.seeding.lines import Document, SeedError
from tpuctl.sandbox.seeding.lines import read as read_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.seeding import Entry
    from tpuctl.sandbox.seeding.lines import Path
    from tpuctl.sandbox.world import Session, World
    from tpuctl.sandbox.world.records import Event

_FAULT_WORDS = {key: kind for key, kind in wishes.FAULT_KEYS.items() if key != "kind"}
_PREEMPT_WORDS = {key: _FAULT_WORDS[key] for key in ("zone", "project")}
_REMOVE_WORDS = {key: _FAULT_WORDS[key] for key in ("node", "zone", "project", "call")}
# What a step may say, with the further words of each.
_ACTIONS = {
    "fault": _FAULT_WORDS,
    "preempt": _PREEMPT_WORDS,
    "remove-fault": _REMOVE_WORDS,
    "seed": {},
    "stockout": {},
    "end-stockouts": {},
}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens `at` a time after the start. `document` is what the world keeps of it, `text` how it reads."""

    at: timedelta
    document: Json
    text: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story: what it is about, and its steps in order of time."""

    description: str
    steps: tuple[Step, ...]


def read(text: str, source: str) -> Scenario:
    """Return what a file tells. Raises `SeedError` naming file, line and key."""
    document = read_lines(text, source)
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
        raise document.error((), "expected `steps:` with a list, each such as `- at: 10m`")
    for key in value:
        if key not in {"description", "steps"}:
            raise document.unknown((key,), ("description", "steps"))
    steps = [_step(document, ("steps", index), item) for index, item in enumerate(value["steps"])]
    ordered = sorted(steps, key=lambda step: step.at)  # stable: what is at the same time keeps its order
    return Scenario(str(value.get("description") or "").strip(), tuple(ordered))


def play(world: World, scenario: Scenario) -> datetime:
    """Plan all steps from now on and return the time from which they count; those for now have happened at the end.

    All or nothing. Raises `SeedError` when the world would refuse a step: they are tried first.
    """
    with suppress(_TriedError):
        _try_out(world, scenario)
    with world.write() as session:
        for step in scenario.steps:
            session.plan_event(session.now + step.at, {**step.document, "text": step.text})
        begin = session.now
    with world.read():
        return begin


def plan_fault(session: Session, fault: Fault, after: timedelta) -> None:
    """Let a fault begin to be possible `after` from now."""
    document = {"do": "fault", "fault": afflictions.dump(fault), "text": forecast.event(fault)}
    session.plan_event(session.now + after, document)


def happen(world: World, event: Event) -> bool:
    """Let a planned event happen in the transaction that this thread holds; tell whether it could.

    It is noted in the log of requests, with the reason when it could not.
    """
    text = str(event.document.get("text", ""))
    try:
        with world.write() as session:
            _carry_out(world, session, event.document)
    except TpuctlError as error:
        request_log.note_event(world.path, f"could not happen: {text}: {error.message}", event.at)
        return False
    request_log.note_event(world.path, text, event.at)
    return True


class _TriedError(Exception):
    """All steps could happen; nothing of it is to stay."""


def _try_out(world: World, scenario: Scenario) -> None:
    """Let every step happen at once, to see whether it can, and take it all back: raises `_TriedError` when it can."""
    with world.together() as session:
        for step in scenario.steps:
            _carry_out(world, session, step.document)
        raise _TriedError


def _carry_out(world: World, session: Session, document: Json) -> None:
    match document["do"]:
        case "fault":
            faults.add_fault(session, afflictions.load(document["fault"]))
        case "remove-fault":
            for fault_id, fault in faults.list_faults(session):
                if _is_meant(fault, document["fault"]):
                    faults.remove_fault(session, fault_id)
        case "seed":
            seeding.plant(world, [seeding.Entry(**entry) for entry in document["entries"]])
        case _:
            admin.end_stockouts(session)


def _is_meant(fault: Fault, wanted: Json) -> bool:
    """Tell whether a fault is of a kind, and set for what the pattern says where it says something."""
    words = {"node": fault.node, "zone": fault.zone, "project": fault.project, "call": fault.method}
    same = all(fnmatchcase(words[key], str(value)) for key, value in wanted.items() if key in words)
    return same and wanted["kind"] in {"*", str(fault.kind)}


def _step(document: Document, path: Path, item: Any) -> Step:  # JSON
    if not isinstance(item, dict):
        raise document.error(path, "each step must be a mapping, such as `at: 10m` with `preempt: trainer`")
    actions = [key for key in item if key in _ACTIONS]
    if len(actions) != 1:
        for key in item:
            if key != "at" and key not in _ACTIONS and key not in _FAULT_WORDS:
                raise document.unknown((*path, key), ("at", *_ACTIONS))
        raise document.error(path, f"each step must say one of {', '.join(_ACTIONS)}")
    action = actions[0]
    words = {key: value for key, value in item.items() if key not in {"at", action}}
    for key in words:
        if key not in _ACTIONS[action]:
            raise document.unknown((*path, key), ("at", action, *_ACTIONS[action]))
    seeding.check_words(document, path, {"at": "duration", **_ACTIONS[action]}, {**words, "at": item.get("at", "0s")})
    at = parse_duration(str(item.get("at", "0s")))
    try:
        made, text = _action(document, (*path, action), action, item[action], words)
    except SeedError:
        raise
    except InvalidInputError as error:
        raise SeedError(f"{document.place(*path, action)}: {error.message}", hint=error.hint) from error
    return Step(at, made, text)


def _action(document: Document, path: Path, action: str, value: Any, words: Json) -> tuple[Json, str]:
    """Return what the world keeps of a step, and how it reads."""
    match action:
        case "fault":
            return _fault(wishes.fault({"kind": str(value), **words}))
        case "preempt":
            return _fault(Fault(FaultKind.PREEMPT, node=str(value), **words))
        case "remove-fault":
            kind = "*" if value == "*" else str(wishes.kind(str(value)))
            about = "".join(f" {key} {word}" for key, word in words.items())
            return {"do": action, "fault": {"kind": kind, **words}}, f"faults of kind {kind}{about} are removed"
        case "end-stockouts":
            return {"do": action}, "there is capacity again"
        case "stockout":
            return _seed(seeding.entries(document, path[:-1], {"stockouts": [value or {}]}))
        case _:
            return _seed(seeding.entries(document, path, value))


def _fault(fault: Fault) -> tuple[Json, str]:
    # Nothing ends a step's own delay twice: `after` beside `at` counts from there.
    return {"do": "fault", "fault": afflictions.dump(replace(fault))}, forecast.event(fault)


def _seed(found: list[Entry]) -> tuple[Json, str]:
    return {"do": "seed", "entries": [asdict(entry) for entry in found]}, _there_is(found)


def _there_is(found: Sequence[Entry]) -> str:
    kinds: dict[str, list[str]] = {}
    for entry in found:
        kinds.setdefault(entry.kind, []).append(entry.name)
    if list(kinds) == ["stockouts"]:
        fields = found[0].fields
        about = [str(fields[key]) for key in ("acceleratorType", "zone") if key in fields]
        lasting = f" for {fields['duration']}" if "duration" in fields else ""
        return f"no capacity ({', '.join(about) or 'anywhere'}){lasting}"
    return "there are " + "; ".join(
        f"{kind} {', '.join(filter(None, names))}".strip() if any(names) else kind for kind, names in kinds.items()
    )
