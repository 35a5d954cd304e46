"""`tpuctl cost`: its formats, groups, several projects, zones that do not answer."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import both_faces, said

NOTHING_IS_REAL = "sandbox: nothing here is real, and nothing is billed\n"
PRICES = "prices: list prices of 2026-08, without discounts, disks and network"
AGE = timedelta(hours=3)
EAST = {"zone": "us-east5-b", "acceleratorType": "v6e-8", "age": AGE}
EXPIRES = {"tpuctl-expires": "1767232800", "tpuctl-owner": "ada", "team": "vision"}


@pytest.fixture
def billed(sandbox: Sandbox) -> Sandbox:
    """Nodes that are billed, will expire, are stopped, or have no known price."""
    sandbox.add_node("calm", **EAST)
    sandbox.add_node("short", labels=EXPIRES, schedulingConfig={"spot": True}, **EAST)
    sandbox.add_node("stopped", state="STOPPED", **EAST)
    sandbox.add_node("unpriced", age=AGE, acceleratorType="v2-8", zone="us-central1-b")
    return sandbox


TABLE = """\
NAME      ZONE           TYPE   TIER       STATE       $/H  SINCE    SO FAR  NOTE
calm      us-east5-b     v6e-8  on-demand  READY    $21.60  3h ago  ~$64.80
short     us-east5-b     v6e-8  spot       READY    ~$9.72  3h ago  ~$29.16
unpriced  us-central1-b  v2-8   on-demand  READY         ?  3h ago        ?  no known price of v2-8 (on-demand)
stopped   us-east5-b     v6e-8  on-demand  STOPPED       ?                ?  only its disk is billed; \
the price of disks is unknown

total   ≥ $31.32/h · ≥ $93.96 so far · ≥ $632 in 24 h
prices  list prices of 2026-08, without discounts, disks and network
"""


@both_faces
def test_cost_on_a_terminal_has_a_total_and_its_source(tpuctl: Console, billed: Sandbox, face: dict[str, str]) -> None:
    quiet = NOTHING_IS_REAL if "TPUCTL_SANDBOX" in face else ""

    assert tpuctl("cost", terminal=True, width=200, NO_COLOR="1") == (TABLE, quiet, 0)


def test_cost_in_a_pipe_has_tabs_and_notes(tpuctl: Console, billed: Sandbox) -> None:
    out, err, code = tpuctl("cost", "--zone", "us-east5-b")

    assert (out.splitlines()[1].split("\t"), code) == (
        ["short", "us-east5-b", "v6e-8", "spot", "READY", "9.72", "2025-12-31T21:00:00Z", "29.16",
         ""], 0
    )  # fmt: skip
    assert err.splitlines()[1] == PRICES


def test_cost_in_json_has_amounts_with_their_precision(tpuctl: Console, billed: Sandbox) -> None:
    value = json.loads(tpuctl("cost", "-o", "json", "--by", "owner")[0])

    assert value["nodes"][1] == {
        "nodeId": "short", "zone": "us-east5-b", "project": "sandbox", "acceleratorType": "v6e-8", "tier": "spot",
        "state": "READY", "owner": "ada", "perHour": {"dollars": 9.72, "precision": "about"},
        "since": "2025-12-31T21:00:00Z", "soFar": {"dollars": 29.16, "precision": "about"},
        "in24Hours": {"dollars": 48.6, "precision": "about"},
        "grant": None, "note": "",
    }  # fmt: skip
    assert value["nodes"][2]["perHour"] == {"dollars": None, "precision": "unknown"}
    assert [(group["value"], group["nodes"]) for group in value["groups"]] == [
        ("", ["calm", "unpriced", "stopped"]), ("ada", ["short"])
    ]  # fmt: skip
    assert (value["total"]["perHour"], value["prices"], value["unreachable"], value["sandbox"]) == (
        {"dollars": 31.32, "precision": "at least"}, {"source": "list prices", "asOf": "2026-08"}, [], True
    )  # fmt: skip


def test_cost_by_label_sums_the_nodes_of_each_value(tpuctl: Console, billed: Sandbox) -> None:
    table, _, _ = tpuctl("cost", "--by", "label:team", terminal=True, NO_COLOR="1")

    assert table.splitlines()[:3] == [
        "LABEL:TEAM  NODES       $/H    SO FAR",
        "(none)          3  ≥ $21.60  ≥ $64.80",
        "vision          1    ~$9.72   ~$29.16",
    ]
    assert tpuctl("cost", "--by", "label:team", "-o", "name")[0] == "\nvision\n"
    assert tpuctl("cost", "-o", "name")[0].split() == [
        "us-east5-b/calm", "us-east5-b/short", "us-central1-b/unpriced", "us-east5-b/stopped"
    ]  # fmt: skip


def test_cost_is_sorted_alike_in_each_format(tpuctl: Console, billed: Sandbox) -> None:
    sort = ("--sort", "-price,name")

    assert tpuctl("cost", *sort, "--columns", "name,price")[0].splitlines() == [
        "calm\t21.60", "short\t9.72", "stopped\t?", "unpriced\t?"
    ]  # fmt: skip
    nodes = json.loads(tpuctl("cost", *sort, "-o", "json")[0])["nodes"]
    assert [node["nodeId"] for node in nodes] == ["calm", "short", "stopped", "unpriced"]
    assert tpuctl("cost", "--by", "type", "--sort", "-nodes", "-o", "tsv")[0].splitlines()[:2] == [
        "type\tnodes\tprice ($/h)\tso-far ($)", "v6e-8\t3\t31.32\t93.96"
    ]  # fmt: skip


def test_cost_of_several_projects_names_the_one_that_failed(tpuctl: Console, billed: Sandbox) -> None:
    billed.add_node("far", project="other", **EAST)
    billed.fault("http-error", method="*.nodes.list", project="broken", status=403, count=0)

    out, err, code = tpuctl("cost", "--all-projects", "other,sandbox,broken", "--zone", "us-east5-b")

    assert [line.split("\t")[:2] for line in out.splitlines()] == [
        ["other", "far"], ["sandbox", "calm"], ["sandbox", "short"], ["sandbox", "stopped"]
    ]  # fmt: skip
    assert (err.count("error: "), code) == (1, 4)
    err = tpuctl("cost", "--all-projects", "other,broken")[1]
    assert err.startswith("total: ≥ $21.60/h · ≥ $64.80 so far · ≥ $583 in 24 h\n")


def test_price_is_unknown_if_the_request_that_knows_the_tier_cannot_be_read(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("calm", queued_resource="calm", **EAST)
    sandbox.add_queued_resource("calm", node_ids=("calm",), zone="us-east5-b")
    before, listed = tpuctl("cost")[0].split("\t"), tpuctl("list", "--columns", "name,price")[0].split()
    sandbox.fault("http-error", method="*.queuedResources.list", status=403, count=0)

    row = tpuctl("cost")[0].split("\t")

    assert (before[5], listed[-1], row[5], row[7]) == ("21.60", "21.60", "?", "?")
    assert row[-1] == "its queued resource, which knows its tier, could not be read\n"


def test_cost_with_an_unreachable_zone_is_at_least(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("calm", **EAST)
    sandbox.fault("unreachable", zone="us-east5-a", count=0)

    out, err, code = tpuctl("cost")

    assert (out.startswith("calm\t"), code) == (True, 1)
    assert err == said(
        "total: ≥ $21.60/h · ≥ $64.80 so far · ≥ $583 in 24 h",
        PRICES,
        "error: the costs are incomplete: us-east5-a did not answer",
        "  hint: nodes in these zones are not counted; try again later",
    )


def test_cost_so_far_counts_from_the_last_start(tpuctl: Console, sandbox: Sandbox) -> None:
    """The start is in the journal: the API has only the time of the creation."""
    tpuctl("up", "demo", "--type", "v6e-8", "--zone", "us-east5-b")
    sandbox.advance(hours=2)
    tpuctl("stop", "demo", "--yes")
    sandbox.advance(hours=20)
    stopped = tpuctl("cost")[0].split("\t")
    tpuctl("start", "demo")
    sandbox.advance(hours=3)

    started = tpuctl("cost")[0].split("\t")
    (status,) = json.loads(tpuctl("status", "demo", "-o", "json")[0])

    assert stopped[4:8] == ["STOPPED", "?", "", "?"]
    assert started[4:8] == ["READY", "21.60", "2026-01-01T22:03:40Z", "65.53"]
    assert status["billing"]["since"] == started[6]


def test_grant_of_the_settings_makes_a_node_free(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("calm", **EAST)
    grant = "zone=us-east5-b,type=v6e,tier=on-demand,count=8"

    row = tpuctl("cost", TPUCTL_GRANTS=grant)[0].rstrip("\n").split("\t")

    assert (row[5], row[7], row[-1]) == (
        "0.00",
        "0.00",
        "covered by the grant 8 chips of v6e on-demand in us-east5-b",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("--by", "colour"), "`--by colour` is not a grouping", id="grouping"),
        pytest.param(("--by", "label:"), "`--by label:` is not a grouping", id="label-without-key"),
        pytest.param(("--all-projects", ","), "`--all-projects` names 0 projects", id="no-project"),
        pytest.param(("--all-projects", "a b"), "`a b` is not a project id", id="no-project-id"),
    ],
)
def test_wrong_options_are_refused(tpuctl: Console, arguments: tuple[str, ...], said: str) -> None:
    _, err, code = tpuctl("cost", *arguments)

    assert (code, said in err, "hint: " in err) == (2, True, True)


def test_wide_list_has_dollars_per_hour(tpuctl: Console, billed: Sandbox) -> None:
    billed.fault("unreachable", zone="us-east5-a", count=0)
    billed.add_queued_resource("waits", state="WAITING_FOR_RESOURCES", node_ids=("later",))

    table, err, _ = tpuctl("list", "-o", "wide", terminal=True, width=240, NO_COLOR="1")
    piped, _, _ = tpuctl("list", "--columns", "price", "--zone", "us-east5-b")

    titles, *lines, _ = table.splitlines()
    column = slice(titles.index("OWNER") + 5, titles.index("VERSION"))
    assert {line.split()[0]: line[column].removeprefix("ada").strip() for line in lines} == {
        "unpriced": "?", "calm": "$21.60", "short": "~$9.72", "stopped": "?", "later": "", "?": ""
    }  # fmt: skip
    assert "dollars per hour: list prices of 2026-08\n" in err
    assert piped.splitlines() == ["21.60", "9.72", "?"]


def test_last_format_counts(tpuctl: Console, billed: Sandbox) -> None:
    assert json.loads(tpuctl("list", "-o", "wide", "-o", "json")[0])[0]["nodeId"] == "unpriced"


def test_cost_without_nodes_is_nothing(tpuctl: Console) -> None:
    out, err, code = tpuctl("cost", terminal=True, NO_COLOR="1")

    assert (out.splitlines()[0], err.splitlines()[1:], code) == (
        "total   $0.00/h · $0.00 so far · $0.00 in 24 h", ["no nodes"], 0
    )  # fmt: skip
    assert json.loads(tpuctl("cost", "-o", "json", "--by", "zone")[0])["groups"] == []
