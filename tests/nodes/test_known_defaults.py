"""Defaults of a new node: the type that a spelling means, and the zone from the settings, the journal or the type."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import said
from tests.nodes.test_zone_search import stockout


@pytest.mark.parametrize(
    ("words", "noted", "name"),
    [
        pytest.param(("--type", "v5e-16"), "v5e-16 is v5litepod-16 (16 chips)", "v5litepod-16", id="other-name"),
        pytest.param(("--type", "V5LitePod-1"), "V5LitePod-1 is v5litepod-1 (1 chip)", "v5litepod-1", id="capital"),
        pytest.param(
            ("--type", "v5e", "--topology", "4x4"), "v5e 4x4 is v5litepod-16 (16 chips)", "v5litepod-16", id="topology"
        ),
        pytest.param(
            ("--type", "v5e-16", "--topology", "4x4"),
            "v5e-16 4x4 is v5litepod-16 (16 chips)",
            "v5litepod-16",
            id="both",
        ),
    ],
)
def test_spelling_of_a_type_is_understood_and_said(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], noted: str, name: str
) -> None:
    out, err, code = tpuctl("create", "demo", *words, "--zone", "us-west4-a", "--no-wait")

    assert (err.splitlines()[0], out, code) == (noted, "demo\tCREATING\n", 0)
    assert f"\t{name}\t" in tpuctl("list")[0]


def test_spelling_in_the_environment_is_understood(tpuctl: Console) -> None:
    out, err, _ = tpuctl("create", "demo", "--zone", "us-west4-a", "--dry-run", TPUCTL_TYPE="v5e-16")

    assert err.splitlines()[0] == "v5e-16 is v5litepod-16 (16 chips)"
    assert "v5litepod-16" in out


def test_other_topology_than_the_spelled_type_is_refused(tpuctl: Console) -> None:
    assert tpuctl("up", "demo", "--type", "v5e-16", "--topology", "4x8", "--zone", "us-west4-a") == (
        "",
        said(
            "error: type `v5e-16` does not have the topology `4x8`",
            "  hint: `4x8` is `v5litepod-32`; remove one of the options",
        ),
        2,
    )


@pytest.mark.parametrize("verb", ["up", "create"])
def test_only_zone_with_the_type_is_used_and_said(tpuctl: Console, sandbox: Sandbox, verb: str) -> None:
    out, err, code = tpuctl(verb, "demo", "--type", "v4-8", "--no-wait")

    assert (err.splitlines()[0], out, code) == (
        "demo: in us-central2-b, the only zone with v4-8",
        "demo\tCREATING\n",
        0,
    )


@pytest.mark.parametrize(
    "variable",
    [pytest.param("TPUCTL_ZONE", id="environment"), pytest.param("CLOUDSDK_COMPUTE_ZONE", id="gcloud")],
)
def test_set_zone_precedes_the_only_zone(tpuctl: Console, sandbox: Sandbox, variable: str) -> None:
    chosen: Any = {variable: "us-central1-a"}
    _, err, _ = tpuctl("up", "demo", "--type", "v4-8", "--dry-run", **chosen)

    assert "the only zone" not in err
    assert sandbox.changes() == []


def test_zone_of_the_journal_is_said(tpuctl: Console) -> None:
    up = ("up", "demo", "--type", "v5p-8")
    assert tpuctl(*up, "--zone", "us-east5-a", "--no-wait")[2] == 0
    assert tpuctl("down", "demo", "--yes")[2] == 0

    _, err, code = tpuctl(*up, "--no-wait")

    assert (err.splitlines()[0], code) == ("demo: in us-east5-a, where it was before", 0)


def test_zone_of_a_failed_creation_is_not_remembered(tpuctl: Console, sandbox: Sandbox) -> None:
    up = ("up", "demo", "--type", "v6e-8")
    stockout(sandbox)
    assert tpuctl(*up, "--zone", "us-east5-a")[2] == 6

    _, err, code = tpuctl(*up)

    assert (err.splitlines()[0], code) == ("error: no zone is set", 2)


def test_zone_of_the_journal_without_the_type_is_not_used(tpuctl: Console) -> None:
    assert tpuctl("up", "demo", "--type", "v5p-8", "--zone", "us-east5-a", "--no-wait")[2] == 0
    assert tpuctl("down", "demo", "--yes")[2] == 0

    _, err, _ = tpuctl("up", "demo", "--type", "v4-8", "--dry-run")

    assert err.splitlines()[0] == "demo: in us-central2-b, the only zone with v4-8"
