"""The base class of the clients of Google's APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tpuctl.api.calls import TPU, Api, Caller
from tpuctl.api.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tpuctl.api.retry import RetryPolicy
    from tpuctl.clock import Clock


class Client:
    """Calls one API. `http_factory` returns one http object for each thread.

    `endpoint` is a URL that serves the API at `api.path` instead of Google's.
    """

    api: ClassVar[Api] = TPU
    # The default retry policy; None for the one of `retry`.
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
        self._own_endpoint = Endpoint.parse(endpoint) if endpoint else None
        self._caller = Caller(
            http_factory, clock, endpoint=endpoint, random=random, policy=policy or self.patience, api=self.api
        )

    def _url(self, path: str, *, service: str | None = None) -> str:
        """Return the URL of a path at Google's host for a service (default: `api`), or at the custom endpoint."""
        if self._own_endpoint:
            return self._own_endpoint.url(path)
        return f"https://{service or self.api.name}.googleapis.com/{path}"
