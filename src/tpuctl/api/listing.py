"""List all pages of all zones, and report the zones that did not answer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tpuctl.api.errors import translate
from tpuctl.api.failures import GarbledAnswerError, RefusedError, TransportError
from tpuctl.clock import SystemClock, limit_calls, with_limits
from tpuctl.errors import TpuctlError
from tpuctl.names import short
from tpuctl.shapes import Page

if TYPE_CHECKING:
    from tpuctl.api.calls import Caller

T = TypeVar("T")

_THREADS = 8
# A page has hundreds of items, so that no project needs more pages.
MOST_PAGES = 1000
# Answers of a service that does not accept `-` as a zone. Each zone is listed then.
_NO_WILDCARD = frozenset({400, 403, 404, 501})
# The ids that `diagnosis` gives to refusals of the project or the caller: each zone would answer the same.
_SAME_EVERYWHERE = frozenset(
    {
        *(
            "api-disabled",
            "auth-insufficient-scopes",
            "auth-no-quota-project",
            "billing-disabled",
            "billing-free-trial",
        ),
        *("iam-impersonation", "iam-permission-denied", "iam-project-not-found", "project-suspended"),
    }
)
# The reason for a zone that is closed to the project [observed: Google's own zone listings in `gcloud compute tpus`].
_NOT_OFFERED = "LOCATION_POLICY_VIOLATED"

_Failure = TransportError | RefusedError | TpuctlError


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The listed items, and the ids of zones that did not answer. Those zones are not empty, but unknown."""

    items: tuple[T, ...]
    unreachable: tuple[str, ...] = ()


def all_pages(
    caller: Caller,
    build: Callable[[str | None], Any],
    shape: Page,
    read: Callable[[Mapping[str, Any]], T],
) -> Listing[T]:
    """Return the items of all pages, within the time limit of one call.

    Raises `TransportError` and `RefusedError`, also for a page token that is repeated.
    """
    items: list[T] = []
    unreachable: dict[str, None] = {}
    tokens: set[str] = set()
    token: str | None = None

    def read_page(data: Mapping[str, Any]) -> tuple[list[T], list[str], str | None]:
        shape.check(data)
        missing = data.get("unreachable") or data.get("unreachables") or ()
        return shape.items(data, read), [short(zone) for zone in missing], data.get("nextPageToken") or None

    with limit_calls(SystemClock(), caller.policy.deadline):
        while True:
            page, zones, token = caller.attempt(build(token), read_page)
            items += page
            unreachable |= dict.fromkeys(zones)
            if token is None:
                return Listing(tuple(items), tuple(unreachable))
            if token in tokens:
                raise GarbledAnswerError("the service repeats a page of the list, so that the list never ends")
            tokens.add(token)
            if len(tokens) >= MOST_PAGES:
                raise GarbledAnswerError(f"the list of the service has more than {MOST_PAGES} pages")


def list_everywhere(
    caller: Caller,
    one_zone: Callable[[str], Listing[T]],
    *,
    zones: Sequence[str],
    locations: Callable[[], Sequence[str]],
) -> Listing[T]:
    """List the zones, or all zones if none are named. Raises tpuctl's exceptions.

    One call with `-` lists all zones. If the service refuses `-`, each of `locations` is listed, unless the refusal is
    about the project or the caller.
    """
    if zones:
        return fan_out(caller, one_zone, zones, are_named=True)
    try:
        return one_zone("-")
    except TransportError as failure:
        raise translate(failure) from failure
    except RefusedError as failure:
        error = translate(failure)
        if failure.refusal.code not in _NO_WILDCARD or error.error_id in _SAME_EVERYWHERE:
            raise error from failure
    return fan_out(caller, one_zone, locations())


def fan_out(
    caller: Caller, one_zone: Callable[[str], Listing[T]], zones: Sequence[str], *, are_named: bool = False
) -> Listing[T]:
    """List zones in parallel, within the time limit of one call. Return the items in the order of the zones.

    A zone that is closed to the project is left out, unless the user named it (`are_named`): then it is unreachable, like
    a zone that fails. If no zone answers, the first failure is raised.
    """
    with limit_calls(SystemClock(), caller.policy.deadline):
        answers = _ask(caller, one_zone, list(dict.fromkeys(zones)))
    listed = {zone: answer for zone, answer in answers.items() if isinstance(answer, Listing)}
    failed = {zone: answer for zone, answer in answers.items() if not isinstance(answer, Listing)}
    missing: dict[str, _Failure] = {}
    for zone, failure in failed.items():
        refusal = failure.refusal if isinstance(failure, RefusedError) else None
        is_closed = refusal is not None and (
            refusal.is_not_found or (refusal.code == 403 and refusal.reason == _NOT_OFFERED)
        )
        if are_named or not is_closed:
            missing[zone] = failure
    if failed and not listed:
        first = next(iter(missing.values()), None) or next(iter(failed.values()))
        if isinstance(first, TpuctlError):
            raise first
        raise translate(first) from first
    items = [item for zone in answers if zone in listed for item in listed[zone].items]
    unreachable = [zone for listing in listed.values() for zone in listing.unreachable]
    return Listing(tuple(items), tuple(dict.fromkeys([*unreachable, *missing])))


def _ask(caller: Caller, one_zone: Callable[[str], Listing[T]], zones: list[str]) -> dict[str, Listing[T] | _Failure]:
    if len(zones) == 1:
        # In this thread, whose connection is open: a wait repeats the list of one zone.
        try:
            return {zones[0]: one_zone(zones[0])}
        except (TransportError, RefusedError, TpuctlError) as failure:
            return {zones[0]: failure}

    def close() -> None:
        if close := getattr(caller.http_factory(), "close", None):
            close()

    answers: dict[str, Listing[T] | _Failure] = {}
    for zone, answer in side_by_side(one_zone, zones, at_the_end=close).items():
        if not isinstance(answer, Listing | TransportError | RefusedError | TpuctlError):
            raise answer
        answers[zone] = answer
    return answers


def side_by_side(
    ask: Callable[[str], T], zones: Sequence[str], *, at_the_end: Callable[[], None] = lambda: None
) -> dict[str, T | BaseException]:
    """Call `ask` for each zone in parallel. Return the results or exceptions; `at_the_end` is called in each thread.

    The time limits of this thread apply in the others too.
    """
    answers: dict[str, T | BaseException] = {}
    waiting = deque(zones)

    @with_limits
    def work() -> None:
        while waiting:
            try:
                zone = waiting.popleft()
            except IndexError:
                break
            try:
                answers[zone] = ask(zone)
            except BaseException as failure:  # noqa: BLE001  # returned to the calling thread, which raises bugs
                answers[zone] = failure
        at_the_end()

    # Not a pool: its threads would keep an interrupted process alive until the last answer.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_THREADS, len(zones)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {zone: answers[zone] for zone in zones}
