"""Of Compute Engine only this: the metadata that all machines of a project share. Raises tpuctl's exceptions.

Google's library is left out: for one URL it would read the 3 MB that describe all of Compute Engine, which takes 40 ms.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpuctl.api.calls import Api, Caller, PlainRequest
from tpuctl.api.endpoint import Endpoint
from tpuctl.api.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tpuctl.clock import Clock

_COMPUTE = Api("compute", "v1", "compute/v1/")
_ROOT = "https://compute.googleapis.com/compute/v1/"
# What is asked here is good to know, and nothing that somebody should wait long for.
_IMPATIENT = RetryPolicy(attempts=2, deadline=timedelta(seconds=15))


class ComputeClient:
    """Calls Compute Engine through http objects that `http_factory` returns, one for each thread.

    `endpoint` is a URL that serves the API below `/compute/v1/` in place of Google's. Waits go through `clock`.
    """

    def __init__(
        self,
        http_factory: Callable[[], Any],
        clock: Clock,
        *,
        endpoint: str | None = None,
        random: Random | None = None,
        policy: RetryPolicy = _IMPATIENT,
    ) -> None:
        self._caller = Caller(http_factory, clock, random=random, policy=policy, api=_COMPUTE)
        self._root = Endpoint.parse(endpoint).url(_COMPUTE.path) if endpoint else _ROOT

    def project_metadata(self, project: str) -> Mapping[str, str]:
        """Return the project's commonInstanceMetadata. Raises `AccessError` without `compute.projects.get`."""
        url = f"{self._root}projects/{quote(project, safe=':')}?fields=commonInstanceMetadata/items"
        return self._caller.call(PlainRequest(url), _items)


def _items(data: Mapping[str, Any]) -> dict[str, str]:
    items = (data.get("commonInstanceMetadata") or {}).get("items") or ()
    return {str(item["key"]): str(item.get("value", "")) for item in items}
