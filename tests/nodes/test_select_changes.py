"""Commands on what a selection matches: the table, the question, the last look, and what is never touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, EventfulClock, put, said
from tests.nodes.test_up_race import ZONES, interrupted_race
from tests.others import answer, errors
from tpuctl.names import NodeName
from tpuctl.nodes.lease import LeaseKeeper, LeaseOwner, LocalLeaseStore
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.request_log import read_log

EAST = "us-east5-a"
OLD = timedelta(days=3)
CHANGING = {"DELETE", "POST", "PATCH"}
MINE = {"tpuctl-owner": "you_example-com"}


@pytest.fixture
def sweep(sandbox: Sandbox) -> Sandbox:
    """Three nodes of a sweep, one of them old and one stopped, a waiting request of it, and a stranger's node."""
    put(sandbox, "sweep-1", labels={"team": "vision", **MINE}, age=OLD)
    put(sandbox, "sweep-2", labels={"team": "vision"})
    put(sandbox, "sweep-10", zone=EAST, acceleratorType="v6e-8", labels=MINE, state="STOPPED")
    put(sandbox, "other", zone=EAST, acceleratorType="v6e-8", labels={"tpuctl-owner": "bob"}, age=OLD)
    sandbox.add_queued_resource("sweep-q", zone=ZONE, state="WAITING_FOR_RESOURCES", node_ids=("sweep-20",))
    return sandbox


def left(sandbox: Sandbox) -> set[str]:
    """Return the nodes and queued resources that exist and are not being deleted."""
    with sandbox.state.read() as session:
        nodes = {node.node_id for node in session.nodes() if session.exists(node)}
        requests = {one.queued_resource_id for one in session.queued_resources("sandbox") if session.exists(one)}
    return nodes | requests


EVERYTHING = {"sweep-1", "sweep-2", "sweep-10", "other", "sweep-q"}


def test_down_shows_what_a_pattern_selects_and_asks(tpuctl: Console, sweep: Sandbox) -> None:
    out, err, code = tpuctl("down", "sweep-*", stdin="n\n")

    lines = err.splitlines()
    assert [line.split()[:4] for line in lines[:5]] == [
        ["NAME", "ZONE", "TYPE", "STATE"],
        ["sweep-1", ZONE, "v4-8", "READY"],
        ["sweep-2", ZONE, "v4-8", "READY"],
        ["sweep-10", EAST, "v6e-8", "STOPPED"],
        ["sweep-20", ZONE, "v4-8", "WAITING"],
    ]
    assert lines[1].split()[4:6] == ["3d", "you_example-com"]
    question = "delete `sweep-1`, `sweep-2`, `sweep-10` and waiting `sweep-20`, with their boot disks?"
    assert (out, lines[5:], code) == ("", [f"{question} [y/N] cancelled"], 1)
    assert left(sweep) == EVERYTHING


@pytest.mark.parametrize("verb", ["down", "delete", "stop", "start", "reset"])
def test_selection_without_a_terminal_needs_yes(tpuctl: Console, sweep: Sandbox, verb: str) -> None:
    out, err, code = tpuctl(verb, "--all")

    assert (out, code, sweep.changes()) == ("", 2, [])
    assert "  hint: nothing was done; pass `--yes` to confirm (`--quiet` does not)" in err.splitlines()


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        pytest.param(("sweep-*",), {"sweep-1", "sweep-2", "sweep-10", "sweep-q"}, id="pattern"),
        pytest.param(("sweep-*", "--older-than", "2d"), {"sweep-1"}, id="pattern-and-age"),
        pytest.param(("sweep-2", "oth*"), {"sweep-2", "other"}, id="name-or-pattern"),
        pytest.param(("sweep-2", "sweep-1", "--mine"), {"sweep-1"}, id="condition-narrows-names"),
        pytest.param(("-l", "team=vision"), {"sweep-1", "sweep-2"}, id="label"),
        pytest.param(("-l", "team!=vision", "--type", "v6e-*"), {"sweep-10", "other"}, id="type-and-label"),
        pytest.param(("--mine", "--state", "stopped"), {"sweep-10"}, id="mine-and-state"),
        pytest.param(("--state", "WAITING_FOR_RESOURCES"), {"sweep-q"}, id="waiting"),
        pytest.param(("--all", "--zone", EAST), {"sweep-10", "other"}, id="all-of-a-zone"),
        pytest.param(("--all",), EVERYTHING, id="all"),
        pytest.param(("nix-*",), set(), id="nothing"),
        pytest.param(("sweep-20",), {"sweep-q"}, id="only-named"),
        pytest.param(("sweep-20", "nix-*"), {"sweep-q"}, id="named-beside-a-pattern"),
    ],
)
def test_down_deletes_what_is_selected(tpuctl: Console, sweep: Sandbox, words: tuple[str, ...], gone: set[str]) -> None:
    shown = tpuctl("list", *words, "-o", "name")[0].split()
    listed = {name.rpartition("/")[2] for name in shown}

    _, err, code = tpuctl("down", *words, "--yes")

    assert (left(sweep), code) == (EVERYTHING - gone, 0), err
    # What `list` shows is what `down` deletes; requests without a node are not in every form of the list.
    assert listed - {"sweep-q", "sweep-20"} == gone - {"sweep-q"}


def test_selection_of_nothing_is_no_error_for_down_only(tpuctl: Console, sweep: Sandbox) -> None:
    none = "no node or queued resource of project sandbox matches: `nix-*`\n"

    assert tpuctl("down", "nix-*", "--yes") == ("", none, 0)
    assert tpuctl("delete", "nix-*", "--yes", "--ignore-not-found") == ("", none, 0)
    assert tpuctl("wait", "nix-*", "--for", "gone") == ("", "", 0)
    failure = said("error: no node of project sandbox matches: `nix-*`", "  hint: run `tpuctl list` to see all nodes")
    for words in (
        ("delete",),
        ("stop",),
        ("start",),
        ("reset",),
        ("status",),
        ("wait",),
        ("update", "--labels", "a=b"),
    ):
        assert tpuctl(words[0], "nix-*", *words[1:]) == ("", failure, 3)
    assert tpuctl("run", "nix-*", "--", "true") == ("", failure, 3)
    assert left(sweep) == EVERYTHING


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param((), "no nodes given", id="nothing"),
        pytest.param(("a", "--all"), "`--all` and names exclude one another", id="all-and-names"),
        pytest.param(("*-1", "--all"), "`--all` and names exclude one another", id="all-and-patterns"),
        pytest.param(("-l", "Team=x"), "`Team=x` is not a valid label", id="label"),
        pytest.param(("-l", "team!="), "`-l team!=` has no value", id="unset-variable"),
        pytest.param(("--state", "GONE"), "`GONE` is not a state of nodes or queued resources", id="state"),
        pytest.param(("--older-than", "forever"), "`--older-than` is at least 1m", id="no-age"),
        pytest.param(("--older-than", "0s"), "`--older-than` is at least 1m", id="no-time"),
        pytest.param(("--type", "v4 8"), "`v4 8` is not a pattern of accelerator types", id="type"),
    ],
)
@pytest.mark.parametrize("verb", [("down", "--yes"), ("stop", "--yes"), ("wait",)], ids=lambda verb: verb[0])
def test_invalid_selection_is_refused(
    tpuctl: Console, sweep: Sandbox, verb: tuple[str, ...], words: tuple[str, ...], error: str
) -> None:
    out, err, code = tpuctl(*verb, *words)

    assert (out, err.splitlines()[0], code, sweep.changes()) == ("", f"error: {error}", 2, [])


def test_pattern_that_the_shell_expanded_is_explained(tpuctl: Console, sweep: Sandbox) -> None:
    (tpuctl.folder / "sweep-1.yaml").touch()

    _, err, code = tpuctl("down", "sweep-1.yaml", "sweep-notes.txt", "--yes")

    assert (err.splitlines()[1], code) == (
        "  hint: `sweep-1.yaml` is a local file: quote patterns, `'sweep-*'`, or the shell replaces them by file names",
        2,
    )


def test_silent_zone_is_said_and_the_rest_is_deleted(tpuctl: Console, sweep: Sandbox) -> None:
    sweep.fault("unreachable", zone=EAST, count=0)

    out, err, code = tpuctl("down", "sweep-*", "--yes")
    _, none, silent = tpuctl("down", "nix-*", "--yes")

    assert (set(out.split()), code, silent) == ({"sweep-1", "sweep-2", "sweep-q"}, 1, 1)
    assert [EAST in errors(text)[0] for text in (err, none)] == [True, True]
    assert "matches" not in none
    assert {"sweep-10", "other"} <= left(sweep)


def test_silent_zone_keeps_a_name_from_counting_as_gone(tpuctl: Console, sweep: Sandbox) -> None:
    sweep.fault("unreachable", zone=EAST, count=0)

    out, err, code = tpuctl("down", "sweep-10", "sweep-1*", "--yes")

    assert (out, code, sweep.changes()) == ("", 1, [])
    assert errors(err) == [f"error: `sweep-10` was not found, but {EAST} did not answer and may have it"]


def test_request_is_kept_if_one_of_its_nodes_does_not_match(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("pair", zone=ZONE, state="ACTIVE", node_ids=("a", "b"))
    put(sandbox, "a", queued_resource="pair", labels=MINE)
    put(sandbox, "b", queued_resource="pair")

    for words in (("a*",), ("--mine", "--all-nodes"), ("a", "-l", "tpuctl-owner"), ("pair", "--mine", "--all-nodes")):
        _, err, code = tpuctl("down", *words, "--yes")
        assert (sandbox.changes(), code) == ([], 0), err
        assert f"queued resource `pair` in {ZONE} is left alone: not all of its nodes match" in err
    assert tpuctl("down", "?", "--yes")[2] == 0
    assert left(sandbox) == set()


def relabel(sandbox: Sandbox, name: str, labels: dict[str, str]) -> None:
    """Let somebody change the labels of a node."""
    url = f"https://tpu.googleapis.com/v2/projects/sandbox/locations/{ZONE}/nodes/{name}?updateMask=labels"
    response, content = SandboxHttp(sandbox.state).request(
        url, method="PATCH", body=json.dumps({"labels": labels}).encode()
    )
    assert response.status == 200, content


@pytest.mark.parametrize("words", [("down",), ("delete",), ("stop",), ("reset",), ("reset", "--mode", "recreate")])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda sandbox: put(sandbox, "a", labels={"team": "x"}), "was recreated", id="recreated"),
        pytest.param(lambda sandbox: relabel(sandbox, "a", {"team": "y"}), "got other labels", id="relabelled"),
    ],
)
def test_last_look_keeps_a_node_that_changed_since_the_question(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], change: Callable[[Sandbox], object], why: str
) -> None:
    for name in "ab":
        put(sandbox, name, labels={"team": "x"})
    before = sandbox.state

    _, err, code = answer(tpuctl, lambda: change(sandbox), *words, "-l", "team=x")

    assert code == 8
    assert [why in line and "left alone" in line and "`a`" in line for line in errors(err)] == [True]
    changed = {one.path.rpartition("/")[2].partition(":")[0] for one in read_log(before.path) if one.method in CHANGING}
    assert changed - {"a?updateMask=labels", "nodes?nodeId=b"} == {"b"}


def test_waiting_request_that_got_its_node_since_the_question_is_kept(tpuctl: Console, sweep: Sandbox) -> None:
    def start() -> None:
        sweep.add_queued_resource("sweep-q", zone=ZONE, state="ACTIVE", node_ids=("sweep-20",))
        put(sweep, "sweep-20", queued_resource="sweep-q")

    _, err, code = answer(tpuctl, start, "down", "sweep-*", "--state", "WAITING_FOR_RESOURCES")

    assert (left(sweep), code) == (EVERYTHING | {"sweep-20"}, 8)
    assert "was recreated, or got nodes, meanwhile: left alone" in err


def test_reset_of_several_nodes_waits_for_all_at_once(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    for name in "abc":
        put(sandbox, name)
    began = clock.monotonic()

    out, _, code = tpuctl("reset", "--all", "--yes", "--for", "ready")

    assert (out, code) == ("a\tREADY\nb\tREADY\nc\tREADY\n", 0)
    assert sorted(sandbox.changes()) == ["start"] * 3 + ["stop"] * 3
    assert clock.monotonic() - began < timedelta(minutes=5)


def test_update_changes_the_labels_of_all_selected_nodes(tpuctl: Console, sweep: Sandbox) -> None:
    planned, _, _ = tpuctl("update", "sweep-*", "-l", "team=vision", "--labels", "run=7", "--dry-run", "-o", "json")
    out, err, code = tpuctl("update", "sweep-*", "-l", "team=vision", "--labels", "run=7")

    assert [(step["node"], step["request"]["body"]["labels"]["run"]) for step in json.loads(planned)] == [
        ("sweep-1", "7"),
        ("sweep-2", "7"),
    ]
    assert (out, err, code) == (
        "sweep-1\tREADY\nsweep-2\tREADY\n",
        said("sweep-1: set labels run=7", "sweep-2: set labels run=7"),
        0,
    )
    labels = {node["nodeId"]: node.get("labels") for node in json.loads(tpuctl("list", "-o", "json")[0])}
    assert labels["sweep-1"] == {"team": "vision", "run": "7", **MINE}
    assert (labels["sweep-2"], labels["sweep-10"]) == ({"team": "vision", "run": "7"}, MINE)


def test_status_shows_nodes_and_waiting_requests_of_a_pattern(tpuctl: Console, sweep: Sandbox) -> None:
    out, _, code = tpuctl("status", "sweep-*", "-o", "json")

    names = [one["nodeId"] for one in json.loads(out)]
    assert (sorted(names), code) == (["sweep-1", "sweep-10", "sweep-2", "sweep-20"], 0)


def test_table_shows_a_hostile_label_escaped(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "a", labels={"tpuctl-owner": "bob\x1b[2J\nb"})

    _, err, _ = tpuctl("down", "--all", stdin="n\n", terminal=True)

    assert "bob\\x1b[2J\\nb" in err
    assert "\x1b[2J" not in err


@pytest.fixture
def race(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> tuple[str, ...]:
    """Return the zones of an interrupted race for the node `t`, whose requests wait in each of them."""
    interrupted_race(tpuctl, sandbox, clock)
    return ZONES


@pytest.mark.parametrize(
    ("words", "left_in"),
    [
        pytest.param(("t*",), 0, id="pattern"),
        pytest.param(("t", "nix-*"), 0, id="name-beside-a-pattern"),
        pytest.param(("t*", "--zone", "us-east5-b"), 2, id="one-zone"),
        pytest.param(("us-*/t",), 1, id="pattern-of-zones"),
        pytest.param(("t*", "--older-than", "1d"), 3, id="none-that-old"),
    ],
)
def test_down_of_a_race_ends_the_requests_that_match(
    tpuctl: Console, sandbox: Sandbox, race: tuple[str, ...], words: tuple[str, ...], left_in: int
) -> None:
    _, err, code = tpuctl("down", *words, "--yes")

    requests = tpuctl("queue", "list", "-o", "json")[0]
    assert (len(json.loads(requests)), code) == (left_in, 0), err
    if not left_in:
        assert tpuctl("down", "t", "--yes") == ("t\n", "t: already gone\n", 0)


def test_down_of_a_race_leaves_it_if_a_request_got_its_node_since_the_question(
    tpuctl: Console, sandbox: Sandbox, race: tuple[str, ...]
) -> None:
    """The first request that is deleted must not take those of the other zones with it."""
    before, waiting = left(sandbox), ("--state", "WAITING_FOR_RESOURCES,ACCEPTED,CREATING")

    def start() -> None:
        sandbox.add_queued_resource("t", zone=race[2], state="ACTIVE", node_ids=("t",))
        put(sandbox, "t", zone=race[2], acceleratorType="v6e-8", queued_resource="t")

    _, err, code = answer(tpuctl, start, "down", "t*", *waiting)

    assert (left(sandbox), "delete" in sandbox.changes(), code) == (before | {"t"}, False, 8), err
    assert "`t` was recreated, or got nodes, meanwhile: left alone" in err


def test_down_of_a_race_leaves_it_if_the_last_look_fails(
    tpuctl: Console, sandbox: Sandbox, race: tuple[str, ...]
) -> None:
    def fail() -> None:
        sandbox.fault("http-error", method="*.queuedResources.get", status=503, count=0)

    _, err, code = answer(tpuctl, fail, "down", "t*", "--timeout", "2m")

    assert ("delete" in sandbox.changes(), code) == (False, 1), err


def watch_elsewhere(tpuctl: Console, clock: EventfulClock, name: str) -> tuple[LeaseKeeper, NodeName]:
    """Let another machine hold the lease of a node, which may not exist."""
    folder = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "leases"
    leases = LeaseKeeper(LocalLeaseStore(folder, clock), clock, LeaseOwner("elsewhere", 1, "token"))
    held = NodeName("sandbox", ZONE, name)
    assert leases.acquire(held, "watch") is None
    return leases, held


@pytest.mark.parametrize(
    ("words", "has_ended"),
    [
        pytest.param(("nix", "sweep-q*"), True, id="named"),
        pytest.param(("nix", "--older-than", "2d"), False, id="no-age"),
        pytest.param(("nix", "--mine"), False, id="no-owner"),
    ],
)
def test_down_ends_the_lease_of_an_absent_node_only_without_conditions(
    tpuctl: Console, sweep: Sandbox, clock: EventfulClock, words: tuple[str, ...], *, has_ended: bool
) -> None:
    """What its holder is about to create would meet no condition."""
    leases, name = watch_elsewhere(tpuctl, clock, "nix")

    out, err, code = tpuctl("down", *words, "--zone", ZONE, "--yes")

    holder = leases.holder(name)
    assert ((holder is not None and holder.record.ended is not None), "nix" in out.split(), code) == (
        has_ended,
        True,
        0,
    ), err


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((f"{ZONE}/other", "nix-*"), id="zone-of-the-name"),
        pytest.param(("other", "sweep-*", "--zone", ZONE), id="zone-flag"),
        pytest.param(("other", "--older-than", "1m", "--zone", f"{ZONE},us-central1-a"), id="zone-flags"),
    ],
)
def test_name_in_another_zone_is_not_called_gone(tpuctl: Console, sweep: Sandbox, words: tuple[str, ...]) -> None:
    _, err, code = tpuctl("down", *words, "--yes")

    assert (left(sweep), code) == (EVERYTHING, 8)
    assert f"found {EAST}/other" in errors(err)[0]


@pytest.mark.parametrize("words", [("nix-*",), ("nix", "sweep-*"), ("sweep-20", "nix-*")], ids=" ".join)
def test_nothing_is_called_gone_if_requests_cannot_be_listed(
    tpuctl: Console, sweep: Sandbox, words: tuple[str, ...]
) -> None:
    sweep.fault("http-error", method="*.queuedResources.list", status=403, count=0)

    out, _, code = tpuctl("down", *words, "--yes")

    assert (out, left(sweep), code) == ("", EVERYTHING, 4)


def test_nodes_are_deleted_if_requests_cannot_be_listed(tpuctl: Console, sweep: Sandbox) -> None:
    sweep.fault("http-error", method="*.queuedResources.list", status=403, count=0)

    _, err, code = tpuctl("down", "sweep-*", "--yes")

    assert (left(sweep), code) == ({"other", "sweep-q"}, 0)
    assert err.splitlines()[0].startswith("warning: requests that wait for nodes are left alone: ")


def test_absent_name_beside_a_pattern_is_gone_from_several_zones(tpuctl: Console, sweep: Sandbox) -> None:
    _, err, code = tpuctl("down", "nix", "sweep-1*", "--zone", f"{ZONE},{EAST}", "--yes")

    absent = "nix: already gone, or never there: the journal has no node of this name"
    assert (absent in err.splitlines(), left(sweep), code) == (
        True,
        EVERYTHING - {"sweep-1", "sweep-10"},
        0,
    ), err


def test_wait_for_gone_accepts_an_absent_name_beside_a_pattern(tpuctl: Console, sweep: Sandbox) -> None:
    assert tpuctl("wait", "nix", "nix-*", "--for", "gone")[2] == 0


def test_down_of_a_pattern_ends_the_lease_of_a_watch(tpuctl: Console, sweep: Sandbox, clock: EventfulClock) -> None:
    """Or the watch would create the node again."""
    leases, name = watch_elsewhere(tpuctl, clock, "sweep-1")

    _, err, code = tpuctl("down", "sweep-*", "--older-than", "2d", "--yes")

    holder = leases.holder(name)
    assert (code, holder is not None and holder.record.ended is not None) == (0, True), err


FLAGS = {
    "pattern": ("n-*",),
    "label": ("-l", "k=1"),
    "not": ("-l", "k!=2"),
    "age": ("--older-than", "2d"),
    "state": ("--state", "READY,PREEMPTED"),
    "type": ("--type", "v4-*"),
    "mine": ("--mine",),
}
NODES: list[dict[str, Any]] = [
    {"name": name, "labels": labels, "age": age, "state": state, "acceleratorType": kind}
    for name, labels, age, state, kind in (
        ("n-match", {"k": "1", **MINE}, OLD, "READY", "v4-8"),
        ("x-name", {"k": "1", **MINE}, OLD, "READY", "v4-8"),
        ("n-label", {"k": "2", **MINE}, OLD, "READY", "v4-8"),
        ("n-age", {"k": "1", **MINE}, timedelta(hours=1), "READY", "v4-8"),
        ("n-state", {"k": "1", **MINE}, OLD, "STOPPED", "v4-8"),
        ("n-type", {"k": "1", **MINE}, OLD, "READY", "v3-8"),
        ("n-owner", {"k": "1"}, OLD, "PREEMPTED", "v4-8"),
    )
]
# The one node that each flag leaves alone.
SPARED = {
    "pattern": "x-name",
    "label": "n-label",
    "not": "n-label",
    "age": "n-age",
    "state": "n-state",
    "type": "n-type",
    "mine": "n-owner",
}


def test_no_combination_of_flags_ends_a_node_that_does_not_match(tpuctl: Console, sandbox: Sandbox) -> None:
    """Each fifth combination, in a project of its own: what a flag spares is left, and the rest is gone."""
    combinations = [
        [flag for flag, is_on in zip(FLAGS, choice, strict=True) if is_on]
        for choice in product((0, 1), repeat=len(FLAGS))
    ]
    for number, flags in enumerate(combinations):
        project = f"project-{number}"
        if not flags or number % 5:
            continue
        for node in NODES:
            zone = ZONE if node["acceleratorType"] == "v4-8" else "us-central1-a"
            sandbox.add_node(project=project, zone=zone, **node)
        words = [word for flag in flags for word in FLAGS[flag]]

        _, err, code = tpuctl("down", *words, "--project", project, "--yes", "--no-wait")

        with sandbox.state.read() as session:
            kept = {
                node.node_id
                for node in session.nodes()
                if node.project == project and session.exists(node) and node.state(session.now) != "DELETING"
            }
        assert (kept, code) == ({SPARED[flag] for flag in flags}, 0), (flags, err)


@pytest.mark.parametrize("verb", ["down", "stop", "reset"])
def test_question_names_the_zones_where_a_name_repeats(tpuctl: Console, sandbox: Sandbox, verb: str) -> None:
    put(sandbox, "w1")
    for zone in (EAST, ZONE):
        put(sandbox, "w2", zone=zone, acceleratorType="v6e-8" if zone == EAST else "v4-8")

    _, err, code = tpuctl(verb, "w*", stdin="n\n")

    assert (code, f"`w1`, `{ZONE}/w2`, `{EAST}/w2`" in err.splitlines()[-1]) == (1, True), err
    assert sandbox.changes() == []


@pytest.mark.parametrize("verb", ["down", "delete", "stop", "reset"])
def test_kept_node_is_left_alone_unless_it_is_named(tpuctl: Console, sandbox: Sandbox, verb: str) -> None:
    put(sandbox, "run-1")
    put(sandbox, "run-2", labels={"tpuctl-keep": "yes"})
    words = ["--mode", "recreate"] if verb == "reset" else []
    alone = "left alone: `run-2`: its label `tpuctl-keep` keeps it; only an exact name selects a kept node"

    _, shown, _ = tpuctl(verb, "run-*", *words, stdin="n\n")
    plans = [tpuctl(verb, *chosen, "--dry-run", *words)[0] for chosen in [("--all",), ("run-2", "--older-than", "1m")]]

    assert shown.splitlines()[0] == alone
    assert [line.split()[0] for line in shown.splitlines()[1:3]] == ["NAME", "run-1"]
    assert ["run-2" in plan for plan in plans] == [False, True]
    assert sandbox.changes() == []


def test_selection_of_kept_nodes_alone_deletes_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "run-2", labels={"tpuctl-keep": "yes"})
    put(sandbox, "run-3", state="STOPPED", labels={"tpuctl-keep": ""})

    out, err, code = tpuctl("down", "run-*", "--yes")

    why = "their label `tpuctl-keep` keeps them; only an exact name selects a kept node"
    assert (out, err, code) == ("", f"left alone: `run-2`, `run-3`: {why}\n", 0)
    assert [line.split("\t")[-1] for line in tpuctl("list")[0].splitlines()] == ["kept", "kept"]
    assert sandbox.changes() == []


def test_question_says_that_a_named_node_is_kept(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels={"tpuctl-keep": "yes"})

    for words in (("down",), ("reset", "--mode", "recreate")):
        assert "kept by " in tpuctl(words[0], "demo", *words[1:], stdin="n\n")[1]
    assert sandbox.changes() == []
    assert tpuctl("down", "demo", "--yes")[2] == 0
    assert left(sandbox) == set()


@pytest.mark.parametrize("verb", ["down", "stop", "reset"])
def test_node_that_became_kept_during_the_question_is_left_alone(tpuctl: Console, sandbox: Sandbox, verb: str) -> None:
    put(sandbox, "run-1")

    _, err, code = answer(tpuctl, lambda: relabel(sandbox, "run-1", {"tpuctl-keep": "yes"}), verb, "run-*")

    assert (code, sandbox.changes()) == (8, ["patch"]), err
    assert "got other labels" in err
