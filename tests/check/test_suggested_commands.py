"""A suggested command repeats all options: without its safeguards a node would cost money."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.check.offer_facts import ZONE, node, spec, wanted
from tpuctl.check.facts import BucketUse, Purpose
from tpuctl.check.findings import create_or_check_command
from tpuctl.models.node import DataDisk, Tier
from tpuctl.models.spec import NodeSpec

UP = f"tpuctl up trainer --project=p --zone={ZONE} --type=v4-8"
CHECK = UP.replace("tpuctl up", "tpuctl check")
DISK = DataDisk("projects/p/zones/us-central2-b/disks/d", "READ_ONLY")


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, ""),
        ({"network": "lab"}, " --network=lab"),
        ({"subnetwork": "lab"}, " --subnetwork=lab"),
        ({"cidr_block": "10.0.0.0/29"}, " --range=10.0.0.0/29"),
        ({"queue_count": 4}, " --queue-count=4"),
        ({"service_account": "a@p.iam.gserviceaccount.com"}, " --service-account=a@p.iam.gserviceaccount.com"),
        ({"scopes": ("s", "t")}, " --scopes=s,t"),
        ({"labels": {"team": "a", "run": "1"}}, " --labels=team=a,run=1"),
        ({"tags": ("a", "b")}, " --tags=a,b"),
        ({"description": "my node"}, " '--description=my node'"),
        ({"data_disks": (DISK,)}, f" --data-disk=source={DISK.source},mode=read-only"),
        ({"internal_ips": True}, " --internal-ips"),
        ({"internal_ips": False}, ""),
        ({"shielded_secure_boot": True}, " --shielded-secure-boot"),
        ({"shielded_secure_boot": False}, ""),
        ({"tier": Tier.SPOT, "network": "lab"}, " --spot --network=lab"),
        # The usual image need not be named, another one that was asked for has to be.
        ({"runtime_version": "tpu-vm-v4-base", "named": frozenset({"runtime_version"})}, " --version=tpu-vm-v4-base"),
        ({"runtime_version": "tpu-vm-v4-base"}, " --version=tpu-vm-v4-base"),
        ({"runtime_version": "tpu-vm-v4-base", "named": frozenset({"accelerator_type"})}, ""),
    ],
)
def test_suggested_command_repeats_creation_options(fields: dict[str, Any], options: str) -> None:
    assert create_or_check_command(wanted(replace(spec(), **fields))) == UP + options


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        (
            {"buckets": (BucketUse("b", "x"), BucketUse("d", writes=False), BucketUse("c", reads=False))},
            " --bucket=gs://b/x --data-bucket=gs://d --checkpoint-bucket=gs://c",
        ),
        ({"dataset_size": 10**12}, " --dataset-size=1000000000000"),
        ({"dataset_size": 0}, " --dataset-size=0"),
        ({"billing_project": "payer"}, " --billing-project=payer"),
        ({"no_billing_outside_grants": True}, " --no-billing-outside-grants"),
        ({"iap": True}, " --iap"),
        ({"internal_ip": True}, " --internal-ip"),
        ({"iap": True, "internal_ip": True}, ""),
        # Of `check` alone: `--for` is another thing to `up`.
        ({"purpose": Purpose.SERVE, "machine": "vm"}, ""),
    ],
)
def test_suggested_command_repeats_workload_options(fields: dict[str, Any], options: str) -> None:
    assert create_or_check_command(wanted(**fields)) == UP + options


@pytest.mark.parametrize(
    ("made", "zone", "command"),
    [
        (replace(spec(), metadata={"key": "value"}), None, CHECK),
        (replace(spec(), setup="pip install jax"), None, CHECK),
        (replace(spec(), kept={"bootDiskConfig": {}}), None, CHECK),
        # A disk and a subnetwork stay where they are.
        (replace(spec(), subnetwork="lab"), "z-a", f"{UP} --subnetwork=lab".replace(ZONE, "z-a")),
        (replace(spec(), subnetwork="regions/r/subnetworks/lab"), None, f"{UP} --subnetwork=regions/r/subnetworks/lab"),
        (
            replace(spec(), subnetwork="regions/r/subnetworks/lab"),
            "z-a",
            f"{CHECK} --subnetwork=regions/r/subnetworks/lab".replace(ZONE, "z-a"),
        ),
        (replace(spec(), data_disks=(DISK,)), ZONE, f"{UP} --data-disk=source={DISK.source},mode=read-only"),
        (
            replace(spec(), data_disks=(DataDisk("d"),)),
            "z-a",
            f"{CHECK} --data-disk=source=d,mode=read-write".replace(ZONE, "z-a"),
        ),
    ],
)
def test_suggested_command_inexpressible_spec_is_check(made: NodeSpec, zone: str | None, command: str) -> None:
    assert create_or_check_command(wanted(made), zone=zone, more=("--replace",)).removesuffix(" --replace") == command


def test_suggested_check_names_purpose() -> None:
    about = wanted(name=None, purpose=Purpose.SERVE, machine="vm", buckets=(BucketUse("b"),))

    assert (
        create_or_check_command(about)
        == f"tpuctl check --project=p --zone={ZONE} --type=v4-8 --bucket=gs://b --for=serve --vm=vm"
    )


def test_suggested_command_keeps_image_within_generation() -> None:
    made = replace(spec(), runtime_version="tpu-vm-v4-base", named=frozenset({"runtime_version"}))

    assert create_or_check_command(wanted(made), accelerator_type="v4-16").endswith(
        " --type=v4-16 --version=tpu-vm-v4-base"
    )
    assert create_or_check_command(wanted(made), accelerator_type="v6e-8").endswith(" --type=v6e-8")
    assert create_or_check_command(wanted(made), more=("--version=other",)) == f"{UP} --version=other"


def test_suggested_command_existing_node_keeps_spec() -> None:
    there = NodeSpec.from_node(
        node(
            f"{ZONE}/trainer",
            runtimeVersion="tpu-ubuntu2204-base",
            networkConfig={"network": "projects/p/global/networks/lab", "enableExternalIps": False},
            serviceAccount={"email": "a@p.iam.gserviceaccount.com"},
        )
    )

    options = "--network=projects/p/global/networks/lab --internal-ips --service-account=a@p.iam.gserviceaccount.com"
    assert create_or_check_command(wanted(there)) == f"{UP} --on-demand {options}"
