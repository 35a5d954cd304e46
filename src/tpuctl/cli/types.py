"""`tpuctl types`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.accelerators import check, find
from tpuctl.actions.catalogue import offered
from tpuctl.actions.locate import incomplete
from tpuctl.cli.options import cli_command
from tpuctl.errors import NotFoundError
from tpuctl.names import whole_number
from tpuctl.output.tables import Cell
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from tpuctl.cli.app import App


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
        check(accelerator_type)
    catalogue = offered(app.client.accelerator_types, app.client.locations, app.project, app.zones)
    entries = [
        (zone, name)
        for zone, names in catalogue.by_zone.items()
        for name in sorted(names, key=_by_size)
        if accelerator_type in (None, name)
    ]
    if accelerator_type is not None and not entries and not catalogue.unreachable:
        where = ", ".join(app.zones) or f"any zone of project {app.project}"
        raise NotFoundError(
            f"`{accelerator_type}` is not offered in {where}", hint="`tpuctl types` lists what is offered"
        )
    if app.format in {Format.JSON, Format.YAML}:
        mark = {"sandbox": True} if app.is_sandbox else {}
        app.terminal.data([{**_described(zone, name), **mark} for zone, name in entries], app.format)
    elif app.format is Format.NAME:
        app.terminal.names(dict.fromkeys(name for _, name in entries))
    else:
        rows = [
            tuple(Cell("" if value is None else str(value)) for value in _described(*entry).values())
            for entry in entries
        ]
        app.terminal.table(("TYPE", "ZONE", "CHIPS", "WORKERS", "TOPOLOGY", "VERSION"), rows)
    if catalogue.unreachable:
        raise incomplete(catalogue.unreachable)


def _described(zone: str, name: str) -> dict[str, str | int | None]:
    known = find(name)
    return {
        "acceleratorType": name,
        "zone": zone,
        "chips": known.chips if known else None,
        "workers": known.workers if known else None,
        "topology": known.topology if known else None,
        "runtimeVersion": known.runtime_version if known else None,
    }


def _by_size(name: str) -> tuple[str, int]:
    prefix, _, size = name.rpartition("-")
    return prefix, whole_number(size) or 0
