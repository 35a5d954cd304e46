"""How this run reaches the workers of nodes: the login, the key and who accepts it, and the way for ssh."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.app.identity import caller_account
from tpuctl.app.served_sandbox import served_sandbox_proxy
from tpuctl.app.ssh_options import build_router
from tpuctl.cloud.projects import ComputeClient
from tpuctl.errors import SettingError
from tpuctl.names import check_login
from tpuctl.nodes.key_authorization import KeyAuthorizer
from tpuctl.nodes.ssh_workers import SshWorkers
from tpuctl.sandbox.sshd import proxy_command
from tpuctl.sandbox.sshd.daemon import SshdUnavailableError, find_sshd
from tpuctl.ssh.keys import OsLoginCache, login_name, with_metadata_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.models.node import Node


def ssh_workers(app: App) -> SshWorkers:
    """Return the ssh access to workers. The sandbox has its own key, so that `~/.ssh` stays unchanged."""
    served, router = served_sandbox_proxy(app), build_router(app)
    if app.is_sandbox or served:
        # A tunnel to a sandbox worker uses the same connection as direct ssh.
        router = replace(router, gcloud=lambda: "gcloud", here=lambda: None)
    proxy: Callable[[Node, int], str | None] = served or (lambda node, worker: None)  # noqa: ARG005  # a direct connection
    if app.is_sandbox:
        sandbox = app.services.sandbox

        def proxy(node: Node, worker: int) -> str | None:
            return proxy_command(sandbox.path, node.endpoints[worker].address or "")

    return SshWorkers(
        login=metadata_login(app),
        home=key_folder(app),
        key_file=app.settings.path("ssh_key"),
        known_hosts=app.state_folder / "known_hosts",
        guest_attributes=app.services.client.guest_attributes,
        proxy_command=proxy,
        missing=_no_sshd if app.is_sandbox or served else lambda: None,
        router=router,
        authorizer=key_authorization(app),
    )


def _no_sshd() -> str | None:
    """Return why ssh cannot reach the sandbox's workers, None if it can."""
    try:
        find_sshd()
    except SshdUnavailableError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return None


def key_authorization(app: App) -> KeyAuthorizer:
    """Return what finds out whether a node has our key, and adds it. Nothing is sent yet."""

    def compute() -> ComputeClient:
        factory, endpoint = app.services.http_access()
        return ComputeClient(factory, app.clock, endpoint=endpoint)

    setting = app.settings["user"]
    return KeyAuthorizer(
        projects=compute,
        profiles=app.services.os_login,
        caller=lambda: caller_account(app),
        remembered=OsLoginCache(app.state_folder / "os-login.json", app.clock),
        clock=app.clock,
        login=check_login(str(setting.value)) if setting else None,
        expires=lambda: key_expiry(app),
        notify=app.terminal.note,
    )


def key_folder(app: App) -> Path:
    """Return the home folder of the key. The sandbox has its own, so that `~/.ssh` stays unchanged."""
    return app.state_folder if app.is_sandbox else Path(app.invocation.environ.get("HOME") or Path.home())


def metadata_login(app: App) -> str:
    """Return the login name for keys in metadata. The sandbox's sshd accepts only the user who runs it."""
    if app.is_sandbox or served_sandbox_proxy(app):
        return login_name({})
    given = app.settings.text("user")
    return check_login(given) if given else login_name(app.invocation.environ)


def key_expiry(app: App) -> datetime | None:
    """Return when our key expires if it is added now, None for never. Raises `SettingError` for a lifetime of zero."""
    if app.settings["ssh_key_expire_after"] is None:
        return None
    duration = app.settings.duration("ssh_key_expire_after")
    if not duration:
        raise SettingError(
            "`ssh_key_expire_after` is 0: the key would expire at once", hint="write it like 8h, or remove it"
        )
    return app.clock.now() + duration


def authorize_key(app: App, node: Node) -> None:
    """Make a node's workers accept our key: through the OS Login profile if they use OS Login, else in the node's metadata.

    Does nothing if the key is there, or in the project's metadata. Workers read a change within some seconds.
    """
    entry = app.services.workers.key_entry(node)
    if entry is None:
        return
    now = app.clock.now()
    app.terminal.note(f"adding our ssh key to the metadata of `{node.name.node_id}`")
    app.services.client.change_node(node.name, partial(with_metadata_key, entry=entry, now=now), expected_id=node.id)
    app.services.workers.note_admission(node)
