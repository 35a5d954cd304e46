"""`tpuctl sandbox reset`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.cli.options import OF_THE_CLOUD, cli_command, yes_option
from tpuctl.cli.places import checked_file
from tpuctl.errors import NotConfirmedError

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("reset", asks_trust=False, without=(*OF_THE_CLOUD, "output"))
@yes_option
def command(app: App, *, yes: bool) -> None:
    """Remove the sandbox: its nodes, its faults, and the files on its workers. No real resource is affected.

    \b
    Examples:
      tpuctl sandbox reset --yes
    """
    from tpuctl.sandbox import admin, shims  # noqa: PLC0415  # only for the sandbox

    path = app.sandbox_path
    if not app.terminal.confirm(f"remove the sandbox in {path.parent}?", yes=yes):
        raise NotConfirmedError("nothing was removed")
    # The results of earlier checks do not apply to a new sandbox.
    checked_file(app.invocation.environ, sandbox=True).unlink(missing_ok=True)
    try:
        served_at = shims.served_at(path)
    except shims.NotServedError:
        served_at = None
    app.terminal.note("removed the sandbox" if admin.reset(path) else "there was no sandbox")
    if served_at:
        # The server continues with the new sandbox.
        shims.note_served(path, served_at)
