"""Shared ssh connections: the options to use them, and closing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.remote.ssh import Connection


def keeping(app: App) -> Callable[[Connection], tuple[str, ...]]:
    """Return a function with the ssh options that share a connection, according to the setting `ssh_keep`.

    In the sandbox connections are shared only on request: a connection there is a process of this machine, which would outlive
    its worker.
    """
    from tpuctl.remote.kept import control_folder, kept_options  # noqa: PLC0415  # --help and completion do not need it

    setting = app.settings["ssh_keep"]
    keep = app.settings.duration("ssh_keep")
    if app.is_sandbox and (setting is None or setting.source.kind is SourceKind.DEFAULT):
        return lambda _: ()
    folder = control_folder(app.invocation.environ, app.state_folder) if keep else None
    return lambda connection: kept_options(connection, folder, keep)


def let_go(app: App, nodes: Iterable[Node]) -> None:
    """Close the shared connections to nodes that are stopped, rebooted or deleted."""
    from tpuctl.remote.kept import control_folder, forget  # noqa: PLC0415  # as above

    folder = control_folder(app.invocation.environ, app.state_folder)
    for node in nodes:
        forget(node, folder)
