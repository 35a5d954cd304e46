"""`tpuctl versions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.options import cli_command
from tpuctl.output.terminal import Cell, OutputFormat

if TYPE_CHECKING:
    from tpuctl.app.app import App


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
    if app.format in {OutputFormat.JSON, OutputFormat.YAML}:
        mark = {"sandbox": True} if app.is_sandbox else {}
        app.terminal.data([{"runtimeVersion": version, "zone": zone, **mark} for version in versions], app.format)
    elif app.format is OutputFormat.NAME:
        app.terminal.names(versions)
    else:
        app.terminal.table(("VERSION", "ZONE"), [(Cell(version), Cell(zone)) for version in versions])
