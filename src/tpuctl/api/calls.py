"""Build requests with Google's library, send them through our http objects, and parse the answers.

The `execute` method of the library is not used: it logs refusals to stderr, and raises `TypeError` for a 403 whose body is
a JSON list. Its batch interface is never used: it ignores the endpoint and calls the real service.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlencode

from tpuctl.api.endpoint import Endpoint
from tpuctl.api.errors import credential_failure, excerpt, parse_refusal, translated
from tpuctl.api.failures import AnswerLostError, GarbledAnswerError, NotSentError, RefusedError, TransportError
from tpuctl.api.headers import parse_date
from tpuctl.api.memory import ShortMemory
from tpuctl.api.retry import RetryPolicy, retrying
from tpuctl.shapes import ShapeError, parse_json

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
class Api:
    """A Google API by the name of its discovery document. `path` is its base path at a custom endpoint."""

    name: str
    version: str
    path: str = ""


TPU = Api("tpu", "v2")


class Caller:
    """Sends calls from any thread. `server_time` is the time of the last answer by the service's clock."""

    def __init__(
        self,
        http_factory: Callable[[], Any],
        clock: Clock,
        *,
        endpoint: str | None = None,
        random: Random | None = None,
        policy: RetryPolicy | None = None,
        api: Api = TPU,
    ) -> None:
        self.http_factory = http_factory
        self.clock = clock
        self.random = random or Random()  # noqa: S311  # jitter, not a secret
        self.policy = policy or RetryPolicy()
        self.server_time: datetime | None = None
        # By project. Created here, because threads that list at the same time must share it.
        self.zones = ShortMemory[tuple[str, ...]](clock)
        self._api = api
        self._endpoint = Endpoint.parse(endpoint).url(api.path) if endpoint else None
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

    def locations(self) -> Any:  # as above
        """Return the library's `projects.locations`."""
        return self.service().projects().locations()

    def call(self, request: Any, read: Callable[[Json], T], *, is_safe: bool = True) -> T:
        """Send a request, with retries, and return the answer parsed by `read`. Raises tpuctl's exceptions."""
        with translated():
            return self.attempt(request, read, is_safe=is_safe)

    def attempt(self, request: Any, read: Callable[[Json], T], *, is_safe: bool = True) -> T:
        """Do the same as `call`, but raise `TransportError` and `RefusedError`, which say what is certain."""
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
        from httplib2 import HttpLib2Error  # noqa: PLC0415  # as above

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
            raise credential_failure(error) from error
        except ConnectionRefusedError as error:
            raise NotSentError(f"cannot connect to the service: {error}") from error
        # Raised by an http object that is not ours: it does not show whether the request was carried out.
        except (OSError, http.client.HTTPException, HttpLib2Error) as error:
            raise AnswerLostError(f"the service did not answer: {error}") from error
        if moment := parse_date(response.get("date")):
            self.server_time = moment
        if not 200 <= response.status < 300:
            raise RefusedError(parse_refusal(response.status, response, content, now=self.clock.now()))
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


def preview(request: Any) -> RequestPreview:
    """Return a request to show, without sending it."""
    return RequestPreview(request.method, request.uri, json.loads(request.body) if request.body else None)
