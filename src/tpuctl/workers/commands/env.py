"""`tpuctl env`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import cli_command, node_argument
from tpuctl.models.node import NodeState, WorkerSet
from tpuctl.output.terminal import View
from tpuctl.workers.environment import (
    EnvironmentOptions,
    environment_warning,
    fish_exports,
    job_variables,
    posix_exports,
)

if TYPE_CHECKING:
    from tpuctl.app.app import App


@cli_command("env", without=("output",), is_short=True)
@node_argument
@grouped_option(
    "--worker",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Worker whose variables to print.",
)
@grouped_option(
    "--output",
    "-o",
    "form",
    type=click.Choice(("sh", "fish", "json")),
    default="sh",
    show_default=True,
    help="Syntax: of a shell, or JSON.",
)
def command(app: App, *, node: str, worker: int, form: str) -> None:
    """Print the environment variables that training scripts read, for a shell: the TPU's name and its workers' addresses.

    TPU_NAME is `local` for a node with one worker, which TPUClusterResolver expects on the TPU VM itself; TPU_CONFIG has the
    node's name. TPU_WORKER_HOSTNAMES makes JAX wait for all workers: unset it to use one worker alone.

    \b
    Examples:
      eval "$(tpuctl env trainer)"
      tpuctl env trainer --worker 2 -o fish | source
      tpuctl env trainer -o json | jq -r .TPU_CONFIG
    """
    app.set_options({"output": form if form == "json" else "table"})  # a setting must not change the shell's syntax
    found = app.find(node)
    (number,) = WorkerSet.parse(str(worker)).of(found.name.node_id, found.workers)
    exported = job_variables(EnvironmentOptions(tpu=True), found, number)
    if found.state is not NodeState.READY:
        app.terminal.warn(f"`{found.name.node_id}` is {found.state}: its TPU cannot be used now")
    if warning := environment_warning(exported, found.workers):
        app.terminal.note(warning)
    lines = fish_exports if form == "fish" else posix_exports
    app.show(View(value=lambda: exported, text=lambda terminal: terminal.names(lines(exported))))
