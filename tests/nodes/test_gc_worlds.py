"""Random worlds with sloppy and hostile labels: what has neither expired by its own label, nor is named by a typed rule, stays.

An oracle that knows only how each resource was made says what goes. 2,000 worlds pass the pure decisions: those of `gc`, of a
race, of expiry and of idleness. A share of other worlds is real: `gc` runs with the client against the sandbox. What other
clients do meanwhile is in tests/hostile.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE
from tpuctl.clock import ManualClock
from tpuctl.models.node import Node
from tpuctl.models.queued import QueuedResource
from tpuctl.names import NodeName
from tpuctl.nodes.expiry import is_expired
from tpuctl.nodes.garbage import GarbageFacts, GarbageReason, GarbageRules, Idleness, find_garbage
from tpuctl.nodes.idle_limit import IdleAction, IdleLimit
from tpuctl.nodes.journal import Journal
from tpuctl.nodes.lease import LeaseKeeper, LeaseOwner, LocalLeaseStore
from tpuctl.nodes.race import find_lost_requests
from tpuctl.nodes.selection import parse_label_conditions
from tpuctl.sandbox import administration
from tpuctl.sandbox.capacity import quota_usage
from tpuctl.sandbox.state_session import StateSession

DECIDED = 2000
WORLDS = 160
FLAGS = {
    "expired": ("--expired",),
    "old": ("--older-than", "3d"),
    "waiting": ("--waiting-for", "6h"),
    "everyones": ("--everyones",),
    "idle": ("--idle", "1d"),
    "label": ("-l", "team=research"),
    "zone": ("--zone", ZONE),
}


def chosen(names: tuple[str, ...], choice: tuple[int, ...]) -> frozenset[str]:
    return frozenset(name for name, on in zip(names, choice, strict=True) if on)


RULES, LIMITS = tuple(FLAGS)[:4], tuple(FLAGS)[4:]
# Each combination of the rules, and twice each combination of the workers' use, a label and a zone.
COMBINATIONS = [
    chosen(RULES, rules) | chosen(LIMITS, limits)
    for rules, limits in zip(product((0, 1), repeat=4), (*product((0, 1), repeat=3),) * 2, strict=True)
]
OTHER_ZONE = "us-central1-b"
# Each counts 8 cores.
TYPES = {ZONE: "v4-8", OTHER_ZONE: "v2-8"}
# What a worker answers about its use.
ANSWERS = {
    "idle": '{"inUse":[],"unknown":[],"uses":[],"age":777600,"last":"it booted"}',
    "was used": '{"inUse":[],"unknown":[],"uses":[],"age":3600,"last":"a job ended"}',
    "in use": '{"inUse":["a job runs"],"unknown":[],"uses":[],"age":777600,"last":"it booted"}',
    "unknown": '{"inUse":[],"unknown":["there is no /proc"],"uses":[],"age":777600,"last":"it booted"}',
}
PAST, FUTURE = "1767000000", "4102444800"
# Written by other programs and by hand: none of them is a time.
SLOPPY = ("soon", "0", "-1", "1767000000000", "01767000000", "17e8", "2026-01-01", "none", "_")
OWNERS = (*("you_example-com",) * 6, "bob", "", "you", "you_example_com", "you_example-com-1")
CORES = 8
DEAD = ("PREEMPTED", "TERMINATED")


@dataclass(frozen=True)
class Made:
    """How one node, or one queued resource with its nodes, was made."""

    name: str
    request: str = ""  # the state; empty without one
    # Of each requested node, or of the node: its state, empty if it does not exist.
    nodes: tuple[str, ...] = ("READY",)
    age: int = 0  # days
    expires: str = ""
    owner: str = "you_example-com"
    is_kept: bool = False
    is_held: bool = False
    zone: str = ZONE
    team: str = ""
    # What its workers answer.
    use: str = "idle"
    keep: str = "x"  # the value of the label, which does not matter
    # It has the label of a race: why, or whose.
    race: str = ""
    minute: int = 0  # of its creation
    is_alike: bool = False  # its request and its only node have one name

    @property
    def labels(self) -> dict[str, str]:
        marks = {"tpuctl-owner": self.owner, "tpuctl-expires": self.expires, "team": self.team}
        marks |= {"tpuctl-race": "0123456789ab"} if self.race else {}
        return {key: value for key, value in marks.items() if value} | (
            {"tpuctl-keep": self.keep} if self.is_kept else {}
        )

    @property
    def node_ids(self) -> tuple[str, ...]:
        if self.is_alike:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(len(self.nodes)))

    @property
    def existing(self) -> dict[str, str]:
        return {node_id: state for node_id, state in zip(self.node_ids, self.nodes, strict=True) if state}


def is_deleted(made: Made, flags: frozenset[str]) -> bool:
    """Return what the user asked for, in the words of the issue."""
    if made.is_kept or made.is_held or (made.owner != "you_example-com" and "everyones" not in flags):
        return False
    if ("label" in flags and made.team != "research") or ("zone" in flags and made.zone != ZONE):
        return False
    has_expired = "expired" in flags and made.expires == PAST
    if not made.existing:
        if made.request in {"ACCEPTED", "WAITING_FOR_RESOURCES"}:
            return has_expired or ("waiting" in flags and made.age >= 1)
        return made.request in {"FAILED", "SUSPENDED"}
    if made.request not in {"", "ACTIVE", "SUSPENDED"}:
        return False
    is_named = has_expired or ("old" in flags and made.age >= 3)
    settled = {"READY", "STOPPED", "REPAIRING", "HIDDEN", "UNKNOWN"} if is_named else set()
    if "idle" in flags and made.use == "idle" and made.age >= 1:
        settled.add("READY")
    return all(state in {*DEAD, *settled} for state in made.existing.values())


def make_world(random: Random, number: int) -> list[Made]:
    """Return one or two resources."""
    world = []
    for each in range(random.randint(1, 2)):
        states = (*DEAD, *DEAD, "READY", "READY", "STOPPED", "REPAIRING", "HIDDEN", "UNKNOWN", "CREATING", "STARTING")
        request = ""
        nodes: tuple[str, ...] = (random.choice(states),)
        if random.random() < 0.5:
            request = random.choice(("ACTIVE", "ACTIVE", "SUSPENDED", "FAILED", "ACCEPTED", "WAITING_FOR_RESOURCES"))
            request = random.choice((request, request, "SUSPENDING", "PROVISIONING", "CREATING"))
            may_have_nodes = request in {"ACTIVE", "SUSPENDED", "SUSPENDING"}
            count = random.choice((1, 1, 2, 3))
            nodes = tuple(random.choice(("", *states)) if may_have_nodes else "" for _ in range(count))
        world.append(
            Made(
                name=f"w{number}-{each}",
                request=request,
                nodes=nodes,
                age=random.choice((0, 0, 2, 5)),
                expires=random.choice(("", "", PAST, PAST, FUTURE, random.choice(SLOPPY))),
                owner=random.choice(OWNERS),
                is_kept=random.random() < 0.1,
                keep=random.choice(("x", "", "no", "false", "0")),
                race=random.choice(("", "", "copied")),
                is_held=random.random() < 0.1,
                zone=random.choice((ZONE, ZONE, ZONE, OTHER_ZONE)),
                team=random.choice(("research", "research", "research", "vision", "")),
                use=random.choice(("idle", "idle", *ANSWERS)),
            )
        )
    return world


def put_requests(session: StateSession, project: str, made: Made) -> None:
    parent = f"projects/{project}/locations/{made.zone}"
    body = {"acceleratorType": TYPES[made.zone], "runtimeVersion": "tpu-ubuntu2204-base", "labels": made.labels}
    tpu = {"nodeSpec": [{"parent": parent, "nodeId": node_id, "node": body} for node_id in made.node_ids]}
    administration.add_queued_resource(
        session, made.name, project=project, zone=made.zone, state=made.request, node_ids=made.node_ids, tpu=tpu
    )


def put_nodes(session: StateSession, project: str, made: Made) -> str:
    """Put the nodes into the sandbox. Return the lines with which a fake ssh answers for their workers."""
    lines, answer = "", ANSWERS[made.use]
    for node_id, state in made.existing.items():
        node = administration.add_node(
            session,
            node_id,
            project=project,
            zone=made.zone,
            state=state,
            acceleratorType=TYPES[made.zone],
            # The sandbox completes a creation that began long ago.
            age=timedelta(days=0 if state == "CREATING" else made.age),
            queued_resource=made.name if made.request else "",
            labels=made.labels,
        )
        frame = f"\\n\\0tpuctl-agent\\nx\\0\\0\\0\\{len(answer):03o}%s"
        lines += f"*tpu.{node['id']}-0*) printf '{frame}' '{answer}' ;;\n"
    return lines


def cores_in_use(session: StateSession, project: str) -> int:
    """Return what counts against the quota in the zones, as the sandbox counts it."""
    return sum(amount for (_, place), amount in quota_usage(session, project).items() if place in TYPES)


RULES_OF: dict[str, dict[str, Any]] = {
    "expired": {"expired": True},
    "old": {"older_than": timedelta(days=3)},
    "waiting": {"waiting_for": timedelta(hours=6)},
    "everyones": {"everyones": True},
    "idle": {"idle": timedelta(days=1)},
    "label": {"labels": parse_label_conditions(["team=research"])},
    "zone": {},
}
NOW = datetime(2026, 6, 1, tzinfo=UTC)
IDLENESS = {
    "was used": Idleness(timedelta(hours=1), ""),
    "in use": Idleness(None, "a job runs"),
    "unknown": Idleness(None, "there is no /proc"),
}


class MemoryStore:
    """A journal of lines in memory."""

    def __init__(self) -> None:
        self._lines: dict[NodeName, bytes] = {}

    def append(self, name: NodeName, line: bytes, *, durable: bool) -> None:  # noqa: ARG002  # of the protocol
        self._lines[name] = self._lines.get(name, b"") + line

    def read(self, name: NodeName) -> bytes:
        return self._lines.get(name, b"")

    def names(self) -> list[NodeName]:
        return sorted(self._lines)

    def recent(self, project: str, zone: str) -> list[NodeName]:  # noqa: ARG002  # of the protocol
        return self.names()

    def where(self, name: NodeName) -> str:
        return str(name)

    def flush(self, *, only_due: bool) -> None:
        pass


def time_text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def as_answers(made: Made) -> tuple[list[Node], list[QueuedResource]]:
    """Return what the API answers for a resource."""
    parent = f"projects/p/locations/{made.zone}"
    created = time_text(NOW - timedelta(days=made.age, minutes=made.minute))
    body = {"acceleratorType": TYPES[made.zone], "labels": made.labels}
    owner = {"queuedResource": f"{parent}/queuedResources/{made.name}"} if made.request else {}
    nodes = [
        Node.from_api({"name": f"{parent}/nodes/{node_id}", "state": state, "createTime": created, **body, **owner})
        for node_id, state in made.existing.items()
    ]
    if not made.request:
        return nodes, []
    request = {
        "name": f"{parent}/queuedResources/{made.name}",
        "createTime": created,
        "state": {"state": made.request},
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": node_id, "node": body} for node_id in made.node_ids]},
    }
    return nodes, [QueuedResource.from_api(request)]


def make_race(random: Random, number: int, journal: Journal) -> list[Made]:
    """Return two requests of one name with the label of one race, and what the journal here knows of them."""
    knows = random.choice(("nothing", "begun", "won", "copied"))
    states = ("READY", "READY", "READY", "STOPPED", "PREEMPTED", "CREATING")
    pair = [
        Made(
            name=f"race{number}",
            request="ACTIVE",
            nodes=(random.choice(states),),
            zone=zone,
            race=role,
            owner=random.choice(OWNERS),
            is_kept=random.random() < 0.1,
            team=random.choice(("research", "vision")),
            minute=random.randint(1, 59),
            is_alike=True,
        )
        for zone, role in ((OTHER_ZONE, "loser"), (ZONE, "winner"))
    ]
    loser, winner = pair
    for made in pair if knows != "nothing" else ():
        name = NodeName("p", made.zone, made.name)
        ((request,),) = [as_answers(made)[1]]
        journal.append(name, "race", NOW, race="0123456789ab", zones=[ZONE, OTHER_ZONE])
        if knows == "begun":
            continue
        # `copied`: another client made the request in the place of ours that lost.
        times = {made.zone: as_answers(made)[1][0].raw["createTime"] for made in pair}
        lost = times[OTHER_ZONE] if knows == "won" else time_text(NOW - timedelta(days=30))
        journal.append(
            name, "race", NOW, race="0123456789ab", winner=ZONE, created=times[ZONE], lost={OTHER_ZONE: lost}
        )
        assert request.created is not None
    won = knows == "won" and winner.nodes == ("READY",)
    return [replace(loser, race="lost" if won else "copied"), replace(winner, race="copied")]


def is_left(made: Made, flags: frozenset[str]) -> bool:
    """Return whether a resource of a race stays."""
    if made.race != "lost" or made.nodes in {("CREATING",), ("PREEMPTED",)}:
        return not is_deleted(made, flags)
    # The zones of a race are looked at together.
    is_named = "zone" not in flags and not made.is_kept and ("label" not in flags or made.team == "research")
    return not (is_named and (made.owner == "you_example-com" or "everyones" in flags))


@pytest.mark.parametrize("seed", range(4))
def test_decisions_about_random_worlds_delete_what_is_named_and_nothing_else(seed: int) -> None:
    """Each world is judged alone by `gc`, and each of its nodes by what ends nodes in `watch`."""
    reasons = set()
    for number in range(DECIDED // 4):
        random = Random(seed * DECIDED + number)  # noqa: S311  # the same worlds each time
        journal = Journal(MemoryStore())
        worlds = make_world(random, number)
        worlds += make_race(random, number, journal) if random.random() < 0.5 else []
        flags = frozenset(flag for flag in FLAGS if random.random() < 0.4)
        answers = [(made, *as_answers(made)) for made in worlds if "zone" not in flags or made.zone == ZONE]
        nodes = [node for _, found, _ in answers for node in found]
        requests = [request for _, _, found in answers for request in found]
        rules = GarbageRules(owner="you_example-com")
        for flag in flags:
            rules = replace(rules, **RULES_OF[flag])
        races = find_lost_requests(journal, "p", nodes, requests, now=NOW, sees_runs=True)
        holders = {
            NodeName("p", made.zone, node_id): "`up`" for made in worlds if made.is_held for node_id in made.node_ids
        }
        facts = GarbageFacts(
            project="p",
            nodes=nodes,
            requests=requests,
            leases=holders,
            idleness={
                node.name: IDLENESS.get(made.use) or Idleness(timedelta(days=made.age), "")
                for made, found, _ in answers
                for node in found
            },
            lost=races.lost,
            unproven=races.unproven,
        )
        items = find_garbage(facts, rules, NOW)
        named = {(item.group.zone, item.group.names) for item in items if item.is_deleted}
        wanted = {
            (made.zone, tuple(NodeName("p", made.zone, node_id) for node_id in made.node_ids))
            for made, _, _ in answers
            if not is_left(made, flags)
        }
        assert {(zone, frozenset(names)) for zone, names in named} == {
            (zone, frozenset(names)) for zone, names in wanted
        }, (seed, number, sorted(flags), worlds)
        reasons |= {item.reason for item in items if item.is_deleted}

        limit = IdleLimit(timedelta(days=1), owner="you_example-com")
        for made, found, _ in answers:
            for node in found:
                assert is_expired(node, NOW) is (made.expires == PAST), (seed, number, made)
                may_delete = made.owner == "you_example-com" and not made.is_kept
                assert (limit.action_for(node) is IdleAction.DELETE) is may_delete, (seed, number, made)
    assert reasons == set(GarbageReason)


def test_random_worlds_lose_what_the_flags_name_and_nothing_else(
    tpuctl: Console, sandbox: Sandbox, clock: ManualClock, fake_ssh: Callable[[str], None]
) -> None:
    random = Random(18)  # noqa: S311  # the same worlds each time
    projects: dict[str, tuple[frozenset[str], list[Made]]] = {}
    for number in range(WORLDS):
        project = f"project-{number % len(COMBINATIONS)}"
        flags, worlds = projects.setdefault(project, (COMBINATIONS[number % len(COMBINATIONS)], []))
        worlds += make_world(random, number)
    folder = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "leases"
    leases = LeaseKeeper(LocalLeaseStore(folder, clock), clock, LeaseOwner("elsewhere", 1, "token"))
    for age in (5, 2, 0):
        with sandbox.state.write() as session:
            for project, (_, worlds) in projects.items():
                for made in worlds:
                    if made.request and made.age == age:
                        put_requests(session, project, made)
        clock.sleep(timedelta(days={5: 3, 2: 2, 0: 0}[age]))
    for project, (_, worlds) in projects.items():
        for made in worlds:
            if made.is_held:
                assert leases.acquire(NodeName(project, made.zone, made.node_ids[0]), "up") is None

    deletions, reasons = 0, set()
    for project, (flags, worlds) in projects.items():
        with sandbox.state.write() as session:
            answers = "".join(put_nodes(session, project, made) for made in worlds)
        fake_ssh(f'case "$*" in\n{answers}esac\nexit 0')
        options = [word for flag in FLAGS if flag in flags for word in FLAGS[flag]]
        wanted = {made.name for made in worlds if is_deleted(made, flags)}
        found = json.loads(tpuctl("gc", "--project", project, *options, "-o", "json")[0])
        named = {item["queuedResource"] or item["name"].rpartition("-")[0] for item in found if item["delete"]}
        assert named == wanted, [made for made in worlds if made.name in named ^ wanted]

        out, err, code = tpuctl("gc", "--project", project, *options, "--yes", "-o", "json")

        assert code == 0, err
        assert {item["outcome"] for item in json.loads(out) if "outcome" in item} <= {"deleted"}
        reasons |= {item["reason"] for item in json.loads(out) if item["delete"]}
        with sandbox.state.read() as session:
            nodes = {node.node_id for node in session.nodes() if node.project == project and session.exists(node)}
            requests = {one.queued_resource_id for one in session.queued_resources(project) if session.exists(one)}
            in_use = cores_in_use(session, project)
        deletions += len(wanted)
        kept = [made for made in worlds if made.name not in wanted]
        assert nodes == {node_id for made in kept for node_id in made.existing}
        assert requests == {made.name for made in kept if made.request}
        assert in_use == CORES * sum(len(made.nodes) for made in kept)
    assert deletions > 25
    assert reasons == {"dead", "expired", "old", "idle", "waiting"}
