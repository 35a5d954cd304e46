"""`tpuctl types`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.accelerators import check_accelerator_type, find_accelerator_type
from tpuctl.app.options import cli_command
from tpuctl.cloud.tpu import fetch_offers
from tpuctl.errors import NotFoundError
from tpuctl.names import parse_whole_number
from tpuctl.nodes.locate import incomplete_list_error
from tpuctl.output.terminal import Cell, OutputFormat

if TYPE_CHECKING:
    from tpuctl.app.app import App


@cli_command("types", is_short=True)
@click.argument("accelerator_type", metavar="[TYPE]", required=False)
def command(app: App, *, accelerator_type: str | None) -> None:
    """List the accelerator types that zones offer, or with TYPE the zones that offer it.

    \b
    Examples:
      tpuctl types --zone us-central2-b
      tpuctl types v5litepod-16
    """
    if accelerator_type is not None:
        check_accelerator_type(accelerator_type)
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
    if app.format in {OutputFormat.JSON, OutputFormat.YAML}:
        mark = {"sandbox": True} if app.is_sandbox else {}
        app.terminal.data([{**_described(zone, name), **mark} for zone, name in entries], app.format)
    elif app.format is OutputFormat.NAME:
        app.terminal.names(dict.fromkeys(name for _, name in entries))
    else:
        rows = [
            tuple(Cell("" if value is None else str(value)) for value in _described(*entry).values())
            for entry in entries
        ]
        app.terminal.table(("TYPE", "ZONE", "CHIPS", "WORKERS", "TOPOLOGY", "VERSION"), rows)
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
