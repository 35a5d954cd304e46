"""How the app's client and its ssh are put together from the settings."""

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


def connect(app: App) -> TpuClient:
    """Return the client of the sandbox, of another endpoint, or of Google's service. Nothing is sent."""
    factory, endpoint = http_access(app)
    return TpuClient(factory, app.clock, endpoint=endpoint)


def storage(app: App) -> StorageClient:
    """Return the client of Cloud Storage, where the one of nodes is too: an endpoint serves both. Nothing is sent."""
    from tpuctl.api.storage import StorageClient  # noqa: PLC0415  # most commands keep nothing in a bucket

    factory, endpoint = http_access(app)
    return StorageClient(factory, app.clock, endpoint=endpoint)


def leases(app: App) -> Leases:
    """Return who holds which node: on this machine, or in Cloud Storage where `lease` names a place. Nothing is sent."""
    import os  # noqa: PLC0415  # only to name this process
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
        app.at_the_end(local.close)
        store = local
    return Leases(store, app.clock, Identity(socket.gethostname(), os.getpid(), secrets.token_hex(8)))


def http_access(app: App) -> tuple[Callable[[], Any], str | None]:
    """Return what makes http objects, and the endpoint that they are for where it is not Google's own."""
    # Most commands have asked when they began. Those that need it only for a call have not.
    app.require_trust()
    if app.is_sandbox:
        endpoint = app.settings["endpoint"]
        if endpoint and endpoint.source.kind is SourceKind.FLAG:
            raise InvalidInputError("`--endpoint` and the sandbox exclude each other", hint="leave one of them out")
        from tpuctl.sandbox.in_process import SandboxHttp  # noqa: PLC0415  # only for the sandbox

        world = app.world
        return _traced(app, lambda: SandboxHttp(world)), None
    text = app.settings.text("endpoint")
    named = Endpoint.parse(text) if text else None
    factory = HttpFactory(transport_options(app), credentials=lambda: load_credentials(app), endpoint=named)
    app.at_the_end(factory.close)
    return _traced(app, factory), text


def workers(app: App) -> SshWorkers:
    """Return the workers by ssh; in the sandbox with a key of its own, so that the user's `~/.ssh` is left alone."""
    from tpuctl.cli import key_access  # noqa: PLC0415  # most commands reach no worker
    from tpuctl.cli.reach_options import reach  # noqa: PLC0415  # as above
    from tpuctl.remote.workers import SshSettings, SshWorkers  # noqa: PLC0415  # as above

    served, ways = way_to_workers(app), reach(app)
    if app.is_sandbox or served:
        # A tunnel to a sandbox worker is the way that any other connection takes to it.
        ways = replace(ways, gcloud=lambda: "gcloud", here=lambda: None)
    proxy: Callable[[Node, int], str | None] = served or (lambda node, worker: None)  # noqa: ARG005  # the direct way
    if app.is_sandbox:
        from tpuctl.sandbox.sshd import proxy_command  # noqa: PLC0415  # only for the sandbox

        world = app.world

        def proxy(node: Node, worker: int) -> str | None:
            return proxy_command(world.path, node.endpoints[worker].address or "")

    admitted = key_access.admission(app)
    return SshWorkers(
        SshSettings(
            login=key_access.metadata_login(app),
            home=key_access.key_folder(app),
            key=app.settings.path("ssh_key"),
            known_hosts=app.state_folder / "known_hosts",
            guest_attributes=app.client.guest_attributes,
            proxy_command=proxy,
            obstacle=_no_sshd if app.is_sandbox or served else lambda: None,
            reach=ways,
            os_login=admitted.os_login,
            needs_entry=admitted.needs_entry,
            expires=lambda: key_access.key_expiry(app),
        )
    )


def _no_sshd() -> str | None:
    """Return why the sandbox's workers cannot be reached by ssh, or nothing where they can."""
    from tpuctl.sandbox.sshd import SshdUnavailableError, find_sshd  # noqa: PLC0415  # only for the sandbox

    try:
        find_sshd()
    except SshdUnavailableError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return None


def transport_options(app: App) -> TransportOptions:
    """Return how requests travel, as the settings have it."""
    return TransportOptions(proxy=_proxy(app), ca_file=app.settings.path("ca_certs"), quota_project=_quota_project(app))


def _quota_project(app: App) -> str | None:
    """Return the project whose quota counts. It goes into a header: raises `InvalidInputError` for what can be no project."""
    text = app.settings.text("quota_project")
    return None if text is None else check_project(text)


def load_credentials(app: App, *, gcloud_token: Callable[[], str] | None = None) -> Any:  # google-auth's credentials
    """Return the credentials that calls are made with; `gcloud_token` in place of asking gcloud for one."""
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


def _proxy(app: App) -> Proxy | None:
    """Return the proxy of the environment, else that of gcloud's configuration."""
    environ = app.invocation.environ
    if found := Proxy.from_environment(environ):
        return found
    settings = app.settings
    host = settings.text("proxy_address")
    if host is None:
        return None
    kind = settings.text("proxy_type") or "http"
    if not kind.startswith("http"):
        raise SettingError(
            f"gcloud's proxy is of kind `{kind}`, which cannot be used",
            hint="set `HTTPS_PROXY=http://HOST:PORT` instead",
        )
    port = settings.number("proxy_port") if settings["proxy_port"] else 8080
    return Proxy(host, port, settings.text("proxy_username"), settings.text("proxy_password"))


def _traced(app: App, factory: Callable[[], Any]) -> Callable[[], Any]:
    """Return the factory, whose http objects show each request on stderr when the user asked for that."""
    if not app.is_verbose:
        return factory
    return lambda: _Traced(factory(), app.terminal.note)


class _Traced:
    """An http object that tells of each request: method, URL, status and time. Never headers or bodies: they hold secrets."""

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

    def __getattr__(self, name: str) -> Any:  # whatever httplib2 has
        return getattr(self._http, name)
