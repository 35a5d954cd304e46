"""Connections to the cloud, from the settings: proxy, CA file, quota project, and a token that may be cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.app.state_paths import state_folder
from tpuctl.cloud.endpoint import ApiEndpoint, HttpProxy, TransportOptions
from tpuctl.cloud.token_cache import CachedCredentials
from tpuctl.cloud.transport import HttpFactory
from tpuctl.config import sources
from tpuctl.errors import SettingError
from tpuctl.names import check_project

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.app.app import App


def open_connections(app: App, load: Callable[[], Any]) -> HttpFactory:
    """Return the connections to the cloud, for all its APIs; `load` returns the credentials. Nothing is sent yet."""
    text = app.settings.text("endpoint")
    named = ApiEndpoint.parse(text) if text else None
    factory = HttpFactory(transport_options(app), credentials=lambda: _cached_credentials(app, load), endpoint=named)
    app.on_close(factory.close)
    return factory


def transport_options(app: App) -> TransportOptions:
    """Return proxy, CA file and quota project from the settings. Raises `SettingError` for an unsupported kind of proxy."""
    settings, proxy = app.settings, HttpProxy.from_environment(app.invocation.environ)
    if proxy is None and (host := settings.text("proxy_address")) is not None:
        # The proxy of gcloud's configuration.
        kind = settings.text("proxy_type") or "http"
        if not kind.startswith("http"):
            raise SettingError(
                f"gcloud's proxy type `{kind}` is not supported",
                hint="set `HTTPS_PROXY=http://HOST:PORT` instead",
            )
        port = settings.number("proxy_port") if settings["proxy_port"] else 8080
        proxy = HttpProxy(host, port, settings.text("proxy_username"), settings.text("proxy_password"))
    return TransportOptions(proxy=proxy, ca_file=settings.path("ca_certs"), quota_project=quota_project(app))


def quota_project(app: App) -> str | None:
    """Return the quota project. Raises `InvalidInputError` unless it has the form of a project: it becomes a header."""
    text = app.settings.text("quota_project")
    return None if text is None else check_project(text)


def _cached_credentials(
    app: App, load: Callable[[], Any]
) -> Any:  # google-auth's credentials, or what stands in for them
    """Return the credentials of all calls, which use the token that an earlier command has cached."""
    environ = app.invocation.environ
    source = sources.adc_path(environ)
    # Without a file of credentials, gcloud and the metadata server cache the token.
    if app.settings.text("impersonate_service_account") or not app.settings.is_on("token_cache") or not source.exists():
        return load()
    return CachedCredentials(source, state_folder(environ) / "tokens", load)
