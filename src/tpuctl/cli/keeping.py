"""Connections that are kept from one command to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.remote.kept import control_folder, kept_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.cli.app import App
    from tpuctl.remote.ssh import Connection


def keeping(app: App) -> Callable[[Connection], tuple[str, ...]]:
    """Return what gives ssh's options for keeping a connection, as the settings want it."""
    keep = app.settings.duration("ssh_keep")
    folder = control_folder(app.invocation.environ, app.state_folder) if keep else None
    return lambda connection: kept_options(connection, folder, keep)
