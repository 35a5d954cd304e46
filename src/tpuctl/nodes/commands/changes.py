"""`tpuctl start`, `stop`, `delete` and `down`: change nodes and wait for the result."""

from __future__ import annotations

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, force_lease_option, if_idle_option, no_wait_option, skip_validation_option
from tpuctl.nodes.commands.change_options import change_options
from tpuctl.nodes.commands.selection_options import selection_options

_all_nodes_option = grouped_option(
    "--all-nodes", group=OptionGroup.SAFETY, is_flag=True, help="Delete a queued resource with all its nodes."
)


@cli_command("start")
@selection_options()
@change_options(no_wait_option, skip_validation_option, force_lease_option)
@body_in("tpuctl.nodes.commands.changes_run:run_start")
def start() -> None:
    """Start stopped nodes and wait until they are READY. A start fails if the zone has no free capacity.

    \b
    Examples:
      tpuctl start trainer
      tpuctl start trainer-0 trainer-1 --no-wait
      tpuctl start --mine --state STOPPED
    """


@cli_command("stop")
@selection_options()
@change_options(no_wait_option, skip_validation_option, if_idle_option)
@body_in("tpuctl.nodes.commands.changes_run:run_stop")
def stop() -> None:
    """Stop nodes, keeping their boot disks, and wait until they are STOPPED. Slices and queued nodes cannot be stopped.

    It asks first, because what runs on the nodes ends: without a terminal it needs --yes.

    \b
    Examples:
      tpuctl stop trainer
      tpuctl stop trainer-0 trainer-1 --yes --no-wait
      tpuctl stop trainer --if-idle
      tpuctl stop 'sweep-*' --older-than 12h
    """


@cli_command("delete")
@selection_options()
@grouped_option("--ignore-not-found", group=OptionGroup.SAFETY, is_flag=True, help="Succeed if a node does not exist.")
@change_options(_all_nodes_option, no_wait_option, if_idle_option)
@body_in("tpuctl.nodes.commands.changes_run:run_delete")
def delete() -> None:
    """Delete nodes with their boot disks and wait until they are gone. If one does not exist, none is deleted (exit code 3).

    \b
    Examples:
      tpuctl delete trainer
      tpuctl delete trainer-0 trainer-1 --yes --ignore-not-found
      tpuctl delete -l team=vision --state PREEMPTED
    """


@cli_command("down")
@selection_options()
@change_options(_all_nodes_option, no_wait_option, if_idle_option)
@body_in("tpuctl.nodes.commands.changes_run:run_down")
def down() -> None:
    """Delete nodes, the queued resources that own them, and preempted nodes of that name, so that nothing bills.

    Prints "already gone" only after a search of all zones for nodes and queued resources; of a name that the journal never
    had, it says so, and names a node with a similar one. Patterns and conditions find waiting
    requests too; what they select is shown before the question.

    \b
    Examples:
      tpuctl down trainer
      tpuctl down trainer-0 trainer-1 --yes
      tpuctl down 'sweep-*' --older-than 2d
    """
