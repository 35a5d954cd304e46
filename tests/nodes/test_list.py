"""`tpuctl list`: nodes of all zones in each format, and zones that do not answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from datetime import timedelta

import pytest
import yaml

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, both_faces, put
from tests.tpuctl_process import TpuctlProcess
from tpuctl.sandbox.request_log import read_log

NOTHING_IS_REAL = "sandbox: nothing here is real, and nothing is billed\n"
INCOMPLETE = """\
error: the list is incomplete: us-east5-a could not be listed
  hint: nodes there are not shown; try again later, or see why with `tpuctl list --zone us-east5-a`
"""
AGE = timedelta(hours=3)


@pytest.fixture
def fleet(sandbox: Sandbox) -> Sandbox:
    """Nodes in three zones, each with something to say about it."""
    add, small = sandbox.add_node, {"zone": "us-central1-a", "acceleratorType": "v5litepod-8"}
    add("calm", age=AGE)
    add("preempted", state="PREEMPTED", schedulingConfig={"spot": True}, age=AGE, **small)
    symptoms = [{"symptomType": "LOW_MEMORY", "workerId": "1", "createTime": "2026-01-01T00:00:00Z"}]
    owner, slice_ = "waiting", {"zone": "us-central1-a", "acceleratorType": "v5litepod-16"}
    add("queued", queued_resource=owner, symptoms=symptoms, age=AGE, **slice_)
    sick = {"health": "UNHEALTHY_TENSORFLOW", "healthDescription": "libtpu died"}
    add("sick", zone="us-east5-a", acceleratorType="v6e-8", age=AGE, **sick)
    window = {"maintenanceStatus": "PENDING", "windowStartTime": "2026-01-01T05:00:00Z"}
    add("serviced", upcomingMaintenance=window, age=AGE)
    add("stopped", state="STOPPED", age=AGE)
    add("terminated", state="TERMINATED", age=AGE)
    sandbox.add_queued_resource("waiting", zone="us-central1-a", node_ids=("queued",))
    return sandbox


TABLE = """\
NAME        ZONE           TYPE          STATE       HEALTH                CHIPS  AGE  TIER           $/H  NOTE
preempted   us-central1-a  v5litepod-8   PREEMPTED                             8  3h   spot         $0.00  \
preempted: `up` recreates it, `down` frees its quota
queued      us-central1-a  v5litepod-16  READY       HEALTHY                  16  3h   on-demand   $19.20  \
LOW_MEMORY on worker 1; of queued resource waiting
calm        us-central2-b  v4-8          READY       HEALTHY                   4  3h   on-demand  ~$12.88
serviced    us-central2-b  v4-8          READY       HEALTHY                   4  3h   on-demand  ~$12.88  maintenance in 5h
stopped     us-central2-b  v4-8          STOPPED                               4  3h   on-demand        ?
terminated  us-central2-b  v4-8          TERMINATED                            4  3h   on-demand    $0.00  \
terminated: `down` frees its quota
sick        us-east5-a     v6e-8         READY       UNHEALTHY_TENSORFLOW      8  3h   on-demand   $21.60  libtpu died
7 nodes, 48 chips, 3 not READY, 1 not HEALTHY, ≥ $66.56/h
"""


@both_faces
def test_list_on_a_terminal_shows_age_and_notes(tpuctl: Console, fleet: Sandbox, face: dict[str, str]) -> None:
    said = NOTHING_IS_REAL if "TPUCTL_SANDBOX" in face else ""

    assert tpuctl("list", terminal=True, NO_COLOR="1") == (TABLE, said, 0)


def test_list_in_a_pipe_has_tabs_and_absolute_times(tpuctl: Console, fleet: Sandbox) -> None:
    made = "2025-12-31T21:00:00Z"
    rows = [
        ("preempted", "us-central1-a", "v5litepod-8", "PREEMPTED", "", "8", made, "spot",
         "preempted: `up` recreates it, `down` frees its quota"),
        ("queued", "us-central1-a", "v5litepod-16", "READY", "HEALTHY", "16", made, "on-demand",
         "LOW_MEMORY on worker 1; of queued resource waiting"),
        ("calm", "us-central2-b", "v4-8", "READY", "HEALTHY", "4", made, "on-demand", ""),
        ("serviced", "us-central2-b", "v4-8", "READY", "HEALTHY", "4", made, "on-demand",
         "maintenance at 2026-01-01T05:00:00Z"),
        ("stopped", "us-central2-b", "v4-8", "STOPPED", "", "4", made, "on-demand", ""),
        ("terminated", "us-central2-b", "v4-8", "TERMINATED", "", "4", made, "on-demand",
         "terminated: `down` frees its quota"),
        ("sick", "us-east5-a", "v6e-8", "READY", "UNHEALTHY_TENSORFLOW", "8", made, "on-demand", "libtpu died"),
    ]  # fmt: skip

    lines = "".join("\t".join(row) + "\n" for row in rows)
    header = "name\tzone\ttype\tstate\thealth\tchips\tage\ttier\tnote\n"

    assert tpuctl("list") == (lines, "", 0)
    assert tpuctl("list", "-o", "tsv") == (header + lines, "", 0)
    assert tpuctl("list", "-o", "tsv", "--no-header", terminal=True)[0] == lines


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param((), "sweep-2 sweep-10 calm other", id="zone-and-natural-order"),
        pytest.param(("--sort", "name"), "calm other sweep-2 sweep-10", id="name"),
        pytest.param(("--sort", "age,-name"), "sweep-10 sweep-2 other calm", id="age-then-name"),
        pytest.param(("--sort", "-price"), "sweep-2 sweep-10 calm other", id="price"),
        pytest.param(("--sort", "-chips,name"), "sweep-2 sweep-10 calm other", id="chips"),
    ],
)
def test_list_is_sorted_alike_in_each_format(
    tpuctl: Console, sandbox: Sandbox, arguments: tuple[str, ...], expected: str
) -> None:
    for name, hours, fields in (
        ("sweep-10", 1, {"acceleratorType": "v4-32"}),
        ("sweep-2", 1, {"acceleratorType": "v4-32"}),
        ("other", 2, {"acceleratorType": "v6e-4", "zone": "us-east5-b"}),
        ("calm", 3, {"acceleratorType": "v6e-8", "zone": "us-east5-b"}),
    ):
        sandbox.add_node(name, age=timedelta(hours=hours), **fields)
    lines = tpuctl("list", *arguments, "--columns", "name")[0].split()
    names = [name.partition("/")[2] for name in tpuctl("list", *arguments, "-o", "name")[0].split()]
    values = [entry["nodeId"] for entry in json.loads(tpuctl("list", *arguments, "-o", "json")[0])]

    assert (lines, names, values) == (expected.split(),) * 3


def test_list_has_color_only_on_a_terminal_with_color(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("calm")

    colored, _, _ = tpuctl("list", terminal=True)

    assert colored.splitlines()[1].startswith("calm  us-central2-b  v4-8  \x1b[32mREADY\x1b[0m  \x1b[32mHEALTHY\x1b[0m")
    for calm in (tpuctl("list", terminal=True, NO_COLOR="1"), tpuctl("list", terminal=True, TERM="dumb")):
        assert "\x1b" not in calm[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--zone", "us-east5-a"), "sick"),
        (("--zone", "us-central1-a,us-east5-a"), "preempted queued sick"),
        (("--zone", "us-east5-a", "--zone", "us-central1-a"), "preempted queued sick"),
        ((), "preempted queued calm serviced stopped terminated sick"),
    ],
)
def test_list_with_zones_searches_only_these(
    tpuctl: Console, fleet: Sandbox, arguments: tuple[str, ...], expected: str
) -> None:
    assert tpuctl("ls", *arguments, "--columns", "name") == ("\n".join(expected.split()) + "\n", "", 0)
    assert tpuctl(*arguments, "list", "--columns", "name")[0].split() == expected.split()


def test_list_ignores_a_configured_zone(tpuctl: Console, fleet: Sandbox) -> None:
    everything = tpuctl("list", "-o", "name")

    assert len(everything[0].split()) == 7
    assert tpuctl("list", "-o", "name", CLOUDSDK_COMPUTE_ZONE="us-east5-a") == everything
    assert tpuctl("list", "-o", "name", TPUCTL_ZONE="us-east5-a") == everything


@both_faces
def test_list_with_an_unreachable_zone_fails(tpuctl: Console, sandbox: Sandbox, face: dict[str, str]) -> None:
    sandbox.add_node("calm", age=AGE)
    sandbox.add_node("unseen", zone="us-east5-a", acceleratorType="v6e-8")
    sandbox.fault("unreachable", zone="us-east5-a", count=0)
    said = NOTHING_IS_REAL if "TPUCTL_SANDBOX" in face else ""
    mark = ', "sandbox": true' if "TPUCTL_SANDBOX" in face else ""
    table = """\
NAME  ZONE           TYPE  STATE  HEALTH   CHIPS  AGE  TIER           $/H  NOTE
calm  us-central2-b  v4-8  READY  HEALTHY      4  3h   on-demand  ~$12.88
?     us-east5-a                                                           could not be listed
at least 1 node, 4 chips, ≥ $12.88/h
"""

    assert tpuctl("list", terminal=True, NO_COLOR="1") == (table, said + INCOMPLETE, 1)
    assert tpuctl("list", "-o", "name") == ("us-central2-b/calm\n", INCOMPLETE, 1)
    assert tpuctl("list", "-o", "json")[1:] == (
        '{"error": {"kind": "unavailable", "message": "the list is incomplete: us-east5-a could not be listed", '
        '"exit_code": 1, "hint": "nodes there are not shown; try again later, or see why with '
        '`tpuctl list --zone us-east5-a`", "id": "unavailable"}' + mark + "}\n",
        1,
    )
    assert tpuctl("list", "--zone", "us-central2-b", "-o", "name") == ("us-central2-b/calm\n", "", 0)


@both_faces
def test_list_on_a_terminal_names_ended_requests_with_quota(
    tpuctl: Console, sandbox: Sandbox, face: dict[str, str]
) -> None:
    said = NOTHING_IS_REAL if "TPUCTL_SANDBOX" in face else ""
    sandbox.add_queued_resource("waits", state="WAITING_FOR_RESOURCES", node_ids=("later",))
    sandbox.add_queued_resource("old", state="SUSPENDED", node_ids=("gone",))
    footer = (
        "1 queued resource ended and still holds quota: us-central2-b/old; to delete: `tpuctl down us-central2-b/gone`"
    )

    waiting = """\
NAME   ZONE           TYPE  STATE    HEALTH  CHIPS  AGE  TIER       $/H  NOTE
later  us-central2-b  v4-8  WAITING              4       on-demand       \
queued 0s, WAITING_FOR_RESOURCES, of queued resource waits
0 nodes, 0 chips, 1 request waiting
"""

    assert tpuctl("list", terminal=True, NO_COLOR="1") == (waiting, f"{said}{footer}\n", 0)
    assert tpuctl("list", terminal=True, CI="1", NO_COLOR="1")[2] == 0
    row = ("later", "us-central2-b", "v4-8", "WAITING", "", "4", "", "on-demand")
    note = "queued 0s, WAITING_FOR_RESOURCES, of queued resource waits"
    assert tpuctl("list") == ("\t".join((*row, note)) + "\n", "", 0)
    assert tpuctl("list", "-o", "name") == ("us-central2-b/later\n", "", 0)
    (entry,) = json.loads(tpuctl("list", "-o", "json", terminal=True)[0])
    assert (entry["kind"], entry["nodeId"], entry["state"]) == ("queuedResource", "later", "WAITING_FOR_RESOURCES")
    assert tpuctl("down", "us-central2-b/gone", "--yes")[2] == 0
    out, err, _ = tpuctl("list", terminal=True, NO_COLOR="1")
    assert (out.splitlines()[1].split()[:4], err) == (["later", "us-central2-b", "v4-8", "WAITING"], said)
    assert tpuctl("down", "us-central2-b/later", "--yes")[2] == 0
    assert tpuctl("list", terminal=True)[1] == f"{said}no nodes in any zone of project sandbox\n"


def test_list_has_waiting_requests_with_the_fields_of_nodes(tpuctl: Console, sandbox: Sandbox) -> None:
    node = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e", "labels": {"tpuctl-owner": "ada"}}
    tpu = {"nodeSpec": [{"parent": "projects/sandbox/locations/us-east5-b", "nodeId": "later", "node": node}]}
    put(sandbox, "calm", zone="us-east5-b", acceleratorType="v6e-8")
    sandbox.add_queued_resource("sweep", zone="us-east5-b", state="WAITING_FOR_RESOURCES", node_ids=("later",), tpu=tpu)

    found, waiting = json.loads(tpuctl("list", "-o", "json")[0])

    assert (found["kind"], waiting["kind"]) == ("node", "queuedResource")
    shared = {"kind", "name", "nodeId", "zone", "project", "state", "acceleratorType", "runtimeVersion", "workers"}
    shared |= {"chips", "tier", "owner", "createTime", "created", "ageSeconds", "billing", "sandbox"}
    assert shared <= {*found} & {*waiting}
    assert {*found["billing"]} == {*waiting["billing"]}
    assert (waiting["nodeId"], waiting["chips"], waiting["owner"]) == ("later", 8, "ada")
    assert waiting["billing"] == {
        "isBilled": False,
        "billed": "nothing",
        "perHour": {"dollars": 0.0, "precision": "exact"},
        "tier": "on-demand",
        "since": None,
        "note": "not billed",
    }


def test_list_in_json_says_that_requests_are_missing(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("calm")
    sandbox.fault("http-error", method="*.queuedResources.list", status=403, count=0)

    out, err, code = tpuctl("list", "-o", "json")

    assert ([entry["nodeId"] for entry in json.loads(out)], code) == (["calm"], 0)
    assert err.startswith("warning: the list has no queued resources: ")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, (True, "chips", 21.6, True), id="ready"),
        pytest.param({"state": "STOPPED"}, (True, "disk", None, False), id="stopped-disk-unknown"),
        pytest.param({"state": "PREEMPTED"}, (False, "nothing", 0.0, False), id="preempted"),
        pytest.param({"state": "HIDDEN"}, (None, "unknown", None, False), id="unknown-is-not-free"),
        pytest.param(
            {"acceleratorType": "v2-8", "zone": "us-central1-b"}, (True, "chips", None, True), id="unknown-price"
        ),
    ],
)
def test_billing_in_json_says_what_is_known(
    tpuctl: Console, sandbox: Sandbox, fields: dict[str, str], expected: tuple[object, ...]
) -> None:
    put(sandbox, **{"zone": "us-east5-b", "acceleratorType": "v6e-8", **fields})

    for command in (("list",), ("status", "demo")):
        (found,) = json.loads(tpuctl(*command, "-o", "json")[0])
        billing = found["billing"]
        got = (billing["isBilled"], billing["billed"], billing["perHour"]["dollars"], billing["since"] is not None)
        assert got == expected


def test_list_with_an_unknown_column_makes_no_request(tpuctl: Console, sandbox: Sandbox) -> None:
    out, err, code = tpuctl("list", "--sort", "size")

    assert (out, err.splitlines()[0], code) == ("", "error: `--sort`: there is no column `size`", 2)
    assert read_log(sandbox.state.path) == []


@both_faces
def test_list_without_permission_for_requests_succeeds(tpuctl: Console, sandbox: Sandbox, face: dict[str, str]) -> None:
    sandbox.add_node("calm")
    sandbox.fault("http-error", method="*.queuedResources.list", status=403, count=0)

    out, err, code = tpuctl("list", terminal=True)

    assert (out.count("calm"), err, code) == (1, NOTHING_IS_REAL if "TPUCTL_SANDBOX" in face else "", 0)


@both_faces
def test_list_in_json_has_the_fields_of_the_api_and_more(
    tpuctl: Console, sandbox: Sandbox, face: dict[str, str]
) -> None:
    labels = {"team": "vision", "tpuctl-owner": "ada"}
    node = sandbox.add_node("calm", zone="us-east5-b", acceleratorType="v6e-8", labels=labels, age=AGE)
    mark = {"sandbox": True} if "TPUCTL_SANDBOX" in face else {}
    expected = {
        **node,
        "kind": "node",
        "nodeId": "calm",
        "zone": "us-east5-b",
        "project": "sandbox",
        "workers": 1,
        "chips": 8,
        "tier": "on-demand",
        "owner": "ada",
        "created": "2025-12-31T21:00:00Z",
        "ageSeconds": 10800,
        "billing": {
            "isBilled": True,
            "billed": "chips",
            "perHour": {"dollars": 21.6, "precision": "exact"},
            "tier": "on-demand",
            "since": "2025-12-31T21:00:00Z",
            "note": "",
        },
        **mark,
    }

    out, err, code = tpuctl("list", "-o", "json")
    in_yaml, _, _ = tpuctl("list", "--output=yaml")
    one, _, _ = tpuctl("describe", "calm", "-o", "json")

    assert (json.loads(out), err, code) == ([expected], "", 0)
    assert json.loads(one) == [expected]
    assert yaml.safe_load(in_yaml) == [expected]


@both_faces
def test_list_without_nodes_is_empty_in_each_format(tpuctl: Console) -> None:
    assert tpuctl("list", "-o", "json") == ("[]\n", "", 0)
    assert tpuctl("list") == ("", "", 0)


def test_list_takes_the_format_from_a_setting(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("calm")

    assert tpuctl("list", TPUCTL_OUTPUT="name") == (f"{ZONE}/calm\n", "", 0)
    assert tpuctl("list", "-o", "table", TPUCTL_OUTPUT="name")[0].startswith("calm\tus-central2-b\tv4-8\tREADY")
    assert tpuctl("list", TPUCTL_OUTPUT="xml") == (
        "",
        "error: TPUCTL_OUTPUT: `output` is `xml`: it must be one of table, wide, tsv, json, yaml, name\n",
        2,
    )


def test_list_with_quiet_and_verbose(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unreachable", zone="us-east5-a", count=0)

    assert tpuctl("list", "--quiet", terminal=True, NO_COLOR="1")[1:] == (INCOMPLETE, 1)
    _, err, _ = tpuctl("-v", "list", "--zone", "us-central2-b")
    assert err.splitlines()[0].startswith("GET ")
    assert "/v2/projects/sandbox/locations/us-central2-b/nodes" in err


def test_list_with_an_unknown_zone_fails(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    out, err, code = tpuctl("list", "--zone", f"{ZONE},us-west4-z", "-o", "name")

    assert (out, code) == (f"{ZONE}/demo\n", 1)
    assert "the list is incomplete: us-west4-z could not be listed" in err
    assert "see why with `tpuctl list --zone us-west4-z`" in err
    assert "or there is no such zone" in tpuctl("list", "--zone", "us-west4-z")[1]
    assert "tpuctl knows no TPUs in `us-west4-z`: did you mean `us-west4-a`?" in err


def test_labels_of_the_user_come_first_and_those_of_tpuctl_only_in_a_pipe(tpuctl: Console, sandbox: Sandbox) -> None:
    labels = {"tpuctl-owner": "ann", "variant": "7", "tpuctl-request": "f" * 32, "team": "vision"}
    sandbox.add_node("sweep-1", acceleratorType="v4-8", labels=labels)

    piped = tpuctl("list", "--columns", "labels")[0]
    wide = tpuctl("list", "-o", "wide", terminal=True, COLUMNS="120", NO_COLOR="1")[0]

    assert piped == f"team=vision,variant=7,tpuctl-owner=ann,tpuctl-request={'f' * 32}\n"
    assert "team=vision,variant=7" in wide
    assert "tpuctl-" not in wide


@pytest.mark.parametrize("command", [("list",), ("status", "demo")])
@pytest.mark.parametrize("form", ["table", "name", "tsv"])
def test_watch_in_a_pipe_needs_json(tpuctl: Console, command: tuple[str, ...], form: str) -> None:
    assert tpuctl(*command, "--watch", "-o", form) == (
        "",
        "error: `--watch` needs a terminal, or `-o json`\n  hint: with `-o json` it prints a line for each change\n",
        2,
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_watch_with_an_error_at_the_first_look_ends(tpuctl: Console, *, terminal: bool) -> None:
    form = "table" if terminal else "json"

    out, err, code = tpuctl("status", "nosuch", "--watch", "-o", form, terminal=terminal)

    assert ("no node `nosuch`" in err, code) == (True, 3), out


def test_list_watch_prints_a_line_of_json_for_each_change(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("demo")
    with TpuctlProcess(
        ["list", "--watch", "-o", "json"],
        env={**tpuctl.environ, "PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        sandbox.add_node("other")
        second = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        code = process.wait(60)

    assert [[node["nodeId"] for node in nodes] for nodes in (first, second)] == [["demo"], ["demo", "other"]]
    assert code == 130
