"""The failures of one exchange, by what is certain afterwards, and their translation into tpuctl's exceptions.

`TransportError` and `ApiError` stay inside `cloud`; `translate_errors` and `query_errors` (for reads that need one
permission) turn them into the errors that commands show. Only `explain.messages` classifies texts; if it does not know a text,
the status decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from tpuctl.decoding import ShapeError, parse_json
from tpuctl.durations import format_duration, parse_http_date
from tpuctl.errors import (
    AccessError,
    AlreadyExistsError,
    BrokenNodeError,
    CheckFailedError,
    ConflictError,
    CredentialsError,
    InvalidRequestError,
    NoCapacityError,
    NotFoundError,
    QuotaError,
    RemoteCommandError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.models.operation import OperationError

if TYPE_CHECKING:
    from tpuctl.explain.messages import Classification

_BY_KIND: Final[Mapping[str, type[TpuctlError]]] = {
    kind.kind: kind
    for kind in (
        TpuctlError,
        AccessError,
        AlreadyExistsError,
        BrokenNodeError,
        CheckFailedError,
        ConflictError,
        InvalidRequestError,
        NoCapacityError,
        NotFoundError,
        QuotaError,
        RemoteCommandError,
        ServiceUnavailableError,
        TimedOutError,
    )
}
_BY_CODE: Final[Mapping[int, tuple[type[TpuctlError], str]]] = {
    400: (InvalidRequestError, "check the given values; `--dry-run` shows the request"),
    401: (CredentialsError, "run `gcloud auth application-default login`, then try again"),
    403: (AccessError, "ask an owner of the project for the role `roles/tpu.admin`"),
    404: (NotFoundError, "check project, zone and name; `tpuctl list` shows the nodes of all zones"),
    407: (AccessError, "the proxy requires a user name and password: set them in `HTTPS_PROXY`"),
    408: (ServiceUnavailableError, "try again"),
    409: (ConflictError, "check it with `tpuctl status NODE`, then try again"),
    412: (ConflictError, "check it with `tpuctl status NODE`, then try again"),
    429: (QuotaError, "wait a minute and try again; `tpuctl list` shows the nodes that use quota"),
}

# google.rpc.Code in the order of its numbers. Operations contain the number, HTTP answers the word.
_STATUSES: Final = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
_BY_STATUS: Final[Mapping[str, type[TpuctlError]]] = {
    "INVALID_ARGUMENT": InvalidRequestError,
    "OUT_OF_RANGE": InvalidRequestError,
    "UNIMPLEMENTED": InvalidRequestError,
    "NOT_FOUND": NotFoundError,
    "ALREADY_EXISTS": AlreadyExistsError,
    "PERMISSION_DENIED": AccessError,
    "UNAUTHENTICATED": AccessError,
    # Code 8 in an operation is a full zone; quota is refused on the call itself [observed: skypilot, stock-outs].
    "RESOURCE_EXHAUSTED": NoCapacityError,
    "FAILED_PRECONDITION": ConflictError,
    "ABORTED": ConflictError,
    "INTERNAL": ServiceUnavailableError,
    "UNAVAILABLE": ServiceUnavailableError,
    "UNKNOWN": ServiceUnavailableError,
    "DEADLINE_EXCEEDED": ServiceUnavailableError,
}
# Only some APIs refuse a call without a quota project.
_NO_QUOTA_PROJECT: Final = "auth-no-quota-project"
_RATE_LIMITS: Final = frozenset({"quota-create-rate", "quota-rate"})
# The ids that `explain` gives to a 429 whose text does not say what is exhausted.
_UNNAMED: Final = frozenset({"quota-word", "exhausted-api"})
# The reason of google.rpc.ErrorInfo for a limit on requests.
_RATE_LIMIT_REASON: Final = "RATE_LIMIT_EXCEEDED"
_LONGEST: Final = 700
_WORD: Final = re.compile(r"\w{1,64}", re.ASCII)
_EXCERPT: Final = 120


def parse_error_response(
    code: int, headers: Mapping[str, str], content: bytes, *, now: datetime, frees_resources: bool = False
) -> ErrorResponse:
    """Parse an HTTP answer other than success. `status` stays empty if the answer is not in Google's format.

    A 429 may be a limit on requests, which passes, or mean that quota or capacity lacks. It is the first if the text or the
    reason says so; if the request `frees_resources`; or if the service names no quota, but when to send the request again.
    """
    wait = parse_retry_after(headers.get("retry-after"), now)
    try:
        data = parse_json(content)
    except ShapeError:
        data = None
    # Some front ends wrap the object in a list of one.
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    error = data.get("error") if isinstance(data, dict) else None
    if not isinstance(error, dict):
        # A front end or a proxy has no quota of TPUs.
        return ErrorResponse(
            code=code,
            message=f"HTTP {code} with {excerpt(content)}",
            retry_after=wait,
            is_rate_limit=code == 429 and (frees_resources or wait is not None),
        )
    listed = error.get("details")
    details = [detail for detail in listed if isinstance(detail, dict)] if isinstance(listed, list) else []
    reason = next((str(detail["reason"]) for detail in details if detail.get("reason")), "")
    localized = next(
        (str(detail["message"]) for detail in details if "LocalizedMessage" in str(detail.get("@type"))), ""
    )
    # The older format of Compute Engine and Cloud Storage has a reason instead of a status.
    entries = error.get("errors")
    first = entries[0] if isinstance(entries, list) and entries else None
    legacy = first.get("reason") if isinstance(first, dict) else None
    status = str(error.get("status") or legacy or "")
    if not _WORD.fullmatch(status):
        # The 404 of a gateway also has an error object, but no status: it proves nothing about the resource.
        status = "" if code == 404 else "UNKNOWN"
    response = ErrorResponse(
        code=code,
        message=_one_line(str(error.get("message") or localized)),
        status=status,
        reason=reason,
        retry_after=wait,
    )
    if code != 429:
        return response
    verdict = _classify(str(response), response.reason)
    names_no_quota = verdict is None or verdict.id in _UNNAMED
    is_named = verdict is not None and verdict.id in _RATE_LIMITS
    is_rate_limit = is_named or frees_resources or (names_no_quota and wait is not None)
    return replace(response, is_rate_limit=is_rate_limit)


def translate(failure: TransportError | ApiError) -> TpuctlError:
    """Return the exception for a request that failed finally."""
    match failure:
        case ApiError(response=response):
            error = _refusal_error(response)
            error.retry_after = response.retry_after
            if response.retry_after:
                wait = f"wait {format_duration(response.retry_after)} before you try again, as the service requests"
                error.hint = f"{wait}\n{error.hint}" if error.hint else wait
            return error
        case UntrustedServerError():
            hint = "for a proxy that inspects TLS, set its authority as `custom_ca_certs_file`, or bypass it with `NO_PROXY`"
            return ServiceUnavailableError(str(failure), hint=hint)
        case GarbledAnswerError():
            return ServiceUnavailableError(str(failure), hint="check the endpoint and the proxy, then try again")
        case NotSentError():
            return ServiceUnavailableError(str(failure), hint="check the network, the proxy and the endpoint")
        case _:
            return ServiceUnavailableError(str(failure), hint="try again")


def operation_error(error: OperationError) -> TpuctlError:
    """Return the exception for a failed operation."""
    status = _STATUSES[error.code] if 0 <= error.code < len(_STATUSES) else "UNKNOWN"
    message = _one_line(error.message)
    verdict = _classify(f"{status}: {message}", error.reason, where="operation")
    if verdict is not None:
        return _from_verdict(verdict, message)
    return _BY_STATUS.get(status, TpuctlError)(message or f"the operation failed with {status}")


def credential_error(error: Exception) -> TpuctlError | TransportError:
    """Translate a google-auth exception. Return a `TransportError` for a network failure, so that the call is retried.

    A refresh that failed because of the network does not prove the credentials wrong.
    """
    from google.auth import exceptions  # noqa: PLC0415  # only with credentials; 20 ms

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UntrustedServerError):
            return cause
        if isinstance(cause, TransportError | exceptions.TransportError) or getattr(cause, "retryable", False):
            return NotSentError(f"cannot fetch an access token: {_one_line(str(error))}")
        cause = cause.__cause__ or next((arg for arg in cause.args if isinstance(arg, BaseException)), None)
    message = _one_line(str(error.args[0]) if error.args else str(error))
    verdict = _classify(message)
    if verdict is not None and verdict.kind == AccessError.kind:
        # Without a token no call works, even if only a permission to get one is missing.
        return _from_verdict(verdict, message, kind=CredentialsError)
    hint = "run `gcloud auth application-default login`; in CI set `GOOGLE_APPLICATION_CREDENTIALS`"
    return CredentialsError(f"the credentials cannot be used: {message}", hint=hint)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate `TransportError` and `ApiError` into tpuctl's exceptions."""
    try:
        yield
    except (TransportError, ApiError) as failure:
        raise translate(failure) from failure


def excerpt(content: bytes) -> str:
    """Return the first characters of an answer that is not from the API, on one line."""
    text = " ".join(content[: 4 * _EXCERPT].decode("utf-8", "replace").split())[:_EXCERPT]
    return f"`{text}`" if text else "no content"


def _refusal_error(response: ErrorResponse) -> TpuctlError:
    reason = _RATE_LIMIT_REASON if response.is_rate_limit else response.reason
    verdict = _classify(str(response), reason) if response.is_from_api else None
    if verdict is not None:
        return _from_verdict(verdict, response.message)
    if not response.is_from_api and response.code not in {401, 403, 407, 429}:
        hint = "check the endpoint and the proxy, then try again"
        return ServiceUnavailableError(f"the answer is not from the API: {response.message}", hint=hint)
    if response.status in {"ALREADY_EXISTS", "FAILED_PRECONDITION"}:
        return _BY_STATUS[response.status](response.message, hint="check it with `tpuctl status NODE`")
    unavailable = (ServiceUnavailableError, "the service has an internal error; try again in a few minutes")
    kind, hint = _BY_CODE.get(response.code, unavailable if response.is_fault else (TpuctlError, ""))
    return kind(f"{response.status or response.code}: {response.message}", hint=hint or None)


def _classify(text: str, reason: str = "", *, where: str = "api") -> Classification | None:
    from tpuctl.explain.messages import MessageOrigin, classify  # noqa: PLC0415  # 9 ms, only for failures

    return classify(text, where=MessageOrigin(where), reason=reason or None)


def _from_verdict(verdict: Classification, text: str, *, kind: type[TpuctlError] | None = None) -> TpuctlError:
    message = f"{verdict.meaning}: {text}" if text else verdict.meaning
    if kind is None:
        is_useless = verdict.action == "fix-auth" and verdict.id != _NO_QUOTA_PROJECT
        kind = CredentialsError if is_useless else _BY_KIND.get(verdict.kind, TpuctlError)
    error = kind(message, hint="\n".join(verdict.remedy) or None, error_id=verdict.id)
    error.is_lasting = not verdict.retriable
    return error


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


# The id that `explain` gives to a missing permission. Its hints are about TPUs.
PERMISSION_DENIED = "iam-permission-denied"
# Reasons of the older format for a 403 that no permission fixes [documentation: error responses of Cloud Storage; users of
# Compute Engine], with their error id and hint. Used if their text is unknown.
_OTHER_CAUSES = {
    "accessNotConfigured": ("api-disabled", "enable the API in the project, and try again after some minutes"),
    "accountDisabled": ("billing-disabled", "link an open billing account to the project that owns it"),
}


@contextmanager
def query_errors(what: str, permission: str | None) -> Iterator[None]:
    """Translate `TransportError` and `ApiError` of a read into tpuctl's exceptions.

    `what` describes the resource; `permission` is the one that the read requires, None if it requires none. Raises
    `NotFoundError` only after a 404 from the API.
    """
    try:
        yield
    except (TransportError, ApiError) as failure:
        raise _query_error(failure, what, permission) from failure


def _query_error(failure: TransportError | ApiError, what: str, permission: str | None) -> TpuctlError:
    error = translate(failure)
    if not isinstance(failure, ApiError):
        return error
    if failure.response.is_not_found:
        hint = "check the name and the project; `tpuctl config show` shows the project"
        return NotFoundError(f"{what} does not exist", hint=hint)
    response = failure.response
    if not response.is_from_api and response.code == 403:
        # From a proxy or from Google's front end, which do not know permissions.
        message = f"the answer about {what} is not from the API: {response.message}"
        return ServiceUnavailableError(message, hint="check the endpoint and the proxy, then try again")
    if response.code != 403 or not isinstance(error, AccessError):
        return error
    if error.error_id is None and (cause := _OTHER_CAUSES.get(response.status)):
        return AccessError(f"cannot read {what}: {response.message}", hint=cause[1], error_id=cause[0])
    if permission and error.error_id in {None, PERMISSION_DENIED}:
        # The API may name another permission: for a request that another project pays, it is not the bucket's.
        verdict = _classify(str(response), response.reason)
        lacking = (verdict.facts.get("permission") if verdict else None) or permission
        hint = f"ask for a role with `{lacking}` for your identity (`tpuctl config show`)"
        message = f"`{lacking}` is not allowed on {what}: {response.message}"
        return AccessError(message, hint=hint, error_id=error.error_id)
    return error


class TransportError(Exception):
    """No usable answer arrived. Not derived from httplib2's classes, so that httplib2 does not retry by itself."""


class NotSentError(TransportError):
    """The request was not sent: no DNS answer, connection, TLS or token. It is certain that it was not carried out."""


class UntrustedServerError(NotSentError):
    """The server's certificate is not signed by a known authority; a retry cannot succeed."""


class AnswerLostError(TransportError):
    """The request was sent, and may or may not have been carried out."""


class GarbledAnswerError(AnswerLostError):
    """The answer is not one of the API: HTML, truncated JSON, or JSON of another shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorResponse:
    """An HTTP answer other than success."""

    code: int
    message: str
    # The status of the API, such as `NOT_FOUND`; empty if the answer is not in Google's error format.
    status: str = ""
    # The reason of google.rpc.ErrorInfo.
    reason: str = ""
    retry_after: timedelta | None = None
    is_rate_limit: bool = False

    @property
    def is_from_api(self) -> bool:
        """Return whether the answer is from the API, not from a proxy or a web server in between."""
        return bool(self.status)

    @property
    def is_not_found(self) -> bool:
        """Return whether the API reports the resource as absent. The 404 of a web server proves nothing."""
        return self.code == 404 and self.is_from_api

    @property
    def is_fault(self) -> bool:
        """Return whether the service failed, so that the request may or may not have been carried out."""
        return self.code >= 500

    def __str__(self) -> str:
        return f"{self.status or self.code}: {self.message}"


class ApiError(Exception):
    """The service refused the request."""

    def __init__(self, response: ErrorResponse) -> None:
        super().__init__(str(response))
        self.response = response


def parse_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """Return the delay of a Retry-After header, given in seconds or as an HTTP date; None if it is garbled."""
    if text is None:
        return None
    if text.strip().isdecimal():
        # More digits would overflow a timedelta.
        return timedelta(seconds=min(int(text.strip()[:9]), 10**8))
    moment = parse_http_date(text)
    return None if moment is None else max(moment - now, timedelta())


def is_connection_refused(error: BaseException) -> bool:
    """Return whether a connection was refused: unlike a lost network or a busy service, that does not pass by itself."""
    origin = error
    while origin.__cause__ is not None:
        origin = origin.__cause__
    return isinstance(origin, ConnectionRefusedError)
