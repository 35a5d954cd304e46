"""Random worlds in the sandbox: `gc` deletes what an oracle that knows only how each was made says, and nothing else.

Each combination of the options has a project of its own, which holds its worlds side by side.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from random import Random

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, one_face
from tpuctl.clock import ManualClock
from tpuctl.names import NodeName
from tpuctl.nodes.lease import LeaseKeeper, LeaseOwner, LocalLeaseStore
from tpuctl.sandbox import administration
from tpuctl.sandbox.capacity import quota_usage
from tpuctl.sandbox.state_session import StateSession

WORLDS = 500
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

    @property
    def labels(self) -> dict[str, str]:
        marks = {"tpuctl-owner": self.owner, "tpuctl-expires": self.expires, "tpuctl-keep": "x" * self.is_kept}
        marks["team"] = self.team
        return {key: value for key, value in marks.items() if value}

    @property
    def node_ids(self) -> tuple[str, ...]:
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
                expires=random.choice(("", "", PAST, PAST, FUTURE, "soon")),
                owner=random.choice(("you_example-com", "you_example-com", "bob", "")),
                is_kept=random.random() < 0.1,
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


@one_face
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
    assert deletions > 100
    assert reasons == {"dead", "expired", "old", "idle", "waiting"}
