"""Clients of the cloud and ssh access to workers, created from the settings."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl import gcloud
from tpuctl.api.endpoint import Endpoint
from tpuctl.api.tpu import TpuClient
from tpuctl.api.transport import HttpFactory, Proxy, TransportOptions
from tpuctl.cli.served import way_to_workers
from tpuctl.errors import InvalidInputError, SettingError
from tpuctl.gcloud_token import access_token
from tpuctl.names import BucketPath, check_project
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.api.storage import StorageClient
    from tpuctl.cli.app import App
    from tpuctl.leases import Leases
    from tpuctl.model import Node
    from tpuctl.remote.workers import SshWorkers
    from tpuctl.settings import Settings


def connect(app: App) -> TpuClient:
    """Return the client of the TPU API: of the sandbox, of another endpoint, or of Google. Nothing is sent yet."""
    factory, endpoint = http_access(app)
    return TpuClient(factory, app.clock, endpoint=endpoint)


def storage(app: App) -> StorageClient:
    """Return the client of Cloud Storage, at the same endpoint as the TPU API. Nothing is sent yet."""
    from tpuctl.api.storage import StorageClient  # noqa: PLC0415  # most commands use no bucket

    factory, endpoint = http_access(app)
    return StorageClient(factory, app.clock, endpoint=endpoint)


def leases(app: App) -> Leases:
    """Return the leases: in Cloud Storage if the setting `lease` names a bucket, else on this machine. Nothing is sent yet."""
    import os  # noqa: PLC0415  # only to identify this process
    import secrets  # noqa: PLC0415  # as above
    import socket  # noqa: PLC0415  # as above

    from tpuctl.leases import Identity, Leases, Store  # noqa: PLC0415  # most commands change nothing

    store: Store
    if text := app.settings.text("lease"):
        from tpuctl.leases.bucket import BucketStore  # noqa: PLC0415  # most users work on one machine

        store = BucketStore(app.storage, BucketPath.parse(text))
    else:
        from tpuctl.leases.local import LocalStore  # noqa: PLC0415  # see above

        local = LocalStore(app.state_folder / "leases", app.clock)
        app.on_close(local.close)
        store = local
    return Leases(store, app.clock, Identity(socket.gethostname(), os.getpid(), secrets.token_hex(8)))


def http_access(app: App) -> tuple[Callable[[], Any], str | None]:
    """Return a factory of http objects, and the endpoint; None for Google's own."""
    # Most commands required trust when they began. Others need it only for a call.
    app.require_trust()
    if app.is_sandbox:
        endpoint = app.settings["endpoint"]
        if endpoint and endpoint.source.kind is SourceKind.FLAG:
            raise InvalidInputError("cannot use `--endpoint` with the sandbox", hint="remove one of them")
        from tpuctl.sandbox.in_process import SandboxHttp  # noqa: PLC0415  # only for the sandbox

        world = app.world
        return _traced(app, lambda: SandboxHttp(world)), None
    text = app.settings.text("endpoint")
    named = Endpoint.parse(text) if text else None
    factory = HttpFactory(transport_options(app), credentials=lambda: load_credentials(app), endpoint=named)
    app.on_close(factory.close)
    return _traced(app, factory), text


def workers(app: App) -> SshWorkers:
    """Return the ssh access to workers. The sandbox has its own key, so that `~/.ssh` stays unchanged."""
    from tpuctl.cli.key_access import (  # noqa: PLC0415  # most commands reach no worker
        admission,
        key_expiry,
        key_folder,
        metadata_login,
    )
    from tpuctl.cli.reach_options import reach  # noqa: PLC0415  # as above
    from tpuctl.remote.workers import SshSettings, SshWorkers  # noqa: PLC0415  # as above

    served, ways = way_to_workers(app), reach(app)
    if app.is_sandbox or served:
        # A tunnel to a sandbox worker uses the same connection as direct ssh.
        ways = replace(ways, gcloud=lambda: "gcloud", here=lambda: None)
    proxy: Callable[[Node, int], str | None] = served or (lambda node, worker: None)  # noqa: ARG005  # a direct connection
    if app.is_sandbox:
        from tpuctl.sandbox.sshd import proxy_command  # noqa: PLC0415  # only for the sandbox

        world = app.world

        def proxy(node: Node, worker: int) -> str | None:
            return proxy_command(world.path, node.endpoints[worker].address or "")

    admitted = admission(app)
    return SshWorkers(
        SshSettings(
            login=metadata_login(app),
            home=key_folder(app),
            key=app.settings.path("ssh_key"),
            known_hosts=app.state_folder / "known_hosts",
            guest_attributes=app.client.guest_attributes,
            proxy_command=proxy,
            obstacle=_no_sshd if app.is_sandbox or served else lambda: None,
            reach=ways,
            os_login=admitted.os_login,
            needs_entry=admitted.needs_entry,
            expires=lambda: key_expiry(app),
        )
    )


def _no_sshd() -> str | None:
    """Return why ssh cannot reach the sandbox's workers, None if it can."""
    from tpuctl.sandbox.sshd import SshdUnavailableError, find_sshd  # noqa: PLC0415  # only for the sandbox

    try:
        find_sshd()
    except SshdUnavailableError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return None


def transport_options(app: App) -> TransportOptions:
    """Return proxy, CA file and quota project from the settings."""
    proxy = Proxy.from_environment(app.invocation.environ) or _proxy_of_gcloud(app.settings)
    return TransportOptions(proxy=proxy, ca_file=app.settings.path("ca_certs"), quota_project=_quota_project(app))


def _quota_project(app: App) -> str | None:
    """Return the quota project. Raises `InvalidInputError` unless it has the form of a project: it becomes a header."""
    text = app.settings.text("quota_project")
    return None if text is None else check_project(text)


def load_credentials(app: App, *, gcloud_token: Callable[[], str] | None = None) -> Any:  # google-auth's credentials
    """Return the credentials of all calls; `gcloud_token` replaces the call of gcloud for a token."""
    from tpuctl import credentials  # noqa: PLC0415  # google-auth costs 100 ms
    from tpuctl.api.connections import AuthRequest  # noqa: PLC0415  # as above

    environ = app.invocation.environ
    return credentials.load(
        environ,
        adc=gcloud.adc_path(environ),
        gcloud_token=gcloud_token or (lambda: access_token(environ)),
        impersonate=app.settings.text("impersonate_service_account"),
        quota_project=_quota_project(app),
        request=AuthRequest(transport_options(app)),
    )


def _proxy_of_gcloud(settings: Settings) -> Proxy | None:
    """Return the proxy of gcloud's configuration. Raises `SettingError` for a kind that tpuctl does not support."""
    host = settings.text("proxy_address")
    if host is None:
        return None
    kind = settings.text("proxy_type") or "http"
    if not kind.startswith("http"):
        raise SettingError(
            f"gcloud's proxy type `{kind}` is not supported",
            hint="set `HTTPS_PROXY=http://HOST:PORT` instead",
        )
    port = settings.number("proxy_port") if settings["proxy_port"] else 8080
    return Proxy(host, port, settings.text("proxy_username"), settings.text("proxy_password"))


def _traced(app: App, factory: Callable[[], Any]) -> Callable[[], Any]:
    """Return a factory whose http objects print each request on stderr if the run is verbose."""
    if not app.is_verbose:
        return factory
    return lambda: _Traced(factory(), app.terminal.note)


class _Traced:
    """An http object that prints each request: method, URL, status and time. Never headers or bodies: they hold secrets."""

    def __init__(self, http: Any, tell: Callable[[str], None]) -> None:  # an httplib2.Http
        self._http, self._tell = http, tell

    @property
    def timeout(self) -> float | None:
        """The seconds that the next exchange may take."""
        timeout: float | None = self._http.timeout
        return timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._http.timeout = seconds

    def request(self, uri: str, method: str = "GET", **options: Any) -> Any:  # httplib2's signature
        started = time.perf_counter()
        outcome = "no answer"
        try:
            response, content = self._http.request(uri, method=method, **options)
            outcome = str(response.status)
        finally:
            self._tell(f"{method} {uri}: {outcome} in {(time.perf_counter() - started) * 1000:.0f} ms")
        return response, content

    def __getattr__(self, name: str) -> Any:  # any other attribute of httplib2.Http
        return getattr(self._http, name)
