"""The operations of a zone: what was asked of nodes lately, and how it ended. The API keeps them for some time (unverified)."""

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

# A zone may have thousands; the newest are wanted, and the order of the list is not documented.
_MOST_PAGES = 20
_PAGE_SIZE = 500
_OPERATIONS = Page("tpu.v2 ListOperationsResponse", "operations")
_METADATA = Shape(
    "tpu.v2 OperationMetadata",
    {"createTime": TIME, "endTime": TIME, "target": str, "verb": str, "statusDetail": str, "cancelRequested": bool},
)
_OPERATION = Shape("tpu.v2 Operation", {**OPERATION.fields, "metadata": _METADATA}, required=("name",))


class OperationsClient(CatalogueClient):
    """Asks the TPU API for operations. It does not try for long."""

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
            return _OPERATIONS.items(data, _operation), data.get("nextPageToken") or None

        for _ in range(_MOST_PAGES):
            url = self._url(f"v2/projects/{project}/locations/{zone}/operations")
            request = PlainRequest.of(url, query={"pageSize": _PAGE_SIZE, "pageToken": token})
            with translated():
                page, token = self._caller.attempt(request, read)
            found += [one for one in page if (one.get("metadata") or {}).get("target") in targets]
            if token is None:
                break
        return tuple(sorted(found, key=_created, reverse=True)[:limit])


def _operation(data: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_OPERATION.read(data))


def _created(operation: Mapping[str, Any]) -> str:
    return str((operation.get("metadata") or {}).get("createTime") or "")
