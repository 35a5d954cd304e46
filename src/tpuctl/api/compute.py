"""Of Compute Engine only this: the metadata that all machines of a project share. Raises tpuctl's exceptions.

Google's library is left out: for one URL it would read the 3 MB that describe all of Compute Engine, which takes 40 ms.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpuctl.api.calls import Api, PlainRequest
from tpuctl.api.client import Client
from tpuctl.api.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping


_ROOT = "https://compute.googleapis.com/compute/v1/"


class ComputeClient(Client):
    """Calls Compute Engine."""

    api = Api("compute", "v1", "compute/v1/")
    # What is asked here is good to know, and nothing that somebody should wait long for.
    patience = RetryPolicy(attempts=2, deadline=timedelta(seconds=15))

    def project_metadata(self, project: str) -> Mapping[str, str]:
        """Return the project's commonInstanceMetadata. Raises `AccessError` without `compute.projects.get`."""
        root = self._own_endpoint.url(self.api.path) if self._own_endpoint else _ROOT
        url = f"{root}projects/{quote(project, safe=':')}?fields=commonInstanceMetadata/items"
        return self._caller.call(PlainRequest(url), _items)


def _items(data: Mapping[str, Any]) -> dict[str, str]:
    items = (data.get("commonInstanceMetadata") or {}).get("items") or ()
    return {str(item["key"]): str(item.get("value", "")) for item in items}
