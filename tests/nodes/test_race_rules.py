"""The rules of a race: one row for each, and for each boundary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nodes.race_bench import name_in
from tpuctl.errors import NoCapacityError, QuotaError, ServiceUnavailableError, TimedOutError, TpuctlError
from tpuctl.models.node import QueuedState
from tpuctl.models.queued import QueuedResource
from tpuctl.nodes.queueing import CLEAN_UP_TIME
from tpuctl.nodes.race import (
    CancelRequest,
    ChooseWinner,
    EndRace,
    EnterZone,
    ObservedRace,
    RaceEntry,
    ZoneRefusal,
    decide_race,
)
from tpuctl.nodes.request_steps import LINGER_TIME

A, B, C = (name_in(zone) for zone in ("zone-a", "zone-b", "zone-c"))
SECOND = timedelta(seconds=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def request(name: Any, state: str) -> QueuedResource:
    full = f"projects/p/locations/{name.zone}/queuedResources/t"
    return QueuedResource.from_api({"name": full, "state": {"state": state}, "tpu": {"nodeSpec": [{"nodeId": "t"}]}})


def entry(name: Any, state: str | None = None, **facts: Any) -> RaceEntry:
    return RaceEntry(name=name, request=request(name, state) if state else None, **facts)


def refused(error: TpuctlError, minute: int = 0) -> ZoneRefusal:
    return ZoneRefusal(error, NOON + timedelta(minutes=minute))


def cancelled(name: Any, reason: str, *, force: bool = True) -> CancelRequest:
    return CancelRequest(name, reason, force=force)


QUOTA, FULL = refused(QuotaError("no quota")), refused(NoCapacityError("full"), 1)
WAITING, ACTIVE = "WAITING_FOR_RESOURCES", "ACTIVE"
WINNER = entry(A, ACTIVE, is_winner=True)
LOST, OVER, LEFT = "zone-a won the race", "the race is over", "it is not needed any more"


@pytest.mark.parametrize(
    ("entries", "facts", "expected"),
    [
        pytest.param((entry(A), entry(B)), {}, (EnterZone(A), EnterZone(B)), id="each zone asks"),
        pytest.param((entry(A, WAITING), entry(B)), {}, (EnterZone(B),), id="no second request in a zone"),
        pytest.param((entry(A, is_pending=True),), {}, (), id="a request that does not show yet is not repeated"),
        pytest.param((entry(A, is_silent=True),), {}, (), id="nothing is sent to a zone that does not answer"),
        pytest.param(
            (entry(A), entry(B, is_silent=True, may_have_node=True)), {}, (), id="nothing while a node may be elsewhere"
        ),
        pytest.param((entry(A, may_have_node=True),), {}, (EnterZone(A),), id="a zone that answers has no node"),
        pytest.param(
            (WINNER, entry(B, is_silent=True, may_have_node=True)), {}, (), id="not won while a node may be elsewhere"
        ),
        pytest.param((entry(A), entry(B, is_wanted=False)), {}, (EnterZone(A),), id="only wanted zones ask"),
        pytest.param((entry(A, refusal=QUOTA), entry(B)), {}, (EnterZone(B),), id="a zone that refused does not ask"),
        *(
            pytest.param((entry(A, state), entry(B, state)), {}, (), id=f"{state} is waited for")
            for state in (
                *("CREATING", "ACCEPTED", WAITING, "PROVISIONING", "SUSPENDING", "DELETING"),
                *("STATE_UNSPECIFIED", "NEW_STATE"),
            )
        ),
        *(
            pytest.param(
                (entry(A, state), entry(B, WAITING)),
                {},
                (cancelled(A, "it cannot win", force=False),),
                id=f"{state} goes",
            )
            for state in ("FAILED", "SUSPENDED")
        ),
        pytest.param(
            (entry(A, WAITING), entry(B, WAITING, is_wanted=False)),
            {},
            (cancelled(B, "it cannot win"),),
            id="a request in a zone that is not wanted any more goes",
        ),
        pytest.param(
            (entry(A, WAITING), entry(B, ACTIVE, is_leaving=True)),
            {},
            (cancelled(B, "it cannot win"),),
            id="a cancelled request that becomes ACTIVE does not win",
        ),
        pytest.param((entry(A, WAITING), entry(B, ACTIVE)), {}, (ChooseWinner(B),), id="the first ACTIVE wins"),
        pytest.param((entry(A, ACTIVE), entry(B, ACTIVE)), {}, (ChooseWinner(A),), id="of two the preferred zone wins"),
        pytest.param(
            (entry(A, ACTIVE, is_silent=True), entry(B, ACTIVE)),
            {},
            (ChooseWinner(B),),
            id="a silent zone does not win",
        ),
        pytest.param(
            (entry(A, ACTIVE), entry(B, ACTIVE, is_winner=True)),
            {},
            (cancelled(A, "zone-b won the race"),),
            id="the recorded winner stays the winner",
        ),
        pytest.param(
            (entry(A, "SUSPENDED", is_winner=True), entry(B, ACTIVE)),
            {},
            (ChooseWinner(B),),
            id="a dead winner has lost",
        ),
        pytest.param(
            (entry(A, "DELETING", is_winner=True), entry(B, WAITING)), {}, (), id="without its winner the race goes on"
        ),
        pytest.param(
            (entry(A, "PROVISIONING", is_winner=True), entry(B, WAITING)),
            {},
            (cancelled(B, LOST),),
            id="a recorded winner that is alive stays the winner",
        ),
        *(
            pytest.param((WINNER, entry(B, state)), {}, (cancelled(B, LOST),), id=f"a loser in {state} goes with force")
            for state in ("CREATING", "ACCEPTED", WAITING, "PROVISIONING", ACTIVE)
        ),
        *(
            pytest.param(
                (WINNER, entry(B, state)), {}, (cancelled(B, LOST, force=False),), id=f"a loser in {state} goes without"
            )
            for state in ("FAILED", "SUSPENDED")
        ),
        *(
            pytest.param((WINNER, entry(B, state)), {}, (), id=f"a loser in {state} is waited for")
            for state in ("SUSPENDING", "DELETING", "STATE_UNSPECIFIED", "NEW_STATE")
        ),
        pytest.param(
            (WINNER, entry(B, WAITING, since_cancel=LINGER_TIME - SECOND)), {}, (), id="a cancel needs some time"
        ),
        pytest.param(
            (WINNER, entry(B, WAITING, since_cancel=LINGER_TIME)), {}, (cancelled(B, LOST),), id="what stays goes again"
        ),
        pytest.param((WINNER, entry(B), entry(C, refusal=FULL)), {}, (EndRace(A),), id="won when no other is left"),
        pytest.param((WINNER, entry(B, is_pending=True)), {}, (), id="not won while a request may still show"),
        pytest.param((WINNER, entry(B, WAITING, is_silent=True)), {}, (), id="not won while a loser does not answer"),
        pytest.param(
            (WINNER, entry(B, is_silent=True, was_sent=True)), {}, (), id="not won while a silent zone may have one"
        ),
        pytest.param(
            (WINNER, entry(B, is_silent=True)), {}, (EndRace(A),), id="won where a silent zone was never asked"
        ),
        pytest.param((entry(A, refusal=FULL), entry(B, refusal=QUOTA)), {}, (EndRace(),), id="lost when all refused"),
        pytest.param(
            (entry(A, "FAILED", refusal=FULL),), {}, (cancelled(A, OVER, force=False),), id="lost, and its record goes"
        ),
        pytest.param((entry(A, WAITING),), {"left": SECOND}, (), id="waits until the deadline"),
        pytest.param((entry(A, WAITING), entry(B)), {"left": 0 * SECOND}, (cancelled(A, OVER),), id="cancels all then"),
        pytest.param((entry(A, ACTIVE),), {"left": -SECOND}, (ChooseWinner(A),), id="wins at the deadline"),
        pytest.param((entry(A), entry(B)), {"left": 0 * SECOND}, (EndRace(),), id="ends at the deadline"),
        pytest.param((entry(A, "DELETING"),), {"left": SECOND - CLEAN_UP_TIME}, (), id="has time to clean up"),
        pytest.param((entry(A, "DELETING"),), {"left": -CLEAN_UP_TIME}, (EndRace(),), id="gives up after that"),
        pytest.param(
            (WINNER, entry(B, "DELETING")), {"left": -CLEAN_UP_TIME}, (EndRace(A),), id="gives up with a winner, too"
        ),
        pytest.param(
            (entry(A, ACTIVE), entry(B, WAITING)),
            {"is_ending": True},
            (cancelled(A, LEFT), cancelled(B, LEFT)),
            id="down cancels all",
        ),
        pytest.param(
            (WINNER, entry(B, WAITING)), {"is_ending": True}, (cancelled(B, LEFT),), id="down keeps what is to be kept"
        ),
        pytest.param((entry(A), entry(B)), {"is_ending": True}, (EndRace(),), id="down requests nothing"),
        pytest.param((entry(A, "SUSPENDING"),), {"is_ending": True}, (), id="down waits for SUSPENDING"),
    ],
)
def test_race_rule(entries: tuple[RaceEntry, ...], facts: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert decide_race(ObservedRace(entries=entries, **facts)) == expected


@pytest.mark.parametrize(
    ("entries", "left", "error"),
    [
        pytest.param(
            (entry(A, refusal=FULL), entry(B, refusal=QUOTA)),
            None,
            (QuotaError, "no zone is left in the race for `t`:", "  zone-a at 2026-01-01T12:01:00Z: full"),
            id="of all refusals the first counts",
        ),
        pytest.param(
            (entry(A, refusal=FULL), entry(B)),
            timedelta(),
            (
                TimedOutError,
                "none of 2 zones had a TPU for `t` in time; every request is cancelled",
                "  zone-a at 2026-01-01T12:01:00Z: full",
            ),
            id="the deadline names what refused before",
        ),
        pytest.param(
            (WINNER, entry(B, is_silent=True, was_sent=True), entry(C, "SUSPENDING")),
            -CLEAN_UP_TIME,
            (
                ServiceUnavailableError,
                "2 of the requests for `t` may still get a TPU that bills:",
                "  zone-b does not answer",
            ),
            id="what is left is named",
        ),
    ],
)
def test_end_of_race_without_success_explains_itself(
    entries: tuple[RaceEntry, ...], left: timedelta | None, error: tuple[type[TpuctlError], str, str]
) -> None:
    (end,) = decide_race(ObservedRace(entries=entries, left=left))

    assert isinstance(end, EndRace)
    assert end.error is not None
    assert (type(end.error), *end.error.lines[:2]) == error
    assert end.error.hint or error[0] is QuotaError


def entries_of(name: Any, *, is_wanted: st.SearchStrategy[bool]) -> st.SearchStrategy[RaceEntry]:
    return st.builds(
        entry,
        st.just(name),
        st.sampled_from([None, *map(str, QueuedState), "NEW_STATE"]),
        is_silent=st.booleans(),
        was_sent=st.booleans(),
        may_have_node=st.booleans(),
        is_pending=st.booleans(),
        is_wanted=is_wanted,
        is_leaving=st.booleans(),
        since_cancel=st.sampled_from([None, timedelta(), LINGER_TIME]),
        refusal=st.sampled_from([None, QUOTA, FULL]),
        is_winner=st.booleans(),
    )


RACES = st.builds(
    ObservedRace,
    entries=st.tuples(
        entries_of(A, is_wanted=st.just(value=True)),
        entries_of(B, is_wanted=st.booleans()),
        entries_of(C, is_wanted=st.booleans()),
    ),
    left=st.sampled_from([None, SECOND, timedelta(), -CLEAN_UP_TIME]),
    is_ending=st.booleans(),
)
DELETABLE = {
    *(QueuedState.CREATING, QueuedState.ACCEPTED, QueuedState.WAITING_FOR_RESOURCES, QueuedState.PROVISIONING),
    QueuedState.ACTIVE,
}


@settings(max_examples=200, deadline=None)
@given(RACES)
def test_race_never_deletes_or_ends_what_it_must_not(race: ObservedRace) -> None:
    """Whatever was observed: force only where it is allowed, one change for a zone, and no end that leaves a TPU behind."""
    actions = decide_race(race)

    by_name = {one.name: one for one in race.entries}
    changed = [action.name for action in actions if not isinstance(action, EndRace)]
    assert len(changed) == len(set(changed))
    for action in actions:
        match action:
            case CancelRequest(name, _, force):
                found = by_name[name].request
                assert found is not None
                assert not by_name[name].is_silent
                assert found.state in (DELETABLE if force else {QueuedState.FAILED, QueuedState.SUSPENDED})
            case EnterZone(name):
                assert by_name[name].request is None
                assert by_name[name].is_wanted
                assert not race.is_ending
                assert race.left is None or race.left > timedelta()
            case ChooseWinner(name):
                found = by_name[name].request
                assert actions == (action,)
                assert found is not None
                assert found.state is QueuedState.ACTIVE
            case EndRace(winner, error):
                assert actions == (action,)
                rest = [one for one in race.entries if not one.is_settled and one.name != winner]
                # What the journal has as the winner is alive, and two winners are not recorded in a race.
                rest = [one for one in rest if not one.is_winner]
                assert not rest or isinstance(error, ServiceUnavailableError)
