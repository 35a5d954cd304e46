"""What the checkup is given: places, settings and connections, each also where another of them is broken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl import configfile
from tpuctl.actions.checkup.network import PROXIES
from tpuctl.actions.checkup.ways import Ways
from tpuctl.api.endpoint import Endpoint
from tpuctl.api.transport import Proxy, TransportOptions
from tpuctl.cli.check_options import gate, sources
from tpuctl.cli.connect import load_credentials, transport_options
from tpuctl.cli.places import journal_folder, state_folder
from tpuctl.clock import SystemClock
from tpuctl.errors import TpuctlError
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown, known
from tpuctl.preflight.wanted import Wishes
from tpuctl.settings import SourceKind, check_value
from tpuctl.settings.words import bad_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tpuctl.cli.app import App
    from tpuctl.clock import Clock
    from tpuctl.settings import ConfigFile, Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Cloud:
    """Which cloud commands would talk to, and how it is reached without an account."""

    is_sandbox: bool
    endpoint: Fact[Endpoint]
    clock: Clock
    http: Callable[[], Any]


def ways(app: App, *, timeout: timedelta) -> Ways:
    """Return where things are and how the cloud is reached. Raises nothing for settings that are broken."""
    environ = app.invocation.environ
    settings = _fact(lambda: app.settings)
    travel = settings if isinstance(settings, Unknown) else _fact(lambda: transport_options(app))
    # So that it is the deadline of the checkup which ends what is silent: whether it would have answered is not known.
    longer = timeout + timedelta(seconds=1)
    how = replace(known(travel) or TransportOptions(), connect_timeout=longer, read_timeout=longer)
    cloud = _cloud(app, settings, replace(how, quota_project=None))
    wishes = settings if isinstance(settings, Unknown) else _fact(lambda: gate(app, {}).wishes)
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
        cloud_clock=cloud.clock,
        timeout=timeout,
        http=cloud.http,
        load=lambda: load_credentials(app),
        request=lambda: _request(how),
        sources=lambda: sources(app),
    )


def _cloud(app: App, settings: Fact[Settings], how: TransportOptions) -> _Cloud:
    """Return which cloud is meant. While the settings are broken nobody knows that it is not a sandbox: none is called."""
    real = app.invocation.clock or SystemClock()
    if not isinstance(settings, Known):
        return _Cloud(
            is_sandbox=False, endpoint=Unknown("the settings are broken"), clock=real, http=lambda: _http(how)
        )
    is_sandbox = known(_fact(lambda: app.is_sandbox)) is True
    if is_sandbox:
        from tpuctl.cli.connect import http_access  # noqa: PLC0415  # only for the sandbox

        access = _fact(lambda: http_access(app))
        if isinstance(access, Known):
            return _Cloud(is_sandbox=True, endpoint=Absent(), clock=app.clock, http=access.value[0])
        why = access.reason if isinstance(access, Unknown) else ""
        return _Cloud(is_sandbox=True, endpoint=Unknown(why), clock=real, http=lambda: _http(how))
    text = settings.value["endpoint"]
    endpoint: Fact[Endpoint] = _fact(lambda: Endpoint.parse(str(text.value))) if text else Absent()
    return _Cloud(is_sandbox=False, endpoint=endpoint, clock=real, http=lambda: _http(how))


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
    if settings.value["project"] is None and not app.is_sandbox:
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
