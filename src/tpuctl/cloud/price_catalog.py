"""The client of the Cloud Billing Catalog: the public prices of TPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.cloud.errors import query_errors
from tpuctl.cloud.requests import ApiClient
from tpuctl.models.skus import COMPUTE_SERVICE, TPU_SERVICE, TpuSku
from tpuctl.shapes import Page

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_SKUS = Page("cloudbilling.v1 ListSkusResponse", "skus")
# The list has no filter; a service has tens of thousands of SKUs, of which few fields are needed.
_FIELDS = (
    "skus(name,description,serviceRegions,category(usageType),pricingInfo(effectiveTime,pricingExpression(usageUnit,"
    "tieredRates))),nextPageToken"
)
_PAGE_SIZE = 5000  # the most there is [API cloudbilling v1, pageSize]


class PriceCatalogClient(ApiClient):
    """Reads the prices of TPUs; needs the scope cloud-billing.readonly or cloud-platform, and no permission."""

    def tpu_skus(self) -> list[TpuSku]:
        """Return the prices of TPU chips of both services. Raises the errors of a call."""
        return [sku for service in (TPU_SERVICE, COMPUTE_SERVICE) for sku in self._skus(service)]

    def _skus(self, service: str) -> list[TpuSku]:
        def read(data: Mapping[str, Any]) -> TpuSku | None:
            return TpuSku.from_api(data, service)

        with query_errors("the prices of the Cloud Billing Catalog", None):
            found = self._pages(
                "cloudbilling.v1 services.skus.list",
                _SKUS,
                read,
                parent=service,
                currencyCode="USD",
                pageSize=_PAGE_SIZE,
                fields=_FIELDS,
            )
        return [sku for sku in found.items if sku is not None]
