"""`tpuctl ssh-key`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.options import CommandGroup, cli_command, yes_option
from tpuctl.app.value_completion import complete_node


@click.group("ssh-key", cls=CommandGroup)
def command() -> None:
    """Show or replace the ssh key that logs in to workers."""


@cli_command("show", short_help="Show the key, and where it is registered for a node.")
@click.argument("node", metavar="[NODE]", required=False, shell_complete=complete_node)
@body_in("tpuctl.workers.commands.ssh_key_run:run_show")
def show() -> None:
    """Show the key pair: file, fingerprint, ssh agent. With NODE, also where it is registered for that node. Changes nothing.

    \b
    Examples:
      tpuctl ssh-key show
      tpuctl ssh-key show trainer
      ssh -i $(tpuctl ssh-key show -o name) ada@203.0.113.9
    """


@cli_command("renew", short_help="Rename the key pair and create a new one.", without=("output",))
@yes_option
@body_in("tpuctl.workers.commands.ssh_key_run:run_renew")
def renew() -> None:
    """Rename the key pair that tpuctl shares with gcloud, and create a new one. Use this if workers refuse the key.

    The old pair is kept as old-google_compute_engine. The next tpuctl ssh, run or up registers the new key for its nodes.

    \b
    Examples:
      tpuctl ssh-key renew
      tpuctl ssh-key renew --yes
    """


command.add_command(show)
command.add_command(renew)
