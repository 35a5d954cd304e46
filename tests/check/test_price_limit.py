"""The price limit: what costs more, or has no known price, is not created."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.check.offer_facts import facts, spec, wanted
from tests.config.test_settings import of
from tests.conftest import Console, Sandbox
from tpuctl.check.rules.quota_rules import price_is_within_limit
from tpuctl.errors import SettingError
from tpuctl.models.node import Tier

EAST, V4 = "us-east5-b", "us-central2-b"
NODE = ("--type", "v6e-8", "--zone", EAST)


@pytest.mark.parametrize(
    ("kind", "zone", "tier", "limit", "allow_unknown", "creates", "found"),
    [
        pytest.param("v6e-8", EAST, None, None, False, True, [], id="no-limit"),
        pytest.param("v6e-8", EAST, None, "1", False, False, [], id="existing-node"),
        pytest.param(
            "v6e-8", EAST, None, "21.60", False, True,
            [],
            id="as-much-as-the-limit",
        ),
        pytest.param(
            "v6e-8", EAST, None, "21.59", False, True,
            [("error", EAST, "a v6e-8 (on-demand) costs $21.60/h, more than the limit of $21.59/h")],
            id="a-cent-more",
        ),
        pytest.param(
            "v6e-8", EAST, Tier.SPOT, "20", False, True,
            [],
            id="spot-is-cheaper",
        ),
        pytest.param(
            "v4-8", V4, Tier.SPOT, "20", False, True,
            [("error", V4, "a v4-8 (spot) has no known price, and the limit is $20/h")],
            id="unknown",
        ),
        pytest.param(
            "v4-8", V4, None, "20", True, True,
            [],
            id="unknown-allowed",
        ),
        pytest.param(
            "v6e-8", EAST, None, "20", True, True,
            [("error", EAST, "a v6e-8 (on-demand) costs $21.60/h, more than the limit of $20/h")],
            id="known-is-not-unknown",
        ),
    ],
)  # fmt: skip
def test_rule_refuses_what_costs_more(
    kind: str,
    zone: str,
    tier: Tier | None,
    *,
    limit: str | None,
    allow_unknown: bool,
    creates: bool,
    found: list[tuple[str, str, str]],
) -> None:
    about = wanted(
        spec(kind, tier),
        zone=zone,
        max_price=Decimal(limit) if limit else None,
        allow_unknown_price=allow_unknown,
        creates=creates,
    )

    assert [(str(one.level), one.subject, one.text) for one in price_is_within_limit.judge(facts(about))] == found


@pytest.mark.parametrize("verb", ["create", "up"])
def test_node_above_the_limit_is_not_created(tpuctl: Console, sandbox: Sandbox, verb: str) -> None:
    out, err, code = tpuctl(verb, "trainer", *NODE, "--max-price", "20")

    assert (out, code, sandbox.changes()) == ("", 9, [])
    assert "  TPU408 us-east5-b: a v6e-8 (on-demand) costs $21.60/h, more than the limit of $20/h\n" in err


def test_node_within_the_limit_is_created_and_its_price_is_shown(tpuctl: Console) -> None:
    out, err, code = tpuctl("up", "trainer", *NODE, "--spot", "--max-price", "$9.72", "--no-wait")

    assert (out, code) == ("trainer\tCREATING\n", 0)
    assert "trainer: creating v6e-8 (v2-alpha-tpuv6e, spot, about $9.72/h)\n" in err


def test_unknown_price_needs_a_flag(tpuctl: Console, sandbox: Sandbox) -> None:
    node = ("create", "trainer", "--type", "v4-8", "--spot", "--zone", V4, "--max-price", "20", "--no-wait")

    _, err, refused = tpuctl(*node)
    allowed = tpuctl(*node, "--allow-unknown-price")

    assert (refused, allowed[0], allowed[2]) == (9, "trainer\tCREATING\n", 0)
    assert "    → choose a zone and tier with a known price, or allow it with `--allow-unknown-price`\n" in err
    assert sandbox.changes() == ["create"]


SEVERAL = ("up", "trainer", "--type", "v6e-8", "--zone", "us-central1-b,us-east5-b")


def test_zones_above_the_limit_are_left_out(tpuctl: Console, sandbox: Sandbox) -> None:
    out, err, code = tpuctl(*SEVERAL, "--tier", "spot,on-demand", "--max-price", "5", "--no-wait")

    assert (out, code, sandbox.changes()) == ("trainer\tCREATING\n", 0, ["create"])
    assert err.splitlines() == [
        "us-east5-b (spot) costs about $9.72/h, more than the limit of $5/h: left out",
        "us-central1-b (on-demand) costs $21.60/h, more than the limit of $5/h: left out",
        "us-east5-b (on-demand) costs $21.60/h, more than the limit of $5/h: left out",
        "trainer: trying us-central1-b (spot), 1 of 1",
        "trainer: creating v6e-8 (v2-alpha-tpuv6e, spot, about $4.35/h)",
        "trainer: CREATING",
    ]


def test_no_zone_within_the_limit_is_an_error_with_all_prices(tpuctl: Console, sandbox: Sandbox) -> None:
    out, err, code = tpuctl(*SEVERAL, "--max-price", "5")

    assert (out, code, sandbox.changes()) == ("", 9, [])
    assert err.splitlines()[-4:-1] == [
        "error: no zone of `--zone us-central1-b,us-east5-b` has `v6e-8` for at most $5/h:",
        "  us-central1-b costs $21.60/h, more than the limit of $5/h",
        "  us-east5-b costs $21.60/h, more than the limit of $5/h",
    ]


def test_skipped_check_of_the_price_leaves_no_zone_out(tpuctl: Console) -> None:
    _, err, code = tpuctl(*SEVERAL, "--max-price", "5", "--skip-check", "tpu408", "--dry-run")

    assert (code, err.splitlines()[0]) == (
        0,
        "zones in this order: us-central1-b, us-east5-b; the plan is for the first",
    )


def test_zone_of_the_last_success_comes_first(tpuctl: Console) -> None:
    tpuctl("up", "other", "--type", "v6e-8", "--zone", "us-east5-b")

    _, err, _ = tpuctl("up", "trainer", "--type", "v6e-8", "--zone", "any", "--dry-run")

    assert err.splitlines()[0].startswith("zones in this order: us-east5-b, ")


@pytest.mark.parametrize(
    ("text", "dollars"),
    [
        pytest.param("20", "20", id="whole"),
        pytest.param("$4.5", "4.5", id="sign"),
        pytest.param("0.01", "0.01", id="least"),
    ],
)
def test_price_limit_is_parsed(text: str, dollars: str) -> None:
    assert of({"max_price": text}).dollars("max_price") == Decimal(dollars)
    assert of().dollars("max_price") is None


@pytest.mark.parametrize("text", ["0", "0.00", "-1", "4.999", "much", "", "1e3", "20/h", "NaN", "٣", "9" * 400])
def test_invalid_price_limit_is_an_error(text: str) -> None:
    with pytest.raises(SettingError, match=r"it must be dollars like 20 or 4\.50, more than 0"):
        of({"max_price": text}).dollars("max_price")


@pytest.mark.parametrize(
    ("flag", "variable", "project", "user", "limit"),
    [
        pytest.param(None, None, "5", "20", "5", id="project-file-lowers"),
        pytest.param(None, None, "50", "20", "20", id="project-file-does-not-raise"),
        pytest.param(None, None, "20", "20", "20", id="as-much"),
        pytest.param(None, None, "50", None, "50", id="project-file-alone"),
        pytest.param(None, None, None, "20", "20", id="user-file-alone"),
        pytest.param(None, "30", "5", "20", "30", id="variable-wins"),
        pytest.param("40", "30", "5", "20", "40", id="flag-wins"),
    ],
)
def test_lower_limit_of_two_files_wins(
    flag: str | None, variable: str | None, project: str | None, user: str | None, limit: str
) -> None:
    settings = of(
        {"max_price": flag} if flag else {},
        {"TPUCTL_MAX_PRICE": variable} if variable else {},
        project={"max_price": project} if project else {},
        user={"max_price": user} if user else {},
    )

    assert settings.dollars("max_price") == Decimal(limit)


def test_project_file_never_allows_unknown_prices() -> None:
    with pytest.raises(SettingError, match="`allow_unknown_price` is never read from a project file"):
        of(project={"allow_unknown_price": "true"})
