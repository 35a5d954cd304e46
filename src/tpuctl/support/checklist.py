"""`tpuctl bundle --checklist`: which steps of docs/proved-on-the-real-service.md the journal shows, for an issue.

It has no names, accounts, addresses and texts: only times, numbers, versions and the ids of findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tpuctl import __version__
from tpuctl.check.findings import Level
from tpuctl.decoding import read_fields
from tpuctl.doctor.doctor_facts import environment_json
from tpuctl.doctor.environment_probe import EnvironmentProbe
from tpuctl.doctor.rule_catalogue import evaluate_environment
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.nodes.journal_entries import EntryFields
from tpuctl.nodes.lookup import node_not_found_error, several_nodes_error
from tpuctl.output.terminal import Terminal, View

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.doctor.doctor_facts import EnvironmentFacts
    from tpuctl.names import NodeName

_PROBE_TIMEOUT = timedelta(seconds=4)
_PROGRAMS = ("ssh", "rsync")

Entry = Mapping[str, Any]  # the fields that tpuctl reads, parsed


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the checklist. `outcome` is `done`, `failed`, `requested` (its end is not in the journal) or `not recorded`."""

    step: str
    outcome: str
    at: str | None = None
    seconds: int | None = None


def show_checklist(app: App, text: str) -> None:
    """Print the checklist of a node, which may be gone. Raises `NodeNotFoundError` if the journal does not know it."""
    name = _find(app, text)
    entries = [read_fields(EntryFields, entry) for entry in app.services.journal.entries(name)]
    steps, facts = steps_of(entries), EnvironmentProbe(app, timeout=_PROBE_TIMEOUT).gather()
    value = {
        "node": _node(entries, name),
        "steps": [asdict(step) for step in steps],
        "versions": _versions(facts),
        "findings": [
            {"id": finding.id, "level": str(finding.level)}
            for finding in evaluate_environment(facts).findings
            if finding.level is not Level.NOTE
        ],
    }
    app.show(
        View(
            value=lambda: value,
            text=lambda terminal: _write(terminal, value, steps, is_sandbox=app.is_sandbox),
            is_report=True,
        )
    )


def _find(app: App, text: str) -> NodeName:
    reference = app.reference(text)
    known = [
        name
        for name in app.services.journal.namesakes(app.place.project_of(reference), reference.node_id)
        if reference.zone in {None, name.zone}
    ]
    if not known:
        raise node_not_found_error(app.place, reference)
    if len(known) > 1:
        raise several_nodes_error(reference.node_id, known)
    return known[0]


def steps_of(entries: Sequence[Entry]) -> list[Step]:
    """Return the steps of the last life of a node. Pure."""
    begin = max((at for at, entry in enumerate(entries) if _is(entry, "create")), default=0)
    life = entries[begin:]
    return [
        _usable_after(life, "up", "create"),
        _time_limit(life),
        Step("test", "not recorded"),
        _job(life),
        _usable_after(life, "reset", "restart", "reboot"),
        _down(life),
    ]


def _usable_after(life: Sequence[Entry], step: str, *events: str) -> Step:
    """Return the step that sends a request after which the node is usable, or given up."""
    at = _last(life, lambda entry: _is(entry, *events) and not entry.get("repair"))
    if at is None:
        return Step(step, "not recorded")
    for entry in life[at + 1 :]:
        if _is(entry, "usable"):
            return _step(step, "done", entry, since=life[at])
        if _is(entry, "gave-up"):
            return _step(step, "failed", entry, since=life[at])
        if _is(entry, "delete"):
            break
    return _step(step, "requested", life[at])


def _time_limit(life: Sequence[Entry]) -> Step:
    """Return whether the guard that deletes the node was installed."""
    at = _last(life, lambda entry: _is(entry, "guard"))
    if at is None:
        return Step("time limit", "not recorded")
    return _step("time limit", "done" if life[at].get("ok") else "failed", life[at])


def _job(life: Sequence[Entry]) -> Step:
    """Return the kept job: a plain `run` is not in the journal."""
    at = _last(life, lambda entry: _is(entry, "job"))
    if at is None:
        return Step("run", "not recorded")
    job = life[at].get("job")
    for entry in life[at + 1 :]:
        if _is(entry, "job-over") and entry.get("job") == job:
            return _step("run", "done" if entry.get("code") == 0 else "failed", entry, since=life[at])
    return _step("run", "requested", life[at])


def _down(life: Sequence[Entry]) -> Step:
    at = _last(life, lambda entry: _is(entry, "delete") and not entry.get("repair"))
    if at is None:
        return Step("down", "not recorded")
    gone = next((entry for entry in life[at + 1 :] if _is(entry, "state") and entry.get("state") is None), None)
    return _step("down", "done", gone, since=life[at]) if gone else _step("down", "requested", life[at])


def _is(entry: Entry, *events: str) -> bool:
    return entry.get("event") in events


def _last(life: Sequence[Entry], matches: Any) -> int | None:  # a predicate of entries
    return max((at for at, entry in enumerate(life) if matches(entry)), default=None)


def _step(step: str, outcome: str, entry: Entry, *, since: Entry | None = None) -> Step:
    at, begin = entry.get("at"), since.get("at") if since else None
    took = round((at - begin).total_seconds()) if isinstance(at, datetime) and isinstance(begin, datetime) else None
    return Step(step, outcome, format_timestamp(at) if isinstance(at, datetime) else None, took)


def _node(entries: Sequence[Entry], name: NodeName) -> dict[str, str | None]:
    """Return what kind of node it was."""
    spec = next((entry["spec"] for entry in reversed(entries) if entry.get("spec")), None)
    tier = spec.tier if spec else None
    return {"type": spec.accelerator_type if spec else None, "tier": str(tier) if tier else None, "zone": name.zone}


def _versions(facts: EnvironmentFacts) -> dict[str, str | None]:
    known = environment_json(facts)
    programs = {program: known["programs"].get(program) for program in _PROGRAMS}
    # Without a version the path of a program is known, which may name the user.
    shown = {program: None if text and text.startswith("/") else text for program, text in programs.items()}
    return {"tpuctl": __version__, "python": known["python"], "gcloud": known["gcloud"], **shown}


def _write(terminal: Terminal, value: Mapping[str, Any], steps: Sequence[Step], *, is_sandbox: bool) -> None:
    versions = {program: version for program, version in value["versions"].items() if version}
    terminal.write(", ".join(f"{program} {version}" for program, version in versions.items()))
    terminal.write("sandbox" if is_sandbox else "real service")
    terminal.write("node: " + ", ".join(text for text in value["node"].values() if text))
    for step in steps:
        when = f" at {step.at}" if step.at else ""
        took = f" ({format_duration(timedelta(seconds=step.seconds))})" if step.seconds else ""
        terminal.write(f"{step.step}: {step.outcome}{when}{took}")
    found = " ".join(f"{finding['id']} {finding['level']}" for finding in value["findings"])
    terminal.write(f"doctor: {found or 'no findings'}")
