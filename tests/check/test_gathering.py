"""The queries about a wanted node: those that its rules need, each once, to the right project and zone; and refusals.

Through the real clients, of the sandbox.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from tests.check.clients import sources
from tests.check.whole_node import NOW, OTHER, SPEC, WHOLE, ZONE, needs
from tests.conftest import Sandbox
from tpuctl.check.facts import Absent, BucketUse, CheckFacts, Known, Unknown, WantedNode, value_or_none
from tpuctl.check.gathering import FactGatherer
from tpuctl.clock import ManualClock
from tpuctl.models.bucket import BucketContents
from tpuctl.models.node import DataDisk, Tier
from tpuctl.models.spec import NodeSpec
from tpuctl.sandbox import administration
from tpuctl.sandbox.capacity import put_quota
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.request_log import read_log


def asked(sandbox: Sandbox) -> Counter[str]:
    """Count the requests so far, by their paths."""
    return Counter(entry.path for entry in read_log(sandbox.state.path))


def without(facts: CheckFacts) -> set[str]:
    """Return the facts that were not requested, also those of each bucket."""
    about = [(entry.name, getattr(facts, entry.name)) for entry in fields(facts)]
    about += [(f"bucket.{entry.name}", getattr(one, entry.name)) for one in facts.buckets for entry in fields(one)]
    return {name for name, fact in about if fact is None or fact in ({}, ())}


ROLES = {"roles"}  # the table knows them
NEAR = {"offers", "bucket.layout", "bucket.caller", "bucket.caches"} | ROLES
CREATION = {
    "types",
    "versions",
    "resources",
    "quotas",
    "region_quotas",
    "billing",
    "org_policies",
    "disks",
    "reservations",
}


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        (WHOLE, NEAR),
        (replace(WHOLE, creates=False), NEAR | CREATION),
        (
            replace(WHOLE, spec=replace(SPEC, internal_ips=True, tier=Tier.SPOT, data_disks=()), machine=None),
            NEAR | {"region_quotas", "reservations", "disks", "machine"},
        ),
        (replace(WHOLE, buckets=()), ROLES | {"offers", "project_policy", "buckets"}),
        (replace(WHOLE, buckets=(BucketUse("near", reads=False),)), NEAR | {"bucket.contents"}),
        # What is elsewhere raises the question of where else the TPU could be, and of caches where it is.
        (replace(WHOLE, buckets=(BucketUse("far"),)), ROLES | {"bucket.layout", "bucket.caller"}),
        (replace(WHOLE, spec=replace(SPEC, accelerator_type="v6e-8")), NEAR - {"offers"}),
        (replace(WHOLE, buckets=(BucketUse("nowhere-at-all"),)), NEAR),
    ],
)
def test_gathering_skips_unneeded_queries(
    gathering: Callable[[], FactGatherer], sandbox: Sandbox, wanted: WantedNode, missing: set[str]
) -> None:
    facts = gathering().facts(wanted, NOW)

    assert without(facts) == missing
    assert [path for path, count in asked(sandbox).items() if count > 1] == []
    paths = " ".join(asked(sandbox))
    for name, part in (("region_quotas", "/regions/us-central2?"), ("reservations", "/reservations"),
                       ("offers", "/locations/-/acceleratorTypes"), ("billing", "/billingInfo"),
                       ("disks", "/disks/"), ("resources", "/queuedResources"), ("machine", "/aggregated/instances"),
                       ("bucket.caches", "/anywhereCaches"), ("bucket.contents", "/o?"),
                       ("bucket.layout", "/storageLayout"), ("bucket.caller", "/testPermissions")):  # fmt: skip
        is_asked = name not in missing and not (name.startswith("bucket.") and "buckets" in missing)
        assert (part in paths) is is_asked, name


# As unlike the whole one as can be.
UNLIKE = WantedNode(
    project="sandbox",
    zone=OTHER,
    spec=NodeSpec(
        accelerator_type="v6e-8",
        runtime_version="v2-alpha-tpuv6e",
        tier=Tier.RESERVED,
        network="projects/host/global/networks/shared",
        subnetwork="projects/host/regions/europe-west4/subnetworks/below",
        data_disks=(DataDisk("two"),),
    ),
    machine=f"projects/sandbox/zones/{OTHER}/instances/other",
    buckets=(BucketUse("near"), BucketUse("far", "train"), BucketUse("far", "nothing")),
)


OTHERS = tuple(f"projects/sandbox/zones/{zone}/instances/other" for zone in (ZONE, OTHER))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WHOLE, UNLIKE),
        (WHOLE, replace(WHOLE, zone=OTHER)),
        (WHOLE, replace(WHOLE, project="host")),
        (replace(WHOLE, machine=OTHERS[0]), replace(WHOLE, machine=OTHERS[1])),
    ],
)
def test_gathering_does_not_mix_nodes(
    gathering: Callable[[], FactGatherer], sandbox: Sandbox, first: WantedNode, second: WantedNode
) -> None:
    """An answer about both nodes is requested once."""
    administration.set_region_quota(sandbox.state, "europe-west4", "IN_USE_ADDRESSES", limit=3, usage=1)
    sandbox.add_node("mine", zone=ZONE)
    sandbox.add_queued_resource("asked", zone=ZONE)
    with sandbox.state.write() as session:
        put_quota(session, limit=8, generation="v4", zone=ZONE, project="host")
    shared = gathering()
    shared.facts(first, NOW)
    found = shared.facts(second, NOW)

    # Machines of one name in two zones come from the same list.
    assert {path for path, count in asked(sandbox).items() if count > 1 and "/aggregated/" not in path} == set()
    assert found == gathering().facts(second, NOW)


def test_gathering_does_not_mix_projects(gathering: Callable[[], FactGatherer], sandbox: Sandbox) -> None:
    administration.set_billing(sandbox.state, enabled=False, project="host")
    one = gathering()

    assert [one.facts(replace(WHOLE, project=name), NOW).billing for name in ("sandbox", "host")] == [
        Known(value=True),
        Known(value=False),
    ]


def test_gathering_follows_links(gathering: Callable[[], FactGatherer], sandbox: Sandbox) -> None:
    facts = gathering().facts(UNLIKE, NOW)

    assert [bucket.contents and value_or_none(bucket.contents) for bucket in facts.buckets] == [
        BucketContents(1, 3, is_complete=True),
        BucketContents(1, 3, is_complete=True),
        BucketContents(0, 0, is_complete=True),
    ]
    assert isinstance(facts.subnetwork, Known)
    assert (facts.subnetwork.value.name, facts.subnetwork.value.network) == ("below", "shared")
    assert isinstance(facts.firewalls, Known)
    assert "only-here" in {rule.name for rule in facts.firewalls.value}
    assert isinstance(facts.machine, Known)
    assert facts.machine.value.zone == OTHER
    elsewhere = replace(
        WHOLE,
        machine=f"projects/host/zones/{ZONE}/instances/loader",
        spec=replace(
            SPEC,
            # Another region than the node's: the one of the link is asked, and a rule says that it does not do.
            subnetwork="projects/host/regions/europe-west4/subnetworks/below",
            data_disks=(
                DataDisk(f"projects/sandbox/zones/{OTHER}/disks/two"),
                DataDisk(f"projects/host/zones/{ZONE}/disks/two"),
            ),
        ),
    )
    facts = gathering().facts(elsewhere, NOW)

    assert isinstance(facts.machine, Absent)
    assert isinstance(facts.subnetwork, Known)
    disks = [fact.value.zone if isinstance(fact, Known) else type(fact).__name__ for fact in facts.disks.values()]
    assert disks == [OTHER, "Absent"]


def test_gathering_names_billing_project_in_bucket_requests(
    gathering: Callable[[], FactGatherer], sandbox: Sandbox
) -> None:
    """A requester-pays bucket refuses requests without a billing project."""
    denied = ["storage.buckets.get", "storage.buckets.getIamPolicy"]
    administration.add_bucket(sandbox.state, "open", location="EU", billing={"requesterPays": True})
    administration.add_bucket(sandbox.state, "dim", location="EU", denied=denied, billing={"requesterPays": True})
    wanted = replace(WHOLE, buckets=(BucketUse("open"), BucketUse("dim")))

    seen, dim = gathering().facts(replace(wanted, billing_project="sandbox"), NOW).buckets

    assert [isinstance(fact, Known) for fact in (seen.bucket, seen.policy, seen.contents, seen.caches)] == [True] * 4
    assert [isinstance(fact, Known) for fact in (dim.layout, dim.caller, dim.contents)] == [True] * 3
    assert {type(getattr(one, name)) for one in gathering().facts(wanted, NOW).buckets for name in
            ("bucket", "policy", "contents", "layout", "caller")} == {Unknown}  # fmt: skip


def test_gathering_each_call_has_full_timeout(
    gathering: Callable[[], FactGatherer], sandbox: Sandbox, clock: ManualClock
) -> None:
    del gathering

    class Slow(SandboxHttp):
        def request(self, *args: Any, **kwargs: Any) -> tuple[Any, bytes]:
            time.sleep(0.03)  # a network takes real time, and no answer is there at once
            return super().request(*args, **kwargs)

    one = FactGatherer(sources(sandbox, Slow), clock, timedelta(seconds=15))
    clock.sleep(timedelta(minutes=1))
    facts = one.facts(WHOLE, NOW)
    clock.sleep(timedelta(minutes=1))
    zone_facts = one.zone_facts(replace(WHOLE, zone="", project="host"))

    assert needs(facts) == {}
    assert [type(fact) for fact in zone_facts[:3]] == [Known] * 3


def test_gathering_without_zone_queries_zone_facts(gathering: Callable[[], FactGatherer], sandbox: Sandbox) -> None:
    sandbox.add_node("held", zone=ZONE)
    found = gathering().zone_facts(replace(WHOLE, zone=""))

    assert isinstance(found.offers, Known)
    assert "v4-8" in found.offers.value[ZONE]
    assert isinstance(found.resources, Known)
    assert [node.name.node_id for node in found.resources.value.nodes] == ["held"]
    assert [bucket.use.bucket for bucket in found.buckets] == ["near"]
    # Where no zone is known none has a cache that would help, nor is anything else of a zone asked for.
    assert {path.split("?")[0].rpartition("/")[2] for path in asked(sandbox)} == {
        "acceleratorTypes", "consumerQuotaMetrics", "nodes", "queuedResources", "near", "iam", "o",
    }  # fmt: skip


class Crowd:
    """Hold requests until enough have arrived, or one has timed out."""

    def __init__(self, size: int) -> None:
        self._size, self._came, self._change = size, 0, threading.Condition()
        self.is_there = False
        self._is_off = False

    def wait(self) -> None:
        with self._change:
            self._came += 1
            self.is_there |= not self._is_off and self._came >= self._size
            self._change.notify_all()
            self._is_off |= not self._change.wait_for(lambda: self.is_there or self._is_off, 2)
            self._change.notify_all()


def test_gathering_runs_independent_queries_in_parallel(
    gathering: Callable[[], FactGatherer], sandbox: Sandbox, clock: ManualClock
) -> None:
    del gathering
    crowd = Crowd(20 + 3)  # of the node and all around it, of the bucket

    class Crowded(SandboxHttp):
        def request(self, *args: Any, **kwargs: Any) -> tuple[Any, bytes]:
            crowd.wait()
            return super().request(*args, **kwargs)

    one = FactGatherer(sources(sandbox, Crowded), clock, timedelta(seconds=15))

    assert needs(one.facts(WHOLE, NOW)) == {}
    assert crowd.is_there
