"""Quota if it is not certain which resources count against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.check.offer_facts import ZONE, facts, node, quota, request, resources, spec, summaries, wanted
from tpuctl.check.facts import Known
from tpuctl.check.rules.quota_rules import quota_is_enough
from tpuctl.models.project import QuotaLimit

REGION = "TPUV4sPodPerProjectPerRegionForTPUAPI"
ONE_V4: list[Mapping[str, Any]] = [{"node": {"acceleratorType": "v4-8"}, "nodeId": "n"}]
NOT_DOCUMENTED = "it is not documented whether stopped, waiting or deleting resources count against it"
NOTHING_SHOWN = ("note", "us-central2", "the service shows no quota for on-demand v4 in us-central2")


def short(holder: str, state: str) -> str:
    return (
        f"8 cores are needed in us-central2, and 7 are left: `{REGION}` is 15, and 8 are held by {holder} ({state}, 8)"
    )


@pytest.mark.parametrize(
    ("level", "state"),
    [
        *(("warning", state) for state in ("STOPPING", "STOPPED", "DELETING", "HIDDEN")),
        *(("error", state) for state in ("CREATING", "READY", "REPAIRING", "TERMINATED", "NEW_STATE")),
    ],
)
def test_uncounted_node_makes_no_error(level: str, state: str) -> None:
    about = facts(quotas=Known((quota(REGION, 15),)), resources=resources(node(f"{ZONE}/a", state=state)))

    assert summaries(quota_is_enough, about) == [(level, "us-central2", short(f"`{ZONE}/a`", state))]
    assert [found.why == NOT_DOCUMENTED for found in quota_is_enough.judge(about)] == [level == "warning"]


@pytest.mark.parametrize(
    ("level", "state"),
    [
        *(("warning", state) for state in ("ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDING", "DELETING")),
        *(("error", state) for state in ("PROVISIONING", "ACTIVE", "FAILED", "SUSPENDED")),
    ],
)
def test_uncounted_request_makes_no_error(level: str, state: str) -> None:
    about = facts(quotas=Known((quota(REGION, 15),)), resources=resources(request(f"{ZONE}/q", ONE_V4, state=state)))

    assert summaries(quota_is_enough, about) == [(level, "us-central2", short(f"queued resource `{ZONE}/q`", state))]


@pytest.mark.parametrize(
    ("metric", "name", "accelerator_type", "expected"),
    [
        # What one leaves out the other says.
        ("x/tpu-v4s-preemptible", "TPU v4 pod cores", "v4-8", NOTHING_SHOWN),
        (
            "x/tpu-v5s-litepod-serving",
            "TPU v5 lite pod cores",
            "v5litepod-8",
            (
                "error",
                "the project",
                "the quota `TPU v5 lite pod cores` is 0 in the project: the project was never given any",
            ),
        ),
        # Names that contradict each other count nothing.
        ("x/tpu-v4s-pod", "TPU v3 cores", "v4-8", NOTHING_SHOWN),
        ("x/tpu-v4s-serving", "TPU v4 pod cores", "v4-8", NOTHING_SHOWN),
    ],
)
def test_limit_pool_comes_from_both_names(
    metric: str, name: str, accelerator_type: str, expected: tuple[str, str, str]
) -> None:
    limit = QuotaLimit(metric, name, "1/{project}", 0)
    about = facts(wanted(spec(accelerator_type)), quotas=Known((limit,)), resources=resources())

    assert summaries(quota_is_enough, about) == [expected]
