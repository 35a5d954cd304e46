"""A dry run: the next step of the run, and gcloud commands that gcloud accepts."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.models.node import DataDisk, Node, NodeState, Tier
from tpuctl.models.spec import NodeSpec, SpecDifference
from tpuctl.names import NodeName
from tpuctl.nodes.conditions import Condition, ObservedState, Policy, Repair, Verb
from tpuctl.nodes.plan import PlanStep, ResetMode, gcloud_commands, next_step, reset_mode

NAME = NodeName("p", "us-central2-b", "trainer")
UP = Policy(may_create=True, may_start=True, repair=Repair.RESTART)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
_WHERE = "trainer --zone us-central2-b --project p"


def node(state: str, **fields: Any) -> Node:
    return Node(NAME, {"name": str(NAME), "id": "7", "state": state, "acceleratorType": "v4-8"} | fields)


def planned(found: Node | None, *, policy: Policy = UP, **seen: Any) -> str | None:
    """The verb of the next step, or the kind of the error; None if there is none."""
    try:
        step = next_step(policy, ObservedState(name=NAME, node=found, **seen), NOW, spec=None)
    except TpuctlError as error:
        return error.kind
    return step.verb if step else None


_STEPS = {
    "STATE_UNSPECIFIED": "wait",
    "CREATING": "wait",
    "READY": "wait",
    "RESTARTING": "wait",
    "REIMAGING": "wait",
    "DELETING": "wait",
    "REPAIRING": "wait",
    "STOPPED": "start",
    "STOPPING": "wait",
    "STARTING": "wait",
    "PREEMPTED": "delete",
    "TERMINATED": "delete",
    "HIDING": "wait",
    "HIDDEN": "broken",
    "UNHIDING": "wait",
    "UNKNOWN": "broken",
    "BRAND_NEW": "wait",
}


def test_next_step_from_each_state_is_that_of_up() -> None:
    assert {state: planned(node(state)) for state in (*map(str, NodeState), "BRAND_NEW")} == _STEPS
    assert next_step(UP, ObservedState(name=NAME, node=None), NOW, spec=SMALL) == (
        PlanStep(Verb.CREATE, NAME, "there is none yet", spec=SMALL)
    )
    assert planned(node("READY"), policy=replace(UP, goal=Condition.READY)) is None


@pytest.mark.parametrize(
    ("found", "options", "expected"),
    [
        (node("READY"), {"differences": (SpecDifference("tier", "spot", "on-demand"),)}, "conflict"),
        (
            node("READY"),
            {"differences": (SpecDifference("tier", "spot", "on-demand"),), "policy": replace(UP, replace=True)},
            "delete",
        ),
        (
            node("CREATING"),
            {"differences": (SpecDifference("tier", "spot", "on-demand"),), "policy": replace(UP, replace=True)},
            "wait",
        ),
        (node("STARTING"), {"unchanged_since": -timedelta(hours=1)}, "stop"),
        (node("STOPPED", schedulingConfig={"spot": True}), {}, "conflict"),
        (node("READY", acceleratorType="v4-32", networkConfigs=[{}, {}]), {}, "wait"),
        (node("CREATING", acceleratorType="v9-4"), {}, "wait"),
    ],
)
def test_next_step_depends_on_differences_time_and_shape(found: Node, options: dict[str, Any], expected: str) -> None:
    assert planned(found, **options) == expected


QUEUED = "projects/p/locations/us-central2-b/queuedResources/q1"
_SPOT, _SLICE = {"schedulingConfig": {"spot": True}}, {"acceleratorType": "v4-16"}


@pytest.mark.parametrize(
    ("found", "wanted", "chosen"),
    [
        (node("READY"), "auto", "restart"),
        (node("READY"), "restart", "restart"),
        (node("READY"), "reboot", "reboot"),
        (node("READY"), "recreate", "recreate"),
        (node("READY", **_SLICE), "auto", "reboot"),
        (node("READY", **_SPOT), "auto", "reboot"),
        (node("READY", **_SLICE), "restart", None),
        (node("READY", **_SPOT), "restart", None),
        (node("STOPPED"), "auto", "restart"),
        (node("STOPPED"), "restart", "restart"),
        (node("STOPPED", **_SPOT), "auto", None),
        (node("CREATING"), "auto", None),
        (node("REPAIRING"), "reboot", None),
        (node("PREEMPTED"), "auto", None),
        (node("PREEMPTED"), "recreate", "recreate"),
        (node("READY", queuedResource=QUEUED), "auto", "reboot"),
    ],
)
def test_reset_mode_recreates_only_on_request(found: Node, wanted: str, chosen: str | None) -> None:
    if chosen is not None:
        assert reset_mode(found, ResetMode(wanted)) == chosen
        return
    with pytest.raises(ConflictError) as refused:
        reset_mode(found, ResetMode(wanted))
    assert "--mode recreate` deletes and recreates it" in (refused.value.hint or "")


SMALL = NodeSpec(accelerator_type="v5litepod-8", runtime_version="v2-alpha-tpuv5-lite")
FULL = NodeSpec(
    accelerator_type="v4-16",
    topology="1x2x4",
    runtime_version="tpu-ubuntu2204-base",
    tier=Tier.SPOT,
    network="net",
    subnetwork="sub",
    internal_ips=True,
    queue_count=4,
    cidr_block="10.0.0.0/29",
    service_account="a@p.iam.gserviceaccount.com",
    scopes=("https://www.googleapis.com/auth/cloud-platform",),
    labels={"team": "x", "cost": "y"},
    tags=("t1", "t2"),
    metadata={"startup-script": "echo a,b; echo 'c:d' | cat", "other": "ends in :"},
    data_disks=(DataDisk("projects/p/zones/us-central2-b/disks/d", "READ_ONLY"),),
    shielded_secure_boot=True,
    description="two words",
)


def commands(verb: Verb, spec: NodeSpec | None = None, changes: dict[str, Any] | None = None) -> list[str]:
    """The commands of a step, as a shell would split them, without what they have in common."""
    printed = gcloud_commands(PlanStep(verb, NAME, "", spec=spec, changes=changes or {}))
    return ["\n".join(shlex.split(line)).replace(_WHERE.replace(" ", "\n"), "@") for line in printed]


def test_create_command_has_every_field_of_the_spec() -> None:
    assert commands(Verb.CREATE) == commands(Verb.WAIT, SMALL) == []
    assert commands(Verb.CREATE, SMALL)[0].split("\n") == [
        "gcloud",
        "compute",
        "tpus",
        "tpu-vm",
        "create",
        "@",
        "--accelerator-type=v5litepod-8",
        "--version=v2-alpha-tpuv5-lite",
    ]
    assert commands(Verb.CREATE, FULL)[0].split("\n")[4:] == [
        "create",
        "@",
        "--type=v4",
        "--topology=1x2x4",
        "--version=tpu-ubuntu2204-base",
        "--spot",
        "--network=net",
        "--subnetwork=sub",
        "--internal-ips",
        "--range=10.0.0.0/29",
        "--queue-count=4",
        "--service-account=a@p.iam.gserviceaccount.com",
        "--scopes=https://www.googleapis.com/auth/cloud-platform",
        "--labels=team=x,cost=y",
        "--tags=t1,t2",
        "--metadata=^#^startup-script=echo a,b; echo 'c:d' | cat#other=ends in :",
        "--data-disk=source=projects/p/zones/us-central2-b/disks/d,mode=read-only",
        "--shielded-secure-boot",
        "--description=two words",
    ]


@pytest.mark.parametrize(
    ("accelerator_type", "topology", "expected"),
    [
        ("v5litepod-16", "4x4", "gcloud compute tpus tpu-vm create @ --accelerator-type=v5litepod-16"),
        ("v5litepod-16", "2x8", "gcloud alpha compute tpus tpu-vm create @ --type=v5litepod --topology=2x8"),
        ("v4-16", "1x2x4", "gcloud compute tpus tpu-vm create @ --type=v4 --topology=1x2x4"),
        ("v9-16", None, "gcloud compute tpus tpu-vm create @ --accelerator-type=v9-16"),
    ],
)
def test_topology_is_a_flag_if_gcloud_supports_it(accelerator_type: str, topology: str | None, expected: str) -> None:
    spec = NodeSpec(accelerator_type=accelerator_type, topology=topology, runtime_version="img")

    assert commands(Verb.CREATE, spec)[0].replace("\n", " ") == f"{expected} --version=img"


def test_each_other_step_has_its_command() -> None:
    base = "gcloud compute tpus tpu-vm"
    present = {"labels": {"old": "x", "a": "z"}, "metadata": {"k": "v"}, "tags": ["t"]}
    changes = {"labels": {"a": "b"}, "metadata": {}, "tags": ["t"], "description": ""}

    assert [commands(verb)[0].replace("\n", " ") for verb in (Verb.DELETE, Verb.START, Verb.STOP, Verb.REBOOT)] == [
        f"{base} delete @ --quiet",
        f"{base} start @",
        f"{base} stop @",
        f"{base} ssh @ --worker=all --command=sudo reboot",
    ]
    printed = gcloud_commands(PlanStep(Verb.UPDATE, NAME, "", changes=changes, present=present))
    assert printed[0].split(" p ", 1)[1] == "--update-labels=a=b --remove-labels=old --remove-metadata=k --description="
