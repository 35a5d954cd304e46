"""`tpuctl status`, and the names of nodes in all commands."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import both_faces

FULL_NAME = "projects/sandbox/locations/us-central2-b/nodes/twin"


@pytest.fixture
def twins(sandbox: Sandbox) -> Sandbox:
    """Two nodes of one name, and one whose name is its own."""
    sandbox.add_node("twin")
    sandbox.add_node("twin", zone="us-central1-a", acceleratorType="v5litepod-8")
    sandbox.add_node("lone", zone="us-east5-a", acceleratorType="v6e-8")
    return sandbox


@both_faces
def test_status_shows_details(tpuctl: Console, sandbox: Sandbox, face: dict[str, str]) -> None:
    sandbox.add_node(
        "trainer",
        zone="us-central1-a",
        acceleratorType="v5litepod-16",
        schedulingConfig={"spot": True},
        labels={"team": "vision", "run": "7"},
        tags=["web", "ssh"],
        description="night run",
        health="UNHEALTHY_TENSORFLOW",
        healthDescription="libtpu died",
        upcomingMaintenance={"maintenanceStatus": "PENDING", "windowStartTime": "2026-01-02T00:00:00Z"},
        age=timedelta(hours=3),
    )
    said = "sandbox: nothing here is real, and nothing is billed\n" if "TPUCTL_SANDBOX" in face else ""
    details = """\
name         trainer
zone         us-central1-a
project      sandbox
state        READY
health       UNHEALTHY_TENSORFLOW (libtpu died)
type         v5litepod-16 (4x4), 4 workers
version      v2-alpha-tpuv5-lite
tier         spot
created      2025-12-31T21:00:00Z (3h ago)
worker 0     198.18.0.1 / 10.128.0.1
worker 1     198.18.0.2 / 10.128.0.2
worker 2     198.18.0.3 / 10.128.0.3
worker 3     198.18.0.4 / 10.128.0.4
labels       run=7, team=vision
tags         web, ssh
description  night run
note         libtpu died; maintenance in 24h
cost         ~$3.92/h · ~$11.76 so far (list prices of 2026-08)
"""

    assert tpuctl("status", "trainer", terminal=True, NO_COLOR="1") == (details, said, 0)
    piped, err, code = tpuctl("status", "trainer")
    assert (err, code) == ("", 0)
    assert piped.splitlines()[:2] == ["name\ttrainer", "zone\tus-central1-a"]
    assert tpuctl("status", "trainer", "-o", "name") == ("us-central1-a/trainer\n", "", 0)


def test_status_of_several_nodes(tpuctl: Console, twins: Sandbox) -> None:
    out, err, code = tpuctl("status", "lone", "us-central1-a/twin")

    assert [line for line in out.splitlines() if line.startswith(("name", "zone")) or not line] == [
        "name\tlone", "zone\tus-east5-a", "", "name\ttwin", "zone\tus-central1-a",
    ]  # fmt: skip
    assert (err, code) == ("", 0)


@pytest.mark.parametrize(
    ("arguments", "zone"),
    [
        (("lone",), "us-east5-a"),
        (("us-central1-a/twin",), "us-central1-a"),
        (("twin", "--zone", "us-central1-a"), "us-central1-a"),
        ((FULL_NAME,), "us-central2-b"),
        ((f"https://tpu.googleapis.com/v2/{FULL_NAME}",), "us-central2-b"),
        (("us-central1-a/twin", "--zone", "us-central2-b"), "us-central1-a"),
    ],
)
def test_status_accepts_each_form_of_a_name(
    tpuctl: Console, twins: Sandbox, arguments: tuple[str, ...], zone: str
) -> None:
    out, err, code = tpuctl("describe", *arguments)

    assert (out.splitlines()[1], err, code) == (f"zone\t{zone}", "", 0)


def test_status_uses_a_configured_zone_but_not_only_that_of_gcloud(tpuctl: Console, twins: Sandbox) -> None:
    assert tpuctl("status", "twin", TPUCTL_ZONE="us-central1-a")[0].splitlines()[1] == "zone\tus-central1-a"
    assert tpuctl("status", "lone", CLOUDSDK_COMPUTE_ZONE="us-central1-a")[0].splitlines()[1] == "zone\tus-east5-a"


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("ssh",), ("update", "--labels", "a=b"), ("down", "--yes"), ("delete", "--yes"), ("stop", "--yes"), ("wait",),
     ("start",), ("reset", "--yes"), ("up",)],
)  # fmt: skip
def test_status_of_an_ambiguous_name_lists_both_nodes(
    tpuctl: Console, twins: Sandbox, arguments: tuple[str, ...]
) -> None:
    assert tpuctl(arguments[0], "twin", *arguments[1:]) == (
        "",
        (
            "error: there are 2 nodes `twin`: us-central1-a/twin, us-central2-b/twin\n"
            "  hint: name the zone: `--zone ZONE` or `ZONE/NODE`\n"
        ),
        8,
    )
    assert twins.changes() == []


def test_status_of_a_missing_node_lists_the_searched_zones(tpuctl: Console, twins: Sandbox) -> None:
    assert tpuctl("status", "nope") == (
        "",
        "error: no node `nope` in any zone of project sandbox\n  hint: run `tpuctl list` to see the nodes of all zones\n",
        3,
    )
    assert tpuctl("status", "lone", "--zone", "us-central2-b") == (
        "",
        "error: no node `lone` in us-central2-b\n  hint: run `tpuctl list` to see the nodes of all zones\n",
        3,
    )
    out, err, code = tpuctl("status", "nope", "--project", "elsewhere", "-o", "json")
    assert ('"kind": "not_found"' in err, out, code) == (True, "", 3)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("Twin 1",), "`Twin 1` is not a node name", "did you mean `twin-1`?"),
        (("us-central2/twin",), "`us-central2` is a region, not a zone", "like `us-central2-b`"),
        (("twin", "--zone", "US"), "`US` is not a zone", "zones look like `us-central2-b`"),
        (("twin", "--zone", "us-central2-b,us-central1-a"), "`--zone` names several zones", "works in one zone"),
        (("../twin",), "`..` is not a zone", "zones look like"),
        (("a/b/c",), "`a/b/c` is not a node name", "did you mean `a-b-c`?"),
        (("twin", "--project", "My Project"), "`My Project` is not a project id", "PROJECT_ID"),
    ],
)
def test_invalid_names_are_refused_before_any_request(
    tpuctl: Console, twins: Sandbox, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    # With -v each request is shown: there must be none.
    out, err, code = tpuctl("status", "-v", *arguments)

    assert (out, err.splitlines()[0], code) == ("", f"error: {message}", 2)
    assert hint in err
    assert "GET" not in err
