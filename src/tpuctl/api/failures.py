"""The failures of a single HTTP exchange, by what is certain afterwards. Used inside `api/`; `errors.py` translates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta


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


class RefusedError(Exception):
    """The service refused the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
