"""`tpuctl sandbox env`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import OF_THE_CLOUD, cli_command
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from tpuctl.cli.app import App

_UNUSED = ("output", *(name for name in OF_THE_CLOUD if name not in {"project", "zone"}))


@cli_command("env", without=_UNUSED)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Port of `tpuctl sandbox serve`. [default: that of the running server]",
)
def command(app: App, *, port: int | None) -> None:
    """Print shell variables that make gcloud use the served sandbox, with ssh to its workers.

    They put an `ssh` and a `scp` that reach the sandbox's workers first on PATH, and make gcloud ignore your accounts and
    configurations. gcloud still stores its ssh key in ~/.ssh: set HOME too to avoid that.

    \b
    Examples:
      eval "$(tpuctl sandbox env)"
      gcloud compute tpus tpu-vm ssh trainer --worker=all --command=hostname
    """
    from tpuctl.sandbox import shims  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox.admin import PROJECT, ZONE  # noqa: PLC0415  # as above

    world = app.sandbox_path
    url = f"http://127.0.0.1:{port}" if port else shims.served_at(world)
    variables = shims.environment(
        world,
        url,
        project=_ours(app, "project") or PROJECT,
        zone=_ours(app, "zone") or ZONE,
        environ=app.invocation.environ,
    )
    app.terminal.document(shims.exports(variables))


def _ours(app: App, key: str) -> str | None:
    """Return a setting unless it comes from gcloud, whose project is a real one."""
    setting = app.settings_with({"zone": app.zones[0]} if app.zones else {})[key]
    if setting is None or setting.source.kind in {SourceKind.GCLOUD, SourceKind.CLOUDSDK}:
        return None
    return str(setting.value)
