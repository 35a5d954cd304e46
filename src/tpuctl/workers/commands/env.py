"""`tpuctl env`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import cli_command, node_argument
from tpuctl.models.node import NodeState, WorkerSet
from tpuctl.output.terminal import View
from tpuctl.workers.environment import EnvironmentOptions, fish_exports, job_variables, posix_exports

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

    TPU_NAME is the name of the node, which Ray takes for that of the slice. For a program on a node with one worker,
    TensorFlow's TPUClusterResolver expects `local`: write it in the program.

    \b
    Examples:
      eval "$(tpuctl env trainer)"
      tpuctl env trainer --worker 2 -o fish | source
      tpuctl env trainer -o json | jq -r .TPU_CONFIG
    """
    app.set_options({"output": form if form == "json" else "table"})  # a setting must not change the shell's syntax
    found = app.services.find(node)
    (number,) = WorkerSet.parse(str(worker)).of(found.name.node_id, found.workers)
    exported = job_variables(EnvironmentOptions(tpu=True), found, number)
    if found.state is not NodeState.READY:
        app.terminal.warn(f"`{found.name.node_id}` is {found.state}: its TPU cannot be used now")
    lines = fish_exports if form == "fish" else posix_exports
    app.show(View(value=lambda: exported, text=lambda terminal: terminal.names(lines(exported))))
