"""`tpuctl queue`, and requests in `create`, `down`, `status` and `history`, on the sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Console, Sandbox
from tests.lifecycle import EventfulClock, put, said, still, told
from tests.others import another_machine
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.stock import put_stockout

ZONE = "us-central1-a"
PARENT = f"projects/sandbox/locations/{ZONE}"
SPEC = {"acceleratorType": "v5litepod-16", "runtimeVersion": "v2-alpha-tpuv5-lite"}
CREATE = ("create", "demo", "--type", "v5litepod-16", "--zone", ZONE, "--queue")
STOCKOUT = {"code": 8, "message": f'There is no more capacity in the zone "{ZONE}"'}
QUOTA = {
    "code": 8,
    "message": "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone.",
}
LATE = {"code": 4, "message": "The queued resource could not be provisioned before its valid-until time."}


def queue(sandbox: Sandbox, name: str = "demo", state: str = "WAITING_FOR_RESOURCES", **fields: Any) -> dict[str, Any]:
    """Put a queued resource for one v5litepod-16 into the sandbox."""
    node_id = fields.pop("node_id", name)
    tpu = {"nodeSpec": [{"parent": PARENT, "nodeId": node_id, "node": SPEC}]}
    return sandbox.add_queued_resource(name, state=state, zone=ZONE, node_ids=(node_id,), **{"tpu": tpu, **fields})


def several(sandbox: Sandbox, name: str = "sweep", state: str = "WAITING_FOR_RESOURCES") -> dict[str, Any]:
    """Put a queued resource for two nodes into the sandbox, as programs for several slices do."""
    tpu = {
        "nodeSpec": [{"parent": PARENT, "node": SPEC, "multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "slice"}}]
    }
    return queue(sandbox, name, state, tpu=tpu)


def show(tpuctl: Console, *words: str) -> Any:  # JSON
    out, err, code = tpuctl(*words, "-o", "json")
    assert (err, code) == ("", 0)
    return json.loads(out)


LIST = """\
NAME    ZONE           TYPE          TIER         STATE                  IN STATE  VALID UNTIL  NODES             NOTE
bad     us-central1-a  v5litepod-16  on-demand    FAILED                 ≤5m                    bad               \
still holds quota for 16 chips; There is no more capacity in the zone "us-central1-a"
best    us-central1-a  v5litepod-16  best-effort  ACCEPTED               ≤5m                    best
demo-q  us-central1-a  v5litepod-16  spot         WAITING_FOR_RESOURCES  ≤5m       in 55m       demo
sus     us-central1-a  v5litepod-16  on-demand    SUSPENDED              ≤5m                    sus               \
by the service; still holds quota for 16 chips
sweep   us-central1-a  v5litepod-16  on-demand    WAITING_FOR_RESOURCES  ≤5m                    slice-0, slice-1
5 queued resources, 96 chips, 5 not ACTIVE
"""


def test_queue_list_shows_every_request(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox, "demo-q", node_id="demo", spot={}, queueingPolicy={"validUntilDuration": "3600s"})
    queue(sandbox, "bad", "FAILED", error=STOCKOUT)
    queue(sandbox, "sus", "SUSPENDED", initiator="SERVICE")
    queue(sandbox, "best", "ACCEPTED", bestEffort={})
    several(sandbox)
    sandbox.advance(minutes=5)

    out, err, code = tpuctl("queue", "list", terminal=True, NO_COLOR="1", width=200)

    assert ("\n".join(line.rstrip() for line in out.splitlines()) + "\n", code) == (LIST, 0)
    assert err.splitlines()[-1] == (
        f"2 queued resources ended and still hold quota: {ZONE}/bad, {ZONE}/sus; "
        f"to delete: `tpuctl down {ZONE}/bad {ZONE}/sus`"
    )
    assert tpuctl("queue", "list")[0].splitlines()[2].split("\t") == [
        "demo-q", ZONE, "v5litepod-16", "spot", "WAITING_FOR_RESOURCES", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z",
        "demo", "",
    ]  # fmt: skip
    assert tpuctl("queue", "ls", "-o", "name")[0].split() == [
        f"{ZONE}/{name}" for name in ("bad", "best", "demo-q", "sus", "sweep")
    ]
    assert tpuctl("queue", "list", "--zone", "us-east5-a") == ("", "", 0)


def test_queue_list_in_json_has_the_fields_of_the_api_and_named_ones(tpuctl: Console, sandbox: Sandbox) -> None:
    found = queue(sandbox, "sus", "SUSPENDED", initiator="SERVICE", spot={})

    (entry,) = show(tpuctl, "queue", "list")

    named = {
        "queuedResourceId": "sus",
        "zone": ZONE,
        "project": "sandbox",
        "acceleratorType": "v5litepod-16",
        "tier": "spot",
        "nodeIds": ["sus"],
        "validUntil": None,
        "stateSince": "2026-01-01T00:00:00Z",
        "stateSinceFrom": "creation",
        "heldChips": 16,
        "sandbox": True,
    }
    assert {key: entry[key] for key in named} == named
    assert {key: entry[key] for key in ("name", "createTime", "state", "spot")} == {
        key: found[key] for key in ("name", "createTime", "state", "spot")
    }


def test_queue_list_without_v2alpha1_shows_what_v2_has(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox, "best", "ACCEPTED", bestEffort={})
    sandbox.fault("http-error", status=403, count=1, method="*.queuedResources.list")

    assert tpuctl("queue", "list", "--zone", ZONE)[0].split("\t")[3] == "on-demand"
    assert tpuctl("queue", "list", "--zone", ZONE)[0].split("\t")[3] == "best-effort"


def test_queue_list_with_an_unreachable_zone_fails(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox)
    sandbox.fault("unreachable", zone="us-east5-a", count=0)

    out, err, code = tpuctl("queue", "list", terminal=True, NO_COLOR="1")

    assert (out.splitlines()[-2].split(), code) == (["?", "us-east5-a", "could", "not", "be", "listed"], 1)
    assert "the list is incomplete: us-east5-a could not be listed" in err


def test_empty_queue_is_said(tpuctl: Console) -> None:
    assert tpuctl("queue", "list", terminal=True)[1].endswith("no queued resources in any zone of project sandbox\n")
    assert tpuctl("queue", "list", "-o", "json") == ("[]\n", "", 0)


@pytest.mark.parametrize("name", ["bad-q", "bad", f"{ZONE}/bad-q", f"{PARENT}/queuedResources/bad-q"])
def test_queue_status_shows_details_and_the_remedy(tpuctl: Console, sandbox: Sandbox, name: str) -> None:
    queue(sandbox, "bad-q", "FAILED", node_id="bad", error=STOCKOUT, queueingPolicy={"validUntilDuration": "3600s"})
    sandbox.advance(minutes=5)

    out, err, code = tpuctl("queue", "status", name)

    lines = [line.split("\t") for line in out.splitlines()]
    assert (err, code) == ("", 0)
    assert lines[:12] == [
        ["queued resource", "bad-q"],
        ["zone", ZONE],
        ["project", "sandbox"],
        ["state", "FAILED (≤5m, counted from its creation)"],
        ["type", "v5litepod-16"],
        ["version", "v2-alpha-tpuv5-lite"],
        ["tier", "on-demand"],
        ["created", "2026-01-01T00:00:00Z (5m ago)"],
        ["valid until", "2026-01-01T01:00:00Z (in 55m)"],
        ["node", "bad (does not exist)"],
        ["note", f"still holds quota for 16 chips; {STOCKOUT['message']}"],
        ["error", lines[11][1]],
    ]
    assert lines[11][1].startswith("no_capacity: ")
    assert {line[0] for line in lines[12:]} == {"hint"}
    assert "NODE" not in out


def test_queue_status_in_json_has_the_nodes_and_the_failure(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox, "up", "ACTIVE")
    sandbox.add_node("up", zone=ZONE, acceleratorType="v5litepod-16", queued_resource="up")
    queue(sandbox, "bad", "FAILED", error=STOCKOUT)

    assert show(tpuctl, "queue", "status", "up")["nodes"] == [{"nodeId": "up", "state": "READY"}]
    failed = show(tpuctl, "queue", "status", "bad")
    assert (failed["nodes"], failed["failure"]["kind"], failed["failure"]["exit_code"]) == (
        [{"nodeId": "bad", "state": None}],
        "no_capacity",
        6,
    )


def test_queue_status_of_an_expired_request_agrees_with_queue_wait(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox, "late", "FAILED", error={"code": 4, "message": "not before its valid-until time"})

    failure = show(tpuctl, "queue", "status", "late")["failure"]

    assert (failure["kind"], failure["exit_code"]) == ("timed_out", tpuctl("queue", "wait", "late")[2])
    assert f"`tpuctl queue retry {ZONE}/late --queue-for 12h`" in failure["hint"]


@pytest.mark.parametrize("verb", ["status", "wait", "cancel", "retry"])
def test_missing_request_is_not_found(tpuctl: Console, verb: str) -> None:
    assert tpuctl("queue", verb, "demo") == (
        "",
        said(
            "error: no queued resource `demo` in any zone of project sandbox",
            "  hint: `tpuctl queue list` shows all; `tpuctl list` shows nodes",
        ),
        3,
    )


@pytest.mark.parametrize("verb", ["status", "wait", "cancel", "retry"])
def test_name_of_two_requests_is_ambiguous(tpuctl: Console, sandbox: Sandbox, verb: str) -> None:
    queue(sandbox, "one", node_id="demo")
    queue(sandbox, "two", node_id="demo")

    _, err, code = tpuctl("queue", verb, "demo")

    assert (code, sandbox.changes()) == (8, [])
    assert f"{ZONE}/one (WAITING_FOR_RESOURCES), {ZONE}/two (WAITING_FOR_RESOURCES)" in err


WAITS = pytest.mark.parametrize(
    "wait",
    [pytest.param(("queue", "wait", "demo"), id="queue"), pytest.param(("wait", "demo", "--for", "active"), id="wait")],
)


@WAITS
def test_queue_wait_ends_when_the_request_is_active(tpuctl: Console, sandbox: Sandbox, wait: tuple[str, ...]) -> None:
    assert tpuctl(*CREATE, "--no-wait")[2] == 0

    out, err, code = tpuctl(*wait)

    assert (out, code, sandbox.changes()) == ("demo\tACTIVE\n", 0, ["create"])
    states = [line for line in told(err) if line.startswith("queued resource ")]
    assert states[-2:] == ["queued resource PROVISIONING", "queued resource ACTIVE"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(STOCKOUT, 6, id="no-capacity"),
        pytest.param(QUOTA, 7, id="quota"),
        pytest.param(LATE, 5, id="not-in-time"),
    ],
)
def test_queue_wait_ends_with_the_error_of_the_request(
    tpuctl: Console, sandbox: Sandbox, error: dict[str, Any], code: int
) -> None:
    queue(sandbox, state="FAILED", error=error)

    assert tpuctl("queue", "wait", "demo")[::2] == ("", code)


@WAITS
def test_queue_wait_for_a_suspended_request_is_a_conflict(
    tpuctl: Console, sandbox: Sandbox, wait: tuple[str, ...]
) -> None:
    queue(sandbox, state="SUSPENDED", initiator="SERVICE")

    out, err, code = tpuctl(*wait)

    assert (out, code) == ("", 8)
    assert told(err)[1:] == [
        "error: the queued resource `demo` was suspended by the service: its nodes were preempted",
        f"  hint: `tpuctl queue retry {ZONE}/demo` asks again",
    ]


@pytest.mark.parametrize("words", [("demo", "other"), ("d*",), ("demo", "--probe", "true")], ids=" ".join)
def test_wait_for_active_takes_one_request(tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...]) -> None:
    out, err, code = tpuctl("wait", *words, "--for", "active")

    assert (out, err.splitlines()[0], code) == ("", "error: `--for active` takes one name, and no `--probe`", 2)


def test_queue_wait_times_out_and_names_the_command_that_cancels(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox)

    out, err, code = tpuctl("queue", "wait", "demo", "--timeout", "10m")

    assert (out, code, sandbox.changes()) == ("", 5, [])
    hint = (
        f"it still waits and counts against the quota; continue with `tpuctl queue wait {ZONE}/demo`, or cancel it with "
        f"`tpuctl queue cancel {ZONE}/demo`"
    )
    assert told(err) == [
        "queued resource WAITING_FOR_RESOURCES",
        *still("WAITING_FOR_RESOURCES", 5),
        "error: the queued resource `demo` is not active after 10m: it is WAITING_FOR_RESOURCES",
        f"  hint: {hint}",
    ]


def test_queue_wait_for_gone_ends_when_the_request_is_deleted(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox)
    assert tpuctl("queue", "cancel", "demo", "--no-wait")[::2] == ("demo\n", 0)

    assert tpuctl("queue", "wait", "demo", "--for", "gone")[::2] == ("demo\n", 0)
    assert tpuctl("queue", "wait", "demo", "--for", "gone") == ("demo\n", "", 0)


@pytest.mark.parametrize("state", ["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "SUSPENDED", "FAILED"])
def test_cancel_without_a_node_asks_nothing(tpuctl: Console, sandbox: Sandbox, state: str) -> None:
    queue(sandbox, "demo-q", state, node_id="demo")

    out, err, code = tpuctl("queue", "cancel", "demo-q")

    assert (out, code, sandbox.changes()) == ("demo-q\n", 0, ["delete"])
    assert (told(err)[0], told(err)[-1]) == (
        "deleting its queued resource `demo-q`",
        "its queued resource `demo-q` is gone",
    )
    assert tpuctl("queue", "list") == ("", "", 0)


def test_cancel_leaves_a_node_that_the_request_does_not_own(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox)
    sandbox.add_node("demo", zone=ZONE, acceleratorType="v5litepod-16")

    assert tpuctl("queue", "cancel", "demo")[::2] == ("demo\n", 0)
    assert tpuctl("list", "-o", "name")[0] == f"{ZONE}/demo\n"


def test_cancel_of_several_nodes_needs_all_of_them(tpuctl: Console, sandbox: Sandbox) -> None:
    several(sandbox)

    assert tpuctl("queue", "cancel", "slice-1") == (
        "",
        said(
            "error: the queued resource `sweep` has 2 nodes: slice-0, slice-1",
            "  hint: add `--all-nodes` to delete them all",
        ),
        8,
    )
    assert sandbox.changes() == []
    assert tpuctl("queue", "cancel", "sweep", "--all-nodes")[::2] == ("sweep\n", 0)


def test_cancel_dry_run_shows_requests_that_fit_the_state(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox)
    queue(sandbox, "bad", "FAILED")

    steps = json.loads(tpuctl("queue", "cancel", "demo", "bad", "--dry-run", "-o", "json")[0])

    assert [step["request"]["url"].partition("?")[2] for step in steps] == ["force=true", "force=false"]
    assert sandbox.changes() == []


def forces(sandbox: Sandbox) -> list[str]:
    """Return whether each delete of a queued resource had `force`."""
    deletes = (call.path for call in read_log(sandbox.state.path) if call.method == "DELETE")
    return ["force" if "force=true" in path else "record" for path in deletes if "/queuedResources/" in path]


class TestMeanwhile:
    """What happens while a command waits."""

    @pytest.fixture
    def clock(self) -> EventfulClock:
        return EventfulClock()

    def test_interrupted_wait_names_the_request_and_how_to_cancel_it(
        self, tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
    ) -> None:
        queue(sandbox)
        clock.after(timedelta(minutes=3), _interrupt)

        out, err, code = tpuctl("queue", "wait", "demo")

        text = f"the queued resource {ZONE}/demo still waits: it counts against the quota"
        assert (out, code, sandbox.changes()) == ("", 130, [])
        assert err.splitlines()[-3:] == [
            f"warning: interrupted: {text}; nothing was undone",
            "  resume: tpuctl queue wait demo",
            f"  undo:   tpuctl queue cancel {ZONE}/demo",
        ]

    def test_interrupted_create_names_the_request_and_how_to_cancel_it(
        self, tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
    ) -> None:
        clock.after(timedelta(seconds=1), _interrupt)

        out, err, code = tpuctl(*CREATE)

        assert (out, code, sandbox.changes()) == ("", 130, ["create"])
        text = f"the queued resource {ZONE}/demo counts against the quota, and its node bills as soon as it runs"
        assert err.splitlines()[-3:] == [
            f"warning: interrupted: {text}; nothing was undone",
            f"  resume: tpuctl queue wait {ZONE}/demo",
            f"  undo:   tpuctl queue cancel {ZONE}/demo",
        ]

    def test_down_ends_a_running_up_and_nothing_is_created_after_it(
        self, tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
    ) -> None:
        with sandbox.state.write() as session:
            put_stockout(session, zone=ZONE)
        ended: list[int] = []
        elsewhere = another_machine(tpuctl, TPUCTL_STATE_DIR=tpuctl.environ["TPUCTL_STATE_DIR"])
        clock.after(timedelta(minutes=3), lambda: ended.append(elsewhere("down", "demo", "--yes")[2]))

        out, _, code = tpuctl("up", *CREATE[1:], "--timeout", "2h")

        assert (out, code, ended) == ("", 3, [0])
        sandbox.advance(hours=3)
        assert sandbox.changes() == ["create", "delete"]
        assert (tpuctl("list")[0], tpuctl("queue", "list")[0]) == ("", "")

    def test_outage_while_a_request_is_deleted_is_not_its_end(
        self, tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
    ) -> None:
        queue(sandbox)
        method = "*.queuedResources.get"
        clock.after(timedelta(seconds=5), lambda: sandbox.fault("http-error", status=503, count=20, method=method))

        assert tpuctl("queue", "cancel", "demo")[::2] == ("demo\n", 0)
        assert tpuctl("queue", "list") == ("", "", 0)

    def test_interrupted_retry_is_continued_by_up(
        self, tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
    ) -> None:
        queue(sandbox, state="FAILED", spot={})
        clock.after(timedelta(seconds=5), _interrupt)

        assert tpuctl("queue", "retry", "demo")[::2] == ("", 130)
        out, err, code = tpuctl("up", "demo", "--zone", ZONE, "--for", "ready", "--timeout", "2h")

        assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["delete", "create"])
        assert told(err)[0] == "continuing the recreation of an interrupted run"
        assert show(tpuctl, "queue", "list")[0]["tier"] == "spot"

    def test_expired_login_while_waiting_names_the_command_that_cancels(
        self, tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
    ) -> None:
        queue(sandbox)
        clock.after(timedelta(hours=2), lambda: sandbox.fault("unauthenticated", count=0))

        out, err, code = tpuctl("queue", "wait", "demo", "--timeout", "6h")

        assert (out, code, sandbox.changes()) == ("", 4, [])
        assert err.splitlines()[-1] == (
            f"  hint: the queued resource {ZONE}/demo is left, and counts against the quota: "
            f"`tpuctl queue cancel {ZONE}/demo` cancels it"
        )

    def test_request_that_another_client_made_again_is_left_alone(
        self, tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
    ) -> None:
        queue(sandbox, state="SUSPENDING", initiator="SERVICE")
        clock.after(timedelta(minutes=3), lambda: queue(sandbox))

        out, err, code = tpuctl("queue", "cancel", "demo")

        assert (out, code, sandbox.changes()) == ("", 8, [])
        assert "error: the queued resource `demo` changed meanwhile: another client requested the node again" in err

    @pytest.mark.parametrize(
        "command", [("down", "demo", "--yes"), ("queue", "cancel", "demo")], ids=["down", "cancel"]
    )
    def test_suspending_request_is_deleted_once_it_is_suspended(
        self, tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, command: tuple[str, ...]
    ) -> None:
        queue(sandbox, state="SUSPENDING", initiator="SERVICE", createTime="2026-01-01T00:00:00Z")
        clock.after(timedelta(minutes=3), lambda: _suspend(sandbox))

        out, err, code = tpuctl(*command)

        assert (out, code, sandbox.changes(), forces(sandbox)) == ("demo\n", 0, ["delete"], ["record"])
        assert told(err)[:2] == [
            "its queued resource is SUSPENDING, and is deleted after that",
            "deleting its queued resource `demo`",
        ]


PHASES = (
    "WAITING_FOR_RESOURCES",
    "PROVISIONING",
    "ACTIVE",
    "SUSPENDING",
    "SUSPENDED",
    "FAILED",
    "ACCEPTED",
)


@given(phases=st.lists(st.tuples(st.sampled_from(PHASES), st.integers(1, 200)), min_size=1, max_size=5))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_is_forced_in_a_state_that_forbids_it(
    tpuctl: Console, sandbox: Sandbox, phases: list[tuple[str, int]]
) -> None:
    """Whatever states a request goes through: each delete fits the state that it has at that moment."""
    name = f"demo{len(read_log(sandbox.state.path))}"
    queue(sandbox, name, phases[0][0])
    with sandbox.state.write() as session:
        (record,) = (one for one in session.queued_resources() if one.queued_resource_id == name)
        at, timeline = session.now, record.timeline
        for (_, seconds), (state, _) in pairwise(phases):
            at += timedelta(seconds=seconds)
            timeline = (*timeline, replace(timeline[0], at=at, state=state))
        session.put_queued_resource(replace(record, timeline=timeline))

    code = tpuctl("queue", "cancel", name, "--timeout", "30m")[2]

    for call in read_log(sandbox.state.path):
        if call.method == "DELETE" and f"/{name}?" in call.path:
            # The log has whole seconds.
            ends = [*(phase.at for phase in timeline[1:]), call.at + timedelta(days=1)]
            states = {
                phase.state
                for phase, end in zip(timeline, ends, strict=True)
                if phase.at < call.at + timedelta(seconds=1) and end > call.at
            }
            is_forced = "force=true" in call.path
            assert states & ({*PHASES[:3], "ACCEPTED"} if is_forced else {"SUSPENDED", "FAILED"})
    stays = phases[-1][0] == "SUSPENDING"
    assert code == 0 or (stays and code == 5)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _suspend(sandbox: Sandbox) -> None:
    with sandbox.state.write() as session:
        (record,) = session.queued_resources()
        phase = replace(record.timeline[-1], state="SUSPENDED", at=session.now)
        session.put_queued_resource(replace(record, timeline=(*record.timeline, phase)))


@pytest.mark.parametrize("command", [("down", "demo", "--yes"), ("queue", "cancel", "demo")], ids=["down", "cancel"])
def test_suspending_request_is_not_deleted_before_the_deadline(
    tpuctl: Console, sandbox: Sandbox, command: tuple[str, ...]
) -> None:
    queue(sandbox, state="SUSPENDING", initiator="SERVICE")

    out, err, code = tpuctl(*command, "--timeout", "10m")

    assert (out, code, sandbox.changes()) == ("", 5, [])
    state = "its queued resource is SUSPENDING, and is deleted after that"
    assert told(err)[1:] == [
        *still(f"waiting ({state})", 5),
        f"error: the queued resource `demo` was not deleted within 10m: {state}",
        f"  hint: it counts against the quota; continue with `tpuctl queue cancel {ZONE}/demo`",
    ]
    assert tpuctl(*command, "--no-wait")[2] == 8
    assert sandbox.changes() == []


@pytest.mark.parametrize("command", [("down", "demo", "--yes"), ("queue", "cancel", "demo")], ids=["down", "cancel"])
@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_record_that_stays_is_deleted_again(
    tpuctl: Console, sandbox: Sandbox, command: tuple[str, ...], state: str
) -> None:
    queue(sandbox, state=state)
    sandbox.fault("survives-delete", count=2)

    out, err, code = tpuctl(*command)

    assert (out, code, forces(sandbox)) == ("demo\n", 0, ["record"] * 3)
    assert told(err).count("deleting its queued resource `demo` again: it is still there") == 2
    assert tpuctl("queue", "list") == ("", "", 0)


@pytest.mark.parametrize(("refusals", "code"), [(2, 0), (3, 8)], ids=["looks-again", "gives-up"])
def test_refused_delete_looks_again(tpuctl: Console, sandbox: Sandbox, refusals: int, code: int) -> None:
    queue(sandbox, state="FAILED")
    sandbox.fault("http-error", status=409, count=refusals, method="*.queuedResources.delete")

    assert tpuctl("down", "demo", "--yes")[2] == code
    assert tpuctl("queue", "list", "-o", "name")[0] == ("" if code == 0 else f"{ZONE}/demo\n")


def test_outage_after_the_delete_is_not_an_end(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox)
    assert tpuctl("queue", "cancel", "demo", "--no-wait")[2] == 0
    sandbox.fault("http-error", status=503, count=12, method="*.queuedResources.get")

    assert tpuctl("queue", "wait", "demo", "--for", "gone")[::2] == ("demo\n", 0)
    assert tpuctl("queue", "list") == ("", "", 0)


def test_down_of_an_owned_node_uses_force_once(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox, state="ACTIVE")
    sandbox.add_node("demo", zone=ZONE, acceleratorType="v5litepod-16", queued_resource="demo")

    assert tpuctl("down", "demo", "--yes")[::2] == ("demo\n", 0)
    assert forces(sandbox) == ["force"]


def test_down_deletes_a_node_and_the_request_of_the_next_try(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("demo", zone=ZONE, acceleratorType="v5litepod-16")
    queue(sandbox)

    steps = json.loads(tpuctl("down", "demo", "--dry-run", "-o", "json")[0])
    assert [step["request"]["url"].rpartition("/")[0].rpartition("/")[2] for step in steps] == [
        "queuedResources",
        "nodes",
    ]
    assert tpuctl("down", "demo", "--yes")[::2] == ("demo\n", 0)
    assert (sandbox.changes(), forces(sandbox)) == (["delete", "delete"], ["force"])
    assert (tpuctl("list")[0], tpuctl("queue", "list")[0]) == ("", "")


def test_down_deletes_the_own_request_besides_that_of_the_node(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox, "older", "ACTIVE", node_id="demo")
    sandbox.add_node("demo", zone=ZONE, acceleratorType="v5litepod-16", queued_resource="older")
    labelled = {"nodeSpec": [{"parent": PARENT, "nodeId": "demo", "node": {**SPEC, "labels": {"tpuctl-request": "1"}}}]}
    queue(sandbox, "demo", tpu=labelled)

    out, err, code = tpuctl("down", "demo", stdin="y\n")

    assert (out, code) == ("demo\n", 0)
    assert err.startswith(
        "delete the queued resource `older` (ACTIVE) with the v5litepod-16 node (READY) and the queued resource `demo` "
        "(WAITING_FOR_RESOURCES) of `demo`"
    )
    assert (tpuctl("list")[0], tpuctl("queue", "list")[0]) == ("", "")


def test_down_of_a_node_without_a_node_yet_is_final(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl(*CREATE)[2] == 0

    assert tpuctl("down", "demo", "--yes")[::2] == ("demo\n", 0)
    sandbox.advance(hours=2)

    assert (tpuctl("list")[0], tpuctl("queue", "list")[0]) == ("", "")
    assert sandbox.changes() == ["create", "delete"]


@pytest.mark.parametrize(
    ("name", "state", "initiator"), [("demo", "FAILED", ""), ("demo-q", "SUSPENDED", "SERVICE")], ids=["own", "foreign"]
)
def test_retry_brings_the_node_up_in_its_tier(
    tpuctl: Console, sandbox: Sandbox, name: str, state: str, initiator: str
) -> None:
    """The new request has the name of the node, as each of `up`."""
    queue(sandbox, name, state, node_id="demo", initiator=initiator, spot={})

    out, err, code = tpuctl("queue", "retry", name, "--queue-for", "2h")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["delete", "create"]), err
    (found,) = show(tpuctl, "queue", "list")
    assert (found["queuedResourceId"], found["nodeIds"], found["tier"]) == ("demo", ["demo"], "spot")


@pytest.mark.parametrize(
    ("put_request", "words", "code"),
    [
        pytest.param(partial(queue, state="SUSPENDED", initiator="USER"), "by a user: left alone", 8, id="by a user"),
        pytest.param(partial(several, name="demo", state="FAILED"), "has 2 nodes, also", 8, id="several nodes"),
        pytest.param(queue, "is not healthy after 10m", 5, id="waiting"),
    ],
)
def test_retry_does_what_up_does(
    tpuctl: Console, sandbox: Sandbox, put_request: Callable[[Sandbox], object], words: str, code: int
) -> None:
    put_request(sandbox)

    _, err, found = tpuctl("queue", "retry", "demo", "--timeout", "10m")

    assert (found, words in err, sandbox.changes()) == (code, True, []), err


def test_retry_takes_the_spec_from_the_journal(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("operation-error", method="*.queuedResources.create")
    assert tpuctl(*CREATE, "--labels", "team=vision", "--queue-for", "6h")[2] == 0
    assert tpuctl("queue", "wait", "demo")[2] == 6

    assert tpuctl("queue", "retry", "demo", "--queue-for", "90m")[::2] == ("demo\tREADY\n", 0)

    (found,) = show(tpuctl, "queue", "list")
    assert found["tpu"]["nodeSpec"][0]["node"]["labels"]["team"] == "vision"
    assert found["queueingPolicy"] == {"validUntilDuration": "5400s"}


def test_create_with_queue_waits_for_the_acceptance_only(tpuctl: Console, sandbox: Sandbox) -> None:
    out, err, code = tpuctl(*CREATE, "--spot")

    assert (out, code, sandbox.changes()) == ("demo\tACCEPTED\n", 0, ["create"])
    assert err.splitlines()[-2:] == [
        f"to wait for it: `tpuctl queue wait {ZONE}/demo`; to cancel it: `tpuctl queue cancel {ZONE}/demo`",
        "it waits for capacity for 24h; `--queue-for TIME` sets another limit",
    ]
    (found,) = show(tpuctl, "queue", "list")
    assert (found["queueingPolicy"], found["tier"]) == ({"validUntilDuration": "86400s"}, "spot")


@pytest.mark.parametrize(
    ("words", "policy", "tier"),
    [
        pytest.param(("--queue-for", "6h"), {"validUntilDuration": "21600s"}, "on-demand", id="limit"),
        pytest.param(("--queue-for", "forever"), None, "on-demand", id="forever"),
        pytest.param(
            ("--tier", "flex-start", "--run-for", "2h"), {"validUntilDuration": "86400s"}, "flex-start", id="flex-start"
        ),
    ],
)
def test_create_with_queue_sends_its_limit(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], policy: dict[str, str] | None, tier: str
) -> None:
    made = json.loads(tpuctl(*CREATE, *words, "-o", "json")[0])

    assert (made.get("queueingPolicy"), made["tier"], made["queuedResourceId"]) == (policy, tier, "demo")


def test_create_with_queue_of_a_name_in_use_is_refused(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox)

    out, err, code = tpuctl(*CREATE)

    assert (out, code, sandbox.changes()) == ("", 8, [])
    assert err.splitlines()[-1] == f"  hint: `tpuctl queue status {ZONE}/demo` shows it"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tier", "spot,on-demand"), "`create` takes one tier"),
        (("--queue-for", "10s"), "`--queue-for 10s` is too short: the service needs longer to look for capacity"),
    ],
    ids=["two-tiers", "short-limit"],
)
def test_create_with_queue_refuses_bad_input(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], message: str
) -> None:
    out, err, code = tpuctl(*CREATE, *words)

    assert (out, err.splitlines()[0], code, sandbox.changes()) == ("", f"error: {message}", 2, [])


@pytest.mark.parametrize("zone", [[], ["--zone", ZONE]], ids=["all-zones", "named-zone"])
def test_status_without_a_node_shows_its_request(tpuctl: Console, sandbox: Sandbox, zone: list[str]) -> None:
    queue(sandbox, "demo-q", node_id="demo")

    out, err, code = tpuctl("status", "demo", *zone)

    assert (out.splitlines()[0], err, code) == ("queued resource\tdemo-q", "", 0)
    (found,) = show(tpuctl, "status", "demo", *zone)
    assert (found["kind"], found["state"]) == ("queuedResource", "WAITING_FOR_RESOURCES")
    assert tpuctl("status", "demo", *zone, "-o", "name") == (f"{ZONE}/demo-q\n", "", 0)
    assert tpuctl("status", "demo", *zone, "-o", "tsv", "--no-header")[0].split("\t")[3] == "WAITING"
    assert tpuctl("status", "other", *zone)[2] == 3


def test_status_of_a_node_shows_the_request_that_owns_it(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox, "demo-q", "ACTIVE", node_id="demo")
    sandbox.add_node("demo", zone=ZONE, acceleratorType="v5litepod-16", queued_resource="demo-q")

    assert tpuctl("status", "demo")[0].splitlines()[-1] == "queued\tdemo-q ACTIVE"
    (found,) = show(tpuctl, "status", "demo")
    assert (found["kind"], found["billing"]["isBilled"]) == ("node", True)


def test_history_shows_the_states_of_the_request(tpuctl: Console, sandbox: Sandbox) -> None:
    up = ("up", "demo", "--type", "v5litepod-16", "--zone", ZONE, "--queue", "--for", "ready")
    assert tpuctl(*up)[2] == 0

    lines = [line.split("\t")[1] for line in tpuctl("history", "demo")[0].splitlines()]

    assert [line for line in lines if line.startswith("request ")] == [
        "request CREATING",
        "request ACCEPTED",
        "request WAITING_FOR_RESOURCES",
        "request PROVISIONING",
        "request ACTIVE",
    ]
    (found,) = show(tpuctl, "queue", "list")
    assert found["stateSinceFrom"] == "journal"


def test_list_names_the_limit_and_the_nodes_of_waiting_requests(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox, queueingPolicy={"validUntilDuration": "3600s"})
    several(sandbox)
    put(sandbox, "other")
    sandbox.advance(minutes=12)

    out = tpuctl("list", terminal=True, NO_COLOR="1")[0]

    *lines, total = out.splitlines()[1:]
    notes = {line.split()[0]: line.split("on-demand")[1].removeprefix("  ~$12.88").strip() for line in lines}
    assert total == "1 node, 4 chips, 2 requests waiting, ~$12.88/h"
    assert notes == {
        "other": "",
        "demo": "queued 12m, WAITING_FOR_RESOURCES, valid until 2026-01-01T01:00:00Z",
        "sweep": "queued 12m, WAITING_FOR_RESOURCES, 2 nodes: slice-0, slice-1",
    }


def test_retry_that_may_not_request_again_keeps_the_request(tpuctl: Console, sandbox: Sandbox) -> None:
    queue(sandbox, "demo", "FAILED", node_id="demo")

    _, err, code = tpuctl("queue", "retry", "demo", "--max-price", "1")

    assert (code, sandbox.changes()) == (9, [])
    assert "  TPU408 us-central1-a: a v5litepod-16 (on-demand) costs $19.20/h, more than the limit of $1/h\n" in err
    assert tpuctl("queue", "list", "-o", "name")[0].endswith("demo\n")
