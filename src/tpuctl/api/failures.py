"""How a single HTTP exchange can fail, by what is certain afterwards. Only `api/` sees these; `errors.py` translates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta


class TransportError(Exception):
    """There was no usable answer. None of httplib2's own classes, so that httplib2 does not send again by itself."""


class NotSentError(TransportError):
    """The request never left: no name, no connection, no TLS, no token. It is certain that nothing was carried out."""


class UntrustedServerError(NotSentError):
    """The server's certificate is not signed by a known authority; trying again changes nothing."""


class AnswerLostError(TransportError):
    """The request may have been carried out or not."""


class GarbledAnswerError(AnswerLostError):
    """An answer came that is not the API's: HTML, truncated JSON, JSON of another shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An HTTP answer other than success.

    `status` is the API's word (`NOT_FOUND`), empty where the answer is not in Google's error format; `reason` is that
    of google.rpc.ErrorInfo.
    """

    code: int
    message: str
    status: str = ""
    reason: str = ""
    retry_after: timedelta | None = None
    is_rate_limit: bool = False

    @property
    def is_from_api(self) -> bool:
        """Tell whether the API said this, not a proxy or a web server on the way."""
        return bool(self.status)

    @property
    def is_not_found(self) -> bool:
        """Tell whether the API says that the resource is absent. A web server's 404 says nothing about it."""
        return self.code == 404 and self.is_from_api

    @property
    def is_fault(self) -> bool:
        """Tell whether the service failed, so that the request may have been carried out or not."""
        return self.code >= 500

    def __str__(self) -> str:
        return f"{self.status or self.code}: {self.message}"


class RefusedError(Exception):
    """The service answered with something other than success."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
