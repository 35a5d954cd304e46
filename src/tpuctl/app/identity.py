"""Who this run is for the cloud: the account that makes its calls, and the owner of the nodes that it creates."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tpuctl.app.served_sandbox import served_sandbox_proxy
from tpuctl.cloud.credentials_file import read_credentials_file
from tpuctl.cloud.endpoint import ApiEndpoint
from tpuctl.config.sources import adc_path
from tpuctl.nodes import expiry
from tpuctl.sandbox.worker_lookup import OS_LOGIN_ACCOUNT
from tpuctl.ssh.keys import login_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.app.app import App


def caller_account(app: App) -> str | None:
    """Return the e-mail address of the identity that makes the calls, None if it is unknown.

    A sandbox has one account. Else these are tried in order: the impersonated service account, the credentials, the answer of
    Google about their token, and the account of gcloud's configuration, which may have issued the token.
    """
    if app.is_sandbox or served_sandbox_proxy(app):
        return OS_LOGIN_ACCOUNT
    gcloud_account = app.settings.text("account")
    if chain := app.settings.text("impersonate_service_account"):
        return chain.split(",")[-1].strip()
    endpoint = app.settings.text("endpoint")
    if endpoint and ApiEndpoint.parse(endpoint).is_loopback:  # no credentials are sent there
        return gcloud_account

    from tpuctl.app.credentials import account_of_credentials  # noqa: PLC0415  # google-auth costs 40 ms

    return account_of_credentials(app)


def owner_label(app: App) -> str:
    """Return the label of the user, which the nodes have that the user creates."""
    return expiry.owner_label(owner_identity(app))


def owner_identity(app: App) -> str:
    """Return who creates nodes, without a request: the account of the calls, else `user@host` of this machine.

    Known are the sandbox's account, an impersonated service account, that of a key file, and gcloud's account.
    """
    if app.is_sandbox or served_sandbox_proxy(app):
        return OS_LOGIN_ACCOUNT
    if chain := app.settings.text("impersonate_service_account"):
        return chain.split(",")[-1].strip()
    environ = app.invocation.environ
    account = _account_of_key_file(environ) or app.settings.text("account")
    return account or f"{login_name(environ)}@{socket.gethostname()}"


def _account_of_key_file(environ: Mapping[str, str]) -> str | None:
    """Return the service account of the credentials file in use, None for a file of another kind."""
    try:
        found, _ = read_credentials_file(adc_path(environ))
    except (OSError, ValueError):
        return None  # calls report what is wrong with it
    return found.get("client_email") or None
