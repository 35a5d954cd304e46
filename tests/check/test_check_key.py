"""The cache key of a check depends on everything that rules read, and on the caller."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from tests.lifecycle import ZONE
from tpuctl.check.facts import BucketUse, Purpose, WantedNode
from tpuctl.check.gate import check_key
from tpuctl.models.grants import Grant
from tpuctl.models.node import DataDisk, Node, Tier
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName

SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base")
NAME = NodeName("sandbox", ZONE, "demo")
WANTED = WantedNode(project="sandbox", zone=ZONE, spec=SPEC, name=NAME)
NODE, OLDER = (
    Node.from_api({"name": f"projects/sandbox/locations/{ZONE}/nodes/demo", "id": id_, "acceleratorType": "v4-8"})
    for id_ in ("1", "2")
)
GRANT = Grant(ZONE, "v4", "on-demand", 32, date(2026, 12, 31))


def key(wanted: WantedNode = WANTED, *accepted: str, identity: str = "google ada") -> str:
    return check_key(wanted, frozenset(accepted), identity)


def with_spec(**changes: Any) -> WantedNode:
    return replace(WANTED, spec=replace(SPEC, **changes))


@pytest.mark.parametrize(
    "other",
    [
        replace(WANTED, project="other"),
        replace(WANTED, zone="us-central2-a"),
        replace(WANTED, name=replace(NAME, node_id="other")),
        replace(WANTED, name=None),
        replace(WANTED, creates=False),
        replace(WANTED, replaces=NODE),
        replace(WANTED, purpose=Purpose.SERVE),
        replace(WANTED, buckets=(BucketUse("data"),)),
        replace(WANTED, machine="loader"),
        replace(WANTED, dataset_size=1),
        replace(WANTED, billing_project="payer"),
        replace(WANTED, iap=True),
        replace(WANTED, internal_ip=True),
        replace(WANTED, grants=(GRANT,)),
        replace(WANTED, no_billing_outside_grants=True),
        replace(WANTED, egress_prices={"us-europe": "0.01"}),
        replace(WANTED, siblings=(SPEC,)),
        with_spec(accelerator_type="v4-16"),
        with_spec(runtime_version="tpu-vm-base"),
        with_spec(topology="2x2x2"),
        with_spec(tier=Tier.SPOT),
        with_spec(network="shared"),
        with_spec(subnetwork="below"),
        with_spec(internal_ips=True),
        with_spec(service_account="me@p.iam.gserviceaccount.com"),
        with_spec(scopes=("storage-ro",)),
        with_spec(tags=("open",)),
        with_spec(data_disks=(DataDisk("one"),)),
        with_spec(shielded_secure_boot=True),
        with_spec(kept={"networkConfigs": [{"network": "kept"}]}),
    ],
)
def test_check_key_depends_on_each_input(other: WantedNode) -> None:
    assert key(other) != key()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (replace(WANTED, replaces=NODE), replace(WANTED, replaces=OLDER)),
        (replace(WANTED, siblings=(SPEC,)), replace(WANTED, siblings=(SPEC, SPEC))),
        (replace(WANTED, siblings=(SPEC,)), replace(WANTED, siblings=(replace(SPEC, tier=Tier.SPOT),))),
        (replace(WANTED, siblings=(SPEC,)), replace(WANTED, siblings=(replace(SPEC, internal_ips=True),))),
        (replace(WANTED, siblings=(SPEC,)), replace(WANTED, siblings=(replace(SPEC, data_disks=(DataDisk("a"),)),))),
        (replace(WANTED, buckets=(BucketUse("a", "x"),)), replace(WANTED, buckets=(BucketUse("a", "y"),))),
        (replace(WANTED, buckets=(BucketUse("a"),)), replace(WANTED, buckets=(BucketUse("a", writes=False),))),
        (replace(WANTED, grants=(GRANT,)), replace(WANTED, grants=(replace(GRANT, count=31),))),
    ],
)
def test_check_key_depends_on_each_part(one: WantedNode, other: WantedNode) -> None:
    assert key(one) != key(other)


def test_check_key_depends_on_identity_and_accepted_ids() -> None:
    assert len({key(), key(identity="google bob"), key(WANTED, "TPU101"), key(WANTED, "TPU101", "TPU105")}) == 4
    assert key(WANTED, "TPU101", "TPU105") == key(WANTED, "TPU105", "TPU101")


@pytest.mark.parametrize(
    "same",
    [
        replace(WANTED),
        with_spec(labels={"team": "a"}),
        with_spec(metadata={"startup-script": "true"}),
        with_spec(description="mine"),
        with_spec(named=frozenset({"tier"})),
    ],
)
def test_check_key_ignores_unused_fields(same: WantedNode) -> None:
    assert key(same) == key()
