"""What the clients of Google's APIs share: how they are made."""

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
    """Calls one API through http objects that `http_factory` returns, one for each thread.

    `endpoint` is a URL that serves the API, below its `api.path`, in place of Google's. Waits go through `clock`.
    """

    api: ClassVar[Api] = TPU
    # How long it goes on trying unless it is told otherwise; nothing for `retry`'s own.
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
        """Return the URL of a path at Google's host of a service (that of `api`), or at the endpoint of one's own."""
        if self._own_endpoint:
            return self._own_endpoint.url(path)
        return f"https://{service or self.api.name}.googleapis.com/{path}"
