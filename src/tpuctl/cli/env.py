"""`tpuctl env`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import cli_command, node_argument
from tpuctl.model.states import NodeState

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("env", without=("output",), is_short=True)
@node_argument
@click.option(
    "--worker", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Worker that it is for."
)
@click.option(
    "--output",
    "-o",
    "form",
    type=click.Choice(("sh", "fish", "json")),
    default="sh",
    show_default=True,
    help="Which shell, or JSON.",
)
def command(app: App, *, node: str, worker: int, form: str) -> None:
    """Print, for a shell, the variables that training scripts look for: which TPU it is, and where its workers are.

    TPU_NAME is `local` for a node of one worker, as TPUClusterResolver wants it on the TPU VM itself; TPU_CONFIG has the node's
    name. TPU_WORKER_HOSTNAMES makes JAX wait for all workers: unset it to try something on one of them.

    \b
    Examples:
      eval "$(tpuctl env trainer)"
      tpuctl env trainer --worker 2 -o fish | source
      tpuctl env trainer -o json | jq -r .TPU_CONFIG
    """
    from tpuctl.model.worker_set import WorkerSet  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above
    from tpuctl.remote import environment  # noqa: PLC0415  # as above

    if form == "json":
        app.take({"output": form})
    found = app.find(node)
    (number,) = WorkerSet.parse(str(worker)).of(found.name.node_id, found.workers)
    exported = environment.variables(environment.EnvironmentWish(tpu=True), found, number, found.workers)
    if found.state is not NodeState.READY:
        app.terminal.warn(f"`{found.name.node_id}` is {found.state}: its TPU cannot be used now")
    if caution := environment.caution(exported, found.workers):
        app.terminal.note(caution)
    if form == "json":
        app.terminal.data(exported, Format.JSON)
    else:
        lines = environment.fish_exports if form == "fish" else environment.posix_exports
        app.terminal.names(lines(exported))
