"""`tpuctl ray`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import CommandGroup, DurationType, cli_command
from tpuctl.app.route_options import route_options
from tpuctl.app.value_completion import complete_node
from tpuctl.nodes.commands.selection_options import label_option

_nodes = click.argument("nodes", metavar="NODE...", nargs=-1, shell_complete=complete_node)
_head = grouped_option(
    "--head",
    metavar="NODE",
    shell_complete=complete_node,
    help="Node whose worker 0 runs the head. [default: the first by name]",
)
_port = grouped_option(
    "--port",
    type=click.IntRange(1024, 65535),
    metavar="PORT",
    default=6379,
    show_default=True,
    help="Port of the head.",
)
_ray = grouped_option(
    "--ray",
    "program",
    group=OptionGroup.PROGRAM,
    metavar="PATH",
    help="Ray on the workers, as ~/venv/bin/ray. [default: that of --install, else the first on PATH]",
)


@click.group("ray", cls=CommandGroup)
def command() -> None:
    """Make one Ray cluster of all workers of nodes, and end it."""


@cli_command("up", short_help="Start Ray on all workers, and wait until it has all chips.")
@_nodes
@label_option
@_head
@_port
@_ray
@grouped_option(
    "--install",
    group=OptionGroup.PROGRAM,
    metavar="ray==VERSION",
    help="Install this version below ~/.tpuctl/ray on all workers first, with their python3.",
)
@grouped_option(
    "--timeout",
    group=OptionGroup.WAITING,
    type=DurationType(),
    metavar="TIME",
    default="5m",
    show_default=True,
    help="How long the workers may take to join.",
)
@route_options
@body_in("tpuctl.workers.commands.ray_run:run_up")
def up() -> None:
    """Start a Ray head and workers as detached jobs, and wait until Ray itself has all hosts, chips and slices.

    All workers need the same Ray and the same minor version of Python. Run again, it starts what is missing, such as a slice
    that was recreated. The dashboard listens only on the loopback of the head; usage statistics are off.

    \b
    Examples:
      tpuctl ray up train-0 train-1
      tpuctl ray up 'train-*' --install ray==2.60.0
      tpuctl ray up trainer --ray ~/venv/bin/ray
    """


@cli_command("status", short_help="Show the hosts and chips that Ray has.")
@_nodes
@label_option
@_head
@_port
@_ray
@route_options
@body_in("tpuctl.workers.commands.ray_run:run_status")
def status() -> None:
    """Show each worker as Ray's own client reports it; exits with 10 if a host, a chip or a slice is missing.

    \b
    Examples:
      tpuctl ray status 'train-*'
      tpuctl ray status 'train-*' -o json | jq '.workers[] | select(.problem)'
    """


@cli_command("down", short_help="End the Ray jobs on all workers.")
@_nodes
@label_option
@_head
@_port
@_ray
@route_options
@body_in("tpuctl.workers.commands.ray_run:run_down")
def down() -> None:
    """End the jobs of `tpuctl ray up`, and nothing else. Ray has 10 s to end; then its processes are killed.

    \b
    Examples:
      tpuctl ray down 'train-*'
    """


for _command in (up, status, down):
    command.add_command(_command)
