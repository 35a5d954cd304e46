"""`tpuctl down` and `delete`: what is deleted, and when absence is certain."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, both_faces, put, said, still, told
from tests.others import answer, somebody

QUESTION = "delete the v4-8 node (READY) `demo` in us-central2-b, with its boot disk?"
NEVER_SEEN = "already gone, or never there: the journal has no node of this name"
HINT = "  hint: nothing was done; pass `--yes` to confirm (`--quiet` does not)"


@both_faces
def test_down_is_idempotent(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    first = tpuctl("down", "demo", stdin="y\n")
    second = tpuctl("down", "demo")

    assert first[::2] == ("demo\n", 0)
    assert told(first[1].removeprefix(f"{QUESTION} [y/N] "))[:3] == ["deleting it", "DELETING", "gone after 39s"]
    assert second == ("demo\n", "demo: already gone\n", 0)
    assert sandbox.changes() == ["delete"]


@pytest.mark.parametrize(
    ("name", "there", "near"),
    [
        pytest.param("trianer", ("trainer", "eval"), "trainer", id="two letters swapped"),
        pytest.param("traner", ("trainer",), "trainer", id="a letter missing"),
        pytest.param("train-2", ("train-1",), "", id="another number"),
        pytest.param("trian-2", ("train-1", "train-2"), "train-2", id="two letters swapped, with a number"),
        pytest.param("trian-2", ("train-1",), "", id="two letters swapped, and another number"),
        pytest.param("trainer", ("trainer-1",), "", id="no number"),
        pytest.param("ci-8241-a", ("ci-8240-a",), "", id="another run of ci"),
        pytest.param("trainer", ("eval",), "", id="another name"),
        pytest.param("trainer", (), "", id="no nodes"),
    ],
)
def test_down_of_a_name_never_seen_says_so_and_names_a_near_one(
    tpuctl: Console, sandbox: Sandbox, name: str, there: tuple[str, ...], near: str
) -> None:
    """A misspelled name ends with 0, as one that is gone, but the node that bills is named, also with `--quiet`."""
    for one in there:
        put(sandbox, one)
    warning = said(
        f"warning: `{name}` may be misspelled: `{ZONE}/{near}` is READY, and was not deleted",
        f"  hint: see it with `tpuctl status {ZONE}/{near}`",
    )

    assert tpuctl("down", name, "--yes") == (
        f"{name}\n",
        f"{name}: {NEVER_SEEN}\n{warning if near else ''}",
        0,
    )
    assert tpuctl("down", name, "--yes", "--quiet") == (f"{name}\n", warning if near else "", 0)
    assert sandbox.changes() == []


def test_down_of_a_name_that_the_journal_has_names_no_other(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "trainer")
    put(sandbox, "trainers")
    tpuctl("down", "trainer", "--yes")

    assert tpuctl("down", "trainer", "--yes") == ("trainer\n", "trainer: already gone\n", 0)


def test_delete_with_a_missing_node_deletes_none(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    absent = "no node `other` in any zone of project sandbox"

    assert tpuctl("delete", "demo", "other", "--yes") == (
        "",
        said(f"error: {absent}", "  hint: `--ignore-not-found` makes this a success; `tpuctl list` shows all nodes"),
        3,
    )
    assert tpuctl("delete", "demmo", "--yes")[1] == said(
        "error: no node `demmo` in any zone of project sandbox",
        "  hint: did you mean `us-central2-b/demo`?",
        "  hint: `--ignore-not-found` makes this a success; `tpuctl list` shows all nodes",
    )
    assert sandbox.changes() == []
    assert tpuctl("delete", "other", "--yes", "--ignore-not-found") == ("", f"{absent}\n", 0)


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED", "CREATING", "STOPPED", "UNKNOWN"])
def test_down_deletes_a_node_in_any_state(tpuctl: Console, sandbox: Sandbox, state: str) -> None:
    put(sandbox, state=state, age=timedelta())

    assert tpuctl("down", "demo", "--yes", "--no-wait")[::2] == ("demo\n", 0)
    assert sandbox.changes() == ["delete"]


def test_down_of_a_node_in_another_zone_names_the_zone(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    assert tpuctl("down", "demo", "--zone", "us-central1-a", "--yes") == (
        "",
        said(
            "error: `demo` is not in us-central1-a; found us-central2-b/demo",
            "  hint: to delete that one, run `tpuctl down us-central2-b/demo`",
        ),
        8,
    )
    assert sandbox.changes() == []


def test_down_with_an_unreachable_zone_fails(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unreachable", zone="europe-west4-a", count=0)

    assert tpuctl("down", "demo") == (
        "",
        said(
            "error: `demo` was not found, but europe-west4-a did not answer and may have it",
            "  hint: try again later, or name the zone with `--zone`",
        ),
        1,
    )


@pytest.mark.parametrize("where", [[], ["--zone", ZONE]])
def test_down_without_permission_fails(tpuctl: Console, sandbox: Sandbox, where: list[str]) -> None:
    sandbox.fault("http-error", status=403, count=0)

    out, err, code = tpuctl("down", "demo", *where)

    assert (out, code) == ("", 4)
    assert "gone" not in err


@both_faces
def test_down_deletes_the_owning_queued_resource(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("research", node_ids=("demo",))
    put(sandbox, queued_resource="research")

    out, err, code = tpuctl("down", "demo", "--yes")

    assert (out, code, sandbox.changes()) == ("demo\n", 0, ["delete"])
    assert told(err)[:3] == ["deleting its queued resource `research`", "DELETING", "gone after 39s"]
    assert told(err)[-1] != "its queued resource is being deleted"
    assert tpuctl("down", "demo")[1] == "demo: already gone\n"


def test_down_deletes_an_ended_queued_resource_without_a_node(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("research", state="SUSPENDED", node_ids=("demo",))

    assert tpuctl("down", "demo", stdin="n\n")[1] == (
        "delete the queued resource `research` (SUSPENDED) of `demo` in us-central2-b? [y/N] cancelled\n"
    )
    out, err, code = tpuctl("down", "demo", "--yes")
    assert (out, code) == ("demo\n", 0)
    assert told(err) == [
        "deleting its queued resource `research`",
        "its queued resource is being deleted",
        "its queued resource `research` is gone",
    ]
    assert tpuctl("down", "demo")[1] == "demo: already gone\n"


def test_down_of_a_request_for_several_nodes_needs_all_of_them(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("research", node_ids=("demo", "other"))
    for name in ("demo", "other"):
        put(sandbox, name, queued_resource="research")

    assert tpuctl("down", "demo", "--yes") == (
        "",
        said(
            "error: `demo` belongs to the queued resource `research`, which also has other",
            "  hint: add `--all-nodes` to delete them all",
        ),
        8,
    )
    assert sandbox.changes() == []
    assert tpuctl("down", "demo", "--yes", "--all-nodes")[::2] == ("demo\n", 0)
    assert tpuctl("list") == ("", "", 0)


@pytest.mark.parametrize("zone", [[], ["--zone", ZONE]], ids=["all-zones", "named-zone"])
@pytest.mark.parametrize("state", ["WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED"])
def test_down_of_a_requests_own_name_deletes_the_request(
    tpuctl: Console, sandbox: Sandbox, state: str, zone: list[str]
) -> None:
    sandbox.add_queued_resource("research", state=state, node_ids=("demo",))

    out, err, code = tpuctl("down", "research", "--yes", *zone)

    assert (out, code, sandbox.changes()) == ("research\n", 0, ["delete"])
    assert told(err)[0] == "deleting its queued resource `research`"
    assert tpuctl("down", "research", *zone)[1] == f"research: {NEVER_SEEN}\n"


def test_down_of_a_requests_own_name_deletes_its_node(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("research", node_ids=("demo",))
    put(sandbox, queued_resource="research")

    assert tpuctl("down", "research", "--yes")[::2] == ("research\n", 0)
    assert tpuctl("list") == ("", "", 0)


@pytest.mark.parametrize("name", ["research", "sweep"], ids=["own-name", "prefix"])
def test_down_of_a_request_for_several_nodes_needs_all_nodes(tpuctl: Console, sandbox: Sandbox, name: str) -> None:
    several = [{"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "sweep"}}]
    spec = {"parent": f"projects/sandbox/locations/{ZONE}", "node": {"acceleratorType": "v4-8", "runtimeVersion": "x"}}
    tpu = {"nodeSpec": [{**spec, **params} for params in several]}
    sandbox.add_queued_resource("research", state="WAITING_FOR_RESOURCES", tpu=tpu)

    assert tpuctl("down", name, "--yes") == (
        "",
        said(
            "error: the queued resource `research` has 2 nodes: sweep-0, sweep-1",
            "  hint: add `--all-nodes` to delete them all",
        ),
        8,
    )
    assert sandbox.changes() == []
    assert tpuctl("down", name, "--yes", "--all-nodes")[::2] == (f"{name}\n", 0)
    assert tpuctl("down", name)[1] == f"{name}: {NEVER_SEEN}\n"


@pytest.mark.parametrize("flags", [[], ["--no-wait"]], ids=["wait", "no-wait"])
def test_down_of_two_names_for_one_node_deletes_once(tpuctl: Console, sandbox: Sandbox, flags: list[str]) -> None:
    sandbox.add_queued_resource("research", state="SUSPENDED", node_ids=("first", "second"))
    put(sandbox)

    names = ("demo", "research", "second", "first", f"{ZONE}/demo")
    out, err, code = tpuctl("down", *names, "--yes", "--all-nodes", *flags)

    assert (out.split(), code, sandbox.changes()) == (["demo", *names[1:4], "demo"], 0, ["delete", "delete"]), err


@pytest.mark.parametrize("zone", [[], ["--zone", ZONE]], ids=["all-zones", "named-zone"])
@pytest.mark.parametrize("is_there", [False, True], ids=["no-node", "node"])
def test_down_of_a_node_that_two_requests_name_lists_both(
    tpuctl: Console, sandbox: Sandbox, zone: list[str], *, is_there: bool
) -> None:
    sandbox.add_queued_resource("old", state="WAITING_FOR_RESOURCES", node_ids=("demo",))
    sandbox.add_queued_resource("new", state="ACTIVE" if is_there else "FAILED", node_ids=("demo",))
    if is_there:
        put(sandbox, queued_resource="new")

    out, err, code = tpuctl("down", "demo", "--yes", *zone)

    assert (out, code, sandbox.changes()) == ("", 8, [])
    assert f"the queued resource {ZONE}/old (WAITING_FOR_RESOURCES)" in err
    assert (f"{ZONE}/demo, " if is_there else f"the queued resource {ZONE}/new (FAILED)") in err
    at = f"projects/sandbox/locations/{ZONE}"
    other = f"{at}/nodes/demo" if is_there else f"{at}/queuedResources/new"
    for name in (f"{at}/queuedResources/old", other):
        assert f"`tpuctl down {name}`" in err
        assert tpuctl("down", name, "--yes")[2] == 0
    assert tpuctl("down", "demo")[1] == "demo: already gone\n"


@pytest.mark.parametrize("zone", [[], ["--zone", ZONE]], ids=["all-zones", "named-zone"])
def test_down_of_a_name_that_is_node_and_request_lists_both(tpuctl: Console, sandbox: Sandbox, zone: list[str]) -> None:
    sandbox.add_queued_resource("demo", state="WAITING_FOR_RESOURCES", node_ids=("other",))
    put(sandbox)
    at = f"projects/sandbox/locations/{ZONE}"

    assert tpuctl("down", "demo", "--yes", *zone) == (
        "",
        said(
            f"error: there are 2 resources `demo`: {ZONE}/demo, the queued resource {ZONE}/demo (WAITING_FOR_RESOURCES)",
            f"  hint: use a full name: `tpuctl down {at}/nodes/demo` or `tpuctl down {at}/queuedResources/demo`",
        ),
        8,
    )
    assert sandbox.changes() == []
    assert tpuctl("down", f"{at}/queuedResources/demo", "--yes")[::2] == ("demo\n", 0)
    assert tpuctl("list", "-o", "name")[0] == f"{ZONE}/demo\n"
    assert tpuctl("down", f"{at}/nodes/demo", "--yes")[::2] == ("demo\n", 0)


def test_down_without_permission_to_list_requests_deletes_the_node(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("http-error", status=403, method="*.queuedResources.list", count=0)

    assert tpuctl("down", "demo", "--zone", ZONE, "--yes")[::2] == ("demo\n", 0)


def test_full_name_of_a_request_is_accepted_only_by_down_and_delete(tpuctl: Console) -> None:
    name = f"projects/sandbox/locations/{ZONE}/queuedResources/demo"

    assert tpuctl("status", name)[1:] == (
        said(f"error: `{name}` is a queued resource, not a node", "  hint: name a node"),
        2,
    )


@pytest.mark.parametrize("command", [["down"], ["reset", "--mode", "recreate"]])
def test_down_does_not_delete_a_recreated_node(tpuctl: Console, sandbox: Sandbox, command: list[str]) -> None:
    put(sandbox)

    _, err, code = answer(tpuctl, lambda: put(sandbox), *command, "demo")

    assert (code, sandbox.changes()) == (8, [])
    assert "error: `demo` changed meanwhile: another client recreated the node\n" in err


@both_faces
@pytest.mark.parametrize("lost", ["drop-before", "drop-after"])
def test_down_with_a_lost_answer_polls_the_node(tpuctl: Console, sandbox: Sandbox, lost: str) -> None:
    put(sandbox)
    sandbox.fault(lost, method="*.nodes.delete")

    assert tpuctl("down", "demo", "--yes")[::2] == ("demo\n", 0)
    assert sandbox.changes() == ["delete"]


def test_down_with_a_hanging_deletion_times_out(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("hang", state="DELETING")

    out, err, code = tpuctl("down", "demo", "--yes", "--timeout", "10m")

    assert (out, code) == ("", 5)
    assert told(err)[2:] == [
        *still("DELETING", 5),
        "error: `demo` is not gone after 10m: it is DELETING",
        "  hint: no change was undone; continue with `tpuctl wait demo --for gone`",
    ]


def test_down_without_a_journal_deletes_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    for folder in (sandbox.state.path.parent, sandbox.state.path.parent.parent):
        (folder / "journal").write_text("not a folder")

    out, err, code = tpuctl("down", "demo", "--yes")

    assert (out, code, sandbox.changes()) == ("", 1, [])
    lines = err.splitlines()
    assert [line.partition(": /")[0] for line in lines if not line.startswith("  hint")] == [
        "warning: cannot read the journal",
        "error: cannot write the journal",
    ]


_PER_MINUTE = (
    "the project sends requests faster than its quota for API calls allows: "
    "Resource has been exhausted (e.g. check quota)."
)


@pytest.mark.parametrize(
    ("status", "count", "options"),
    [
        pytest.param(429, 1, {}, id="429 once"),
        pytest.param(429, 2, {"retry_after": 2}, id="429 with Retry-After"),
        pytest.param(429, 20, {}, id="429 for longer than the retries of one call"),
        pytest.param(503, 20, {}, id="503 for longer than the retries of one call"),
    ],
)
def test_deletion_that_is_refused_for_now_is_sent_again(
    tpuctl: Console, sandbox: Sandbox, status: int, count: int, options: dict[str, int]
) -> None:
    """A deletion needs no quota: a 429 limits requests, and the node is billed until the service accepts one."""
    put(sandbox)
    sandbox.fault("http-error", method="*.nodes.delete", status=status, count=count, **options)

    out, err, code = tpuctl("down", "demo", "--yes")

    assert (out, code) == ("demo\n", 0), err
    assert tpuctl("list", "-o", "names")[0] == ""
    assert tpuctl("history", "demo", "-o", "json")[0].count('"asked for"') == 1


def test_deletion_refused_until_the_deadline_says_what_bills(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("http-error", method="*.nodes.delete", status=429, count=0)

    out, err, code = tpuctl("down", "demo", "--yes", "--timeout", "5m")

    assert (out, code) == ("", 7)
    assert err.count(f"not deleted yet, the next try follows: {_PER_MINUTE}") > 1
    assert err.endswith(
        said(
            f"error: {_PER_MINUTE}",
            "  hint: wait a minute, and let fewer processes call the API at the same time",
            f"  hint: `demo` was left READY and bills while it runs; delete it with `tpuctl down {ZONE}/demo`",
        )
    )


def test_refused_deletion_does_not_delay_that_of_others(tpuctl: Console, sandbox: Sandbox) -> None:
    for name in ("demo", "other"):
        put(sandbox, name)
    sandbox.fault("http-error", method="*.nodes.delete", node="demo", status=503, count=0)

    out, err, code = tpuctl("down", "demo", "other", "--yes", "--timeout", "5m")

    assert (out, code) == ("other\n", 1), err
    assert f"`demo` was left READY and bills while it runs; delete it with `tpuctl down {ZONE}/demo`" in err


def test_request_that_is_suspending_does_not_delay_the_deletion_of_others(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("demo", zone=ZONE, state="SUSPENDING", node_ids=("demo",))
    put(sandbox, "other")

    out, _, code = tpuctl("down", "demo", "other", "--yes", "--timeout", "10m")

    assert (out, code, sandbox.changes()) == ("other\n", 5, ["delete"])


def test_down_of_what_another_client_has_just_deleted_ends_its_watch_too(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    assert answer(tpuctl, lambda: somebody(sandbox, "delete"), "down", "demo")[2] == 0
    _, err, code = tpuctl("watch", "demo", "--zone", ZONE, "--type", "v4-8", "--recreate-deleted", "--until", "5m")

    assert (code, sandbox.changes()) == (3, ["delete"])
    assert "`down` ended `demo`" in err
