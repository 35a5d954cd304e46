"""Connections that are kept from one command to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.remote.kept import control_folder, forget, kept_options
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.remote.ssh import Connection


def keeping(app: App) -> Callable[[Connection], tuple[str, ...]]:
    """Return what gives ssh's options for keeping a connection, as the settings want it.

    In the sandbox none is kept unless that was asked for: a connection there is a process of this machine, which would
    outlive the worker that it is to.
    """
    setting = app.settings["ssh_keep"]
    keep = app.settings.duration("ssh_keep")
    if app.is_sandbox and (setting is None or setting.source.kind is SourceKind.DEFAULT):
        return lambda _: ()
    folder = _folder(app) if keep else None
    return lambda connection: kept_options(connection, folder, keep)


def let_go(app: App, nodes: Iterable[Node]) -> None:
    """End the connections that are kept to nodes which are stopped, rebooted or gone."""
    folder = _folder(app)
    for node in nodes:
        forget(node, folder)


def _folder(app: App) -> Path | None:
    return control_folder(app.invocation.environ, app.state_folder)
