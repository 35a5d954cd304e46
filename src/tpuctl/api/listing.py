"""Lists that are complete, or say what is missing: all pages, all zones, and the zones that could not be asked."""

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
# A page has hundreds of items: no project has as many.
MOST_PAGES = 1000
# How a service says that it does not take `-` for a zone; it is then asked zone by zone.
_NO_WILDCARD = frozenset({400, 403, 404, 501})
# What `diagnosis` calls refusals that are about the project or the caller: each zone would answer the same.
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
# A zone that this project is not offered [observed: Google's own zone listings in `gcloud compute tpus`].
_NOT_OFFERED = "LOCATION_POLICY_VIOLATED"

_Failure = TransportError | RefusedError | TpuctlError


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """What was listed, and the ids of zones that could not be asked: those are not empty, they are unknown."""

    items: tuple[T, ...]
    unreachable: tuple[str, ...] = ()


def all_pages(
    caller: Caller,
    build: Callable[[str | None], Any],
    shape: Page,
    read: Callable[[Mapping[str, Any]], T],
) -> Listing[T]:
    """Return the items of all pages.

    Raises the failures of `api/`; a page token that comes again is one of them. All pages together have the time of one call.
    """
    with limit_calls(SystemClock(), caller.policy.deadline):
        return _all_pages(caller, build, shape, read)


def _all_pages(
    caller: Caller,
    build: Callable[[str | None], Any],
    shape: Page,
    read: Callable[[Mapping[str, Any]], T],
) -> Listing[T]:
    items: list[T] = []
    unreachable: dict[str, None] = {}
    seen: set[str] = set()
    token: str | None = None

    def read_page(data: Mapping[str, Any]) -> tuple[list[T], list[str], str | None]:
        shape.check(data)
        missing = data.get("unreachable") or data.get("unreachables") or ()
        return shape.items(data, read), [short(zone) for zone in missing], data.get("nextPageToken") or None

    while True:
        page, zones, token = caller.attempt(build(token), read_page)
        items += page
        unreachable |= dict.fromkeys(zones)
        if token is None:
            return Listing(tuple(items), tuple(unreachable))
        if token in seen:
            raise GarbledAnswerError("the service repeats a page of its list, so that the list has no end")
        seen.add(token)
        if len(seen) >= MOST_PAGES:
            raise GarbledAnswerError(f"the service's list has more than {MOST_PAGES} pages")


def list_everywhere(
    caller: Caller,
    one_zone: Callable[[str], Listing[T]],
    *,
    zones: Sequence[str],
    locations: Callable[[], Sequence[str]],
) -> Listing[T]:
    """Return what is in the zones, or in all of them where none are named. Raises tpuctl's exceptions.

    One call with `-` asks all zones where the service takes it; else each of `locations` is asked, unless the refusal is
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
    """Return what is in the zones, asked side by side, in their order.

    A zone that is not offered to the project is left out, unless the user has named it (`are_named`): there it is
    unreachable, as one that fails otherwise. Where no zone answers, the failure is raised: that is no empty list. All zones
    together have the time of one call.
    """
    with limit_calls(SystemClock(), caller.policy.deadline):
        answers = _ask(caller, one_zone, list(dict.fromkeys(zones)))
    listed = {zone: answer for zone, answer in answers.items() if isinstance(answer, Listing)}
    failed = {zone: answer for zone, answer in answers.items() if not isinstance(answer, Listing)}
    missing = {zone: failure for zone, failure in failed.items() if are_named or not _is_not_offered(failure)}
    if failed and not listed:
        failure = next(iter(missing.values()), None) or next(iter(failed.values()))
        if isinstance(failure, TpuctlError):
            raise failure
        raise translate(failure) from failure
    items = [item for zone in answers if zone in listed for item in listed[zone].items]
    unreachable = [zone for listing in listed.values() for zone in listing.unreachable]
    return Listing(tuple(items), tuple(dict.fromkeys([*unreachable, *missing])))


def _ask(caller: Caller, one_zone: Callable[[str], Listing[T]], zones: list[str]) -> dict[str, Listing[T] | _Failure]:
    if len(zones) == 1:
        # In this thread, whose connection is open: lists of one zone are what a wait repeats.
        try:
            return {zones[0]: one_zone(zones[0])}
        except (TransportError, RefusedError, TpuctlError) as failure:
            return {zones[0]: failure}

    def close() -> None:
        if close := getattr(caller.http_factory(), "close", None):
            close()

    return {zone: _checked(answer) for zone, answer in side_by_side(one_zone, zones, at_the_end=close).items()}


def side_by_side(
    ask: Callable[[str], T], zones: Sequence[str], *, at_the_end: Callable[[], None] = lambda: None
) -> dict[str, T | BaseException]:
    """Return what `ask` returns for each zone, or what it raises; `at_the_end` is called in each thread.

    The limits of calls in this thread are in force in those, too.
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
            except BaseException as failure:  # noqa: BLE001  # handed to the thread that asked, which raises what is a bug
                answers[zone] = failure
        at_the_end()

    # Not a pool: its threads would keep an interrupted process alive until the last of them has its answer.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_THREADS, len(zones)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {zone: answers[zone] for zone in zones}


def _checked(answer: Listing[T] | _Failure | BaseException) -> Listing[T] | _Failure:
    if isinstance(answer, Listing | TransportError | RefusedError | TpuctlError):
        return answer
    raise answer


def _is_not_offered(failure: _Failure) -> bool:
    if not isinstance(failure, RefusedError):
        return False
    refusal = failure.refusal
    return refusal.is_not_found or (refusal.code == 403 and refusal.reason == _NOT_OFFERED)
