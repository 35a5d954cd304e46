"""`tpuctl sandbox serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import OF_THE_CLOUD, cli_command
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("serve", asks_trust=False, without=(*OF_THE_CLOUD, "output"))
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="PORT", default=0, help="Port to listen on. [default: a free one]"
)
def command(app: App, *, port: int) -> None:
    """Serve the sandbox on a local port, for gcloud, Google's libraries and curl, until Ctrl-C.

    stdout gets the URL, stderr the environment for gcloud, which `tpuctl sandbox env` prints in another terminal too.
    For tpuctl the URL is enough: its `ssh` finds the workers of your own sandbox.

    \b
    Examples:
      tpuctl sandbox serve --port 8090
      eval "$(tpuctl sandbox env)" && gcloud compute tpus tpu-vm list
      TPUCTL_ENDPOINT=http://127.0.0.1:8090 tpuctl list --project sandbox
    """
    from tpuctl.cli.signals import TerminatedError  # noqa: PLC0415  # loaded long before
    from tpuctl.sandbox import server, shims  # noqa: PLC0415  # only for the sandbox

    world = app.world
    try:
        opened = server.serve(world, port, log=app.terminal.note if app.is_verbose else None)
    except OSError as error:
        raise InvalidInputError(
            f"cannot listen on port {port}: {error.strerror}", hint="leave `--port` out to use a free port"
        ) from error
    app.terminal.write(opened.url)
    app.terminal.flush()
    shims.note_served(world.path, opened.url)
    try:
        app.terminal.note(*_how_to_use(app, opened.url))
        opened.serve_forever()
    except (KeyboardInterrupt, TerminatedError):
        # The normal end of a server: no message, exit code 0.
        pass
    finally:
        shims.forget_served(world.path, opened.url)
        opened.close()


def _how_to_use(app: App, url: str) -> list[str]:
    from tpuctl.sandbox import shims  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox.admin import PROJECT, ZONE  # noqa: PLC0415  # as above
    from tpuctl.sandbox.sshd import SshdUnavailableError  # noqa: PLC0415  # as above

    lines = ["for tpuctl:", f"  export TPUCTL_ENDPOINT={url} TPUCTL_PROJECT={PROJECT}"]
    try:
        variables = shims.environment(app.world.path, url, project=PROJECT, zone=ZONE, environ=app.invocation.environ)
    except SshdUnavailableError as error:
        return [*lines, f"no environment for gcloud: {error.message}"]
    lines += ['for gcloud (or run `eval "$(tpuctl sandbox env)"`):']
    # For a reader the new folder of PATH is enough.
    folder = variables.pop("PATH").partition(":")[0]
    shown = [f"export PATH={folder}:$PATH", *shims.exports(variables).splitlines()]
    return [*lines, *(f"  {line}" for line in shown), "press Ctrl-C to stop"]
