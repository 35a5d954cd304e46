"""`tpuctl types` and `versions`: what zones offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.accelerators import check_accelerator_type, find_accelerator_type
from tpuctl.app.options import cli_command
from tpuctl.cloud.tpu import fetch_offers
from tpuctl.errors import NotFoundError
from tpuctl.models.node import Tier
from tpuctl.names import parse_whole_number
from tpuctl.nodes.locate import incomplete_list_error
from tpuctl.output.terminal import Cell, table_view

if TYPE_CHECKING:
    from tpuctl.app.app import App


@cli_command("types", is_short=True)
@click.argument("accelerator_type", metavar="[TYPE]", required=False)
def types(app: App, *, accelerator_type: str | None) -> None:
    """List the accelerator types that zones offer, and their prices; with TYPE the zones that offer it.

    Prices are dollars per hour for the whole node, from a list with a date; spot prices change often, and `?` is unknown.

    \b
    Examples:
      tpuctl types --zone us-central2-b
      tpuctl types v5litepod-16
    """
    if accelerator_type is not None:
        accelerator_type = check_accelerator_type(accelerator_type)
    catalogue = fetch_offers(app.client.accelerator_types, app.client.locations, app.project, app.zones)
    entries = [
        (zone, name)
        for zone, names in catalogue.by_zone.items()
        for name in sorted(
            names, key=lambda name: (name.rpartition("-")[0], parse_whole_number(name.rpartition("-")[2]) or 0)
        )
        if accelerator_type in (None, name)
    ]
    if accelerator_type is not None and not entries and not catalogue.unreachable:
        where = ", ".join(app.zones) or f"any zone of project {app.project}"
        raise NotFoundError(
            f"`{accelerator_type}` is not offered in {where}", hint="`tpuctl types` lists what is offered"
        )
    header = ("TYPE", "ZONE", "CHIPS", "WORKERS", "TOPOLOGY", "VERSION", "ON-DEMAND", "SPOT")
    prices = [
        tuple(app.prices.hourly_price(name, zone, tier) for tier in (Tier.ON_DEMAND, Tier.SPOT))
        for zone, name in entries
    ]
    described = [_described(zone, name) for zone, name in entries]
    rows = [
        tuple(Cell("" if value is None else str(value)) for value in (*entry.values(), *costs))
        for entry, costs in zip(described, prices, strict=True)
    ]
    values = [
        {**entry, "price": on_demand.to_json(), "spotPrice": spot.to_json()}
        for entry, (on_demand, spot) in zip(described, prices, strict=True)
    ]
    names = dict.fromkeys(name for _, name in entries)
    app.show(table_view(header, rows, value=lambda: values, names=lambda: names))
    if catalogue.unreachable:
        raise incomplete_list_error(catalogue.unreachable)


def _described(zone: str, name: str) -> dict[str, str | int | None]:
    known = find_accelerator_type(name)
    return {
        "acceleratorType": name,
        "zone": zone,
        "chips": known.chips if known else None,
        "workers": known.workers if known else None,
        "topology": known.topology if known else None,
        "runtimeVersion": known.runtime_version if known else None,
    }


@cli_command("versions", is_short=True)
def versions(app: App) -> None:
    """List the runtime versions (images) that a zone offers.

    \b
    Examples:
      tpuctl versions --zone us-central2-b
      tpuctl versions --zone us-central2-b -o name | grep v5
    """
    place = app.place
    zone = place.zone or place.default_zone
    if zone is None:
        raise app.missing_zone()
    found = sorted(app.client.runtime_versions(place.project, zone))
    app.show(
        table_view(
            ("VERSION", "ZONE"),
            [(Cell(version), Cell(zone)) for version in found],
            value=lambda: [{"runtimeVersion": version, "zone": zone} for version in found],
            names=lambda: found,
        )
    )
