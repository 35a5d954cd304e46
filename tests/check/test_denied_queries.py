"""Facts that the caller may not read, and partial answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.check.whole_node import NOW, OTHER, SPEC, WHOLE, ZONE, needs
from tests.conftest import Sandbox
from tpuctl.check.facts import BucketUse, Known, Unknown
from tpuctl.check.gathering import FactGatherer
from tpuctl.errors import AccessError
from tpuctl.sandbox import administration


def test_refused_everything_names_each_permission(gathering: Callable[[], FactGatherer], sandbox: Sandbox) -> None:
    administration.add_project(sandbox.state, "closed", denied=["*"])
    administration.add_bucket(sandbox.state, "shut", location="US-CENTRAL2", project="closed", denied=["*"])

    facts = gathering().facts(replace(WHOLE, project="closed", buckets=(BucketUse("shut"),)), NOW)

    assert needs(facts) == {
        "project": "resourcemanager.projects.get",
        "types": "tpu.acceleratortypes.list",
        "versions": "tpu.runtimeversions.list",
        "resources": "tpu.nodes.list",
        "quotas": "serviceusage.quotas.get",
        "region_quotas": "compute.regions.get",
        "services": "serviceusage.services.get",
        "billing": "resourcemanager.projects.get",
        "compute.vmExternalIpAccess": "orgpolicy.policy.get",
        "compute.requireOsLogin": "orgpolicy.policy.get",
        "compute.requireShieldedVm": "orgpolicy.policy.get",
        "network": "compute.networks.get",
        "subnetwork": "compute.subnetworks.get",
        "firewalls": "compute.firewalls.list",
        "machine": "compute.instances.list",
        "one": "compute.disks.get",
        "reservations": "tpu.nodes.list",
        "project_policy": "resourcemanager.projects.getIamPolicy",
        "bucket.bucket": "storage.buckets.get",
        "bucket.layout": "storage.objects.list",
        "bucket.policy": "storage.buckets.getIamPolicy",
        "bucket.contents": "storage.objects.list",
    }
    # What the caller may do takes no permission, and is nothing here.
    assert facts.buckets[0].caller == Known(frozenset())
    # The other disk is another project's, as its path says.
    assert isinstance(facts.disks[f"projects/sandbox/zones/{ZONE}/disks/two"], Known)


@pytest.mark.parametrize(
    ("permission", "buckets", "missing"),
    [
        ("storage.anywhereCaches.list", (BucketUse("apart"),), {"bucket.caches": "storage.anywhereCaches.list"}),
        ("iam.roles.get", (BucketUse("apart"),), {"projects/closed/roles/mine": "iam.roles.get"}),
    ],
)
def test_one_missing_permission_is_named(
    gathering: Callable[[], FactGatherer],
    sandbox: Sandbox,
    permission: str,
    buckets: tuple[BucketUse, ...],
    missing: dict[str, str],
) -> None:
    account = "me@closed.iam.gserviceaccount.com"
    administration.add_project(sandbox.state, "closed", denied=[permission])
    administration.add_role(sandbox.state, "mine", project="closed", includedPermissions=["storage.objects.get"])
    administration.add_bucket(sandbox.state, "apart", location="EU", project="closed", denied=[permission])
    bindings = [{"role": "projects/closed/roles/mine", "members": [f"serviceAccount:{account}"]}]
    administration.set_iam_policy(sandbox.state, bindings, bucket="apart")
    spec = replace(SPEC, data_disks=(), service_account=account)

    facts = gathering().facts(replace(WHOLE, project="closed", spec=spec, machine=None, buckets=buckets), NOW)

    assert needs(facts) == missing


def test_unlisted_role_is_read(gathering: Callable[[], FactGatherer], sandbox: Sandbox) -> None:
    account = "me@sandbox.iam.gserviceaccount.com"
    for name, permission in (("reader", "storage.objects.get"), ("lister", "storage.objects.list")):
        administration.add_role(sandbox.state, name, includedPermissions=[permission])
    bindings = [
        {"role": f"projects/sandbox/roles/{name}", "members": [f"serviceAccount:{account}"]}
        for name in ("reader", "lister")
    ]
    administration.set_iam_policy(sandbox.state, bindings, bucket="near")

    facts = gathering().facts(replace(WHOLE, spec=replace(SPEC, service_account=account)), NOW)

    assert facts.roles == {
        "projects/sandbox/roles/reader": Known(frozenset({"storage.objects.get"})),
        "projects/sandbox/roles/lister": Known(frozenset({"storage.objects.list"})),
    }


@pytest.mark.parametrize("lists", [("nodes",), ("queuedResources",), ("nodes", "queuedResources")])
def test_unreachable_zones_are_named_once(
    gathering: Callable[[], FactGatherer], sandbox: Sandbox, lists: tuple[str, ...]
) -> None:
    """Lists are read zone by zone, and one zone is down."""
    for name in lists:
        method = f"tpu.projects.locations.{name}.list"
        sandbox.fault("http-error", method=method, zone=OTHER, status=503, count=0)
        sandbox.fault("http-error", method=method, zone="-", status=501, count=0)

    resources = gathering().facts(WHOLE, NOW).resources

    assert isinstance(resources, Known)
    assert resources.value.unreachable == (OTHER,)


@pytest.mark.parametrize("method", ["nodes.list", "queuedResources.list"])
def test_partial_listing_is_unknown(gathering: Callable[[], FactGatherer], sandbox: Sandbox, method: str) -> None:
    sandbox.fault("http-error", status=503, method=f"tpu.projects.locations.{method}", count=0)

    resources = gathering().facts(WHOLE, NOW).resources

    assert isinstance(resources, Unknown)
    assert resources.is_passing


@pytest.mark.parametrize("ask", ["facts", "everywhere"])
def test_missing_project_is_an_error(gathering: Callable[[], FactGatherer], ask: str) -> None:
    wanted = replace(WHOLE, project="nobodys-project")
    one = gathering()

    with pytest.raises(AccessError, match="no project") as raised:
        one.facts(wanted, NOW) if ask == "facts" else one.zone_facts(wanted)

    assert raised.value.error_id == "iam-project-not-found"
