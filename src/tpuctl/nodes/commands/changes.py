"""`tpuctl start`, `stop`, `delete` and `down`: change nodes and wait for the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import (
    cli_command,
    dry_run_option,
    events_option,
    force_lease_option,
    if_idle_option,
    no_wait_option,
    skip_validation_option,
    timeout_option,
    yes_option,
)
from tpuctl.nodes.commands.selection_options import selection_options

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.nodes.commands.selection_options import GivenSelection


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """The options of a command that changes nodes; a command without one of them has its default."""

    timeout: timedelta | str | None
    no_wait: bool
    events: str | None
    dry_run: bool
    skip_validation: bool = False
    force_lease: bool = False
    all_nodes: bool = False
    if_idle: bool = False
    yes: bool = False


_all_nodes_option = grouped_option(
    "--all-nodes", group=OptionGroup.SAFETY, is_flag=True, help="Delete a queued resource with all its nodes."
)


@cli_command("start")
@selection_options()
@timeout_option
@no_wait_option
@skip_validation_option
@force_lease_option
@events_option
@dry_run_option
@yes_option
def start(app: App, *, selection: GivenSelection, **options: Any) -> int:  # those of ChangeOptions
    """Start stopped nodes and wait until they are READY. A start fails if the zone has no free capacity.

    \b
    Examples:
      tpuctl start trainer
      tpuctl start trainer-0 trainer-1 --no-wait
      tpuctl start --mine --state STOPPED
    """
    from tpuctl.nodes.commands.state_changes import start_nodes  # noqa: PLC0415  # not needed by --help and completion

    return start_nodes(app, selection, ChangeOptions(**options))


@cli_command("stop")
@selection_options()
@timeout_option
@no_wait_option
@skip_validation_option
@if_idle_option
@events_option
@dry_run_option
@yes_option
def stop(app: App, *, selection: GivenSelection, **options: Any) -> int:  # those of ChangeOptions
    """Stop nodes, keeping their boot disks, and wait until they are STOPPED. Slices and queued nodes cannot be stopped.

    It asks first, because what runs on the nodes ends: without a terminal it needs --yes.

    \b
    Examples:
      tpuctl stop trainer
      tpuctl stop trainer-0 trainer-1 --yes --no-wait
      tpuctl stop trainer --if-idle
      tpuctl stop 'sweep-*' --older-than 12h
    """
    from tpuctl.nodes.commands.state_changes import stop_nodes  # noqa: PLC0415  # as above

    return stop_nodes(app, selection, ChangeOptions(**options))


@cli_command("delete")
@selection_options()
@grouped_option("--ignore-not-found", group=OptionGroup.SAFETY, is_flag=True, help="Succeed if a node does not exist.")
@_all_nodes_option
@timeout_option
@no_wait_option
@if_idle_option
@events_option
@dry_run_option
@yes_option
def delete(
    app: App, *, selection: GivenSelection, ignore_not_found: bool, **options: Any
) -> int:  # those of ChangeOptions
    """Delete nodes with their boot disks and wait until they are gone. If one does not exist, none is deleted (exit code 3).

    \b
    Examples:
      tpuctl delete trainer
      tpuctl delete trainer-0 trainer-1 --yes --ignore-not-found
      tpuctl delete -l team=vision --state PREEMPTED
    """
    from tpuctl.nodes.commands.state_changes import delete_nodes  # noqa: PLC0415  # as above

    return delete_nodes(app, selection, ChangeOptions(**options), by="delete", is_strict=not ignore_not_found)


@cli_command("down")
@selection_options()
@_all_nodes_option
@timeout_option
@no_wait_option
@if_idle_option
@events_option
@dry_run_option
@yes_option
def down(app: App, *, selection: GivenSelection, **options: Any) -> int:  # those of ChangeOptions
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
    from tpuctl.nodes.commands.state_changes import delete_nodes  # noqa: PLC0415  # as above

    return delete_nodes(app, selection, ChangeOptions(**options), by="down")
