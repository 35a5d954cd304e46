"""The credentials of calls. This module loads google-auth, which costs 40 ms: a cached token does without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.app.connections import quota_project, transport_options
from tpuctl.cloud import credentials
from tpuctl.cloud.transport import AuthRequest
from tpuctl.config import sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.app.app import App


def load_credentials(app: App, *, gcloud_token: Callable[[], str] | None = None) -> Any:  # google-auth's credentials
    """Return the credentials of all calls; `gcloud_token` replaces the call of gcloud for a token."""
    environ = app.invocation.environ
    return credentials.load_credentials(
        environ,
        adc=sources.adc_path(environ),
        gcloud_token=gcloud_token or (lambda: credentials.gcloud_access_token(environ)),
        impersonate=app.settings.text("impersonate_service_account"),
        quota_project=quota_project(app),
        request=AuthRequest(transport_options(app)),
    )


def account_of_credentials(app: App) -> str | None:
    """Return the e-mail address of the credentials, else the account of gcloud's configuration."""
    # The identity is known without another token of gcloud.
    loaded = load_credentials(app, gcloud_token=lambda: "unused")
    if isinstance(loaded, credentials.GcloudCredentials):
        return app.settings.text("account")
    return (
        credentials.account_of(loaded, AuthRequest(transport_options(app)))
        or app.services.os_login().caller()
        or app.settings.text("account")
    )
