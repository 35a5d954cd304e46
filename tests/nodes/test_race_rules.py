"""The rules of a race: one row for each, and for each boundary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.nodes.race_bench import SPEC, name_in
from tpuctl.errors import NoCapacityError, QuotaError, TpuctlError
from tpuctl.models.queued import QueuedResource
from tpuctl.nodes.race_rules import (
    ZoneRefusal,
    first_active,
    is_abandoned,
    is_alive,
    other_race_error,
    refused_error,
    timeout_error,
)

A, B, C = (name_in(zone) for zone in ("zone-a", "zone-b", "zone-c"))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WAITING, ACTIVE = "WAITING_FOR_RESOURCES", "ACTIVE"


def request(
    state: str, *, created: str = "2026-01-01T12:00:00Z", labels: dict[str, str] | None = None
) -> QueuedResource:
    return QueuedResource.from_api(
        {
            "name": "projects/p/locations/zone-a/queuedResources/t",
            "createTime": created,
            "state": {"state": state},
            "tpu": {"nodeSpec": [{"nodeId": "t", "node": {"labels": labels or {}}}]},
        }
    )


OLDER = "2026-01-01T11:59:59Z"


@pytest.mark.parametrize(
    ("states", "winner"),
    [
        pytest.param({A: request(WAITING), B: request("PROVISIONING")}, None, id="none is ACTIVE"),
        pytest.param({A: request(WAITING), B: request(ACTIVE)}, B, id="the first ACTIVE wins"),
        pytest.param({A: request(ACTIVE), B: request(ACTIVE, created=OLDER)}, B, id="of two the older wins"),
        pytest.param({A: request(ACTIVE), B: request(ACTIVE)}, A, id="of two of one age the preferred zone wins"),
        pytest.param({A: request("SUSPENDED", created=OLDER), B: request(ACTIVE)}, B, id="a dead one has lost"),
        pytest.param({}, None, id="without requests"),
    ],
)
def test_winner_is_the_oldest_active_request(states: dict[object, QueuedResource], winner: object) -> None:
    assert first_active(states) == winner  # type: ignore[arg-type]  # names of nodes


@pytest.mark.parametrize("state", ["CREATING", "ACCEPTED", WAITING, "PROVISIONING", ACTIVE])
def test_request_that_has_or_gets_a_node_is_alive(state: str) -> None:
    ours = request(state, labels={"tpuctl-request": "x"})

    assert (is_alive(ours), is_abandoned(ours)) == (True, False)


@pytest.mark.parametrize("state", ["SUSPENDING", "SUSPENDED", "FAILED", "DELETING", "STATE_UNSPECIFIED", "NEW_STATE"])
@pytest.mark.parametrize("labels", [{}, {"tpuctl-request": "x"}], ids=["of-another-client", "of-tpuctl"])
def test_only_the_record_of_a_request_of_tpuctl_is_replaced(state: str, labels: dict[str, str]) -> None:
    found = request(state, labels=labels)

    is_record = state == "DELETING" or (bool(labels) and state in {"FAILED", "SUSPENDED"})
    assert (is_alive(found), is_abandoned(found)) == (False, is_record)


@pytest.mark.parametrize(
    ("labels", "winner", "hint"),
    [
        pytest.param({}, None, "name its zone to keep one, or cancel all with `tpuctl down t`", id="all-wait"),
        pytest.param(
            {},
            B,
            "keep the one in zone-b with `tpuctl queue cancel zone-a/t`, or cancel all with `tpuctl down t`",
            id="won",
        ),
        pytest.param(
            {"tpuctl-owner": "mallory"},
            B,
            "choose another name; `tpuctl queue list` shows all requests",
            id="colleague",
        ),
    ],
)
def test_other_race_is_named_with_what_ends_it(labels: dict[str, str], winner: object, hint: str) -> None:
    others = {A: request(WAITING, labels=labels), B: request(ACTIVE if winner else WAITING, labels=labels)}

    error = other_race_error("t", others, winner, owner="")  # type: ignore[arg-type]  # the name of a node

    assert (error.hint, "is requested by another race already, in zone-a (WAITING_FOR_RESOURCES" in error.message) == (
        hint,
        True,
    )


def refused(error: TpuctlError, minute: int) -> ZoneRefusal:
    return ZoneRefusal(error, NOON + timedelta(minutes=minute))


def test_end_without_a_node_names_the_answer_of_each_zone() -> None:
    refusals = {B: refused(NoCapacityError("full"), 1), A: refused(QuotaError("no quota", hint="ask for more"), 2)}
    answers = ("  zone-a at 2026-01-01T12:02:00Z: no quota", "  zone-b at 2026-01-01T12:01:00Z: full")

    error = refused_error((A, B), refusals)
    assert (type(error), error.lines) == (NoCapacityError, ("no zone is left in the race for `t`:", *answers))

    late = timeout_error((A, B, C), SPEC, refusals, {C})
    assert late.lines == (
        "none of 3 zones had a TPU for `t` in time; every request is cancelled",
        *answers,
        "  zone-c does not answer",
    )
    assert timeout_error((C,), SPEC, {}, ()).message == "there was no TPU for `t` in time; every request is cancelled"
