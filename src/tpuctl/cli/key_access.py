"""The identity of calls and logins: account, login name, and how workers come to accept our ssh key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.api.endpoint import Endpoint
from tpuctl.cli.connect import http_access, load_credentials, transport_options
from tpuctl.cli.served import way_to_workers
from tpuctl.errors import SettingError
from tpuctl.names import check_login

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.actions.admission import Admission
    from tpuctl.api.compute import ComputeClient
    from tpuctl.api.oslogin import OsLoginClient
    from tpuctl.cli.app import App


def admission(app: App) -> Admission:
    """Return what finds out whether a node has our key, and adds it. Nothing is sent yet."""
    from tpuctl.actions.admission import Admission, Services  # noqa: PLC0415  # most commands reach no worker
    from tpuctl.api.compute import ComputeClient  # noqa: PLC0415  # as above
    from tpuctl.remote.keys.switches import RememberedSwitches  # noqa: PLC0415  # as above

    def compute() -> ComputeClient:
        factory, endpoint = http_access(app)
        return ComputeClient(factory, app.clock, endpoint=endpoint)

    setting = app.settings["user"]
    services = Services(
        projects=compute,
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
    """Return the home folder of the key. The sandbox has its own, so that `~/.ssh` stays unchanged."""
    return app.state_folder if app.is_sandbox else Path(app.invocation.environ.get("HOME") or Path.home())


def metadata_login(app: App) -> str:
    """Return the login name for keys in metadata. The sandbox's sshd accepts only the user who runs it."""
    from tpuctl.remote.keys import login_name  # noqa: PLC0415  # most commands reach no worker

    if app.is_sandbox or way_to_workers(app):
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


def account(app: App) -> str | None:
    """Return the e-mail address of the identity that makes the calls, None if it is unknown.

    A sandbox has one account. Else these are tried in order: the impersonated service account, the credentials, the answer of
    Google about their token, and the account of gcloud's configuration, which may have issued the token.
    """
    if app.is_sandbox or way_to_workers(app):
        from tpuctl.sandbox.oslogin import ACCOUNT  # noqa: PLC0415  # only for the sandbox

        return ACCOUNT
    gcloud_account = app.settings.text("account")
    if chain := app.settings.text("impersonate_service_account"):
        return chain.split(",")[-1].strip()
    endpoint = app.settings.text("endpoint")
    if endpoint and Endpoint.parse(endpoint).is_loopback:  # no credentials are sent there
        return gcloud_account
    from tpuctl.credentials import GcloudCredentials, account_of  # noqa: PLC0415  # google-auth costs 100 ms

    # The identity is known without another token of gcloud.
    credentials = load_credentials(app, gcloud_token=lambda: "unused")
    if isinstance(credentials, GcloudCredentials):
        return gcloud_account
    from tpuctl.api.connections import AuthRequest  # noqa: PLC0415  # httplib2 costs 95 ms

    request = AuthRequest(transport_options(app))
    return account_of(credentials, request) or _os_login(app).caller() or gcloud_account


def _os_login(app: App) -> OsLoginClient:
    from tpuctl.api.oslogin import OsLoginClient  # noqa: PLC0415  # most commands reach no worker

    factory, endpoint = http_access(app)
    return OsLoginClient(factory, app.clock, endpoint=endpoint)
