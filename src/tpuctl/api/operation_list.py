"""List the recent operations of a zone, with their results. The API keeps them for some time (unverified)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.api.calls import PlainRequest
from tpuctl.api.catalogue import CatalogueClient
from tpuctl.api.errors import translated
from tpuctl.api.retry import SHORT_PATIENCE
from tpuctl.model.operation import OPERATION
from tpuctl.shapes import TIME, Page, Shape

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# A zone may have thousands. Only the newest are needed, but the order of the list is not documented.
_MOST_PAGES = 20
_PAGE_SIZE = 500
_OPERATIONS = Page("tpu.v2 ListOperationsResponse", "operations")
_METADATA = Shape(
    "tpu.v2 OperationMetadata",
    {"createTime": TIME, "endTime": TIME, "target": str, "verb": str, "statusDetail": str, "cancelRequested": bool},
)
_OPERATION = Shape("tpu.v2 Operation", {**OPERATION.fields, "metadata": _METADATA}, required=("name",))


class OperationsClient(CatalogueClient):
    """Lists operations of the TPU API, with few retries."""

    patience = SHORT_PATIENCE

    def operations(
        self, project: str, zone: str, targets: Collection[str], *, limit: int
    ) -> tuple[dict[str, Any], ...]:
        """Return the newest operations on some resources, by their full names, as the API's own JSON, the newest first.

        Raises tpuctl's exceptions. The list is filtered here: the language of the API's filter is unverified.
        """
        found: list[dict[str, Any]] = []
        token: str | None = None

        def read(data: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
            _OPERATIONS.check(data)
            items = _OPERATIONS.items(data, lambda item: dict(_OPERATION.read(item)))
            return items, data.get("nextPageToken") or None

        for _ in range(_MOST_PAGES):
            url = self._url(f"v2/projects/{project}/locations/{zone}/operations")
            request = PlainRequest.of(url, query={"pageSize": _PAGE_SIZE, "pageToken": token})
            with translated():
                page, token = self._caller.attempt(request, read)
            found += [one for one in page if (one.get("metadata") or {}).get("target") in targets]
            if token is None:
                break
        found.sort(key=lambda one: str((one.get("metadata") or {}).get("createTime") or ""), reverse=True)
        return tuple(found[:limit])
