"""How our ssh key gets to be accepted: who is asked about that, put together from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.actions.admission import Admission, Services
from tpuctl.api.compute import ComputeClient
from tpuctl.api.endpoint import Endpoint
from tpuctl.api.oslogin import OsLoginClient
from tpuctl.cli.connect import http_access, load_credentials, transport_options
from tpuctl.cli.served import way_to_workers
from tpuctl.errors import SettingError
from tpuctl.names import check_login
from tpuctl.remote.keys import login_name
from tpuctl.remote.keys.switches import RememberedSwitches

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.cli.app import App


def admission(app: App) -> Admission:
    """Return who finds out whether a node has our key. Nothing is sent."""
    setting = app.settings["user"]
    services = Services(
        projects=lambda: _compute(app),
        profiles=lambda: _os_login(app),
        account=lambda: account(app),
        remembered=RememberedSwitches(app.state_folder / "os-login.json", app.clock),
        clock=app.clock,
    )
    return Admission(
        services,
        login=check_login(str(setting.value)) if setting else None,
        expires=lambda: key_expiry(app),
        tell=app.terminal.note,
    )


def key_folder(app: App) -> Path:
    """Return the home folder below which the key lies; the sandbox has one of its own, so that `~/.ssh` is left alone."""
    return app.state_folder if app.is_sandbox else Path(app.invocation.environ.get("HOME") or Path.home())


def metadata_login(app: App) -> str:
    """Return the name to log in with where metadata's keys count. The sandbox's sshd knows the user who runs it only."""
    if app.is_sandbox or way_to_workers(app):
        return login_name({})
    given = app.settings.text("user")
    return check_login(given) if given else login_name(app.invocation.environ)


def key_expiry(app: App) -> datetime | None:
    """Return until when our key is to count, from now on; nothing for ever. Raises `SettingError` for no time at all."""
    if app.settings["ssh_key_expire_after"] is None:
        return None
    duration = app.settings.duration("ssh_key_expire_after")
    if not duration:
        raise SettingError("a key that expires at once lets nobody in", hint="write `ssh_key_expire_after` like 8h")
    return app.clock.now() + duration


def account(app: App) -> str | None:
    """Return the e-mail address of the identity that calls are made as; nothing where nobody knows it.

    A sandbox has one account. Else: the service account that is impersonated, what the credentials say, what Google says
    of their token, and the account of gcloud's configuration, whose token it may be too.
    """
    if app.is_sandbox or way_to_workers(app):
        from tpuctl.sandbox.oslogin import ACCOUNT  # noqa: PLC0415  # only for the sandbox

        return ACCOUNT
    gcloud_account = app.settings.text("account")
    if chain := app.settings.text("impersonate_service_account"):
        return chain.split(",")[-1].strip()
    endpoint = app.settings.text("endpoint")
    if endpoint and Endpoint.parse(endpoint).is_loopback:  # no credentials go there
        return gcloud_account
    from tpuctl.credentials import GcloudCredentials, account_of  # noqa: PLC0415  # google-auth costs 100 ms

    # gcloud need not be asked for another token to learn whose it is.
    credentials = load_credentials(app, gcloud_token=lambda: "unused")
    if isinstance(credentials, GcloudCredentials):
        return gcloud_account
    from tpuctl.api.connections import AuthRequest  # noqa: PLC0415  # httplib2 costs 95 ms

    request = AuthRequest(transport_options(app))
    return account_of(credentials, request) or _os_login(app).caller() or gcloud_account


def _compute(app: App) -> ComputeClient:
    factory, endpoint = http_access(app)
    return ComputeClient(factory, app.clock, endpoint=endpoint)


def _os_login(app: App) -> OsLoginClient:
    factory, endpoint = http_access(app)
    return OsLoginClient(factory, app.clock, endpoint=endpoint)
