"""`tpuctl up` with failing API calls: a failed call is never evidence about a node."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, EventfulClock, both_faces, put, said, told

CREATE = ["creating v4-8 (tpu-ubuntu2204-base, about $12.88/h)", "CREATING"]


def timeless(err: str) -> list[str]:
    """Return the lines without durations: the pauses of the client are random."""
    return [re.sub(r"(?<= for )\d+[hms0-9]*", "…", line) for line in told(err)]


@both_faces
@pytest.mark.parametrize(
    ("call", "found", "changes"),
    [
        ("create", {}, ["create"]),
        ("delete", {"state": "PREEMPTED"}, ["delete", "create"]),
        ("start", {"state": "STOPPED"}, ["start"]),
        ("stop", {"health": "UNHEALTHY_TENSORFLOW"}, ["stop", "start"]),
    ],
)
def test_lost_answer_has_no_effect_on_the_result(
    tpuctl: Console, sandbox: Sandbox, call: str, found: dict[str, str], changes: list[str]
) -> None:
    for lost in ("drop-before", "drop-after"):
        before = sandbox.changes()
        if found:
            put(sandbox, lost, **found)
        sandbox.fault(lost, method=f"*.nodes.{call}")

        out, _, code = tpuctl("up", lost, "--type", "v4-8", "--zone", ZONE, "--yes")

        assert (out, code, sandbox.changes()) == (f"{lost}\tREADY\n", 0, before + changes)


@both_faces
@pytest.mark.parametrize("status", [429, 503])
def test_api_outage_is_awaited(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, status: int) -> None:
    def fail() -> None:
        sandbox.fault("http-error", method="*.nodes.get", status=status, count=12)

    fail()
    clock.after(timedelta(minutes=2), fail)

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])
    silent = ["API not answering for …", "the API answers again"]
    assert timeless(err)[:-2] == [*silent, *CREATE, *silent]


def test_api_that_never_answers_is_awaited_until_the_deadline(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    clock.after(timedelta(minutes=1), lambda: sandbox.fault("http-error", method="*.nodes.get", count=0))

    _, err, code = tpuctl(*UP, "--timeout", "5m")

    assert (code, sandbox.changes()) == (5, ["create"])
    assert timeless(err) == [
        *CREATE,
        *["API not answering for …"] * 4,  # once a minute
        (
            "error: the API has not answered for … (UNAVAILABLE: The service is currently unavailable.); "
            "it is unknown whether `demo` is usable by ssh; its last known state is CREATING"
        ),
        "  hint: no change was undone; check it with `tpuctl status demo --zone us-central2-b`",
    ]


@both_faces
@pytest.mark.parametrize("status", [401, 403])
def test_permission_error_ends_the_wait_at_once(tpuctl: Console, sandbox: Sandbox, status: int) -> None:
    put(sandbox, state="STARTING")
    sandbox.fault("http-error", method="*.nodes.get", status=status, count=0)

    out, err, code = tpuctl("wait", "demo", "--zone", ZONE)

    assert (out, code) == ("", 4)
    assert err.startswith("error: ")


@both_faces
def test_unreachable_zone_is_not_an_empty_one(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("unreachable", zone=ZONE, count=0)

    assert tpuctl("up", "demo") == (
        "",
        said(
            "error: `demo` was not found, but us-central2-b did not answer and may have it",
            "  hint: try again later, or name the zone with `--zone`",
        ),
        1,
    )
    _, err, code = tpuctl(*UP, "--timeout", "2m")
    assert (timeless(err), code) == (
        [
            *["API not answering for …"] * 2,
            (
                "error: the API has not answered for … (UNAVAILABLE: The location us-central2-b is unreachable.); "
                "it is unknown whether `demo` is usable by ssh; its state is unknown"
            ),
            "  hint: no change was undone; check it with `tpuctl status demo --zone us-central2-b`",
        ],
        5,
    )
    at_once = said(
        "error: UNAVAILABLE: The location us-central2-b is unreachable.",
        "  hint: the service has an internal error; try again in a few minutes",
    )
    assert [tpuctl(*UP, flag) for flag in ("--no-wait", "--dry-run")] == [("", at_once, 1)] * 2
    assert sandbox.changes() == []


def test_refused_connection_fails_at_once(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl(*UP, TPUCTL_SANDBOX="", TPUCTL_ENDPOINT="http://127.0.0.1:1", TPUCTL_PROJECT="p") == (
        "",
        said(
            "error: 127.0.0.1 cannot be reached: Connection refused",
            "  hint: no server listens at `http://127.0.0.1:1`, the endpoint set by TPUCTL_ENDPOINT",
            "  hint: check the network, the proxy and the endpoint",
        ),
        1,
    )
