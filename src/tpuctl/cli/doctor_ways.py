"""Build the context of the probes: paths, settings and connections. Each works also if another one is invalid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl import configfile, gcloud
from tpuctl.actions.checkup.files import find_program
from tpuctl.actions.checkup.network import PROXIES, SANDBOX, origins
from tpuctl.actions.checkup.ways import CloudAccess, TokenAccess, Ways
from tpuctl.api.endpoint import Endpoint
from tpuctl.api.transport import Proxy, TransportOptions
from tpuctl.checkup.surroundings.facts import Closed
from tpuctl.cli.check_options import gate, sources
from tpuctl.cli.connect import load_credentials, transport_options
from tpuctl.cli.places import journal_folder, state_folder
from tpuctl.clock import SystemClock
from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.gcloud_token import access_token
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown, known
from tpuctl.preflight.wanted import Wishes
from tpuctl.settings import SourceKind, check_value
from tpuctl.settings.words import bad_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tpuctl.cli.app import App
    from tpuctl.settings import ConfigFile, Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Cloud:
    """The cloud that commands use; `access` is None if no cloud may be called."""

    is_sandbox: bool
    endpoint: Fact[Endpoint]
    access: CloudAccess | None = None
    closed: Closed | None = None


def ways(app: App, *, timeout: timedelta, node: str | None = None) -> Ways:
    """Return the context of the probes. Invalid settings raise nothing: values that depend on them are Unknown."""
    environ = app.invocation.environ
    settings = _fact(lambda: _trusted_settings(app))
    transport = settings if isinstance(settings, Unknown) else _fact(lambda: transport_options(app))
    # The deadline of doctor ends calls without an answer; a time-out of the transport must not come first.
    longer = timeout + timedelta(seconds=1)
    how = replace(known(transport) or TransportOptions(), connect_timeout=longer, timeout=longer)
    cloud = _cloud(app, settings, how)
    wishes: Fact[Wishes] = settings if isinstance(settings, Unknown) else Known(Wishes())
    if isinstance(settings, Known) and cloud.closed is None:  # without the sandbox there is no clock for it
        wishes = _fact(lambda: gate(app, {}).wishes)
    home = Path(environ.get("HOME") or Path.home())
    project_file, user_file, files = _config_files(app, home)
    values = known(settings)
    state = state_folder(environ) / "sandbox" if cloud.is_sandbox else state_folder(environ)
    gcloud_hosts = () if cloud.is_sandbox else (home / ".ssh" / "google_compute_known_hosts",)
    return Ways(
        environ=environ,
        home=state if cloud.is_sandbox else home,
        key=values.path("ssh_key") if values else None,
        state=state,
        user_file=user_file,
        project_file=project_file,
        files=files,
        journal=None if values and values["journal"] else journal_folder(environ, sandbox=cloud.is_sandbox),
        known_hosts=(state / "known_hosts", *gcloud_hosts),
        settings=settings,
        problems=tuple(dict.fromkeys(_problems(values, wishes, cloud.endpoint))),
        project=_find_project(app, settings),
        wishes=known(wishes) or Wishes(),
        zone=(values and values.text("zone")) or "",
        is_sandbox=cloud.is_sandbox,
        endpoint=cloud.endpoint,
        proxy=_find_proxy(environ, settings, transport),
        proxy_source=_proxy_source(environ, values),
        ca_file=how.ca_file,
        clock=app.invocation.clock or SystemClock(),
        timeout=timeout,
        cloud=cloud.access,
        closed=cloud.closed,
        node=node,
        sources=lambda: sources(app),
    )


def _trusted_settings(app: App) -> Settings:
    """Return the settings. Raises an error if they cannot be used, or if their file is not trusted."""
    app.require_trust()
    return app.settings


def _cloud(app: App, settings: Fact[Settings], how: TransportOptions) -> _Cloud:
    """Return the chosen cloud. None is called as long as the sandbox may be meant but cannot be used."""
    if not isinstance(settings, Known):
        return _Cloud(is_sandbox=False, endpoint=Unknown("the settings are invalid"))
    is_sandbox = _fact(lambda: app.is_sandbox)
    if not isinstance(is_sandbox, Known):
        return _Cloud(is_sandbox=False, endpoint=Unknown(is_sandbox.reason))
    if is_sandbox.value:
        return _sandbox(app)
    text = settings.value["endpoint"]
    endpoint: Fact[Endpoint] = _fact(lambda: Endpoint.parse(str(text.value))) if text else Absent()
    if isinstance(endpoint, Unknown):
        return _Cloud(is_sandbox=False, endpoint=endpoint)
    other = known(endpoint)
    environ = app.invocation.environ
    tokens = TokenAccess(
        load=lambda: load_credentials(app, gcloud_token=lambda: _gcloud_token(environ)),
        request=lambda: _request(how),
    )
    access = CloudAccess(
        origins=origins(other),
        # Without an account, so that no project is billed.
        http=lambda: _http(replace(how, quota_project=None)),
        clock=app.invocation.clock or SystemClock(),
        tokens=None if other and other.is_loopback else tokens,
    )
    return _Cloud(is_sandbox=False, endpoint=endpoint, access=access)


def _sandbox(app: App) -> _Cloud:
    from tpuctl.cli.connect import http_access  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox import admin  # noqa: PLC0415  # as above
    from tpuctl.sandbox.world import WorldError  # noqa: PLC0415  # as above

    try:
        http, _ = http_access(app)
        access = CloudAccess(origins=SANDBOX, http=http, clock=app.clock, has_names=False)
        # A damaged sandbox may open without an error, so its state is read once.
        admin.status(app.world)
    except WorldError as error:
        closed = Closed(error.message, tuple((error.hint or "").splitlines()))
        return _Cloud(is_sandbox=True, endpoint=Absent(), closed=closed)
    except TpuctlError as error:
        return _Cloud(is_sandbox=True, endpoint=Unknown(error.message))
    return _Cloud(is_sandbox=True, endpoint=Absent(), access=access)


def _gcloud_token(environ: Mapping[str, str]) -> str:
    """Return gcloud's token. Without a login gcloud is not started: it takes a second, and creates its folder."""
    if find_program("gcloud", environ) and not gcloud.may_have_login(environ):
        raise CredentialsError("gcloud is not logged in", hint="run `gcloud auth login`")
    return access_token(environ)


def _http(how: TransportOptions) -> Any:  # httplib2 ships no types
    from tpuctl.api.connections import Http  # noqa: PLC0415  # httplib2 costs 95 ms

    return Http(how)


def _request(how: TransportOptions) -> Any:  # a google.auth.transport.Request
    from tpuctl.api.connections import AuthRequest  # noqa: PLC0415  # httplib2 costs 95 ms

    return AuthRequest(how)


def _config_files(app: App, home: Path) -> tuple[Path | None, Path, tuple[ConfigFile, ...]]:
    """Return the paths of the project file and the user file, and those that can be read."""
    user = configfile.user_file(app.invocation.environ)
    project = configfile.find_project_file(app.invocation.folder, home=home)
    read = (_fact(lambda path=path: configfile.load(path)) for path in (project, user) if path)  # type: ignore[misc]  # a default binds it now
    return project, user, tuple(file.value for file in read if isinstance(file, Known))


def _problems(values: Settings | None, wishes: Fact[Wishes], endpoint: Fact[Endpoint]) -> Iterator[str]:
    """Yield what is wrong with values that commands read only when they need them."""
    if values is None:
        return
    wrong = False
    for spec, setting in values:
        if setting is None:
            continue
        try:
            check_value(spec, setting.value)
        except ValueError as error:
            wrong = True
            yield bad_value(spec, setting.value, setting.source.place, str(error)).message
    if isinstance(endpoint, Unknown):
        yield endpoint.reason
    # One invalid value is reason enough for invalid wishes.
    if isinstance(wishes, Unknown) and not wrong:
        yield wishes.reason


def _find_project(app: App, settings: Fact[Settings]) -> Fact[str]:
    """Return the project of the settings, Absent if none is set."""
    if not isinstance(settings, Known):
        return Unknown("the settings cannot be read")
    if settings.value["project"] is None and known(_fact(lambda: app.is_sandbox)) is False:
        return Absent()
    return _fact(lambda: app.project)


def _find_proxy(environ: Mapping[str, str], settings: Fact[Settings], transport: Fact[TransportOptions]) -> Fact[Proxy]:
    """Return the proxy for requests; with invalid settings that of the environment, if it has one."""
    found = transport
    if isinstance(settings, Unknown):
        found = _fact(lambda: TransportOptions(proxy=Proxy.from_environment(environ)))
    if isinstance(found, Known):
        return Known(found.value.proxy) if found.value.proxy else Absent()
    return found


def _proxy_source(environ: Mapping[str, str], values: Settings | None) -> str | None:
    if name := next((name for name in PROXIES if environ.get(name)), None):
        return f"`{name}`"
    setting = values["proxy_address"] if values else None
    return str(setting.source) if setting and setting.source.kind is not SourceKind.DEFAULT else None


def _fact(get: Callable[[], T]) -> Fact[T]:
    """Return the value as a fact, Unknown with the message of an error."""
    try:
        return Known(get())
    except (TpuctlError, OSError) as error:
        return Unknown(error.message if isinstance(error, TpuctlError) else str(error))
