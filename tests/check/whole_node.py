"""A node that uses each kind of resource, and the facts about it that could not be read."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from tpuctl.check.facts import BucketUse, CheckFacts, Unknown, WantedNode
from tpuctl.models.node import DataDisk, Tier
from tpuctl.models.spec import NodeSpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ZONE, OTHER = "us-central2-b", "europe-west4-a"
SPEC = NodeSpec(
    accelerator_type="v4-8",
    runtime_version="tpu-ubuntu2204-base",
    tier=Tier.RESERVED,
    data_disks=(DataDisk("one"), DataDisk(f"projects/sandbox/zones/{ZONE}/disks/two")),
)
# Every query is needed, except the offers of other zones: the bucket is near the node.
WHOLE = WantedNode(project="sandbox", zone=ZONE, spec=SPEC, machine="loader", buckets=(BucketUse("near", "train"),))


def needs(facts: CheckFacts) -> dict[str, Any]:
    """Return each unread fact with the permission that reading it takes."""
    about = [(entry.name, getattr(facts, entry.name)) for entry in fields(facts)]
    about += [(f"bucket.{entry.name}", getattr(one, entry.name)) for one in facts.buckets for entry in fields(one)]
    about += [(name, fact) for _, each in about if isinstance(each, dict) for name, fact in each.items()]
    return {name: fact.permission for name, fact in about if isinstance(fact, Unknown)}
