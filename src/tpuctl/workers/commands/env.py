"""`tpuctl env`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import cli_command, nodes_argument
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import NodeState, WorkerSet
from tpuctl.output.terminal import View
from tpuctl.workers.commands.node_selection import find_nodes
from tpuctl.workers.environment import EnvironmentOptions, fish_exports, job_variables, posix_exports
from tpuctl.workers.multislice import DEFAULT_PORT, plan_slices

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.workers.multislice import SlicePlan


@cli_command("env", without=("output",), is_short=True)
@nodes_argument
@grouped_option(
    "--worker",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Worker whose variables to print.",
)
@grouped_option(
    "--multislice",
    is_flag=True,
    help="Add the variables MEGASCALE_* of one job over all these nodes, as `run --multislice` sets them.",
)
@grouped_option(
    "--slice",
    "number",
    type=click.IntRange(min=0),
    metavar="N",
    help="Slice whose variables to print, with --multislice; in the order of the nodes' names.",
)
@grouped_option(
    "--megascale-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    default=DEFAULT_PORT,
    show_default=True,
    help="Port at which slices reach one another, with --multislice.",
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
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    worker: int,
    multislice: bool,
    number: int | None,
    megascale_port: int,
    form: str,
) -> None:
    """Print the environment variables that training scripts read, for a shell: the TPU's name and its workers' addresses.

    TPU_NAME is the name of the node, which Ray takes for that of the slice. For a program on a node with one worker,
    TensorFlow's TPUClusterResolver expects `local`: write it in the program.

    \b
    Examples:
      eval "$(tpuctl env trainer)"
      tpuctl env trainer --worker 2 -o fish | source
      tpuctl env trainer -o json | jq -r .TPU_CONFIG
      tpuctl env 'train-*' --multislice --slice 1
    """
    app.set_options({"output": form if form == "json" else "table"})  # a setting must not change the shell's syntax
    plan = None
    if multislice:
        plan = plan_slices(find_nodes(app, nodes), port=megascale_port)
        node = _slice_of(plan, number)
    elif number is not None or len(nodes) > 1:
        what = "`--slice` is" if number is not None else "several nodes are"
        raise InvalidInputError(f"{what} for one job over several slices", hint="add `--multislice`, or name one node")
    else:
        node = app.services.find(nodes[0])
    (index,) = WorkerSet.parse(str(worker)).of(node.name.node_id, node.workers)
    exported = job_variables(EnvironmentOptions(tpu=True, slices=plan), node, index)
    if node.state is not NodeState.READY:
        app.terminal.warn(f"`{node.name.node_id}` is {node.state}: its TPU cannot be used now")
    lines = fish_exports if form == "fish" else posix_exports
    app.show(View(value=lambda: exported, text=lambda terminal: terminal.names(lines(exported))))


def _slice_of(plan: SlicePlan, number: int | None) -> Node:
    """Return the node of a slice. Raises `InvalidInputError`, which names the slices, if there is none."""
    if number is not None and number < len(plan.nodes):
        return plan.nodes[number]
    names = ", ".join(f"{index} ({node.name.node_id})" for index, node in enumerate(plan.nodes[:8]))
    more = ", …" if len(plan.nodes) > 8 else ""
    what = "which slice is not given" if number is None else f"there is no slice {number}"
    raise InvalidInputError(what, hint=f"choose one with `--slice N`: {names}{more}")
