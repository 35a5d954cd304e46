"""One API call without an answer does not prevent the others. In real time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.conftest import Sandbox
from tests.lifecycle import ZONE
from tpuctl.check.facts import BucketUse, CheckFacts, CheckSettings, Known, Unknown
from tpuctl.check.gathering import FactGatherer, Sources
from tpuctl.clock import SystemClock
from tpuctl.cloud.projects import ComputeClient, ProjectsClient
from tpuctl.cloud.storage import BucketsClient
from tpuctl.cloud.tpu import TpuClient
from tpuctl.models.spec import NodeSpec
from tpuctl.sandbox import administration
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.state import SandboxState

NODE = NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base")
_DEADLINE, _LATENCY, _FOREVER = (timedelta(seconds=seconds) for seconds in (3, 0.45, 9))


def gather(sandbox_state: SandboxState, *, unanswered: str) -> CheckFacts:
    """Return the facts about a node with a bucket; calls are slow, and those of one method exceed the deadline."""
    sandbox, clock = Sandbox(sandbox_state), SystemClock()
    sandbox.fault("slow", method=unanswered, duration=_FOREVER, count=0)
    sandbox.fault("slow", duration=_LATENCY, count=0)

    def http() -> SandboxHttp:
        return SandboxHttp(sandbox_state)

    sources = Sources(
        TpuClient(http, clock), BucketsClient(http, clock), ComputeClient(http, clock), ProjectsClient(http, clock)
    )
    wanted = CheckSettings(buckets=(BucketUse("data"),)).wanted("sandbox", ZONE, NODE)
    return FactGatherer(sources, clock, _DEADLINE).facts(wanted, clock.now())


def test_late_policy_leaves_time_for_bucket_queries(tmp_path: Path) -> None:
    """A bucket elsewhere needs two dependent queries: its caches, and the offers of other zones."""
    with SandboxState.open(tmp_path / "world.sqlite3", speed=1) as sandbox_state:
        administration.add_bucket(sandbox_state, "data", location="EUROPE-WEST4")

        facts = gather(sandbox_state, unanswered="storage.buckets.getIamPolicy")

    (bucket,) = facts.buckets
    kinds = [type(fact) for fact in (bucket.policy, bucket.bucket, bucket.caches, facts.offers)]
    assert kinds == [Unknown, Known, Known, Known]


def test_late_quotas_leave_time_for_roles(tmp_path: Path) -> None:
    with SandboxState.open(tmp_path / "world.sqlite3", speed=1) as sandbox_state:
        administration.add_bucket(sandbox_state, "data", location="US-CENTRAL2")
        administration.add_role(sandbox_state, "reader", title="Reader", includedPermissions=["storage.objects.get"])
        account = f"serviceAccount:{administration.project_number('sandbox')}-compute@developer.gserviceaccount.com"
        administration.set_iam_policy(
            sandbox_state, [{"role": "projects/sandbox/roles/reader", "members": [account]}], bucket="data"
        )
        administration.set_iam_policy(sandbox_state, [])

        facts = gather(sandbox_state, unanswered="serviceusage.services.consumerQuotaMetrics.list")

    assert type(facts.quotas) is Unknown
    assert facts.roles == {"projects/sandbox/roles/reader": Known(frozenset({"storage.objects.get"}))}
