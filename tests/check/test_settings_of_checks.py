"""The settings of what is checked before anything is created: grants, buckets, sizes."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from tests.config.test_settings import of
from tpuctl.config.settings import RawValue
from tpuctl.errors import SettingError
from tpuctl.models.grants import Grant

GRANTS = "zone=us-central2-b,type=v4,tier=on-demand,count=32,until=2026-12-31; zone=us-central1-f,type=v2-8,tier=spot,count=5;"
RECORDS = (
    {"zone": "us-central2-b", "type": "v4", "tier": "on-demand", "count": "32", "until": "2026-12-31"},
    {"zone": "us-central1-f", "type": "v2-8", "tier": "spot", "count": "5"},
)


def test_grants_parse_alike_from_variable_and_file() -> None:
    expected = (
        Grant("us-central2-b", "v4", "on-demand", 32, date(2026, 12, 31)),
        Grant("us-central1-f", "v2-8", "spot", 5, None),
    )

    assert of(environ={"TPUCTL_GRANTS": GRANTS}).grants() == expected
    assert of(user={"grants": RECORDS}).grants() == expected
    assert of(user={"grants": RECORDS}).records("grants") == RECORDS
    assert of().grants() == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("zone=us-central2-b", "it lacks `type`, `tier`, `count`; an entry has zone, type, tier, count, until"),
        ("zone", "`zone` is not KEY=VALUE"),
        ("zone=a,zone=b", "`zone` is given twice"),
        (GRANTS.replace("until", "util"), "unknown key `util`; did you mean `until`?"),
        (GRANTS.replace("until", "xyz"), "unknown key `xyz`; known are zone, type, tier, count, until"),
        (GRANTS.replace("32", "all"), "`count` is `all`: it must be a whole number, 1 or more"),
    ],
)
def test_invalid_grant_in_a_variable_has_a_reason(text: str, reason: str) -> None:
    with pytest.raises(SettingError) as caught:
        of(environ={"TPUCTL_GRANTS": text}).grants()

    assert caught.value.message == f"TPUCTL_GRANTS: `grants` is `{text}`: {reason}"


@pytest.mark.parametrize(
    ("text", "size"), [("1.2TB", 1_200_000_000_000), ("500GiB", 500 * 2**30), ("300", 300), ("5 kb", 5000)]
)
def test_size_is_parsed_as_bytes(text: str, size: int) -> None:
    assert of({"dataset_size": text}).size("dataset_size") == size
    assert of().size("dataset_size") is None


@pytest.mark.parametrize("text", ["much", "-1GB", "1iB", "", "1e3", "9" * 400])
def test_invalid_size_is_an_error(text: str) -> None:
    with pytest.raises(SettingError, match=r"it must be a size like 1\.2TB or 500GiB"):
        of({"dataset_size": text}).size("dataset_size")


def test_check_settings_are_allowed_in_both_files() -> None:
    values: dict[str, RawValue] = {
        "buckets": ("gs://a", "gs://b/x"),
        "data_buckets": ("gs://c",),
        "checkpoint_buckets": ("gs://d",),
        "skip_checks": ("TPU104", "TPU401"),
        "egress_prices": {"us:europe": "0.05"},
        "billing_project": "payer",
        "check_timeout": "5s",
        "dataset_size": "1TB",
    }

    for settings in (of(project=values), of(user=values)):
        assert settings.items("buckets") == ("gs://a", "gs://b/x")
        assert settings.items("skip_checks") == ("TPU104", "TPU401")
        assert settings.pairs("egress_prices") == {"us:europe": "0.05"}
        assert settings.duration("check_timeout") == timedelta(seconds=5)
    flags = {spec.key: spec.flag for spec, _ in of() if spec.key in {*values, "grants", "no_billing_outside_grants"}}
    assert flags == {
        "buckets": "--bucket",
        "data_buckets": "--data-bucket",
        "checkpoint_buckets": "--checkpoint-bucket",
        "dataset_size": "--dataset-size",
        "skip_checks": "--skip-check",
        "grants": None,
        "no_billing_outside_grants": "--no-billing-outside-grants",
        "egress_prices": None,
        "billing_project": "--billing-project",
        "check_timeout": "--check-timeout",
    }
