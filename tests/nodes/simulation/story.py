"""Describe one node line by line: faults, requests, events of the loop, results."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tests.nodes.simulation.capacity_run import CapacityHistory
from tests.nodes.simulation.clock import BEGIN
from tests.nodes.simulation.plan import Life
from tests.nodes.simulation.run import History
from tests.nodes.simulation.truth import Truth


def story(history: History, life: Life) -> list[str]:
    """Return the lines of a node in the order of time."""
    begin = history.begun[0]
    plan = history.plan
    head = [
        f"--- {life.node_id} of world {plan.seed}: {life.goal}",
        f"    {life.accelerator_type}{' spot' if life.spot else ''}, found {life.found}, creation {life.creation}",
        f"    ssh after {life.ssh_lag}, can ask {plan.can_ask}, until {plan.until}, login ends {plan.login_ends}",
        *(f"    planned {fault}" for fault in life.faults),
        *(f"    planned {spell}" for spell in plan.weather),
    ]
    lines = sorted(_lines(history, life), key=lambda line: line[0])
    return [*head, *(f"{(at - begin).total_seconds():9.1f}  {text}" for at, text in lines)]


def _lines(history: History, life: Life) -> Iterator[tuple[datetime, str]]:
    truth = Truth(history, life)
    for number, at in enumerate(history.begun, 1):
        yield at, f"=== run {number}"
    for at, record in history.ledger.snapshots[life.name]:
        ahead = [f"{p.state}{' ' + p.health if p.health else ''}@{(p.at - history.begun[0]).total_seconds():.0f}"
                 for p in record.timeline[-4:]] if record else []  # fmt: skip
        yield at, f"    world: {record.number[:6] + ' ' + ' > '.join(ahead) if record else 'nothing'}"
    for happening in truth.happenings:
        yield happening.at, f"  another client: {happening.kind}"
    for change in truth.changes:
        yield change.at, f"  {change.verb} -> {change.status} at {change.answered:%H:%M:%S}, last read {change.look}"
    for at, run in truth.reboots:
        yield at, f"  reboot in run {run}"
    for event in history.events:
        if event.node.node_id == life.node_id and str(event.kind) != "wait":
            yield event.at, f"  event: {event.kind} {event.text}"
    ending = history.endings[life.name]
    yield ending.at, f"  ended with {ending.code}: {ending.words}"


def capacity_story(history: CapacityHistory) -> list[str]:
    """Return the lines of a life that looks for capacity in the order of time."""
    life, world = history.life, history.world
    head = [
        f"--- life {life.seed}: {'requests ' if life.is_queued else ''}{'/'.join(life.tiers)} in {', '.join(life.zones)}",
        f"    queue for {life.queue_for}, start after {life.start_after}, recreate deleted {life.recreate_deleted}",
    ]
    lines = [(at, f"world: {text}") for at, text in world.notes]
    for write in world.writes:
        force = " with force" if write.is_forced else ""
        what = f"{write.verb} {write.kind} in {write.zone}{force} -> {write.status}, it was {write.target()}"
        lines.append((write.at, f"  run {write.run}: {what}"))
    for result in history.results:
        left = ", ".join(f"{key.kind} {key.zone} {state}" for key, state in result.left.items()) or "nothing"
        lines.append((result.begun, f"=== {result.plan}"))
        lines.append((result.ended, f"=== ended with {result.code}: {result.words}; left {left}"))
    lines += [
        (event.at, f"    {event.node.zone} {event.kind}: {event.text}")
        for event in history.events
        if str(event.kind) != "wait"
    ]
    return [
        *head,
        *(f"{(at - BEGIN).total_seconds():9.1f}  {text}" for at, text in sorted(lines, key=lambda line: line[0])),
    ]
