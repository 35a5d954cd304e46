"""Random worlds in the sandbox: `gc` deletes what an oracle that knows only how each was made says, and nothing else.

Each combination of the options has a project of its own, which holds its worlds side by side.
"""

from __future__ import annotations

import json
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
}
COMBINATIONS = [
    frozenset(flag for flag, on in zip(FLAGS, choice, strict=True) if on) for choice in product((0, 1), repeat=4)
]
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

    @property
    def labels(self) -> dict[str, str]:
        marks = {"tpuctl-owner": self.owner, "tpuctl-expires": self.expires, "tpuctl-keep": "x" * self.is_kept}
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
    has_expired = "expired" in flags and made.expires == PAST
    if not made.existing:
        if made.request in {"ACCEPTED", "WAITING_FOR_RESOURCES"}:
            return has_expired or ("waiting" in flags and made.age >= 1)
        return made.request in {"FAILED", "SUSPENDED"}
    if made.request not in {"", "ACTIVE", "SUSPENDED"}:
        return False
    is_named = has_expired or ("old" in flags and made.age >= 3)
    settled = {"READY", "STOPPED", "REPAIRING", "HIDDEN", "UNKNOWN"}
    return all(state in DEAD or (state in settled and is_named) for state in made.existing.values())


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
            )
        )
    return world


def put_requests(session: StateSession, project: str, made: Made) -> None:
    parent = f"projects/{project}/locations/{ZONE}"
    body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base", "labels": made.labels}
    tpu = {"nodeSpec": [{"parent": parent, "nodeId": node_id, "node": body} for node_id in made.node_ids]}
    administration.add_queued_resource(
        session, made.name, project=project, zone=ZONE, state=made.request, node_ids=made.node_ids, tpu=tpu
    )


def put_nodes(session: StateSession, project: str, made: Made) -> None:
    for node_id, state in made.existing.items():
        administration.add_node(
            session,
            node_id,
            project=project,
            zone=ZONE,
            state=state,
            # The sandbox completes a creation that began long ago.
            age=timedelta(days=0 if state == "CREATING" else made.age),
            queued_resource=made.name if made.request else "",
            labels=made.labels,
        )


def cores_in_use(session: StateSession, project: str) -> int:
    """Return what counts against the quota in the zone, as the sandbox counts it."""
    return sum(amount for (_, place), amount in quota_usage(session, project).items() if place == ZONE)


@one_face
def test_random_worlds_lose_what_the_flags_name_and_nothing_else(
    tpuctl: Console, sandbox: Sandbox, clock: ManualClock
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
                assert leases.acquire(NodeName(project, ZONE, made.node_ids[0]), "up") is None

    deletions = 0
    for project, (flags, worlds) in projects.items():
        with sandbox.state.write() as session:
            for made in worlds:
                put_nodes(session, project, made)
        options = [word for flag in FLAGS if flag in flags for word in FLAGS[flag]]
        wanted = {made.name for made in worlds if is_deleted(made, flags)}
        found = json.loads(tpuctl("gc", "--project", project, *options, "-o", "json")[0])
        named = {item["queuedResource"] or item["name"].rpartition("-")[0] for item in found if item["delete"]}
        assert named == wanted, [made for made in worlds if made.name in named ^ wanted]

        out, err, code = tpuctl("gc", "--project", project, *options, "--yes", "-o", "json")

        assert code == 0, err
        assert {item["outcome"] for item in json.loads(out) if "outcome" in item} <= {"deleted"}
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
