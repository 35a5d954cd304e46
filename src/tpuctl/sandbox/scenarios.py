"""Scenarios: planned events of a sandbox, from a file.

All steps are stored at once, as events that are due at a sandbox time. The next process that uses the sandbox after that time
runs them first, each at its own time. So no process needs to run in between, and advancing the clock by hours runs
the events of those hours.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tpuctl.durations import parse_duration
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.sandbox import faults, seeding
from tpuctl.sandbox.faults import Fault, FaultKind, describe_fault, dump_fault, load_fault, parse_fault
from tpuctl.sandbox.request_log import log_event
from tpuctl.sandbox.seeding import (
    SeedEntry,
    SeedError,
    apply_seed,
    check_keys,
    parse_entries,
)
from tpuctl.sandbox.state_session import UndoneError
from tpuctl.sandbox.stock import remove_levels
from tpuctl.yaml_reader import parse_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.sandbox.api_calls import Json
    from tpuctl.sandbox.state import SandboxState
    from tpuctl.sandbox.state_session import PlannedEvent, StateSession
    from tpuctl.yaml_reader import KeyPath, YamlDocument

_FAULT_WORDS = seeding.FAULT_WORDS
_PREEMPT_WORDS = {key: _FAULT_WORDS[key] for key in ("zone", "project")}
_REMOVE_WORDS = {key: _FAULT_WORDS[key] for key in ("node", "zone", "project", "call")}
# The actions of a step, with the further keys of each.
_ACTIONS: Mapping[str, Mapping[str, Json]] = {
    "fault": _FAULT_WORDS,
    "preempt": _PREEMPT_WORDS,
    "remove-fault": _REMOVE_WORDS,
    "seed": {},
    "stock": {},
    "stockout": {},
    "end-stockouts": {},
}


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """One event, `at` after the start. `document` is what the sandbox stores, `text` the description."""

    at: timedelta
    document: Json
    text: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """A description and steps in order of time."""

    description: str
    steps: tuple[ScenarioStep, ...]


def read_scenario(text: str, source: str) -> Scenario:
    """Parse a scenario file. Raises `SeedError` naming file, line and key."""
    document = parse_document(text, source, error=SeedError)
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
        raise document.error((), "expected `steps:` with a list, each such as `- at: 10m`")
    for key in value:
        if key not in {"description", "steps"}:
            raise document.unknown((key,), ("description", "steps"))
    steps = [_parse_step(document, ("steps", index), item) for index, item in enumerate(value["steps"])]
    ordered = sorted(steps, key=lambda step: step.at)  # stable: steps at the same time keep their order
    return Scenario(str(value.get("description") or "").strip(), tuple(ordered))


def play_scenario(sandbox: SandboxState, scenario: Scenario) -> datetime:
    """Plan all steps from now on and return the start time; steps that are due now have happened on return.

    All or none. Raises `SeedError` if the sandbox would refuse a step: all are tried first.
    """
    with suppress(UndoneError), sandbox.joint_write() as trial:
        for step in scenario.steps:
            _run_action(sandbox, trial, step.document)
        raise UndoneError
    with sandbox.write() as session:
        for step in scenario.steps:
            session.plan_event(session.now + step.at, {**step.document, "text": step.text})
        begin = session.now
    with sandbox.read():
        return begin


def plan_fault(session: StateSession, fault: Fault, after: timedelta) -> None:
    """Plan a fault that starts `after` from now."""
    document = {"do": "fault", "fault": dump_fault(fault), "text": describe_fault(fault)}
    session.plan_event(session.now + after, document)


def run_due_event(sandbox: SandboxState, event: PlannedEvent) -> None:
    """Run a planned event in the transaction that this thread holds. Raises `UndoneError` if it failed.

    The event is logged in the request log, with the reason if it failed.
    """
    text = str(event.document.get("text", ""))
    try:
        with sandbox.write() as session:
            _run_action(sandbox, session, event.document)
    except TpuctlError as error:
        log_event(sandbox.path, f"failed: {text}: {error.message}", event.at)
        raise UndoneError from error
    log_event(sandbox.path, text, event.at)


def _run_action(sandbox: SandboxState, session: StateSession, document: Json) -> None:
    match document["do"]:
        case "fault":
            faults.add_fault(session, load_fault(document["fault"]))
        case "remove-fault":
            scope_words = document["fault"]
            for fault_id, fault in faults.list_faults(session):
                scope = {"node": fault.node, "zone": fault.zone, "project": fault.project, "call": fault.method}
                same = all(fnmatchcase(scope[key], str(value)) for key, value in scope_words.items() if key in scope)
                if same and scope_words["kind"] in {"*", str(fault.kind)}:
                    faults.remove_fault(session, fault_id)
        case "seed":
            apply_seed(sandbox, [SeedEntry(**entry) for entry in document["entries"]])
        case _:
            remove_levels(session, only_stockouts=True)


def _parse_step(document: YamlDocument, path: KeyPath, item: Any) -> ScenarioStep:  # JSON
    if not isinstance(item, dict):
        raise document.error(path, "each step must be a mapping, such as `at: 10m` with `preempt: trainer`")
    actions = [key for key in item if key in _ACTIONS]
    if len(actions) != 1:
        for key in item:
            if key != "at" and key not in _ACTIONS and key not in _FAULT_WORDS:
                raise document.unknown((*path, key), ("at", *_ACTIONS))
        raise document.error(path, f"each step needs one of {', '.join(_ACTIONS)}")
    action = actions[0]
    words = {key: value for key, value in item.items() if key != action}
    words = check_keys(document, path, {"at": seeding.DURATION, **_ACTIONS[action]}, {"at": "0s", **words})
    at = parse_duration(words.pop("at"))
    try:
        event, text = _parse_action(document, (*path, action), action, item[action], words)
    except SeedError:
        raise
    except InvalidInputError as error:
        raise SeedError(f"{document.place(*path, action)}: {error.message}", hint=error.hint) from error
    return ScenarioStep(at, event, text)


def _parse_action(document: YamlDocument, path: KeyPath, action: str, value: Any, words: Json) -> tuple[Json, str]:
    """Return what the sandbox stores of a step, and its description."""
    match action:
        case "fault":
            return _fault_action(parse_fault({"kind": str(value), **words}))
        case "preempt":
            return _fault_action(Fault(FaultKind.PREEMPT, node=str(value), **words))
        case "remove-fault":
            kind = "*" if value == "*" else str(FaultKind.named(str(value)))
            about = "".join(f" {key} {word}" for key, word in words.items())
            return {"do": action, "fault": {"kind": kind, **words}}, f"faults of kind {kind}{about} are removed"
        case "end-stockouts":
            return {"do": action}, "all stock-outs end"
        case "stock":
            return _seed_action(
                parse_entries(document, path[:-1], {"stock": value if isinstance(value, list) else [value]})
            )
        case "stockout":
            return _seed_action(parse_entries(document, path[:-1], {"stockouts": [value or {}]}))
        case _:
            return _seed_action(parse_entries(document, path, value))


def _fault_action(fault: Fault) -> tuple[Json, str]:
    # `after` beside `at` counts from the time of the step.
    return {"do": "fault", "fault": dump_fault(fault)}, describe_fault(fault)


def _seed_action(entries: list[SeedEntry]) -> tuple[Json, str]:
    document: Json = {"do": "seed", "entries": [asdict(entry) for entry in entries]}
    kinds: dict[str, list[str]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, []).append(entry.name)
    if list(kinds) in (["stock"], ["stockouts"]):
        return document, "; ".join(_describe_stock(entry.fields) for entry in entries)
    return document, "added: " + "; ".join(
        f"{kind} {', '.join(filter(None, names))}".strip() if any(names) else kind for kind, names in kinds.items()
    )


def _describe_stock(fields: Json) -> str:
    about = [str(fields[key]) for key in ("acceleratorType", "zone") if key in fields]
    count = fields.get("nodes") or 0
    amount = f"stock of {count} node{'s' if count > 1 else ''}" if count else "no capacity"
    after = f" after {fields['after']}" if "after" in fields else ""
    lasting = f" for {fields['duration']}" if "duration" in fields else ""
    return f"{amount} ({', '.join(about) or 'anywhere'}){after}{lasting}"
