"""`tpuctl types` and `versions`: what zones offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.accelerators import check_accelerator_type, find_accelerator_type, suggest_listed_type
from tpuctl.app.options import TableOptions, cli_command, takes_options
from tpuctl.app.value_completion import complete_columns, complete_type
from tpuctl.cloud.tpu import fetch_offers
from tpuctl.errors import NotFoundError
from tpuctl.models.billing import Dollars
from tpuctl.models.node import Tier
from tpuctl.names import parse_whole_number
from tpuctl.nodes.lookup import IncompleteListError
from tpuctl.nodes.rendering import dollars_cell
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.terminal import Cell, View, table_view
from tpuctl.prices import hourly_price

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.prices import Price

TYPE_COLUMNS = (
    Column("type", Kind.NAME),
    Column("zone", Kind.ZONE),
    Column("chips", Kind.NUMBER),
    Column("workers", Kind.NUMBER),
    Column("topology", Kind.WORD),
    Column("version"),
    Column("price", Kind.NUMBER, "$/H", unit="$/h"),
    Column("spot-price", Kind.NUMBER, "SPOT $/H", unit="$/h"),
)


@cli_command(
    "types",
    is_short=True,
    shows={"zone": "Zone whose types are listed, or several as ZONE,ZONE. [default: all]", "output": None},
)
@click.argument("accelerator_type", metavar="[TYPE]", required=False, shell_complete=complete_type)
@takes_options(TableOptions, "table", shell_complete=complete_columns(lambda: TYPE_COLUMNS))
def types(app: App, *, accelerator_type: str | None, table: TableOptions) -> None:
    """List the accelerator types that zones offer, and their prices; with TYPE the zones that offer it.

    Prices are dollars per hour for the whole node, from a list with a date; spot prices change often, and `?` is unknown.

    \b
    Examples:
      tpuctl types --zone us-central2-b
      tpuctl types v5litepod-16
      tpuctl types v5litepod-16 --sort spot-price
    """
    layout = table.layout(app, TYPE_COLUMNS)
    if accelerator_type is not None:
        accelerator_type = check_accelerator_type(accelerator_type)
    catalogue = fetch_offers(
        app.services.client.accelerator_types, app.services.client.locations, app.project, app.zones
    )
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
        near = suggest_listed_type(accelerator_type)
        meant = f"did you mean `{near}`? " if near else ""
        raise NotFoundError(
            f"`{accelerator_type}` is not offered in {where}", hint=f"{meant}`tpuctl types` lists what is offered"
        )
    prices = [tuple(hourly_price(name, zone, tier) for tier in (Tier.ON_DEMAND, Tier.SPOT)) for zone, name in entries]
    described = [_described(zone, name) for zone, name in entries]
    rows = [
        (*(Cell("" if value is None else str(value)) for value in entry.values()), *map(_price_cell, costs))
        for entry, costs in zip(described, prices, strict=True)
    ]
    values = [
        {**entry, "price": on_demand.to_json(), "spotPrice": spot.to_json()}
        for entry, (on_demand, spot) in zip(described, prices, strict=True)
    ]
    values, rows = layout.sort(values, rows)
    names = dict.fromkeys(str(entry["acceleratorType"]) for entry in values)
    app.show(View(value=lambda: values, names=lambda: names, text=lambda terminal: layout.write(terminal, rows)))
    if catalogue.unreachable:
        raise IncompleteListError(catalogue.unreachable)


# Names and order are a contract with scripts (docs/nodes.md).


def _price_cell(price: Price) -> Cell:
    return dollars_cell(Dollars(price.per_hour, is_about=price.is_about))


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


@cli_command("versions", is_short=True, shows={"zone": "Zone whose versions are listed."})
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
    found = sorted(app.services.client.runtime_versions(place.project, zone))
    app.show(
        table_view(
            ("VERSION", "ZONE"),
            [(Cell(version), Cell(zone)) for version in found],
            value=lambda: [{"runtimeVersion": version, "zone": zone} for version in found],
            names=lambda: found,
        )
    )
