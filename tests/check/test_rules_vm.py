"""Rules about the virtual machine and the disks of the node: a row for each answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.check.rule_cases import LATE, REFUSED, WANTED, ZONE, commands, facts, levels, summaries
from tpuctl.check.facts import Absent, BucketUse, Known, Purpose
from tpuctl.check.findings import Level
from tpuctl.check.rules.vm_rules import disk_is_attachable, disk_is_in_zone, machine_is_near, machine_scopes_suffice
from tpuctl.models.compute_resources import ComputeInstance, PersistentDisk
from tpuctl.models.node import DataDisk, Node
from tpuctl.names import NodeName

AUTH = "https://www.googleapis.com/auth/"
ACCOUNT = "7-compute@developer.gserviceaccount.com"


def vm(
    zone: str = ZONE, status: str = "RUNNING", *scopes: str, account: str | None = ACCOUNT
) -> Known[ComputeInstance]:
    return Known(ComputeInstance("vm", zone, status, account, tuple(AUTH + scope for scope in scopes)))


@pytest.mark.parametrize(
    ("fact", "lines"),
    [
        (None, []),
        (vm(), []),
        (
            vm("us-central2-a"),
            [
                (
                    "warning vm vm: virtual machine `vm` is in us-central2-a, the node in us-central2-b, another "
                    "zone of that region"
                )
            ],
        ),
        (
            vm("europe-west4-a"),
            ["error vm vm: virtual machine `vm` is in europe-west4-a, the node in us-central2-b, another region"],
        ),
        (
            vm(status="TERMINATED"),
            ["note vm vm: virtual machine `vm` is not running, but TERMINATED"],
        ),
        (Absent(), ["error vm vm: project `p` has no virtual machine `vm`"]),
        (REFUSED, ["unknown vm vm: virtual machine `vm` could not be read: permission denied"]),
    ],
)
def test_machine_location_is_compared(fact: Any, lines: list[str]) -> None:
    assert summaries(machine_is_near, facts(want={"machine": "vm"}, machine=fact)) == lines


READS, WRITES = BucketUse("data", writes=False), BucketUse("runs", "x", reads=False)
BOTH = BucketUse("both")


@pytest.mark.parametrize(
    ("scopes", "uses", "level"),
    [
        ([], [], []),
        (["cloud-platform"], [BOTH], []),
        (["cloud-platform.read-only"], [READS], []),
        (["cloud-platform.read-only"], [WRITES], [Level.WARNING]),
        (["devstorage.read_only"], [READS], []),
        (["devstorage.read_only"], [BOTH], [Level.WARNING]),
        (["devstorage.read_only"], [READS, WRITES], [Level.WARNING]),
        (["devstorage.read_write"], [BOTH], []),
        (["devstorage.full_control"], [BOTH], []),
        (["logging.write", "devstorage.read_write"], [BOTH], []),
        (["logging.write"], [READS], [Level.WARNING]),
        ([], [WRITES], [Level.WARNING]),
    ],
)
def test_machine_scopes_are_compared(scopes: list[str], uses: list[BucketUse], level: list[Level]) -> None:
    these = facts(want={"machine": "vm", "buckets": tuple(uses)}, machine=vm(ZONE, "RUNNING", *scopes))

    assert levels(machine_scopes_suffice, these) == level


def test_machine_of_serving_node_needs_no_write_scope() -> None:
    want = {"machine": "vm", "buckets": (BOTH,), "purpose": Purpose.SERVE}

    assert levels(machine_scopes_suffice, facts(want=want, machine=vm(ZONE, "RUNNING", "devstorage.read_only"))) == []


@pytest.mark.parametrize("fact", [None, Absent(), REFUSED, LATE])
def test_machine_scopes_unknown_machine_is_silent(fact: Any) -> None:
    assert summaries(machine_scopes_suffice, facts(want={"machine": "vm", "buckets": (BOTH,)}, machine=fact)) == []


CHANGE = "gcloud compute instances set-service-account vm --zone=us-central2-b"


@pytest.mark.parametrize(
    ("name", "fact", "project", "text", "advised"),
    [
        (
            "vm",
            vm(ZONE, "RUNNING", "devstorage.read_only"),
            None,
            "the scopes of virtual machine `vm` do not allow it to write to buckets",
            [
                "gcloud compute instances stop vm --zone=us-central2-b --project=p",
                f"{CHANGE} --project=p --scopes=cloud-platform",
            ],
        ),
        (
            "vm",
            vm(ZONE, "TERMINATED", "logging.write"),
            None,
            "the scopes of virtual machine `vm` do not allow it to read or write to buckets",
            [f"{CHANGE} --project=p --scopes=cloud-platform"],
        ),
        (
            "projects/other/zones/us-central2-b/instances/vm",
            vm(ZONE, "TERMINATED", "logging.write"),
            None,
            "the scopes of virtual machine `vm` do not allow it to read or write to buckets",
            [f"{CHANGE} --project=other --scopes=cloud-platform"],
        ),
        (
            "vm",
            vm(ZONE, "TERMINATED", account=None),
            None,
            "virtual machine `vm` has no service account",
            [f"{CHANGE} --project=p --service-account={ACCOUNT} --scopes=cloud-platform"],
        ),
        # The default account is not known without the project's number: words only.
        ("vm", vm(account=None), REFUSED, "virtual machine `vm` has no service account", []),
    ],
)
def test_machine_scopes_remedies_change_them(name: str, fact: Any, project: Any, text: str, advised: list[str]) -> None:
    given = {"project": project} if project else {}
    these = facts(want={"machine": name, "buckets": (BOTH,)}, machine=fact, **given)

    assert summaries(machine_scopes_suffice, these) == [f"warning vm vm: {text}"]
    assert commands(machine_scopes_suffice, these) == advised


PATH = f"projects/p/zones/{ZONE}/disks/data"


def disk(
    zone: str = ZONE, *, kind: str = "pd-balanced", status: str = "READY", users: tuple[str, ...] = ()
) -> Known[PersistentDisk]:
    return Known(PersistentDisk("data", zone, kind, status, users))


def with_disk(fact: Any, source: str = PATH, mode: str = "READ_WRITE", *, kind: str = "v4-8", **want: Any) -> Any:
    spec = {"data_disks": (DataDisk(source, mode),), "accelerator_type": kind}
    return facts(want={"spec": spec, **want}, disks={source: fact} if fact else {})


@pytest.mark.parametrize(
    ("source", "fact", "lines"),
    [
        (PATH, None, []),
        (PATH, disk(), []),
        (PATH, Absent(), ["error disk data: project `p` has no disk `data` in us-central2-b"]),
        (
            PATH.replace("projects/p", "projects/q"),
            Absent(),
            ["error disk data: project `q` has no disk `data` in us-central2-b"],
        ),
        (PATH, REFUSED, ["unknown disk data: disk `data` in us-central2-b could not be read: permission denied"]),
        (
            "projects/p/zones/us-central2-a/disks/data",
            REFUSED,
            [
                "error disk data: the node is in us-central2-b, disk `data` in us-central2-a, another zone of that region"
            ],
        ),
        (
            "projects/p/zones/europe-west4-a/disks/data",
            disk("europe-west4-a"),
            ["error disk data: the node is in us-central2-b, disk `data` in europe-west4-a"],
        ),
        (
            "data",
            disk("europe-west4-a"),
            ["error disk data: the node is in us-central2-b, disk `data` in europe-west4-a"],
        ),
        ("data", disk(), ["warning disk data: disk `data` is named without its path"]),
        (
            "projects/p/regions/us-central2/disks/data",
            Absent(),
            [
                (
                    "note disk data: disk `data` is a regional disk of us-central2; the zones of its replicas are not read"
                ),
            ],
        ),
        (
            "projects/p/regions/europe-west4/disks/data",
            Absent(),
            ["error disk data: disk `data` is a regional disk of europe-west4, the node is in us-central2"],
        ),
    ],
)
def test_disk_location_is_compared(source: str, fact: Any, lines: list[str]) -> None:
    assert summaries(disk_is_in_zone, with_disk(fact, source)) == lines


def holder(source: str) -> Node:
    return Node(NodeName("p", ZONE, "n"), {"dataDisks": [{"sourceDisk": source}]})


OTHER = ("worker-0",)
SIBLING = replace(WANTED.spec, data_disks=(DataDisk(PATH),))
READING = replace(WANTED.spec, data_disks=(DataDisk(PATH, "READ_ONLY"),))


@pytest.mark.parametrize(
    ("these", "lines"),
    [
        (with_disk(None), []),
        (with_disk(Absent()), []),
        (with_disk(REFUSED), []),
        (with_disk(disk()), []),
        (with_disk(disk(), mode="READ_ONLY"), []),
        (with_disk(disk(status="CREATING")), ["warning disk data: disk `data` is CREATING"]),
        (with_disk(disk(status="RESTORING")), ["warning disk data: disk `data` is RESTORING"]),
        (with_disk(disk(status="FAILED")), ["error disk data: disk `data` is FAILED"]),
        (with_disk(disk(status="DELETING")), ["error disk data: disk `data` is DELETING"]),
        (with_disk(disk(users=OTHER)), ["error disk data: disk `data` is already attached to `worker-0`"]),
        (
            with_disk(disk(users=OTHER), mode="READ_ONLY"),
            ["note disk data: disk `data` is already attached to `worker-0`"],
        ),
        # The node that goes before has it, by whichever name of the project.
        (
            with_disk(disk(users=OTHER), replaces=holder(PATH.replace("projects/p", "projects/7"))),
            [],
        ),
        (
            with_disk(disk(users=OTHER), replaces=holder(PATH.replace(ZONE, "us-central2-a"))),
            ["error disk data: disk `data` is already attached to `worker-0`"],
        ),
        # Slices.
        (
            with_disk(disk(), kind="v4-16"),
            ["error disk data: disk `data` would be attached READ_WRITE to a slice of 2 workers"],
        ),
        (
            with_disk(disk(), mode="READ_ONLY", kind="v4-16"),
            [],
        ),
        # Several nodes at once.
        (
            with_disk(disk(), siblings=(SIBLING,)),
            [
                "error disk data: disk `data` would be attached to several nodes at once, and not READ_ONLY to all of them"
            ],
        ),
        (
            with_disk(disk(), mode="READ_ONLY", siblings=(SIBLING,)),
            [
                "error disk data: disk `data` would be attached to several nodes at once, and not READ_ONLY to all of them"
            ],
        ),
        (
            with_disk(disk(), mode="READ_ONLY", siblings=(READING,)),
            [],
        ),
        (with_disk(disk(), siblings=(WANTED.spec,)), []),
        # Kinds.
        (
            with_disk(disk(kind="pd-balanced"), kind="v6e-8"),
            [
                "note disk data: disk `data` is a `pd-balanced`; `hyperdisk-balanced` or `hyperdisk-ml` is documented for v6e"
            ],
        ),
        (
            with_disk(disk(kind="pd-ssd")),
            ["note disk data: disk `data` is a `pd-ssd`; `pd-balanced` is documented for v4"],
        ),
        (
            with_disk(disk(kind="hyperdisk-ml"), kind="v6e-8"),
            [],
        ),
        (with_disk(disk(kind="")), []),
        (with_disk(disk(kind="pd-ssd"), kind="v9-8"), []),
    ],
)
def test_disk_attachability(these: Any, lines: list[str]) -> None:
    assert summaries(disk_is_attachable, these) == lines
