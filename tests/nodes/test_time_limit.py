"""`--ttl` and `--until` of `up` and `create`: the labels of new and of existing nodes, and what is shown of them."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, USER, ZONE, EventfulClock, own, put, two_machines
from tests.lifecycle import tmp_path as tmp_path  # noqa: PLC0414  # a fixture
from tpuctl.clock import ManualClock
from tpuctl.nodes.expiry import expiry_label, owner_label

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
CREATE = ("create", *UP[1:])
HERE = owner_label(f"ada@{socket.gethostname()}")


def end(tpuctl: Console, name: str = "demo", **environ: Any) -> str | None:
    found: str | None = json.loads(tpuctl("status", name, "-o", "json", **environ)[0])[0].get("expires")
    return found


def until(hours: float) -> dict[str, str]:
    return {"tpuctl-expires": expiry_label(START + hours * HOUR)}


@pytest.mark.parametrize("command", [UP, CREATE], ids=["up", "create"])
@pytest.mark.parametrize("options", [("--ttl", "8h"), ("--until", "2026-01-01T08:00:00Z")], ids=["ttl", "until"])
def test_new_node_has_end_and_owner(tpuctl: Console, command: tuple[str, ...], options: tuple[str, ...]) -> None:
    _, err, code = tpuctl(*command, *options)

    shown = json.loads(tpuctl("list", "-o", "json")[0])[0]
    assert (shown["expires"][:13], code) == ("2026-01-01T08", 0)
    assert shown["labels"]["tpuctl-owner"] in {"you_example-com", "ada_vm"}
    assert "; expires in 7h" in err


@pytest.mark.parametrize("command", [UP, CREATE], ids=["up", "create"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(("--ttl", "0s"), "`--ttl 0s` is not in the future", id="zero"),
        pytest.param(("--ttl", "8"), "`8` has no unit: write `8h` for hours or `8m` for minutes", id="no-unit"),
        pytest.param(("--ttl", "299s"), "`--ttl 4m59s` is too short: a time limit is at least 5m", id="too-short"),
        pytest.param(("--until", "8"), "`8` is not a time", id="until-no-unit"),
        pytest.param(("--until", "1m"), "is too short", id="until-too-short"),
        pytest.param(("--ttl", "-1h"), "`-1h` is not a duration", id="negative"),
        pytest.param(("--ttl", "366d"), "`--ttl 366d` is too long", id="beyond-a-year"),
        pytest.param(("--until", "2025-12-31T23:59:59Z"), "`--until 2025-12-31T23:59:59Z` is not in", id="past"),
        pytest.param(("--until", "2027-01-02T00:00:00Z"), "is too long", id="until-beyond-a-year"),
        pytest.param(("--until", "soon"), "`soon` is not a time", id="no-time"),
        pytest.param(("--ttl", "1h", "--until", "18:30"), "cannot combine `--ttl` and `--until`", id="both"),
    ],
)
def test_bad_time_limit_is_a_usage_error(
    tpuctl: Console, sandbox: Sandbox, command: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    out, err, code = tpuctl(*command, *options)

    assert (out, code, sandbox.changes()) == ("", 2, [])
    assert message in err


def write_settings(tpuctl: Console, project: str | None, user: str | None) -> None:
    home = Path(tpuctl.environ["HOME"]) / ".config" / "tpuctl"
    for folder, name, text in ((tpuctl.folder, "tpuctl.yaml", project), (home, "config.yaml", user)):
        if text:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("project", "user", "options", "left"),
    [
        pytest.param("8h", None, ("--trust-project-file",), 8, id="project"),
        pytest.param(None, "8h", (), 8, id="user"),
        pytest.param("2h", "8h", ("--trust-project-file",), 2, id="project-lowers"),
        pytest.param("9h", "8h", (), 8, id="project-does-not-raise"),
        pytest.param("2h", "8h", ("--ttl", "12h"), 12, id="flag-raises"),
        pytest.param("2h", None, ("--ttl", "forever"), None, id="flag-removes"),
    ],
)
def test_setting_limits_new_nodes(
    tpuctl: Console, project: str | None, user: str | None, options: tuple[str, ...], left: int | None
) -> None:
    write_settings(tpuctl, project and f"ttl: {project}\n", user and f"ttl: {user}\n")

    assert tpuctl(*UP, "--no-wait", *options)[2] == 0
    assert end(tpuctl, TPUCTL_TRUST_PROJECT_FILE="1") == (None if left is None else f"2026-01-01T{left:02}:00:00Z")


@pytest.mark.parametrize(
    ("project", "user", "words"),
    [
        pytest.param("ttl: 5m", None, "is not trusted, and it sets `ttl` (line 1)", id="time-limit"),
        pytest.param("ttl: 5m", "ttl: 8h", "is not trusted, and it sets `ttl` (line 1)", id="lower-time-limit"),
        pytest.param("idle: 5m", None, "is not trusted, and it sets `idle` (line 1)", id="idle"),
        pytest.param("labels: {tpuctl-expires: 1767225600}", None, "the label `tpuctl-expires` cannot be changed", id="end"),
        pytest.param("labels: {tpuctl-keep: yes}", None, "the label `tpuctl-keep` is never read", id="keep"),
        pytest.param("labels: {tpuctl-owner: eve}", None, "the label `tpuctl-owner` cannot be changed", id="owner"),
    ],
)  # fmt: skip
def test_untrusted_project_file_does_not_end_or_keep_nodes(
    tpuctl: Console, sandbox: Sandbox, project: str, user: str | None, words: str
) -> None:
    write_settings(tpuctl, f"{project}\n", user and f"{user}\n")

    _, err, code = tpuctl(*UP)

    assert (code, sandbox.changes()) == (2, [])
    assert words in err


@pytest.mark.parametrize("text", ["0", "8", "299s", "366d", "never"])
def test_bad_setting_is_a_usage_error(tpuctl: Console, sandbox: Sandbox, text: str) -> None:
    assert (tpuctl(*UP, TPUCTL_TTL=text)[2], sandbox.changes()) == (2, [])


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        pytest.param(until(1), (), ("2026-01-01T01:00:00Z", False), id="kept-without-ttl"),
        pytest.param(until(1), ("--ttl", "2h"), ("2026-01-01T02:00:00Z", True), id="set"),
        pytest.param(until(9), ("--ttl", "2h", "--yes"), ("2026-01-01T02:00:00Z", True), id="shortened"),
        pytest.param({}, ("--ttl", "2h"), ("2026-01-01T02:00:00Z", True), id="added"),
        pytest.param({}, (), (None, False), id="none"),
        pytest.param(until(2), ("--ttl", "2h"), ("2026-01-01T02:00:00Z", False), id="same"),
        pytest.param(until(2), ("--ttl", "forever"), (None, True), id="removed"),
        pytest.param({}, ("--ttl", "forever"), (None, False), id="none-to-remove"),
    ],
)
def test_up_sets_the_end_of_an_existing_node_only_with_ttl(
    tpuctl: Console, sandbox: Sandbox, before: dict[str, str], options: tuple[str, ...], after: tuple[str | None, bool]
) -> None:
    own(sandbox, labels=before)

    assert tpuctl(*UP, *options)[2] == 0
    assert (end(tpuctl), sandbox.changes() == ["patch"]) == after


def test_recreated_node_has_no_end_with_forever(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", labels=until(5), schedulingConfig={"spot": True})

    assert tpuctl("up", "demo", "--ttl", "forever")[2] == 0
    assert (end(tpuctl), sandbox.changes()) == (None, ["delete", "create"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(("--ttl", "2h"), "only `tpuctl gc --expired` and `tpuctl watch demo` end it, when", id="time"),
        pytest.param(("--idle", "2h"), "only `tpuctl gc --idle 2h` ends it, when all are idle", id="idle"),
    ],
)
def test_up_says_that_no_guard_ends_one_of_several_nodes(
    tpuctl: Console, sandbox: Sandbox, options: tuple[str, ...], words: str
) -> None:
    sandbox.add_queued_resource("research", node_ids=("demo", "other"))
    for name in ("demo", "other"):
        own(sandbox, name, queued_resource="research")

    _, err, code = tpuctl("up", "demo", *options)

    why = "demo: no guard was started on worker 0, because its queued resource has 2 nodes, which end together: "
    assert (f"{why}{words}" in err, code) == (True, 0), err


def test_status_shows_what_is_known_of_the_guard(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels=until(5))
    put(sandbox, "plain")

    assert "guard\tnone that the journal knows of; `tpuctl up demo` starts one\n" in tpuctl("status", "demo")[0]
    assert "guard" not in tpuctl("status", "plain")[0]
    assert tpuctl("up", "demo", "--for", "healthy")[2] == 0
    assert "guard\tno guard was started on worker 0, because ssh was not used" in tpuctl("status", "demo")[0]


@pytest.mark.parametrize("options", [(), ("--queue",), ("--no-wait",)], ids=["waits", "queue", "no-wait"])
def test_create_says_that_no_guard_runs(tpuctl: Console, options: tuple[str, ...]) -> None:
    text = "no guard watches its time limit: `tpuctl up demo` starts one once the node is usable"

    assert text in tpuctl(*CREATE, "--ttl", "8h", *options)[1]


@pytest.mark.parametrize(
    ("before", "ttl", "undone", "extend"),
    [
        pytest.param({}, "2h", "set", "--until 2026-01-01T02:00:00Z", id="set"),
        pytest.param(until(5), "forever", "removed", "--no-expiry", id="removed"),
    ],
)
def test_up_says_that_it_could_not_change_the_end(  # noqa: PLR0917  # two fixtures and four columns
    tpuctl: Console, sandbox: Sandbox, before: dict[str, str], ttl: str, undone: str, extend: str
) -> None:
    own(sandbox, state="CREATING", age=timedelta(), labels=before)

    _, err, code = tpuctl(*UP, "--ttl", ttl, "--no-wait")

    command = f"tpuctl extend {ZONE}/demo {extend}"
    assert f"demo: its time limit was not {undone} while it is CREATING: `{command}`\n" in err
    assert (code, end(tpuctl)) == (0, "2026-01-01T05:00:00Z" if before else None)


def test_up_sets_the_end_of_a_node_that_is_being_created(tpuctl: Console, sandbox: Sandbox) -> None:
    own(sandbox, state="CREATING", age=timedelta())

    assert tpuctl(*UP, "--ttl", "2h")[2] == 0
    assert (end(tpuctl), sandbox.changes()) == ("2026-01-01T02:00:00Z", ["patch"])


OWN, OTHER = {"tpuctl-owner": USER}, {"tpuctl-owner": "ann_example-com"}
OF_ANN = "its owner is ann_example-com"


@pytest.mark.parametrize(
    ("labels", "line", "reason"),
    [
        pytest.param(OWN, ("up", "demo", "--ttl", "8h"), None, id="own"),
        pytest.param(OWN | until(9), ("up", "demo", "--ttl", "9h"), None, id="own-same"),
        pytest.param(OWN | until(9), ("up", "demo", "--ttl", "8h"), "its end moves from", id="own-earlier"),
        pytest.param(OWN | until(9), ("up", "demo", "--ttl", "forever"), None, id="own-never"),
        pytest.param(OWN, ("up", "demo", "--idle", "2h"), None, id="own-idle"),
        pytest.param(OTHER, ("up", "demo", "--ttl", "8h"), OF_ANN, id="others"),
        pytest.param(OTHER | until(7), ("up", "demo", "--until", "8h"), OF_ANN, id="others-later"),
        pytest.param(OTHER | until(8), ("up", "demo", "--ttl", "8h"), None, id="others-same"),
        pytest.param(OTHER | until(8), ("up", "demo", "--ttl", "forever"), OF_ANN, id="others-never"),
        pytest.param(OTHER, ("up", "demo", "--ttl", "forever"), None, id="others-without-end-never"),
        pytest.param(OTHER, ("up", "demo", "--idle", "5m"), OF_ANN, id="others-idle"),
        pytest.param(OTHER, ("up", "demo", "--idle", "forever"), OF_ANN, id="others-never-idle"),
        pytest.param(OTHER, ("up", "demo"), None, id="others-without-option"),
        pytest.param({}, ("up", "demo", "--ttl", "8h"), "its owner is unknown", id="unknown-owner"),
        pytest.param(OWN | until(9), ("extend", "demo", "2h"), None, id="extend-own"),
        pytest.param(OWN | until(9), ("extend", "demo", "--until", "8h"), "its end moves from", id="extend-earlier"),
        pytest.param(OTHER | until(9), ("extend", "demo", "2h"), OF_ANN, id="extend-others"),
        pytest.param(OTHER | until(9), ("extend", "demo", "--no-expiry"), OF_ANN, id="extend-others-never"),
    ],
)
def test_limits_of_another_or_an_earlier_end_need_an_answer(
    tpuctl: Console, sandbox: Sandbox, labels: dict[str, str], line: tuple[str, ...], reason: str | None
) -> None:
    put(sandbox, labels=labels)

    _, err, code = tpuctl(*line, "--zone", ZONE)

    if reason is None:
        assert code == 0, err
        return
    assert (code, sandbox.changes(), reason in err) == (2, [], True), err
    refused = tpuctl(*line, "--zone", ZONE, stdin="n\n")
    assert (refused[2], "cancelled" in refused[1], sandbox.changes()) == (1, True, [])
    assert tpuctl(*line, "--zone", ZONE, "--yes")[2] == 0


def test_up_leaves_the_limits_of_a_node_alone_that_another_client_creates_meanwhile(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    """The question was about a node of its own that did not exist."""
    sandbox.fault("http-error", method="*.nodes.create", status=503, count=1)
    clock.after(timedelta(), lambda: put(sandbox, labels=OTHER))

    _, err, code = tpuctl(*UP, "--ttl", "8h", "--idle", "2h")

    assert (code, end(tpuctl), "patch" in sandbox.changes()) == (0, None, False), err
    assert "its time limit is not changed, because this run did not create the node: `tpuctl extend" in err
    assert "no idle limit is applied, because this run did not create the node" in err


def test_idle_limit_of_the_setting_is_not_for_nodes_of_others(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels=OTHER)

    _, err, code = tpuctl("up", "demo", TPUCTL_IDLE="5m")

    assert (code, "no idle limit is applied, because this run did not create the node" in err) == (0, True), err


def test_up_says_that_nothing_ends_a_kept_node(tpuctl: Console, sandbox: Sandbox) -> None:
    own(sandbox, labels={"tpuctl-keep": ""})

    _, err, code = tpuctl("up", "demo", "--ttl", "8h")

    assert (code, "nothing ends it while it has the label tpuctl-keep" in err) == (0, True), err


def test_up_says_that_a_node_has_expired(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels=until(-1))

    _, err, code = tpuctl(*UP)

    assert (code, sandbox.changes()) == (0, [])
    assert "demo: its time has ended, it expired 1h ago: any clean-up may delete it; `tpuctl extend demo 2h`" in err


@pytest.mark.parametrize(
    ("label", "ends"),
    [
        pytest.param(until(5), "2026-01-01T05:00", id="keeps-its-end"),
        # It had existed for an hour when its two hours ended, just now.
        pytest.param(until(0), "2026-01-01T01:0", id="same-duration-again"),
        pytest.param({}, None, id="none"),
    ],
)
@pytest.mark.parametrize("line", [("up", "demo"), UP], ids=["without-spec", "with-spec"])
def test_recreated_node_keeps_its_end_or_its_duration(
    tpuctl: Console, sandbox: Sandbox, line: tuple[str, ...], label: dict[str, str], ends: str | None
) -> None:
    put(sandbox, state="PREEMPTED", labels=label, schedulingConfig={"spot": True})

    assert tpuctl(*line)[2] == 0
    found = end(tpuctl)
    assert (found if found is None or ends is None else found[: len(ends)]) == ends
    assert sandbox.changes() == ["delete", "create"]


def test_reset_keeps_the_end(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels=until(5))

    assert tpuctl("reset", "demo", "--mode", "recreate", "--yes")[2] == 0
    assert end(tpuctl) == "2026-01-01T05:00:00Z"


def test_killed_recreation_keeps_the_end(tpuctl: Console, sandbox: Sandbox) -> None:
    """The journal has it, while there is no node."""
    put(sandbox, labels=until(5), state="PREEMPTED", schedulingConfig={"spot": True})
    assert tpuctl("up", "demo", "--no-wait")[2] == 5
    sandbox.advance(minutes=5)

    assert tpuctl("up", "demo", "--yes")[2] == 0
    assert end(tpuctl) == "2026-01-01T05:00:00Z"


def test_queued_node_has_the_end_in_its_request(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl(*CREATE, "--queue", "--ttl", "8h")

    assert (code, end(tpuctl)) == (0, None) if not tpuctl("list")[0] else (0, "2026-01-01T08:00:00Z")
    assert "its time limit counts from this request, not from the creation of the node" in err
    (request,) = json.loads(tpuctl("queue", "list", "-o", "json")[0])
    labels = request["tpu"]["nodeSpec"][0]["node"]["labels"]
    assert labels["tpuctl-expires"] == until(8)["tpuctl-expires"]
    assert labels["tpuctl-owner"] == "you_example-com"


@pytest.mark.parametrize(
    ("label", "note", "shown"),
    [
        pytest.param(until(2), "expires 2026-01-01T02:00:00Z", "2026-01-01T02:00:00Z (in 2h)", id="later"),
        pytest.param(until(-2), "expires 2025-12-31T22:00:00Z", "2025-12-31T22:00:00Z (expired 2h ago)", id="expired"),
    ],
)
def test_list_and_status_show_the_end(
    tpuctl: Console, sandbox: Sandbox, label: dict[str, str], note: str, shown: str
) -> None:
    put(sandbox, labels=label)

    assert tpuctl("list")[0].rstrip("\n").split("\t")[-1] == note
    assert f"expires\t{shown}\n" in tpuctl("status", "demo")[0]
    assert ("expires in 2h" in tpuctl("list", terminal=True)[0]) == ("in 2h" in shown)


def test_invalid_label_is_said_and_escaped(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels={"tpuctl-expires": "soon\x1b[2J"})

    out = tpuctl("list", terminal=True)[0]
    assert ("never expires: label tpuctl-expires=soon" in out, "\x1b[2J" in out) == (True, False)
    assert json.loads(tpuctl("list", "-o", "json")[0])[0]["expires"] is None


KEY_FILE = '{"type": "service_account", "client_email": "ci@p.iam"}'


@two_machines
@pytest.mark.parametrize(
    ("options", "environ", "key_file", "owner"),
    [
        pytest.param((), {}, None, HERE, id="user-and-host"),
        pytest.param((), {"CLOUDSDK_CORE_ACCOUNT": "Ada@example.com"}, None, "ada_example-com", id="gcloud"),
        pytest.param((), {}, KEY_FILE, "ci_p-iam", id="key-file"),
        pytest.param((), {}, '{"type": "service_account", "client_email": 7}', HERE, id="odd-key-file"),
        pytest.param((), {}, "no json", HERE, id="no-key-file"),
        pytest.param(
            ("--impersonate-service-account", "a@p.iam,b@p.iam"), {}, KEY_FILE, "b_p-iam",
            id="impersonated",
        ),
    ],
)  # fmt: skip
def test_owner_is_the_account_of_the_calls(
    tpuctl: Console, options: tuple[str, ...], environ: dict[str, Any], key_file: str | None, owner: str
) -> None:
    if key_file is not None:
        (tpuctl.folder / "key.json").write_text(key_file)
        environ = environ | {"GOOGLE_APPLICATION_CREDENTIALS": str(tpuctl.folder / "key.json")}

    out, err, code = tpuctl(*UP, "--dry-run", "-o", "json", *options, **environ)

    assert (code, err) == (0, "")
    assert json.loads(out)[0]["request"]["body"]["labels"]["tpuctl-owner"] == owner


@two_machines
@pytest.mark.parametrize(
    ("account", "own"),
    [
        pytest.param("ann.lee@example.com", "dot", id="dot"),
        pytest.param("ann-lee@example.com", "dash", id="dash"),
        pytest.param("Ann.Lee@Example.com", "dot", id="capitals"),
        pytest.param("ann_lee@example.com", "underscore", id="underscore"),
        pytest.param("annlee@example.com", None, id="none"),
    ],
)
def test_gc_takes_accounts_with_alike_names_for_others(
    tpuctl: Console, sandbox: Sandbox, account: str, own: str | None
) -> None:
    labels = {name: owner_label(f"ann{mark}lee@example.com") for name, mark in (("dot", "."), ("dash", "-"))}
    labels |= {"underscore": owner_label("ann_lee@example.com"), "as-earlier-versions-wrote-it": "ann-lee_example-com"}
    for name, label in labels.items():
        put(sandbox, name, state="PREEMPTED", schedulingConfig={"spot": True}, labels={"tpuctl-owner": label})

    out, _, code = tpuctl("gc", "--yes", "-o", "name", CLOUDSDK_CORE_ACCOUNT=account)

    assert (out, code) == (f"{ZONE}/{own}\n" if own else "", 0)
    assert sandbox.changes() == ["delete"] * (own is not None)


@two_machines
@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        pytest.param(timedelta(seconds=50), "", id="within-a-minute"),
        pytest.param(timedelta(minutes=3), "3m ahead of", id="ahead"),
        pytest.param(-timedelta(minutes=3), "3m behind", id="behind"),
    ],
)
@pytest.mark.parametrize(
    "line",
    [("up", "a", "b", "--no-wait", "--ttl", "2h"), ("extend", "a", "b", "2h"), ("extend", "a", "b", "--until", "2h")],
    ids=["up", "extend", "extend-until"],
)
def test_service_clock_decides_and_a_difference_is_told_once(
    tpuctl: Console, sandbox: Sandbox, ahead: timedelta, words: str, line: tuple[str, ...]
) -> None:
    for name in "ab":
        own(sandbox, name, owner=HERE)
    wrong = replace(tpuctl, clock=ManualClock(START + ahead))

    _, err, code = wrong(*line, "--zone", ZONE)

    told = f"warning: the clock of this machine is {words} the service's, which decides\n"
    assert (code, err.count(told), err.count("the clock")) == (0, bool(words), bool(words))
    assert [end(tpuctl, name) for name in "ab"] == ["2026-01-01T02:00:00Z"] * 2


@two_machines
@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        pytest.param(("demo",), ("up", "demo", "--no-wait"), id="up"),
        pytest.param(("demo",), ("extend", "demo"), id="extend"),
        pytest.param((), (*UP, "--no-wait"), id="new"),
    ],
)
def test_end_that_has_passed_by_the_service_clock_is_refused(
    tpuctl: Console, sandbox: Sandbox, nodes: tuple[str, ...], line: tuple[str, ...]
) -> None:
    for name in nodes:
        put(sandbox, name, labels=until(5))
    slow = replace(tpuctl, clock=ManualClock(START - 3 * HOUR))

    _, err, code = slow(*line, "--until", "2025-12-31T23:00:00Z")

    assert "`--until 2025-12-31T23:00:00Z` is not in the future" in err
    assert (code, sandbox.changes()) == (2, [])
