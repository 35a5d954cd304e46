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
    """Remove everything in the sandbox: its nodes, its faults, and the files on its workers. Nothing real is touched.

    \b
    Examples:
      tpuctl sandbox reset --yes
    """
    from tpuctl.sandbox import admin, shims  # noqa: PLC0415  # only for the sandbox

    path = app.sandbox_path
    if not app.terminal.confirm(f"remove the sandbox in {path.parent}?", yes=yes):
        raise NotConfirmedError("nothing was done")
    # What was said of the old world is not true of the next.
    checked_file(app.invocation.environ, sandbox=True).unlink(missing_ok=True)
    try:
        served_at = shims.served_at(path)
    except shims.NotServedError:
        served_at = None
    app.terminal.note("the sandbox is empty" if admin.reset(path) else "there was no sandbox")
    if served_at:
        # The server goes on with the new world.
        shims.note_served(path, served_at)
