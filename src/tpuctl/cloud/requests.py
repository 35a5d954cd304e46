"""One call of an API: build the request, send it, retry it, parse the answer; and the lists of many pages and zones.

`ApiClient` is the base class of all clients, `ApiCaller` sends. A request that changes nothing may always be sent again. A
change is sent again only if it is certain that it was not carried out (`decide_retry`, pure); otherwise `send_and_confirm`
reads its effect first. Each call has a time limit: see the package's docstring.

Google's library builds requests that change something. Its `execute` method of the library is not used: it logs refusals to
stderr, and raises `TypeError` for a 403 whose body is a JSON list. Its batch interface is never used: it ignores the endpoint
and calls the real service.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, assert_never
from urllib.parse import quote, urlencode

from tpuctl.clock import (
    CLOUD_CALL_TIMEOUT,
    DEADLINE_GRACE,
    SystemClock,
    deadline_has_passed,
    limit_cloud_calls,
    time_for_cloud_call,
    time_until_deadline,
    with_current_deadlines,
)
from tpuctl.cloud.endpoint import ApiEndpoint
from tpuctl.cloud.errors import (
    AnswerLostError,
    ApiRefusedError,
    GarbledAnswerError,
    NotSentError,
    TransportError,
    UntrustedServerError,
    credential_error,
    excerpt,
    parse_refusal,
    translate,
    translate_errors,
)
from tpuctl.durations import parse_http_date
from tpuctl.errors import NotFoundError, OutcomeUnknownError, TimedOutError, TpuctlError
from tpuctl.models.operation import Operation
from tpuctl.names import last_segment
from tpuctl.shapes import Page, ShapeError, parse_json

if TYPE_CHECKING:
    from tpuctl.clock import Clock

T = TypeVar("T")
Json = Mapping[str, Any]
Query = Mapping[str, str | int | Sequence[str] | None]

PAYER = "x-goog-user-project"
_ACCEPT = {"accept": "application/json"}
# Characters that are not quoted in a query [RFC 3986]; `fields` needs them.
_QUERY_SAFE = "/:,()"
UNEXPECTED = "unexpected response from the service"


@dataclass(frozen=True, slots=True)
class RequestPreview:
    """A request that is shown and not sent. `body` is None if the method has none."""

    method: str
    url: str
    body: Json | None


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A request built without the library, which takes 90 ms to import and up to 40 ms to load each API."""

    uri: str
    method: str = "GET"
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: dict(_ACCEPT))

    @classmethod
    def of(cls, url: str, *, method: str = "GET", query: Query | None = None, body: Json | None = None) -> Self:
        """Build a request. A parameter that is None is left out; one with several values is repeated."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        uri = f"{url}?{urlencode(given, doseq=True, safe=_QUERY_SAFE, quote_via=quote)}" if given else url
        if body is None:
            return cls(uri, method)
        return cls(uri, method, json.dumps(body), {**_ACCEPT, "content-type": "application/json"})

    def paid_by(self, project: str | None) -> Self:
        """Return the request billed to a project, if one is given [documentation: x-goog-user-project]."""
        return replace(self, headers={**self.headers, PAYER: project}) if project else self


@dataclass(frozen=True, slots=True)
class GoogleApi:
    """A Google API by the name of its discovery document. `path` is its base path at a custom endpoint."""

    name: str
    version: str
    path: str = ""


TPU = GoogleApi("tpu", "v2")


class ApiCaller:
    """Sends calls from any thread. `server_time` is the time of the last answer by the service's clock."""

    def __init__(
        self,
        http_factory: Callable[[], Any],
        clock: Clock,
        *,
        endpoint: str | None = None,
        random: Random | None = None,
        policy: RetryPolicy | None = None,
        api: GoogleApi = TPU,
    ) -> None:
        self.http_factory = http_factory
        self.clock = clock
        self.random = random or Random()  # noqa: S311  # jitter, not a secret
        self.policy = policy or RetryPolicy()
        self.server_time: datetime | None = None
        # By project. Created here, because threads that list at the same time must share it.
        self.zones = TTLCache[tuple[str, ...]](clock)
        self._api = api
        self._endpoint = ApiEndpoint.parse(endpoint).url(api.path) if endpoint else None
        self._service: Any = None
        self._lock = threading.Lock()

    def service(self) -> Any:  # googleapiclient creates its classes at run time
        """Return the library's object of the API, which builds requests."""
        from googleapiclient.discovery import build  # noqa: PLC0415  # 190 ms, not needed for help

        with self._lock:
            if self._service is None:
                # With our http object, the library does not look for credentials.
                self._service = build(
                    self._api.name,
                    self._api.version,
                    http=self.http_factory(),
                    static_discovery=True,
                    cache_discovery=False,
                    client_options={"api_endpoint": self._endpoint} if self._endpoint else None,
                )
            return self._service

    def locations(self) -> Any:  # googleapiclient creates its classes at run time
        """Return the library's `projects.locations`."""
        return self.service().projects().locations()

    def call(self, request: Any, read: Callable[[Json], T], *, is_safe: bool = True) -> T:
        """Send a request, with retries, and return the answer parsed by `read`. Raises tpuctl's exceptions."""
        with translate_errors():
            return self.attempt(request, read, is_safe=is_safe)

    def attempt(self, request: Any, read: Callable[[Json], T], *, is_safe: bool = True) -> T:
        """Do the same as `call`, but raise `TransportError` and `ApiRefusedError`, which say what is certain."""
        return self.exchange(request, lambda _, content: read_json(content, read), is_safe=is_safe)

    def exchange(self, request: Any, read: Callable[[Mapping[str, str], bytes], T], *, is_safe: bool = True) -> T:
        """Do the same as `attempt` for an answer that is not JSON; `read` gets its lower-case headers and its bytes."""
        return retrying(
            lambda left: self._send(request, read, left),
            is_safe=is_safe,
            policy=self.policy,
            clock=self.clock,
            random=self.random,
        )

    def _send(self, request: Any, read: Callable[[Mapping[str, str], bytes], T], left: timedelta) -> T:
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415  # loaded with the library that is in use here
        from httplib2 import HttpLib2Error  # noqa: PLC0415  # loaded with the library that is in use here

        sender = self.http_factory()
        # In real seconds, which equal those of our clock if there is a socket: only the embedded sandbox has another clock.
        sender.timeout = left.total_seconds()
        try:
            response, content = sender.request(
                request.uri, method=request.method, body=request.body, headers=dict(request.headers)
            )
        except TransportError:
            raise
        except GoogleAuthError as error:
            raise credential_error(error) from error
        except ConnectionRefusedError as error:
            raise NotSentError(f"cannot connect to the service: {error}") from error
        # Raised by an http object that is not ours: it does not show whether the request was carried out.
        except (OSError, http.client.HTTPException, HttpLib2Error) as error:
            raise AnswerLostError(f"the service did not answer: {error}") from error
        if moment := parse_http_date(response.get("date")):
            self.server_time = moment
        if not 200 <= response.status < 300:
            raise ApiRefusedError(parse_refusal(response.status, response, content, now=self.clock.now()))
        return read(response, content)


def read_json(content: bytes, read: Callable[[Json], T]) -> T:
    """Parse a JSON object with `read`. Raises `GarbledAnswerError` for anything else.

    A body with an error and status 200 is not an answer either. Only operations may have an error, and those have a name.
    """
    try:
        data = parse_json(content)
    except ShapeError as error:
        raise GarbledAnswerError(f"{UNEXPECTED}: {error}; it begins with {excerpt(content)}") from error
    if not isinstance(data, dict) or ("error" in data and "name" not in data):
        what = "an error with status 200" if isinstance(data, dict) else "not a JSON object"
        raise GarbledAnswerError(f"{UNEXPECTED}: {what}; it begins with {excerpt(content)}")
    try:
        return read(data)
    except ShapeError as error:
        raise GarbledAnswerError(f"{UNEXPECTED}: {error}") from error


def preview_request(request: Any) -> RequestPreview:
    """Return a request to show, without sending it."""
    return RequestPreview(request.method, request.uri, json.loads(request.body) if request.body else None)


class ApiClient:
    """Calls one API. `http_factory` returns one http object for each thread.

    `endpoint` is a URL that serves the API at `api.path` instead of Google's.
    """

    api: ClassVar[GoogleApi] = TPU
    # The default retry policy; None for `RetryPolicy()`.
    patience: ClassVar[RetryPolicy | None] = None

    def __init__(
        self,
        http_factory: Callable[[], Any],
        clock: Clock,
        *,
        endpoint: str | None = None,
        random: Random | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._own_endpoint = ApiEndpoint.parse(endpoint) if endpoint else None
        self._caller = ApiCaller(
            http_factory, clock, endpoint=endpoint, random=random, policy=policy or self.patience, api=self.api
        )

    def _url(self, path: str, *, service: str | None = None) -> str:
        """Return the URL of a path at Google's host for a service (default: `api`), or at the custom endpoint."""
        if self._own_endpoint:
            return self._own_endpoint.url(path)
        return f"https://{service or self.api.name}.googleapis.com/{path}"


CachedT = TypeVar("CachedT")

_CACHE_LIFETIME = timedelta(minutes=1)


@dataclass(slots=True)
class _CachedAnswer(Generic[CachedT]):
    """An answer that one thread fetches and others wait for. `received_at` is a monotonic time."""

    is_done: threading.Event = field(default_factory=threading.Event)
    value: CachedT | None = None
    failure: BaseException | None = None
    received_at: timedelta | None = None


class TTLCache(Generic[CachedT]):
    """Answers by key, kept for a minute. One thread fetches an answer, the others that need it wait.

    A failure is raised in all waiting threads, and is not kept.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[str, _CachedAnswer[CachedT]] = {}

    def get_or_load(self, key: str, load: Callable[[], CachedT]) -> CachedT:
        """Return the cached answer, else the result of `load`. Raises what `load` raises."""
        with self._lock:
            answer = self._answers.get(key)
            received_at = answer.received_at if answer else None
            is_expired = received_at is not None and self._clock.monotonic() - received_at >= _CACHE_LIFETIME
            is_mine = answer is None or is_expired
            if answer is None or is_mine:
                answer = self._answers[key] = _CachedAnswer()
        if is_mine:
            try:
                answer.value = load()
                answer.received_at = self._clock.monotonic()
            except BaseException as failure:  # noqa: BLE001  # raised in each waiting thread
                answer.failure = failure
                with self._lock:
                    del self._answers[key]
            finally:
                answer.is_done.set()
        answer.is_done.wait()
        if answer.failure is not None:
            raise answer.failure
        assert answer.value is not None  # noqa: S101  # guides mypy: it is there, or a failure is
        return answer.value


class Effect(Enum):
    """Whether a resource shows the effect of a change."""

    DONE = auto()
    NOT_YET = auto()


@dataclass(frozen=True, slots=True)
class ConfirmedChange:
    """A change that may be sent twice without harm. `verb` and `name` are for messages."""

    verb: str
    name: str
    # Sends the change once. Raises `TransportError` and `ApiRefusedError`.
    send: Callable[[], Operation]
    # Reads the effect. Raises `NotFoundError` if the resource does not exist any more.
    check: Callable[[], Effect]


# The maximum number of sendings.
_MAX_SENDS = 3


def send_and_confirm(caller: ApiCaller, change: ConfirmedChange) -> Operation:
    """Return the operation of a change; `Operation.unnamed()` if it took effect but its answer was lost.

    Raises the refusal of the service, or `OutcomeUnknownError` if it is unknown whether the change was carried out. The
    time limit of one call covers everything.
    """
    with limit_cloud_calls(SystemClock(), caller.policy.deadline, grace=DEADLINE_GRACE):
        failure: TransportError | ApiRefusedError
        for sent in range(1, _MAX_SENDS + 1):
            try:
                return change.send()
            except (TransportError, ApiRefusedError) as error:
                # A refusal of the second sending may mean that the first was carried out.
                if not is_uncertain(error) and sent == 1:
                    raise translate(error) from error
                failure = error
            try:
                effect = change.check()
            except NotFoundError:
                raise
            except (TransportError, ApiRefusedError, TpuctlError) as error:
                raise unknown_outcome_error(change.verb, change.name, failure) from error
            if effect is Effect.DONE:
                return Operation.unnamed()
            if not is_uncertain(failure) or deadline_has_passed():
                break
            caller.clock.sleep(backoff(caller.policy, sent, caller.random))
        if isinstance(failure, ApiRefusedError):
            raise translate(failure) from failure
        raise unknown_outcome_error(change.verb, change.name, failure) from failure


def is_uncertain(failure: TransportError | ApiRefusedError) -> bool:
    """Return whether the change may have been carried out although it failed."""
    return isinstance(failure, AnswerLostError) or (isinstance(failure, ApiRefusedError) and failure.refusal.is_fault)


def unknown_outcome_error(verb: str, name: str, failure: Exception) -> OutcomeUnknownError:
    """Return the error of a change whose outcome is unknown."""
    return OutcomeUnknownError(
        f"the {verb} of `{name}` was sent, but its outcome is unknown: {failure}",
        hint=f"check with `tpuctl status {name}` before you try again",
    )


_OPERATION_INTERVAL = timedelta(seconds=1)
_OPERATION_PATIENCE = timedelta(minutes=3)


def wait_until_done(caller: ApiCaller, operation: Json, fetch: Callable[[], Json], *, what: str) -> Json:
    """Return an operation once it has ended, with or without an error; `fetch` reads it again.

    Raises `TimedOutError` after three minutes, and what `fetch` raises.
    """
    ends = caller.clock.monotonic() + _OPERATION_PATIENCE
    # Service Usage has `done`, Compute Engine has a status [API serviceusage v1, compute v1].
    while not (operation.get("done") or operation.get("status") == "DONE"):
        if caller.clock.monotonic() >= ends:
            hint = "it continues in the cloud; check again in a few minutes"
            raise TimedOutError(f"{what} has not ended after 3 minutes", hint=hint)
        caller.clock.sleep(_OPERATION_INTERVAL)
        operation = fetch()
    return operation


ItemT = TypeVar("ItemT")

_LIST_THREADS = 8
# A page has hundreds of items, so that no project needs more pages.
MOST_PAGES = 1000
# Answers of a service that does not accept `-` as a zone. Each zone is listed then.
_NO_WILDCARD = frozenset({400, 403, 404, 501})
# The ids that `explain` gives to refusals of the project or the caller: each zone would answer the same.
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

_ZoneFailure = TransportError | ApiRefusedError | TpuctlError


@dataclass(frozen=True, slots=True)
class ZoneListing(Generic[ItemT]):
    """The listed items, and the ids of zones that did not answer. Those zones are not empty, but unknown."""

    items: tuple[ItemT, ...]
    unreachable: tuple[str, ...] = ()


def all_pages(
    caller: ApiCaller,
    build: Callable[[str | None], Any],
    shape: Page,
    read: Callable[[Mapping[str, Any]], ItemT],
) -> ZoneListing[ItemT]:
    """Return the items of all pages, within the time limit of one call.

    Raises `TransportError` and `ApiRefusedError`, also for a page token that is repeated.
    """
    items: list[ItemT] = []
    unreachable: dict[str, None] = {}
    tokens: set[str] = set()
    token: str | None = None

    def read_page(data: Mapping[str, Any]) -> tuple[list[ItemT], list[str], str | None]:
        shape.check(data)
        missing = data.get("unreachable") or data.get("unreachables") or ()
        return shape.items(data, read), [last_segment(zone) for zone in missing], data.get("nextPageToken") or None

    with limit_cloud_calls(SystemClock(), caller.policy.deadline):
        while True:
            page, zones, token = caller.attempt(build(token), read_page)
            items += page
            unreachable |= dict.fromkeys(zones)
            if token is None:
                return ZoneListing(tuple(items), tuple(unreachable))
            if token in tokens:
                raise GarbledAnswerError("the service repeats a page of the list, so that the list never ends")
            tokens.add(token)
            if len(tokens) >= MOST_PAGES:
                raise GarbledAnswerError(f"the list of the service has more than {MOST_PAGES} pages")


def list_everywhere(
    caller: ApiCaller,
    one_zone: Callable[[str], ZoneListing[ItemT]],
    *,
    zones: Sequence[str],
    locations: Callable[[], Sequence[str]],
) -> ZoneListing[ItemT]:
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
    except ApiRefusedError as failure:
        error = translate(failure)
        if failure.refusal.code not in _NO_WILDCARD or error.error_id in _SAME_EVERYWHERE:
            raise error from failure
    return fan_out(caller, one_zone, locations())


def fan_out(
    caller: ApiCaller, one_zone: Callable[[str], ZoneListing[ItemT]], zones: Sequence[str], *, are_named: bool = False
) -> ZoneListing[ItemT]:
    """List zones in parallel, within the time limit of one call. Return the items in the order of the zones.

    A zone that is closed to the project is left out, unless the user named it (`are_named`): then it is unreachable, like
    a zone that fails. If no zone answers, the first failure is raised.
    """
    with limit_cloud_calls(SystemClock(), caller.policy.deadline):
        answers = _query_zones(caller, one_zone, list(dict.fromkeys(zones)))
    listed = {zone: answer for zone, answer in answers.items() if isinstance(answer, ZoneListing)}
    failed = {zone: answer for zone, answer in answers.items() if not isinstance(answer, ZoneListing)}
    missing: dict[str, _ZoneFailure] = {}
    for zone, failure in failed.items():
        refusal = failure.refusal if isinstance(failure, ApiRefusedError) else None
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
    return ZoneListing(tuple(items), tuple(dict.fromkeys([*unreachable, *missing])))


def _query_zones(
    caller: ApiCaller, one_zone: Callable[[str], ZoneListing[ItemT]], zones: list[str]
) -> dict[str, ZoneListing[ItemT] | _ZoneFailure]:
    if len(zones) == 1:
        # In this thread, whose connection is open: a wait repeats the list of one zone.
        try:
            return {zones[0]: one_zone(zones[0])}
        except (TransportError, ApiRefusedError, TpuctlError) as failure:
            return {zones[0]: failure}

    def close() -> None:
        if close := getattr(caller.http_factory(), "close", None):
            close()

    answers: dict[str, ZoneListing[ItemT] | _ZoneFailure] = {}
    for zone, answer in run_side_by_side(one_zone, zones, at_the_end=close).items():
        if not isinstance(answer, ZoneListing | TransportError | ApiRefusedError | TpuctlError):
            raise answer
        answers[zone] = answer
    return answers


def run_side_by_side(
    ask: Callable[[str], ItemT], zones: Sequence[str], *, at_the_end: Callable[[], None] = lambda: None
) -> dict[str, ItemT | BaseException]:
    """Call `ask` for each zone in parallel. Return the results or exceptions; `at_the_end` is called in each thread.

    The time limits of this thread apply in the others too.
    """
    answers: dict[str, ItemT | BaseException] = {}
    waiting = deque(zones)

    @with_current_deadlines
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
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_LIST_THREADS, len(zones)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {zone: answers[zone] for zone in zones}


_SAFE_STATUSES = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The number of attempts, and the delays between them."""

    attempts: int = 5
    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(seconds=30)
    # The minimum delay after a rate limit: its windows are a minute long
    # [observed: marin PR#6198, CreateNode requests per minute].
    rate_limit: timedelta = timedelta(seconds=15)
    # The limit for all attempts and delays, from the first attempt.
    deadline: timedelta = CLOUD_CALL_TIMEOUT


# For optional information, which is not worth a long wait.
SHORT_PATIENCE = RetryPolicy(attempts=2, deadline=timedelta(seconds=15))


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Send again after this delay."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class StopRetrying:
    """Do not send again."""


def decide_retry(
    policy: RetryPolicy,
    failure: TransportError | ApiRefusedError,
    *,
    is_safe: bool,
    attempt: int,
    left: timedelta,
    random: Random,
) -> RetryAfter | StopRetrying:
    """Return whether to send again after attempt number `attempt` (from 1) failed. `left` is the time left for the call."""
    if attempt >= policy.attempts or not _may_repeat(failure, is_safe=is_safe):
        return StopRetrying()
    delay = backoff(policy, attempt, random)
    if isinstance(failure, ApiRefusedError):
        if failure.refusal.retry_after is not None:
            delay = failure.refusal.retry_after
        elif failure.refusal.is_rate_limit:
            delay += policy.rate_limit
    return StopRetrying() if delay > left else RetryAfter(delay)


def retrying(send: Callable[[timedelta], T], *, is_safe: bool, policy: RetryPolicy, clock: Clock, random: Random) -> T:
    """Call `send`, and retry as `decide_retry` says. Raises the last failure.

    `send` gets the time left for the call. Nothing is sent after the deadline of the command.
    """
    budget = time_for_cloud_call(policy.deadline)
    if not budget:
        raise NotSentError("the deadline has passed")
    start = clock.monotonic()
    for attempt in itertools.count(1):
        try:
            return send(start + budget - clock.monotonic())
        except (TransportError, ApiRefusedError) as failure:
            # After the deadline nothing is sent again, although the last call may take longer.
            left = start + budget - clock.monotonic()
            if (until_deadline := time_until_deadline()) is not None:
                left = min(left, until_deadline)
            match decide_retry(policy, failure, is_safe=is_safe, attempt=attempt, left=left, random=random):
                case RetryAfter(delay):
                    clock.sleep(delay)
                case StopRetrying():
                    raise
                case never:
                    assert_never(never)
    raise AssertionError("count() never ends")


def backoff(policy: RetryPolicy, attempt: int, random: Random) -> timedelta:
    """Return a random delay up to a bound that doubles with each attempt (full jitter)."""
    bound: timedelta = min(policy.longest, policy.first * 2 ** (attempt - 1))
    return random.random() * bound


def _may_repeat(failure: TransportError | ApiRefusedError, *, is_safe: bool) -> bool:
    match failure:
        case UntrustedServerError():
            return False
        case NotSentError():
            return True
        case ApiRefusedError(refusal=refusal):
            return refusal.is_rate_limit or (is_safe and refusal.code in _SAFE_STATUSES)
        case _:
            return is_safe and isinstance(failure, AnswerLostError)
