"""Clients of the cloud and ssh access to workers, created from the settings."""

from __future__ import annotations

import ipaddress
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.app.app import journal_folder
from tpuctl.clock import SystemClock, limit_cloud_calls
from tpuctl.cloud.endpoint import ApiEndpoint, HttpFactory, HttpProxy, TransportOptions
from tpuctl.cloud.gcloud_token import gcloud_access_token
from tpuctl.cloud.tpu import TpuClient
from tpuctl.config import gcloud
from tpuctl.config.resolution import SourceKind
from tpuctl.errors import InvalidInputError, SettingError, TpuctlError
from tpuctl.names import BucketPath, check_login, check_project

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.cloud.compute import ComputeClient, OsLoginClient
    from tpuctl.cloud.storage import StorageClient
    from tpuctl.config.resolution import Settings
    from tpuctl.models.node import Node
    from tpuctl.nodes.journal import Journal
    from tpuctl.nodes.key_authorization import KeyAuthorizer
    from tpuctl.nodes.lease import LeaseKeeper
    from tpuctl.nodes.ssh_workers import SshWorkers
    from tpuctl.sandbox.state import SandboxState


def tpu_client(app: App) -> TpuClient:
    """Return the client of the TPU API: of the sandbox, of another endpoint, or of Google. Nothing is sent yet."""
    factory, endpoint = http_access(app)
    return TpuClient(factory, app.clock, endpoint=endpoint)


def storage_client(app: App) -> StorageClient:
    """Return the client of Cloud Storage, at the same endpoint as the TPU API. Nothing is sent yet."""
    from tpuctl.cloud.storage import StorageClient  # noqa: PLC0415  # most commands use no bucket

    factory, endpoint = http_access(app)
    return StorageClient(factory, app.clock, endpoint=endpoint)


def lease_service(app: App) -> LeaseKeeper:
    """Return the leases: in Cloud Storage if the setting `lease` names a bucket, else on this machine. Nothing is sent yet."""
    import os  # noqa: PLC0415  # only to identify this process
    import secrets  # noqa: PLC0415  # as above
    import socket  # noqa: PLC0415  # as above

    from tpuctl.nodes.lease import LeaseKeeper, LeaseOwner, LeaseStore  # noqa: PLC0415  # most commands change nothing

    store: LeaseStore
    if text := app.settings.text("lease"):
        from tpuctl.nodes.lease import BucketLeaseStore  # noqa: PLC0415  # most users work on one machine

        store = BucketLeaseStore(app.storage, BucketPath.parse(text))
    else:
        from tpuctl.nodes.lease import LocalLeaseStore  # noqa: PLC0415  # see above

        local = LocalLeaseStore(app.state_folder / "leases", app.clock)
        app.on_close(local.close)
        store = local
    return LeaseKeeper(store, app.clock, LeaseOwner(socket.gethostname(), os.getpid(), secrets.token_hex(8)))


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
        return _with_tracing(app, lambda: SandboxHttp(world)), None
    text = app.settings.text("endpoint")
    named = ApiEndpoint.parse(text) if text else None
    factory = HttpFactory(transport_options(app), credentials=lambda: load_credentials(app), endpoint=named)
    app.on_close(factory.close)
    return _with_tracing(app, factory), text


def ssh_workers(app: App) -> SshWorkers:
    """Return the ssh access to workers. The sandbox has its own key, so that `~/.ssh` stays unchanged."""
    from tpuctl.app.ssh_options import build_router  # noqa: PLC0415  # as above
    from tpuctl.nodes.ssh_workers import SshSettings, SshWorkers  # noqa: PLC0415  # as above

    served, ways = served_sandbox_proxy(app), build_router(app)
    if app.is_sandbox or served:
        # A tunnel to a sandbox worker uses the same connection as direct ssh.
        ways = replace(ways, gcloud=lambda: "gcloud", here=lambda: None)
    proxy: Callable[[Node, int], str | None] = served or (lambda node, worker: None)  # noqa: ARG005  # a direct connection
    if app.is_sandbox:
        from tpuctl.sandbox.sshd import proxy_command  # noqa: PLC0415  # only for the sandbox

        world = app.world

        def proxy(node: Node, worker: int) -> str | None:
            return proxy_command(world.path, node.endpoints[worker].address or "")

    admitted = key_authorization(app)
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
    from tpuctl.sandbox.sshd.daemon import SshdUnavailableError, find_sshd  # noqa: PLC0415  # only for the sandbox

    try:
        find_sshd()
    except SshdUnavailableError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return None


def transport_options(app: App) -> TransportOptions:
    """Return proxy, CA file and quota project from the settings."""
    proxy = HttpProxy.from_environment(app.invocation.environ) or _proxy_of_gcloud(app.settings)
    return TransportOptions(proxy=proxy, ca_file=app.settings.path("ca_certs"), quota_project=_quota_project(app))


def _quota_project(app: App) -> str | None:
    """Return the quota project. Raises `InvalidInputError` unless it has the form of a project: it becomes a header."""
    text = app.settings.text("quota_project")
    return None if text is None else check_project(text)


def load_credentials(app: App, *, gcloud_token: Callable[[], str] | None = None) -> Any:  # google-auth's credentials
    """Return the credentials of all calls; `gcloud_token` replaces the call of gcloud for a token."""
    from tpuctl.cloud import credentials  # noqa: PLC0415  # google-auth costs 100 ms
    from tpuctl.cloud.transport import AuthRequest  # noqa: PLC0415  # as above

    environ = app.invocation.environ
    return credentials.load_credentials(
        environ,
        adc=gcloud.adc_path(environ),
        gcloud_token=gcloud_token or (lambda: gcloud_access_token(environ)),
        impersonate=app.settings.text("impersonate_service_account"),
        quota_project=_quota_project(app),
        request=AuthRequest(transport_options(app)),
    )


def _proxy_of_gcloud(settings: Settings) -> HttpProxy | None:
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
    return HttpProxy(host, port, settings.text("proxy_username"), settings.text("proxy_password"))


def _with_tracing(app: App, factory: Callable[[], Any]) -> Callable[[], Any]:
    """Return a factory whose http objects print each request on stderr if the run is verbose."""
    if not app.is_verbose:
        return factory
    return lambda: _TracedHttp(factory(), app.terminal.note)


class _TracedHttp:
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


# Access to the workers of a sandbox that `tpuctl sandbox serve` of this machine serves at the endpoint.


# Reserved for network tests (RFC 2544): no machine of a real cloud has such an address.
_SANDBOX_NETWORK = ipaddress.ip_network("198.18.0.0/15")


def served_sandbox_proxy(app: App) -> Callable[[Node, int], str | None] | None:
    """Return a function that gives ssh's ProxyCommand for a worker; None if the endpoint is not this user's own sandbox."""
    state_file = app.sandbox_path
    if app.is_sandbox or not is_served_sandbox(app.settings.text("endpoint"), state_file):
        return None
    from tpuctl.sandbox.sshd import proxy_command  # noqa: PLC0415  # only for the sandbox

    def proxy(node: Node, worker: int) -> str | None:
        address = node.endpoints[worker].address or ""
        try:
            is_sandbox_worker = ipaddress.ip_address(address) in _SANDBOX_NETWORK
        except ValueError:
            return None
        return proxy_command(state_file, address) if is_sandbox_worker else None

    return proxy


def is_served_sandbox(endpoint: str | None, world: Path) -> bool:
    """Return whether the endpoint serves this sandbox: its server writes the address to a file beside the state file."""
    if endpoint is None:
        return False
    from tpuctl.sandbox.shims import read_served_address  # noqa: PLC0415  # only with an endpoint

    try:
        named = ApiEndpoint.parse(endpoint)
        served = ApiEndpoint.parse(read_served_address(world)) if named.is_loopback else None
    except TpuctlError:
        return False
    return served is not None and served.port == named.port


# Opening the sandbox, with a note that nothing in it is real.


def open_sandbox(app: App) -> SandboxState:
    """Return the sandbox, created if there is none; it is closed when the run ends.

    Raises `SettingError` if `TPUCTL_SANDBOX_SPEED` is not a speed.
    """
    from tpuctl.sandbox.state import SandboxState  # noqa: PLC0415  # only for the sandbox

    path = app.sandbox_path
    setting = app.settings["sandbox"]
    # The project file may come from another person: say so in every run that relies on it.
    is_from_file = setting is not None and setting.source.kind == "project file" and app.is_sandbox
    if app.terminal.streams.stderr_is_terminal or not path.exists() or is_from_file:
        app.terminal.note("sandbox: nothing here is real, and nothing is billed")
    speed: float | None = None
    if text := app.invocation.environ.get("TPUCTL_SANDBOX_SPEED"):
        try:
            speed = float(text)
        except ValueError:
            speed = 0.0
        if not 0 < speed <= 1e6:
            raise SettingError(
                f"`TPUCTL_SANDBOX_SPEED` is `{text}`",
                hint="set it to a number such as 60: a cloud minute takes a second",
            )
    world = SandboxState.open(path, clock=app.invocation.clock, speed=speed)
    app.on_close(world.close)
    return world


# Opening the journal: on this machine, or in a bucket.


# Time limit for writing the remaining lines at the end of a run, which may have been interrupted.
_FLUSH_TIMEOUT = timedelta(seconds=10)


def open_journal(app: App) -> Journal:
    """Return the journal; in a bucket if the setting `journal` names one. Nothing is read or written yet."""
    from tpuctl.nodes.journal import BucketJournalStore, Journal  # noqa: PLC0415  # most commands use no journal

    warn = app.terminal.warn
    place = app.settings.text("journal")
    if place is None:
        return Journal(journal_folder(app.invocation.environ, sandbox=app.is_sandbox), warn=warn)
    # The client is created first, so that it is closed last: after the waiting lines were written.
    store = BucketJournalStore(app.storage, BucketPath.parse(place), app.clock, warn=warn)
    opened = Journal(store, warn=warn)

    def flush() -> None:
        with limit_cloud_calls(SystemClock(), _FLUSH_TIMEOUT):
            opened.flush()

    app.on_close(flush)
    return opened


# The identity of calls and logins: account, login name, and how workers come to accept our ssh key.


def key_authorization(app: App) -> KeyAuthorizer:
    """Return what finds out whether a node has our key, and adds it. Nothing is sent yet."""
    from tpuctl.cloud.compute import ComputeClient  # noqa: PLC0415  # as above
    from tpuctl.nodes.key_authorization import KeyAuthorizer, KeyServices  # noqa: PLC0415  # most commands reach no worker
    from tpuctl.ssh.keys import OsLoginCache  # noqa: PLC0415  # as above

    def compute() -> ComputeClient:
        factory, endpoint = http_access(app)
        return ComputeClient(factory, app.clock, endpoint=endpoint)

    setting = app.settings["user"]
    services = KeyServices(
        projects=compute,
        profiles=lambda: _os_login(app),
        account=lambda: caller_account(app),
        remembered=OsLoginCache(app.state_folder / "os-login.json", app.clock),
        clock=app.clock,
    )
    return KeyAuthorizer(
        services,
        login=check_login(str(setting.value)) if setting else None,
        expires=lambda: key_expiry(app),
        tell=app.terminal.note,
    )


def key_folder(app: App) -> Path:
    """Return the home folder of the key. The sandbox has its own, so that `~/.ssh` stays unchanged."""
    return app.state_folder if app.is_sandbox else Path(app.invocation.environ.get("HOME") or Path.home())


def metadata_login(app: App) -> str:
    """Return the login name for keys in metadata. The sandbox's sshd accepts only the user who runs it."""
    from tpuctl.ssh.keys import login_name  # noqa: PLC0415  # most commands reach no worker

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


def caller_account(app: App) -> str | None:
    """Return the e-mail address of the identity that makes the calls, None if it is unknown.

    A sandbox has one account. Else these are tried in order: the impersonated service account, the credentials, the answer of
    Google about their token, and the account of gcloud's configuration, which may have issued the token.
    """
    if app.is_sandbox or served_sandbox_proxy(app):
        from tpuctl.sandbox.worker_access import OS_LOGIN_ACCOUNT  # noqa: PLC0415  # only for the sandbox

        return OS_LOGIN_ACCOUNT
    gcloud_account = app.settings.text("account")
    if chain := app.settings.text("impersonate_service_account"):
        return chain.split(",")[-1].strip()
    endpoint = app.settings.text("endpoint")
    if endpoint and ApiEndpoint.parse(endpoint).is_loopback:  # no credentials are sent there
        return gcloud_account
    from tpuctl.cloud.credentials import GcloudCredentials, account_of  # noqa: PLC0415  # google-auth costs 100 ms

    # The identity is known without another token of gcloud.
    credentials = load_credentials(app, gcloud_token=lambda: "unused")
    if isinstance(credentials, GcloudCredentials):
        return gcloud_account
    from tpuctl.cloud.transport import AuthRequest  # noqa: PLC0415  # httplib2 costs 95 ms

    request = AuthRequest(transport_options(app))
    return account_of(credentials, request) or _os_login(app).caller() or gcloud_account


def _os_login(app: App) -> OsLoginClient:
    from tpuctl.cloud.compute import OsLoginClient  # noqa: PLC0415  # most commands reach no worker

    factory, endpoint = http_access(app)
    return OsLoginClient(factory, app.clock, endpoint=endpoint)


# Adding our ssh key to a node whose workers do not accept it yet.


def authorize_key(app: App, node: Node) -> None:
    """Make a node's workers accept our key: through the OS Login profile if they use OS Login, else in the node's metadata.

    Does nothing if the key is there, or in the project's metadata. Workers read a change within some seconds.
    """
    from tpuctl.ssh.keys import add_metadata_key  # noqa: PLC0415  # only for nodes without our key

    entry = app.workers.key_entry(node)
    if entry is None:
        return
    now = app.clock.now()
    app.terminal.note(f"adding our ssh key to the metadata of `{node.name.node_id}`")
    app.client.change_metadata(
        node.name,
        lambda metadata: {**metadata, "ssh-keys": add_metadata_key(metadata.get("ssh-keys", ""), entry, now=now)},
    )
    app.workers.note_admission(node)
