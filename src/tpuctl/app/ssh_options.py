"""How commands reach workers: the router, shared ssh connections, and entries of the ssh configuration.

`build_router` makes a router of the settings `iap` and `internal_ip`. `up` refreshes the entries of
its nodes, `down` removes them and closes shared connections.
"""

from __future__ import annotations

import pwd
import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from os import getuid
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.config.settings import SourceKind
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.models.node import NodeState
from tpuctl.nodes.conditions import Condition
from tpuctl.ssh.control_master import close_masters, control_master_options, control_socket_folder, has_master
from tpuctl.ssh.routes import Route, Router, fetch_gce_metadata
from tpuctl.ssh.ssh_config import UserHosts, build_entry, change_ssh_config, check_host_conflicts, read_ssh_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName, NodeReference
    from tpuctl.nodes.conditions import Policy
    from tpuctl.ssh.connection import Connection
    from tpuctl.ssh.routes import GceMetadata
    from tpuctl.ssh.ssh_config import SshConfigEntry, SshConfigText


def build_router(app: App) -> Router:
    """Return the router for workers. It makes no request yet.

    If the settings contain two routes, the source with the higher precedence wins. Raises `InvalidInputError` if both have the
    same source.
    """
    impersonate = app.settings["impersonate_service_account"]
    return Router(
        route=_chosen_route(app),
        here=_CachedMetadata(app),
        gcloud=lambda: shutil.which("gcloud"),
        impersonate=str(impersonate.value) if impersonate else None,
    )


def with_reachable_goal(
    app: App, policy: Policy, name: NodeName, *, goal: str | None, node: Node | None, spec: NodeSpec | None = None
) -> Policy:
    """Return the policy for one node. Its goal becomes `healthy` if ssh cannot reach the workers and no `goal` was given."""
    if goal is not None or policy.goal is not Condition.SSH:
        return policy
    if node is not None and not policy.replace and not node.state.is_dead:
        obstacle = app.services.workers.obstacle(node)
    else:
        obstacle = app.services.workers.obstacle_of_new(name, spec) if spec is not None else None
    if obstacle is None:
        return policy
    app.terminal.note(f"{name.node_id}: waiting until it is healthy, not until ssh answers: {obstacle}")
    return replace(policy, goal=Condition.HEALTHY)


def _chosen_route(app: App) -> Route | None:

    settings, order = app.settings, list(SourceKind)
    iap, internal = settings["iap"], settings["internal_ip"]
    if iap and not settings.is_on("iap"):
        iap = None
    if iap and internal:
        nearer = order.index(iap.source.kind) - order.index(internal.source.kind)
        if nearer == 0:
            flag = "--internal-ip" if settings.is_on("internal_ip") else "--external-ip"
            raise InvalidInputError(f"`--iap` and `{flag}` exclude each other", hint="remove one of them")
        iap = iap if nearer < 0 else None
    if iap:
        return Route.IAP
    if internal is None:
        return None
    return Route.INTERNAL if settings.is_on("internal_ip") else Route.EXTERNAL


class _CachedMetadata:
    """The networks of this machine, fetched once. With another endpoint than Google's only if GCE_METADATA_HOST is set."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._found: list[GceMetadata | None] = []

    def __call__(self) -> GceMetadata | None:
        """Return the networks of this machine. None if they are unknown."""
        if not self._found:
            environ = self._app.invocation.environ
            is_other_endpoint = self._app.settings["endpoint"] is not None and not environ.get("GCE_METADATA_HOST")
            self._found.append(None if is_other_endpoint else fetch_gce_metadata(environ))
        return self._found[0]


def shared_connection_options(app: App) -> Callable[[Connection], tuple[str, ...]]:
    """Return a function with the ssh options that share a connection, according to the setting `ssh_keep`.

    In the sandbox connections are shared only on request: a connection there is a process of this machine, which would outlive
    its worker.
    """
    setting = app.settings["ssh_keep"]
    keep = app.settings.duration("ssh_keep")
    if app.is_sandbox and (setting is None or setting.source.kind is SourceKind.DEFAULT):
        return lambda _: ()
    folder = control_socket_folder(app.invocation.environ, app.state_folder) if keep else None
    return lambda connection: control_master_options(connection, folder, keep)


def present_connection_options(app: App) -> Callable[[Connection], tuple[str, ...] | None]:
    """Return a function with the ssh options that use the shared connection to a worker; None if there is none.

    For a look at a worker: its own shared connection is no other session there, and it opens none that stays.
    """
    share = shared_connection_options(app)
    folder = cache(lambda: control_socket_folder(app.invocation.environ, app.state_folder))
    return lambda connection: options if (options := share(connection)) and has_master(connection, folder()) else None


def close_shared_connections(app: App, nodes: Iterable[Node]) -> None:
    """Close the shared connections to nodes that are stopped, rebooted or deleted."""
    folder = control_socket_folder(app.invocation.environ, app.state_folder)
    for node in nodes:
        close_masters(node, folder)


_FILE_NAME = "tpuctl_config"
# Shared options that are stored in an entry, and used again when it is rewritten.
_STORED_OPTIONS = ("user", "ssh_key", "iap", "internal_ip")


def ssh_folder(environ: Mapping[str, str]) -> Path:
    """Return the `.ssh` below HOME, which tpuctl uses. ssh itself uses the home of the account (`account_ssh_folder`)."""
    home = environ.get("HOME")
    return (Path(home) if home else account_ssh_folder().parent) / ".ssh"


def account_ssh_folder() -> Path:
    """Return the folder where plain `ssh` looks for its configuration; it ignores HOME (ssh_config(5))."""
    try:
        return Path(pwd.getpwuid(getuid()).pw_dir) / ".ssh"
    except KeyError:  # a container may run with a user id that has no account
        return Path.home() / ".ssh"


def entries_file(app: App) -> Path:
    """Return the file of entries that `~/.ssh/config` includes."""
    return ssh_folder(app.invocation.environ) / _FILE_NAME


def cloud_label(app: App) -> str:
    """Return a label of this cloud, because other clouds may have nodes of the same names."""
    if app.is_sandbox:
        return f"sandbox {app.sandbox_path.absolute()}"
    return app.settings.text("endpoint") or "google"


def make_entry(app: App, node: Node, connections: Sequence[Connection], *, prefix: str) -> SshConfigEntry:
    """Return the entry for a node, with the shared options that the user gave."""
    given = {key: app.settings[key] for key in _STORED_OPTIONS}
    options = {key: str(one.value) for key, one in given.items() if one and one.source.kind is SourceKind.FLAG}
    if "ssh_key" in options:
        # It may be relative to the working directory.
        options["ssh_key"] = str(connections[0].identity.absolute())
    return build_entry(node, connections, cloud=cloud_label(app), prefix=prefix, options=options)


def refresh_ssh_entries(app: App, nodes: Iterable[Node]) -> None:
    """Rewrite the entries of nodes that have one, or of all nodes if the setting `ssh_config` is on.

    Each creation of a node changes its addresses, id and host keys. An error is only a warning, because the nodes are up.
    """
    always = app.settings.is_on("ssh_config")
    usable = [node for node in nodes if node.state is NodeState.READY]
    if not usable or not (always or entries_file(app).exists()):
        return

    path, cloud = entries_file(app), cloud_label(app)
    with _errors_as_warnings(app, "ssh configuration not refreshed"):
        old = {entry.name: entry for entry in read_ssh_config(path).entries if entry.cloud == cloud}
        found = [_rebuild_entry(app, node, old.get(node.name)) for node in usable if always or node.name in old]
        taken = UserHosts.read(path.with_name("config"), path, folder=path.parent)

        def with_refreshed(text: SshConfigText) -> SshConfigText:
            check_host_conflicts(found, text.entries, taken)
            return text.changed(new=found)

        if found:
            change_ssh_config(path, with_refreshed)


def remove_ssh_entries(app: App, names: Iterable[NodeName], absent: Iterable[NodeReference]) -> None:
    """Remove the entries of deleted nodes, and of names without a node in any zone."""
    path = entries_file(app)
    if not path.exists():
        return

    gone, cloud = set(names), cloud_label(app)
    nowhere = {(one.project or app.place.project, one.node_id) for one in absent}

    def is_gone(entry: SshConfigEntry) -> bool:
        name = entry.name
        return entry.cloud == cloud and (name in gone or (name.project, name.node_id) in nowhere)

    with _errors_as_warnings(app, "ssh configuration entries not removed"):
        change_ssh_config(path, lambda text: text.changed(without=filter(is_gone, text.entries)))


def _rebuild_entry(app: App, node: Node, old: SshConfigEntry | None) -> SshConfigEntry:
    """Return a new entry for a node, with the options and the prefix of the old one."""
    if old is None or not old.options:
        return make_entry(app, node, app.services.workers.connections(node), prefix=old.prefix if old else "")
    other = app.with_options(dict(old.options))
    try:
        return make_entry(other, node, other.services.workers.connections(node), prefix=old.prefix)
    finally:
        other.close()


@contextmanager
def _errors_as_warnings(app: App, what: str) -> Iterator[None]:
    try:
        yield
    except TpuctlError as error:
        lines = (f"  {line}" for line in (error.hint or "").splitlines())
        app.terminal.warn(f"{what}: {error.message}", *lines)
