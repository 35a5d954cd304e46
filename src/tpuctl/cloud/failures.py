"""How a single HTTP exchange can fail, by what is certain afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime


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
class Refusal:
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


class ApiRefusedError(Exception):
    """The service refused the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def parse_http_date(text: str | None) -> datetime | None:
    """Parse the time of a `Date` or `Retry-After` header; None if it is absent or garbled."""
    try:
        moment = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        # The digits of a zone are not bounded.
        return None
    # Years at the ends of the calendar overflow as soon as an hour is added or a time zone applied.
    if not 2 <= moment.year <= 9998:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """Return the delay of a Retry-After header, given in seconds or as an HTTP date; None if it is garbled."""
    if text is None:
        return None
    if text.strip().isdecimal():
        # More digits would overflow a timedelta.
        return timedelta(seconds=min(int(text.strip()[:9]), 10**8))
    moment = parse_http_date(text)
    return None if moment is None else max(moment - now, timedelta())
