"""What the checkup is given: places, settings and connections, each also where another of them is broken."""

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
    """Which cloud commands would talk to; `access` is nothing where none may be called."""

    is_sandbox: bool
    endpoint: Fact[Endpoint]
    access: CloudAccess | None = None
    closed: Closed | None = None


def ways(app: App, *, timeout: timedelta, node: str | None = None) -> Ways:
    """Return where things are and how the cloud is reached. Raises nothing for settings that are broken."""
    environ = app.invocation.environ
    settings = _fact(lambda: _trusted_settings(app))
    travel = settings if isinstance(settings, Unknown) else _fact(lambda: transport_options(app))
    how = _patient(known(travel) or TransportOptions(), timeout)
    cloud = _cloud(app, settings, how)
    wishes = _wishes(app, settings, cloud)
    home = Path(environ.get("HOME") or Path.home())
    project_file, user_file, files = _files(app, home)
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
        project=_project(app, settings),
        wishes=known(wishes) or Wishes(),
        zone=(values and values.text("zone")) or "",
        is_sandbox=cloud.is_sandbox,
        endpoint=cloud.endpoint,
        proxy=_proxy(environ, settings, travel),
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
    """Return the settings. Raises why they cannot be used, also that their file is not trusted."""
    app.require_trust()
    return app.settings


def _patient(how: TransportOptions, timeout: timedelta) -> TransportOptions:
    """Let the deadline of the checkup end what is silent: whether it would have answered is not known then."""
    longer = timeout + timedelta(seconds=1)
    return replace(how, connect_timeout=longer, timeout=longer)


def _wishes(app: App, settings: Fact[Settings], cloud: _Cloud) -> Fact[Wishes]:
    if isinstance(settings, Unknown):
        return settings
    if isinstance(settings, Known) and cloud.closed is None:  # whose clock it would want
        return _fact(lambda: gate(app, {}).wishes)
    return Known(Wishes())


def _cloud(app: App, settings: Fact[Settings], how: TransportOptions) -> _Cloud:
    """Return which cloud is meant. While nobody knows that it is not a sandbox, or where that is broken, none is called."""
    if not isinstance(settings, Known):
        return _Cloud(is_sandbox=False, endpoint=Unknown("the settings are broken"))
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
        # Asked without an account, so that no project pays for it.
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
        # A damaged world may well open: it is read once.
        admin.status(app.world)
    except WorldError as error:
        closed = Closed(error.message, tuple((error.hint or "").splitlines()))
        return _Cloud(is_sandbox=True, endpoint=Absent(), closed=closed)
    except TpuctlError as error:
        return _Cloud(is_sandbox=True, endpoint=Unknown(error.message))
    return _Cloud(is_sandbox=True, endpoint=Absent(), access=access)


def _gcloud_token(environ: Mapping[str, str]) -> str:
    """Return gcloud's token. gcloud is not started where it has no login: it would take a second, and make its folder."""
    if find_program("gcloud", environ) and not gcloud.may_have_login(environ):
        raise CredentialsError("gcloud is not logged in", hint="run `gcloud auth login`")
    return gcloud.access_token(environ)


def _http(how: TransportOptions) -> Any:  # httplib2 ships no types
    from tpuctl.api.connections import Http  # noqa: PLC0415  # httplib2 costs 95 ms

    return Http(how)


def _request(how: TransportOptions) -> Any:  # a google.auth.transport.Request
    from tpuctl.api.connections import AuthRequest  # noqa: PLC0415  # httplib2 costs 95 ms

    return AuthRequest(how)


def _files(app: App, home: Path) -> tuple[Path | None, Path, tuple[ConfigFile, ...]]:
    """Return the project's file, the user's, and what can be read of them."""
    user = configfile.user_file(app.invocation.environ)
    project = configfile.find_project_file(app.invocation.folder, home=home)
    read = (_fact(lambda path=path: configfile.load(path)) for path in (project, user) if path)  # type: ignore[misc]  # a default binds it now
    return project, user, tuple(file.value for file in read if isinstance(file, Known))


def _problems(values: Settings | None, wishes: Fact[Wishes], endpoint: Fact[Endpoint]) -> Iterator[str]:
    """Yield what is wrong with values that are only read when they are needed."""
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
    # What is wrong with one value keeps the others from being put together.
    if isinstance(wishes, Unknown) and not wrong:
        yield wishes.reason


def _project(app: App, settings: Fact[Settings]) -> Fact[str]:
    if not isinstance(settings, Known):
        return Unknown("the settings cannot be read")
    if settings.value["project"] is None and known(_fact(lambda: app.is_sandbox)) is False:
        return Absent()
    return _fact(lambda: app.project)


def _proxy(environ: Mapping[str, str], settings: Fact[Settings], travel: Fact[TransportOptions]) -> Fact[Proxy]:
    """Return the proxy that requests go through; while the settings are broken that of the environment, if it has one."""
    found = travel
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
    """Return what can be had, or why it cannot."""
    try:
        return Known(get())
    except (TpuctlError, OSError) as error:
        return Unknown(error.message if isinstance(error, TpuctlError) else str(error))
