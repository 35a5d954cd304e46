"""The bodies of `tpuctl down`, `delete`, `start` and `stop`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.nodes.commands.deletions import delete_selected
from tpuctl.nodes.commands.state_changes import start_nodes, stop_nodes

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.nodes.commands.selection_options import GivenSelection


def run_start(app: App, *, selection: GivenSelection, options: ChangeOptions) -> int:
    """Start stopped nodes and wait until they are READY."""
    return start_nodes(app, selection.parse(app), options)


def run_stop(app: App, *, selection: GivenSelection, options: ChangeOptions) -> int:
    """Stop nodes, keeping their boot disks, and wait until they are STOPPED."""
    return stop_nodes(app, selection.parse(app), options)


def run_delete(app: App, *, selection: GivenSelection, options: ChangeOptions, ignore_not_found: bool) -> int:
    """Delete nodes with their boot disks and wait until they are gone."""
    return delete_selected(app, selection.parse(app), options, by="delete", is_strict=not ignore_not_found)


def run_down(app: App, *, selection: GivenSelection, options: ChangeOptions) -> int:
    """Delete nodes, the queued resources that own them, and preempted nodes of that name, so that nothing bills."""
    return delete_selected(app, selection.parse(app), options, by="down")
