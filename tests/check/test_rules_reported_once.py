"""One cause of several findings is explained once; a possibly mistyped name is not fixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.check.access_cases import ACCOUNT, bucket, facts, policy
from tests.check.bucket_facts import DENIED, LATE, READ, USE, a_bucket, facts_of, findings_of
from tests.check.offer_facts import ZONE, node, resources, spec, wanted
from tests.check.offer_facts import facts as offered
from tpuctl.check.facts import Known, Unknown
from tpuctl.check.findings import Level, Remedy, RuleResult
from tpuctl.check.rules.iam_rules import account_may_read
from tpuctl.check.rules.zone_rules import node_name_is_free
from tpuctl.models.bucket import BucketPlacement

PARAGRAPH = "the caller does not have storage.buckets.get access to the bucket. " * 4
HIDDEN = Unknown(PARAGRAPH, "storage.buckets.get")
NO_POLICY = Unknown(PARAGRAPH, "storage.buckets.getIamPolicy")
NO_LIST = Unknown(PARAGRAPH, "storage.objects.list")


def test_hidden_bucket_reason_is_shown_once() -> None:
    about = facts(bucket("b", NO_POLICY, bucket=HIDDEN))
    listing = facts_of(HIDDEN, READ, contents=NO_LIST)

    (policy_unread,), (unlisted,), (hidden,) = (
        list(account_may_read.judge(about)),
        findings_of("TPU108", listing),
        findings_of("TPU102", listing),
    )

    assert hidden.text == f"`gs://b` could not be read: {PARAGRAPH}"
    assert unlisted.text == "the list of objects in `gs://b` could not be read: see TPU102"
    assert policy_unread.text == (
        f"unknown whether the node's account `{ACCOUNT}` may read and write to it: its policy could not be read: "
        "see TPU102"
    )
    assert (unlisted.facts["permission"], policy_unread.facts["permission"]) == (
        "storage.objects.list",
        "storage.buckets.getIamPolicy",
    )


@pytest.mark.parametrize(
    ("bucket", "contents"), [(LATE, NO_LIST), (HIDDEN, LATE), (Known(a_bucket()), NO_LIST), (Unknown("no"), NO_LIST)]
)
def test_other_cause_is_shown_in_full(bucket: Any, contents: Unknown) -> None:
    (found,) = findings_of("TPU108", facts_of(bucket, READ, contents=contents))

    assert found.text == f"the list of objects in `gs://b` could not be read: {contents.reason}"


@pytest.mark.parametrize(
    ("refusal", "payer", "count"),
    [(DENIED, "payer", 2), (DENIED, None, 1), (LATE, "payer", 1), (Unknown("400"), "payer", 2)],
)
def test_refused_bucket_mentions_billing_project(refusal: Unknown, payer: str | None, count: int) -> None:
    (found,) = findings_of("TPU102", facts_of(refusal, wanted={"billing_project": payer}))

    doubt = Remedy(
        "or the billing project `payer` is the cause: it must exist, and you need `serviceusage.services.use` on "
        "it; otherwise name another with `--billing-project`"
    )
    assert len(found.remedies) == count
    assert (doubt in found.remedies) == (count == 2)


@pytest.mark.parametrize(
    ("account", "is_mended"),
    [
        ("trainer@p.iam.gserviceaccount.com", True),
        (None, True),
        ("typo@sandbx.iam.gserviceaccount.com", False),
        ("7-compute@developer.gserviceaccount.com", False),
        ("user@example.com", True),
    ],
)
def test_foreign_account_is_not_fixed(account: str | None, is_mended: bool) -> None:
    (found,) = account_may_read.judge(facts(bucket("b", policy({})), spec={"service_account": account}))

    (remedy,) = found.remedies
    assert (remedy.change is not None) == is_mended
    assert remedy.command is not None
    assert f"--member=serviceAccount:{account or ACCOUNT}" in remedy.command


@pytest.mark.parametrize(
    ("placement", "first"),
    [
        (BucketPlacement("US", "multi-region"), "use a bucket where the TPU is, in US-CENTRAL2"),
        (BucketPlacement("US-CENTRAL1", "region"), "or use a bucket where the TPU is, in US-CENTRAL2"),
    ],
)
def test_first_remedy_does_not_start_with_or(placement: BucketPlacement, first: str) -> None:
    (found,) = findings_of("TPU101", facts_of(DENIED, USE, layout=Known(placement)))

    assert first in [remedy.text for remedy in found.remedies]
    assert not found.remedies[0].text.startswith("or ")


DIFFERS = replace(spec("v4-16"), named=frozenset({"accelerator_type"}))


@pytest.mark.parametrize(
    ("made", "state", "is_reported"),
    [
        (DIFFERS, "READY", True),
        (DIFFERS, "STOPPED", True),
        (DIFFERS, "PREEMPTED", False),
        (spec("v4-16"), "READY", False),
    ],
)
def test_differing_node_is_recreated_only_with_replace(made: Any, state: str, is_reported: bool) -> None:
    there = node(f"{ZONE}/trainer", state=state)

    found = list(node_name_is_free.judge(offered(wanted(made, replaces=there), resources=resources(there))))

    result = RuleResult(
        level=Level.NOTE,
        subject="trainer",
        text=f"`trainer` exists ({state}) and differs: accelerator_type: wanted `v4-16`, found `v4-8`",
        why="`up` refuses it without `--replace`, which deletes the node and its boot disk",
        remedies=(
            Remedy(
                "to recreate it",
                f"tpuctl up trainer --project=p --zone={ZONE} --type=v4-16 --replace",
            ),
        ),
        facts={"nodeId": "trainer", "zone": ZONE, "state": state, "differences": ["accelerator_type"]},
    )
    assert (result in found) == is_reported
