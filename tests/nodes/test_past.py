"""The past of a node by its journal: one row for each question and life."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tpuctl.models.node import Node
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.conditions import RepairAttempts
from tpuctl.nodes.journal import Journal
from tpuctl.nodes.past import Past, past_of, zone_memory

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAME = NodeName("p", "us-central2-b", "demo")
SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="img", setup="old").to_json()
WAITING = "WAITING_FOR_RESOURCES"
# Of `create` and `delete`, by its first word.
SPECS: dict[str, Any] = {
    "": SPEC,
    "queued": {**SPEC, "queue": True},
    "spot": {**SPEC, "tier": "spot"},
    "v4-16": {**SPEC, "accelerator_type": "v4-16"},
    "bare": None,
}


def entries(life: str) -> list[dict[str, Any]]:
    """Return the entries of a life: `MINUTE EVENT [STATE or SPEC] [KEY=VALUE] [#ID] [@WRITER]`, separated by `;`."""
    found = []
    for line in filter(None, life.split("; ")):
        minute, event, *words = line.split()
        entry: dict[str, Any] = {"at": at(float(minute)).isoformat(), "event": event, "by": "here"}
        if event in {"create", "delete"}:
            entry |= {"spec": SPEC, "reason": "asked for"}
        for word in words:
            key, is_value, value = word.partition("=")
            if is_value:
                entry[key] = {"true": True, "false": False}.get(value, value)
            elif word[0] in "#@":
                entry["id" if word[0] == "#" else "by"] = word[1:]
            elif word in SPECS:
                entry["spec"] = SPECS[word]
            else:
                entry["state"] = None if word == "gone" else word
        found.append(entry)
    return found


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def node(node_id: str, minute: float) -> Node:
    return Node(NAME, {"id": node_id, "createTime": at(minute).isoformat(), "labels": {REQUEST_LABEL: "r"}})


def minute(moment: datetime | None) -> float | None:
    return None if moment is None else (moment - NOON) / timedelta(minutes=1)


def known(past: Past, node_id: str, created: float) -> tuple[bool, str | None]:
    """Return whether the journal has the spec that made a node, and its set-up that has not run."""
    found = node(node_id, created)
    return past.made_as(found) is not None, past.setup_to_do(found)


def memory(past: Past, tier: str | None = None) -> tuple[float | None, float | None]:
    """Return when the zone last had a node, and last had none."""
    success, stockout = zone_memory(past.creations, "v4-8", tier)
    return minute(success), minute(stockout)


QUESTIONS: dict[str, Callable[[Past], Any]] = {
    "failed": lambda past: past.has_failed_creation,
    "took": lambda past: [one.took and one.took / timedelta(minutes=1) for one in past.creations],
    "memory": memory,
    "on demand": lambda past: memory(past, "on-demand"),
    "of spot": lambda past: memory(past, "spot"),
    "waits since": lambda past: minute(past.request_since(WAITING, created=NOON)),
    "first node": lambda past: known(past, "1", 1),
    "later node": lambda past: known(past, "2", 9),
    "earlier node": lambda past: known(past, "0", -6),
    "next set-up": lambda past: past.spec and past.spec.setup,
    "is ended": lambda past: (past.is_ended, past.is_being_recreated, past.former_spec is not None),
    "may exist": lambda past: past.may_have_node,
    "creations": lambda past: [minute(one.at) for one in past.creations],
    "lost a race": lambda past: (past.has_lost_race, past.may_have_node),
    "stopped": lambda past: past.stopped,
    "ways": lambda past: [way / timedelta(minutes=1) for way in past.times_to_usable.values()],
    "passed ends": lambda past: [(minute(one.at), one.has_guard) for one in past.passed_ends],
    "is left": lambda past: [past.is_left(node("1", 1), at(now)) for now in (9, 99)],
}
LIVES = [
    # An attempt that left no node.
    ("failed", "", False),
    ("failed", "0 create", False),
    ("failed", "0 create; 1 gave-up error=no_capacity", True),
    ("failed", "0 create; 1 gave-up error=access", True),
    ("failed", "0 create; 1 state CREATING; 2 state gone; 3 gave-up error=no_capacity", True),
    ("failed", "0 create; 1 state CREATING; 3 gave-up error=no_capacity", False),
    ("failed", "0 create; 1 gave-up error=no_capacity; 2 create; 3 state CREATING", False),
    ("failed", "0 create; 1 state CREATING; 2 delete; 3 state gone", False),
    ("failed", "0 create; 1 gave-up error=timed_out", False),
    ("failed", "0 create; 1 delete; 2 gave-up error=timed_out", True),
    # The duration of a creation, for one writer that saw it from beginning to end.
    (
        "took",
        "0 create; 1 state CREATING #1; 4 state READY #1; 9 create; 10 state CREATING #2; 15 state READY #2",
        [4, 6],
    ),
    ("took", "0 create; 4 state READY #1", [4]),
    ("took", "0 create queued; 1 request ACTIVE; 6 state CREATING #1; 9 state READY #1", [3]),
    ("took", "5 state CREATING #1; 9 state READY #1", []),
    ("took", "0 create; 1 state CREATING #1; 5 state gone; 6 state READY", [None]),
    ("took", "0 create; 1 state CREATING #1; 9 state READY #2", [None]),
    ("took", "0 create; 1 state CREATING #1; 9 state READY #1 @there", [None]),
    ("took", "0 create; 5 create; 9 state READY #1", [None, 4]),
    ("took", "0 create; 1 usable; 9 state READY", [None]),
    # What is remembered of a zone.
    ("memory", "", (None, None)),
    ("memory", "0 create", (None, None)),
    ("memory", "0 create; 1 usable", (1, None)),
    ("memory", "0 create; 1 state READY", (1, None)),
    ("memory", "0 create; 1 state CREATING", (None, None)),
    ("memory", "0 create; 2 note error=no_capacity", (None, 2)),
    ("memory", "0 create; 3 gave-up error=no_capacity", (None, 3)),
    ("memory", "0 create; 3 gave-up error=quota", (None, None)),
    ("memory", "0 create; 2 note error=no_capacity; 5 usable", (5, 2)),
    ("memory", "0 create; 1 state READY; 4 create; 6 note error=no_capacity", (1, 6)),
    ("memory", "0 create; 1 state READY; 2 note error=no_capacity", (1, None)),  # of a start later
    ("memory", "0 create; 1 delete; 2 state READY", (None, None)),
    ("memory", "1 state READY; 2 note error=no_capacity", (None, None)),
    ("memory", "0 create bare; 1 state READY", (None, None)),
    ("memory", "0 create v4-16; 1 state READY", (None, None)),
    ("memory", "0 create spot; 1 state READY", (None, None)),
    ("memory", "0 create at=yesterday; 1 state READY", (None, None)),
    ("of spot", "0 create spot; 1 state READY", (1, None)),
    ("on demand", "0 create; 1 state READY", (1, None)),
    # How long until the node was usable, from its first request in any run.
    ("ways", "0 create; 3 gave-up error=timed_out; 9 bringing-up #1; 12 usable #1", [12]),
    ("ways", "0 create; 3 note error=no_capacity; 4 create; 12 usable #1", [12]),
    ("ways", "0 create; 3 gave-up error=no_capacity; 90 create; 95 usable #1", [5]),
    ("ways", "0 create; 4 usable #1; 30 restart #1; 33 usable #1", [4, 3]),
    ("ways", "0 create; 2 delete reason=sick; 3 create; 8 usable #1", [5]),
    ("ways", "0 start #1; 2 stop #1; 60 start #1; 63 usable #1", [3]),
    ("ways", "0 create; 4 usable #1 took=600", [10]),
    (
        "ways",
        "0 create; 1 bringing-up #1; 2 guard #1 ok=true until=2026-01-01T12:10:00Z; 60 create; 64 usable #2",
        [4],
    ),
    ("passed ends", "0 create; 2 guard #1 ok=true until=2026-01-01T12:10:00Z; 5 delete; 60 create", []),
    ("passed ends", "0 create; 2 guard #1 ok=true until=2026-01-01T12:10:00Z; 60 create; 70 create", [(10, True)]),
    ("passed ends", "0 create; 2 extend until=2026-01-01T12:10:00Z; 60 create", [(10, False)]),
    # Since when a request of noon waits.
    ("waits since", "", None),
    ("waits since", f"5 request {WAITING}", 5),
    ("waits since", f"5 request {WAITING}; 10 request {WAITING}", 5),
    ("waits since", "5 request ACCEPTED", None),
    ("waits since", f"5 request {WAITING}; 6 request PROVISIONING; 7 request {WAITING}", 7),
    ("waits since", f"-1 request {WAITING}", None),
    ("waits since", f"-1 request {WAITING}; 3 request {WAITING}", 3),
    ("waits since", f"0 request {WAITING}", 0),
    ("waits since", f"5 state {WAITING}", None),
    # Whether tpuctl made a node, and what is left of its set-up.
    ("first node", "0 create; 2 state CREATING #1", (True, "old")),
    ("first node", "0 create; 2 state CREATING #1; 3 setup #1 ok=true", (True, None)),
    ("first node", "0 create; 2 state CREATING #1; 3 setup #1 ok=false", (True, "old")),
    ("first node", "0 create bare; 2 state CREATING #1", (False, None)),
    ("first node", "0 delete", (False, None)),
    ("earlier node", "0 create", (False, None)),
    ("later node", "0 create", (True, "old")),  # it may be the one that was requested
    ("later node", "0 create; 2 state CREATING #1", (False, None)),  # another client made it
    ("later node", "0 create queued; 2 state CREATING #1", (True, "old")),  # its request made it
    ("later node", "0 create; 2 state CREATING #1; 8 create", (True, "old")),
    ("later node", "0 create; 2 state READY #1; 8 create; 8.1 state DELETING #1; 9 state CREATING #2", (True, "old")),
    # A set-up that succeeded in the place of one that failed.
    ("next set-up", "0 create; 2 state CREATING #1; 3 setup #1 ok=true script=new", "new"),
    ("next set-up", "0 create; 2 state CREATING #1; 3 setup #1 ok=false script=new", "old"),
    ("next set-up", "0 create; 3 setup #1 ok=true script=new; 4 create", "old"),
    # A deletion for good, or in order to create the node again.
    ("is ended", "0 create; 5 delete", (True, False, False)),
    ("is ended", "0 create; 5 delete reason=idle; 6 create", (False, False, True)),
    ("is ended", "0 create; 5 delete reason=expired", (True, False, False)),
    ("is ended", "0 create; 5 delete reason=sick; 6 create", (False, True, True)),
    ("is ended", "0 create; 5 delete reason=sick; 6 create; 7 bringing-up #2", (False, False, True)),
    # A change that its process did not send.
    ("is ended", "0 create; 5 delete; 6 note unsent=delete", (False, False, True)),
    ("is ended", "0 create; 5 delete; 6 note unsent=delete @there", (True, False, False)),
    ("is ended", "0 create; 6 note unsent=delete", (False, False, True)),
    ("creations", "0 create; 5 create; 6 note unsent=create", [0]),
    ("creations", "0 create; 5 create; 6 note unsent=create; 7 note unsent=create", []),
    # A node that may be there.
    ("may exist", "", False),
    ("may exist", "0 create", True),
    ("may exist", "0 create; 1 state gone", False),
    ("may exist", "1 usable; 2 delete", False),
    ("may exist", "1 usable; 2 delete; 3 recovered", True),
    ("lost a race", "0 create race=r; 1 race race=r winner=us-east5-a", (True, True)),
    ("lost a race", "0 create race=r; 1 race race=r winner=us-east5-a; 2 race race=r over=true", (True, False)),
    ("lost a race", "0 create race=r; 1 race race=r winner=us-central2-b; 2 race race=r over=true", (False, True)),
    ("lost a race", "0 race race=r winner=us-east5-a; 1 create", (False, True)),
    # What an interrupted run left.
    ("stopped", "0 restart #1", "1"),
    ("stopped", "0 restart #1; 1 usable #1", None),
    ("stopped", "0 restart #1; 1 note refused=stop", None),
    ("is left", "0 create", [True, False]),
    ("is left", "0 create reason=", [False, False]),
    ("is left", "0 create; 2 delete", [False, False]),
    ("is left", "2 bringing-up #1", [True, False]),
    ("is left", "2 bringing-up #2", [False, False]),
    ("is left", "2 start #1; 3 usable #1", [False, False]),
    ("is left", "2 start #1; 3 gave-up error=timed_out", [True, False]),
    ("is left", "2 start #1; 3 gave-up error=broken", [False, False]),
]


@pytest.mark.parametrize(("question", "life", "answer"), LIVES)
def test_past_answers(question: str, life: str, answer: object) -> None:
    assert QUESTIONS[question](past_of(entries(life), NAME.zone)) == answer


REPAIRS = "0 usable; 60 reboot; 66 restart; 72 delete repair=true; 72 delete; 78 usable"


@pytest.mark.parametrize(
    ("more", "now", "attempts"),
    [
        ("", 192, RepairAttempts(1, 1, 1)),
        ("", 198, RepairAttempts()),
        ("; 120 state READY health=HEALTHY; 126 state READY", 198, RepairAttempts()),
        ("; 120 state READY health=TIMEOUT", 540, RepairAttempts(1, 1, 1)),
        ("; 120 state PREEMPTED; 150 recovered", 269, RepairAttempts(1, 1, 1)),
        ("; 120 state PREEMPTED; 150 recovered", 270, RepairAttempts()),
        ("; 240 restart; 246 restart repair=false", 300, RepairAttempts(restarts=1)),
    ],
)
def test_repairs_expire_after_two_usable_hours(more: str, now: float, attempts: RepairAttempts) -> None:
    assert past_of(entries(REPAIRS + more)).attempts(refill=timedelta(hours=2), now=at(now)) == attempts


def test_usual_duration_is_the_median_of_type_and_nearest_zone(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for zone, took in (("us-central2-b", 10), ("us-central2-b", 8), ("us-central2-b", 9), ("us-east5-a", 50)):
        for spec in ("", "v4-16"):
            name = NodeName("p", zone, f"n{spec}-{took}")
            journal.append(name, "create", NOON, spec=SPECS[spec])
            journal.append(name, "state", at(took + len(spec)), state="READY", id="1")

    asked = (("v4-8", "us-central2-b"), ("v4-16", "us-east5-a"), ("v4-8", "us-west4-a"), ("v5p-8", "us-central2-b"))
    found = [journal.usual("p", accelerator_type, zone) for accelerator_type, zone in asked]

    assert [took and took / timedelta(minutes=1) for took in found] == [9, 55, 10, None]


def test_withdrawn_entry_stays_readable(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(NAME, "create", NOON, spec=SPEC)
    journal.append(NAME, "delete", NOON, spec=SPEC, reason="asked for")
    journal.withdraw(NAME, "delete", NOON)

    assert [one["event"] for one in journal.entries(NAME)] == ["create", "delete", "note"]
    assert not journal.past(NAME).is_ended
