"""Remedies for a node without grant: text if only the holder knows the values, never the refused command."""

from __future__ import annotations

import pytest

from tests.check.offer_facts import ZONE, facts, found_by, resources, spec, wanted
from tpuctl.check.findings import Remedy
from tpuctl.check.rules.quota_rules import grant_covers
from tpuctl.models.grants import Grant
from tpuctl.models.node import Tier
from tpuctl.models.spec import NodeSpec


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (spec("v4-8", Tier.SPOT), "zone=us-central2-b,type=v4,tier=spot,count=COUNT,until=DATE"),
        (spec("v6e-1"), "zone=us-central2-b,type=v6e,tier=on-demand,count=COUNT,until=DATE"),
        (spec("v99-8"), "zone=us-central2-b,type=v99-8,tier=on-demand,count=COUNT,until=DATE"),
    ],
)
def test_no_grants_remedy_explains_setting(made: NodeSpec, written: str) -> None:
    (found,) = found_by(grant_covers, facts(wanted(made, no_billing_outside_grants=True)))

    assert found.remedies == (
        Remedy(
            f"if you have a grant, add it to your own settings with `tpuctl config set grants {written}`, with "
            "the chips and the last day of the grant; this replaces the configured grants"
        ),
        Remedy(
            "or turn it off where it was set: a flag, the environment (`TPUCTL_NO_BILLING_OUTSIDE_GRANTS`) or a "
            "file; `tpuctl config show` says where"
        ),
    )


def test_grant_for_one_of_two_nodes_suggests_fewer() -> None:
    grant = Grant(ZONE, "v4", "on-demand", 4, None)

    (found,) = found_by(grant_covers, facts(wanted(grants=(grant,), siblings=(spec(),)), resources=resources()))

    assert found.remedies == (
        Remedy("the grant covers this node alone, not all 2 of the command: create fewer at once"),
    )


def test_grant_remedy_tier_has_article() -> None:
    grant = Grant(ZONE, "v4", "on-demand", 8, None)

    (found,) = found_by(grant_covers, facts(wanted(spec("v4-8", Tier.SPOT), grants=(grant,)), resources=resources()))

    assert [remedy.text for remedy in found.remedies] == [f"covered by that grant: an on-demand v4-8 in {ZONE}"]
