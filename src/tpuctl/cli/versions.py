"""`tpuctl versions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.cli.options import cli_command
from tpuctl.output.tables import Cell
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("versions", is_short=True)
def command(app: App) -> None:
    """List the runtime versions (images) that a zone offers.

    \b
    Examples:
      tpuctl versions --zone us-central2-b
      tpuctl versions --zone us-central2-b -o name | grep v5
    """
    place = app.place
    zone = place.zone or place.default_zone
    if zone is None:
        raise app.settings.missing("zone")
    versions = sorted(app.client.runtime_versions(place.project, zone))
    if app.format in {Format.JSON, Format.YAML}:
        mark = {"sandbox": True} if app.is_sandbox else {}
        app.terminal.data([{"runtimeVersion": version, "zone": zone, **mark} for version in versions], app.format)
    elif app.format is Format.NAME:
        app.terminal.names(versions)
    else:
        app.terminal.table(("VERSION", "ZONE"), [(Cell(version), Cell(zone)) for version in versions])
