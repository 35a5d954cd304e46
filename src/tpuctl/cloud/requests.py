"""One call of an API: build the request, send it, retry it, parse the answer; and the lists of many pages and zones.

`ApiClient` is the base class of all clients. A request is built from Google's discovery documents, which are files of
google-api-python-client; the library itself is not imported: that takes 160 ms, for each command. A request that changes
nothing may always be sent again. A change is sent again only if it is certain that it was not carried out (`decide_retry`,
pure); otherwise its effect is read first. Each call has a time limit: see the package's docstring.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode

from tpuctl.clock import (
    CLOUD_CALL_TIMEOUT,
    DEADLINE_GRACE,
    SystemClock,
    deadline_has_passed,
    limit_cloud_calls,
    time_for_cloud_call,
    time_until_deadline,
)
from tpuctl.cloud.discovery_documents import find_method
from tpuctl.cloud.endpoint import ApiEndpoint
from tpuctl.cloud.errors import (
    AnswerLostError,
    ApiError,
    GarbledAnswerError,
    NotSentError,
    TransportError,
    UntrustedServerError,
    excerpt,
    parse_error_response,
    query_errors,
    translate_errors,
)
from tpuctl.decoding import ShapeError, decode, json_field, json_paths, parse_json, read_items
from tpuctl.durations import parse_http_date
from tpuctl.errors import (
    AccessError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.models.api_values import ApiText, LastSegments, an_object

if TYPE_CHECKING:
    from tpuctl.clock import Clock

T = TypeVar("T")
Json = Mapping[str, Any]
Read = Callable[[Json], T]

Failure = TransportError | ApiError

# A change whose answer was lost is sent at most so often.
MOST_SENDS = 3
# Characters that are not quoted in a query [RFC 3986]; `fields` needs them.
_QUERY_SAFE = "/:,()"
UNEXPECTED = "unexpected response from the service"


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request. `body` is JSON, `upload` the content of an object; None if it has none."""

    method: str
    url: str
    body: Json | None = None
    upload: bytes | None = None
    # The project that is billed for the request, instead of the quota project [documentation: x-goog-user-project].
    payer: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the request, without those of the transport."""
        headers = {"accept": "application/json"}
        if self.content is not None:
            headers["content-type"] = "application/json" if self.upload is None else "application/octet-stream"
        return headers | ({"x-goog-user-project": self.payer} if self.payer else {})

    @property
    def frees_resources(self) -> bool:
        """Return whether it deletes or stops something, which needs neither quota nor capacity."""
        return self.method == "DELETE" or self.url.partition("?")[0].endswith(":stop")

    @property
    def content(self) -> bytes | None:
        """The bytes of the body."""
        return self.upload if self.body is None else json.dumps(self.body).encode()


class ApiClient:
    """Calls APIs from any thread, and raises tpuctl's exceptions. `http_factory` returns one http object for each thread.

    `endpoint` is a URL that serves all APIs instead of Google's hosts. `server_time` is the time of the last answer by the
    service's clock.
    """

    # The default retry policy; None for `RetryPolicy()`.
    retry_policy: ClassVar[RetryPolicy | None] = None

    def __init__(
        self,
        http_factory: Callable[[], Any],
        clock: Clock,
        *,
        endpoint: str | None = None,
        random: Random | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.server_time: datetime | None = None
        self._answered = timedelta()  # when that was, by our monotonic clock
        self._http_factory = http_factory
        self._clock = clock
        self._endpoint = ApiEndpoint.parse(endpoint) if endpoint else None
        self._random = random or Random()  # noqa: S311  # jitter, not a secret
        self._policy = policy or self.retry_policy or RetryPolicy()

    @property
    def server_now(self) -> datetime | None:
        """The present time by the service's clock; None before its first answer."""
        if self.server_time is None:
            return None
        return self.server_time + (self._clock.monotonic() - self._answered)

    def _build(
        self,
        method: str,
        *,
        body: Json | None = None,
        upload: bytes | None = None,
        payer: str | None = None,
        **parameters: Any,
    ) -> ApiRequest:
        """Build a request, by the names of Google's discovery documents: `tpu.v2 projects.locations.nodes.get`, name=….

        A parameter that is None is left out; one with several values is repeated.
        """
        verb, template = find_method(method)

        def fill(place: re.Match[str]) -> str:
            # The value of `{+name}` has several segments. The project of a domain has a colon.
            return quote(str(parameters.pop(place[2])), safe="/:@" if place[1] else ":")

        path = re.sub(r"\{(\+?)(\w+)\}", fill, template)
        if upload is not None:
            path = f"upload/{path}"
            parameters["uploadType"] = "media"
        query_values = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in parameters.items()
            if value is not None
        }
        query = f"?{urlencode(query_values, doseq=True, safe=_QUERY_SAFE, quote_via=quote)}" if query_values else ""
        host = f"https://{method.partition('.')[0]}.googleapis.com/"
        url = (self._endpoint.url(path) if self._endpoint else host + path) + query
        return ApiRequest(verb, url, body, upload, payer)

    def _call(self, request: ApiRequest, read: Read[T]) -> T:
        """Send a request that changes nothing, with retries, and return the answer parsed by `read`."""
        with translate_errors():
            return self._attempt(request, read)

    def _query(self, method: str, read: Read[T], what: str, permission: str | None, **parameters: Any) -> T:
        """Read something that requires one permission, None if it requires none; `what` describes it in errors."""
        with query_errors(what, permission):
            return self._attempt(self._build(method, **parameters), read)

    def _attempt(
        self,
        request: ApiRequest,
        read: Read[T],
        *,
        is_safe: bool = True,
        before_sending: Callable[[], None] = lambda: None,
    ) -> T:
        """Do the same as `_call`, but raise `TransportError` and `ApiError`, which say what is certain.

        `before_sending` is called right before each sending of the request; an exception prevents it.
        """
        return self._exchange(
            request, lambda _, content: read_json(content, read), is_safe=is_safe, before_sending=before_sending
        )

    def _exchange(
        self,
        request: ApiRequest,
        read: Callable[[Mapping[str, str], bytes], T],
        *,
        is_safe: bool = True,
        before_sending: Callable[[], None] = lambda: None,
    ) -> T:
        """Do the same as `_attempt` for an answer that is not JSON; `read` gets its lower-case headers and its bytes."""

        def send(left: timedelta) -> T:
            before_sending()
            sender = self._http_factory()
            # In real seconds, which equal those of our clock if there is a socket: only the embedded sandbox has another clock.
            sender.timeout = left.total_seconds()
            try:
                response, content = sender.request(
                    request.url, method=request.method, body=request.content, headers=request.headers
                )
            # Raised by an http object that is not ours: it does not show whether the request was carried out.
            except OSError as error:
                raise AnswerLostError(f"the service did not answer: {error}") from error
            if moment := parse_http_date(response.get("date")):
                self.server_time, self._answered = moment, self._clock.monotonic()
            if not 200 <= response.status < 300:
                failed = parse_error_response(
                    response.status,
                    response,
                    content,
                    now=self._clock.now(),
                    frees_resources=request.frees_resources,
                )
                raise ApiError(failed)
            return read(response, content)

        return retrying(
            send,
            is_safe=is_safe,
            policy=self._policy,
            clock=self._clock,
            random=self._random,
        )

    def _pages(
        self,
        method: str,
        key: str,
        read: Read[ItemT],
        *,
        payer: str | None = None,
        is_by_zone: bool = False,
        **parameters: Any,
    ) -> Listing[ItemT]:
        """Return the items of all pages of a list method, which are under `key`, within the time limit of one call.

        With `is_by_zone` they are in an object, one for each zone.

        Raises `TransportError` and `ApiError`, also for a page token that is repeated.
        """
        items: list[ItemT] = []
        unreachable: dict[str, None] = {}
        tokens: set[str] = set()
        token: str | None = None
        with limit_cloud_calls(SystemClock(), self._policy.deadline):
            while True:
                request = self._build(method, payer=payer, **parameters, pageToken=token)
                page = self._attempt(request, partial(read_page, key, read, is_by_zone=is_by_zone))
                items += page.items
                unreachable |= dict.fromkeys(page.unreachable)
                token = page.token
                if not token:
                    return Listing(tuple(items), tuple(unreachable))
                if token in tokens:
                    raise GarbledAnswerError("the service repeats a page of the list, so that the list never ends")
                tokens.add(token)
                if len(tokens) >= MOST_PAGES:
                    raise GarbledAnswerError(f"the list of the service has more than {MOST_PAGES} pages")

    def _wait_until_done(self, operation: BegunT, fetch: ApiRequest, read: Read[BegunT], *, what: str) -> BegunT:
        """Return an operation once it has ended, with or without an error; `fetch` reads it again.

        Raises `TimedOutError` after three minutes.
        """
        ends = self._clock.monotonic() + _OPERATION_PATIENCE
        while not operation.done:
            if self._clock.monotonic() >= ends:
                hint = "it continues in the cloud; check again in a few minutes"
                raise TimedOutError(f"{what} has not ended after 3 minutes", hint=hint)
            self._clock.sleep(_OPERATION_INTERVAL)
            operation = self._attempt(fetch, read)
        return operation

    def _send_and_confirm(
        self,
        send: Callable[[], T],
        find_result: Callable[[], T | None],
        unknown: Callable[[Exception], OutcomeUnknownError],
        *,
        is_unsure: Callable[[Failure], bool] | None = None,
        may_be_done: Callable[[Failure], bool] | None = None,
        stays_unknown: Callable[[Failure], bool] | None = None,
        sends: int = MOST_SENDS,
        pause: timedelta = timedelta(),
    ) -> T:
        """Send a change that may be sent twice without harm, and return its result.

        After a failure that `is_unsure`, or a first one after which it `may_be_done`, `find_result` reads the effect: it
        returns the result of a change that took effect, else None, and the change is sent again if the failure `is_unsure`.
        Raises the refusal of the service; `NotFoundError` and `PreconditionFailedError` of `find_result`; and what `unknown`
        returns for a failure if it is not known whether the change was carried out: after the last sending if the failure
        `stays_unknown`. The time limit of one call covers everything.
        """
        is_unsure = is_unsure or is_uncertain
        may_be_done = may_be_done or is_unsure
        failure: Failure | None = None
        with limit_cloud_calls(SystemClock(), self._policy.deadline, grace=DEADLINE_GRACE):
            for sent in range(1, sends + 1):
                try:
                    return send()
                except (ServiceUnavailableError, QuotaError, AccessError) as error:
                    # The look before the request failed: that says nothing about the sending before it.
                    if failure is None:
                        raise
                    raise unknown(failure) from error
                except (TransportError, ApiError) as error:
                    # A refusal of the second sending may mean that the first was carried out.
                    if sent == 1 and not may_be_done(error):
                        raise
                    failure = error
                try:
                    result = find_result()
                except (NotFoundError, PreconditionFailedError):
                    raise
                except (TransportError, ApiError, TpuctlError) as error:
                    raise unknown(failure) from error
                if result is not None:
                    return result
                if not is_unsure(failure) or deadline_has_passed():
                    break
                if sent < sends:
                    self._clock.sleep(pause + self._back_off(sent))
        assert failure is not None  # noqa: S101  # guides mypy: at least one request was sent
        if (stays_unknown or is_uncertain)(failure):
            raise unknown(failure) from failure
        raise failure

    def _back_off(self, attempt: int) -> timedelta:
        return backoff(self._policy, attempt, self._random)


class Begun(Protocol):
    """An operation of any API."""

    @property
    def done(self) -> bool:
        """Return whether it has ended."""


BegunT = TypeVar("BegunT", bound=Begun)
ItemT = TypeVar("ItemT")

# A page has hundreds of items, so that no project needs more pages.
MOST_PAGES = 1000
_OPERATION_INTERVAL = timedelta(seconds=1)
_OPERATION_PATIENCE = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class Listing(Generic[ItemT]):
    """The listed items, and the ids of zones that did not answer. Those zones are not empty, but unknown."""

    items: tuple[ItemT, ...]
    unreachable: tuple[str, ...] = ()
    # Of one page: the token of the next.
    token: str | None = None


@dataclass(frozen=True, slots=True)
class _Page:
    """What all pages have. Compute Engine has `unreachables` [API compute v1]."""

    token: ApiText = json_field("nextPageToken", default="")
    unreachable: LastSegments = ()
    unreachables: LastSegments = ()


def read_page(key: str, read: Read[ItemT], data: Json, *, is_by_zone: bool = False) -> Listing[ItemT]:
    """Parse one page. `{}` is an empty page; an object with only unknown fields is not a page. Raises `ShapeError`."""
    page = decode(_Page, data)
    # Pages with the key `items` are of the older kind, which have a `kind` even if empty [API storage v1].
    if data and not data.keys() & {key, *json_paths(_Page).values(), *(("kind",) if key == "items" else ())}:
        raise ShapeError(f"`{key}` is missing")
    try:
        listed = list(an_object(data.get(key, {})).values()) if is_by_zone else data.get(key, [])
        items = read_items(listed, read)
    except ShapeError as error:
        raise error.below(key) from error
    return Listing(items, page.unreachable + page.unreachables, page.token or None)


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
FEW_RETRIES = RetryPolicy(attempts=2, deadline=timedelta(seconds=15))


def decide_retry(
    policy: RetryPolicy,
    failure: TransportError | ApiError,
    *,
    is_safe: bool,
    attempt: int,
    left: timedelta,
    random: Random,
) -> timedelta | None:
    """Return the delay before the request is sent again, None if it is not.

    Attempt number `attempt` (from 1) failed; `left` is the time left for the call.
    """
    if attempt >= policy.attempts or not _may_repeat(failure, is_safe=is_safe):
        return None
    delay = backoff(policy, attempt, random)
    if isinstance(failure, ApiError):
        if failure.response.retry_after is not None:
            delay = failure.response.retry_after
        elif failure.response.is_rate_limit:
            delay += policy.rate_limit
    return None if delay > left else delay


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
        except (TransportError, ApiError) as failure:
            # After the deadline nothing is sent again, although the last call may take longer.
            left = start + budget - clock.monotonic()
            if (until_deadline := time_until_deadline()) is not None:
                left = min(left, until_deadline)
            delay = decide_retry(policy, failure, is_safe=is_safe, attempt=attempt, left=left, random=random)
            if delay is None:
                raise
            clock.sleep(delay)
    raise AssertionError("count() never ends")


def backoff(policy: RetryPolicy, attempt: int, random: Random) -> timedelta:
    """Return a random delay up to a bound that doubles with each attempt (full jitter)."""
    bound: timedelta = min(policy.longest, policy.first * 2 ** (attempt - 1))
    return random.random() * bound


def _may_repeat(failure: TransportError | ApiError, *, is_safe: bool) -> bool:
    match failure:
        case UntrustedServerError():
            return False
        case NotSentError():
            return True
        case ApiError(response=response):
            return response.is_rate_limit or (is_safe and response.code in _SAFE_STATUSES)
        case _:
            return is_safe and isinstance(failure, AnswerLostError)


def is_uncertain(failure: TransportError | ApiError) -> bool:
    """Return whether the change may have been carried out although it failed."""
    return isinstance(failure, AnswerLostError) or (isinstance(failure, ApiError) and failure.response.is_fault)
