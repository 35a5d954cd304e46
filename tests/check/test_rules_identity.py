"""Rules about the account that the node runs as, and about its scopes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.check.access_cases import ACCOUNT, NAMED, bucket, facts
from tpuctl.check.facts import BucketUse, Unknown
from tpuctl.check.findings import Level, Remedy
from tpuctl.check.rules.iam_rules import IDENTITY_RULES
from tpuctl.models.node import Node
from tpuctl.names import NodeName

SCOPES, RUNS_AS = IDENTITY_RULES
FULL = "https://www.googleapis.com/auth/"
_BUCKETS = {
    "rw": (bucket("b", None),),
    "ro": (bucket("b", None, use=BucketUse("b", writes=False)),),
    "none": (),
}
_SCOPES = [
    ((), "rw", None),
    ((), "none", None),
    (("cloud-platform",), "rw", None),
    (("devstorage.full_control",), "rw", None),
    (("devstorage.read_write",), "rw", None),
    (("devstorage.read_only",), "ro", None),
    (("cloud-platform.read-only",), "ro", None),
    (
        ("devstorage.read_only",),
        "rw",
        "error its scopes do not allow it to write objects: `https://www.googleapis.com/auth/devstorage.read_only`",
    ),
    (
        ("cloud-platform.read-only",),
        "rw",
        "error its scopes do not allow it to write objects: `https://www.googleapis.com/auth/cloud-platform.read-only`",
    ),
    (
        ("devstorage.write_only",),
        "rw",
        "error its scopes do not allow it to read objects: `https://www.googleapis.com/auth/devstorage.write_only`",
    ),
    (
        ("logging.write", "compute"),
        "rw",
        (
            "error its scopes do not allow it to read and write objects: "
            "`https://www.googleapis.com/auth/logging.write`, `https://www.googleapis.com/auth/compute`"
        ),
    ),
    (("logging.write",), "none", "note its scopes allow no bucket access"),
    (("devstorage.read_only",), "none", None),
    (("logging.write", "devstorage.read_write"), "rw", None),
]


@pytest.mark.parametrize(("scopes", "use", "expected"), _SCOPES)
def test_node_scopes_are_judged(scopes: tuple[str, ...], use: str, expected: str | None) -> None:
    given = facts(*_BUCKETS[use], spec={"scopes": tuple(FULL + scope for scope in scopes)})

    assert [f"{found.level} {found.text}" for found in SCOPES.judge(given)] == ([expected] if expected else [])


_SHORT = [
    ("storage-full", "rw", "devstorage.full_control", []),
    ("storage-rw", "rw", "devstorage.read_write", []),
    ("cloud-platform", "rw", "cloud-platform", []),
    ("storage-ro", "ro", "devstorage.read_only", []),
    ("storage-ro", "rw", "devstorage.read_only", [Level.ERROR]),
    ("default", "rw", "devstorage.read_only", [Level.ERROR]),
    ("gke-default", "ro", "devstorage.read_only", []),
]


@pytest.mark.parametrize(("scope", "use", "full", "level"), _SHORT)
def test_short_scope_names_are_warned_about(scope: str, use: str, full: str, level: list[Level]) -> None:
    given = facts(*_BUCKETS[use], spec={"scopes": (scope,)})

    warning, *others = SCOPES.judge(given)
    assert (warning.level, warning.text, warning.remedies, [one.level for one in others]) == (
        Level.WARNING,
        f"`{scope}` is a short scope name, which the Cloud TPU API is not known to accept",
        (Remedy(f"write the full name: `{FULL}{full}`"),),
        level,
    )
    there = replace(given, wanted=replace(given.wanted, creates=False))
    assert [found.level for found in SCOPES.judge(there)] == level


def test_existing_node_scopes_need_recreation() -> None:
    spec = {"scopes": (f"{FULL}devstorage.read_only",)}
    only_read = Remedy("or declare what is read-only: `--data-bucket=gs://b` instead of `--bucket`")
    node = Node(NodeName("p", "us-central2-b", "trainer"), {})

    (new,) = SCOPES.judge(facts(*_BUCKETS["rw"], spec=spec))
    (old,) = SCOPES.judge(facts(*_BUCKETS["rw"], spec=spec, node=node, creates=False))
    assert [new.remedies, old.remedies] == [
        (
            Remedy(
                "omit `--scopes`, which allows all Cloud APIs, or name "
                "`https://www.googleapis.com/auth/cloud-platform`; then only roles decide"
            ),
            only_read,
        ),
        (
            Remedy(
                "recreate it, which deletes its disk: `tpuctl up trainer --replace` with all of its options and "
                "`--scopes https://www.googleapis.com/auth/cloud-platform`; then only roles decide"
            ),
            only_read,
        ),
    ]


@pytest.mark.parametrize(
    ("scope", "use"),
    [("logging.write", BucketUse("b")), ("devstorage.read_only", BucketUse("b", reads=False))],
)
def test_scopes_read_only_remedy_only_if_possible(scope: str, use: BucketUse) -> None:
    (found,) = SCOPES.judge(facts(bucket("b", None, use=use), spec={"scopes": (FULL + scope,)}))

    assert (found.level, len(found.remedies)) == (Level.ERROR, 1)


_OTHER = "x@other.iam.gserviceaccount.com"
_ACCOUNTS = [
    (None, True, None),
    (ACCOUNT, True, None),
    (NAMED, True, None),
    (_OTHER, True, f"warning it runs as `{_OTHER}`, an account of another project (`other`)"),
    (_OTHER, False, None),
    (
        "2-compute@developer.gserviceaccount.com",
        True,
        "warning it runs as `2-compute@developer.gserviceaccount.com`, an account of another project (`2`)",
    ),
    (
        "p@appspot.gserviceaccount.com",
        True,
        None,
    ),
    (
        "x@p.example.com.iam.gserviceaccount.com",
        True,
        "warning it runs as `x@p.example.com.iam.gserviceaccount.com`, an account of another project (`example.com:p`)",
    ),
    ("odd@example.com", True, None),
]


@pytest.mark.parametrize(("account", "creates", "expected"), _ACCOUNTS)
def test_node_account_of_another_project_is_reported(account: str | None, creates: bool, expected: str | None) -> None:
    found = RUNS_AS.judge(facts(spec={"service_account": account}, creates=creates))

    assert [f"{one.level} {one.text}" for one in found] == ([expected] if expected else [])


def test_foreign_account_has_two_remedies() -> None:
    (found,) = RUNS_AS.judge(facts(spec={"service_account": _OTHER}))

    assert (found.why, found.remedies, found.facts) == (
        (
            "creating the node fails unless you may act as the account, and "
            "`iam.disableCrossProjectServiceAccountUsage` is off in `other`"
        ),
        (
            Remedy(
                "check whether `other` allows it: `enforce` must not be true",
                "gcloud org-policies describe iam.disableCrossProjectServiceAccountUsage --project=other --effective",
            ),
            Remedy(f"ask for `roles/iam.serviceAccountUser` on `{_OTHER}`, or use an account of `p`"),
        ),
        {"account": _OTHER, "isDefault": False, "project": "other"},
    )


@pytest.mark.parametrize(
    ("account", "level"), [("2-compute@developer.gserviceaccount.com", []), (_OTHER, [Level.WARNING])]
)
def test_project_number_is_not_compared_with_id(account: str, level: list[Level]) -> None:
    found = RUNS_AS.judge(facts(spec={"service_account": account}, project=Unknown("no")))

    assert [one.level for one in found] == level
