"""The price list of a run: the built-in table or, with the setting `prices: live`, the Cloud Billing Catalog."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from tpuctl.durations import format_timestamp, parse_timestamp
from tpuctl.errors import ServiceUnavailableError, TpuctlError
from tpuctl.files import read_json_cache, write_json_cache
from tpuctl.prices import PriceList, price_table
from tpuctl.shapes import TIME, MapOf, Shape, text_matching

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Any

    from tpuctl.app.app import App

_KEPT_FOR: Final = timedelta(days=1)
_SOURCE: Final = "Cloud Billing Catalog"
_DECIMAL = text_matching(r"[0-9]{1,9}(\.[0-9]{1,12})?", "an amount of dollars")
_CACHE = MapOf(
    Shape("", {"at": TIME, "perChip": MapOf(MapOf(MapOf(_DECIMAL)))}, required=("at", "perChip")),
)


def price_list(app: App) -> PriceList:
    """Return the prices; live ones are read once a day. Falls back to the table, with a note, if they cannot be read."""
    if app.settings.text("prices") != "live":
        return price_table()
    path, now = app.state_folder / "prices.json", app.clock.now()
    # An endpoint other than Google's may have other prices.
    place = app.settings.text("endpoint") or "google"
    entries = read_json_cache(path, _CACHE)
    if (known := entries.get(place)) and (found := _from_cache(known, now)):
        return found
    try:
        per_chip = _fetch(app)
    except TpuctlError as error:
        table = price_table()
        app.terminal.note(f"no live prices: {error.message}; using the {table}")
        return table
    texts = {
        generation: {
            region: {column: str(dollars) for column, dollars in columns.items()} for region, columns in regions.items()
        }
        for generation, regions in per_chip.items()
    }
    write_json_cache(path, {**entries, place: {"at": format_timestamp(now), "perChip": texts}})
    return PriceList(_SOURCE, now.date().isoformat(), per_chip)


def _fetch(app: App) -> dict[str, dict[str, dict[str, Decimal]]]:
    """Return the prices of the catalog. Raises `ServiceUnavailableError` if it has none of TPUs."""
    from tpuctl.app.app import http_access  # noqa: PLC0415  # `app` imports this module's caller
    from tpuctl.cloud.price_catalog import PriceCatalogClient  # noqa: PLC0415  # once a day
    from tpuctl.models.skus import chip_prices  # noqa: PLC0415  # as above

    factory, endpoint = http_access(app)
    found = chip_prices(PriceCatalogClient(factory, app.clock, endpoint=endpoint).tpu_skus())
    if not found:
        raise ServiceUnavailableError("the Cloud Billing Catalog has no price of a TPU")
    return found


def _from_cache(entry: dict[str, Any], now: datetime) -> PriceList | None:  # JSON that was checked
    """Return the cached prices, None if they are older than a day."""
    at = parse_timestamp(entry["at"])
    if at is None or not timedelta() <= now - at < _KEPT_FOR:
        return None
    per_chip = {
        generation: {
            region: {column: Decimal(text) for column, text in columns.items()} for region, columns in regions.items()
        }
        for generation, regions in entry["perChip"].items()
    }
    return PriceList(_SOURCE, at.date().isoformat(), per_chip)
