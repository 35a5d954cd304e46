"""The cloud that commands use, and probes of it: the credentials, a token, and whether its hosts answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tpuctl.app.app import http_access, load_credentials
from tpuctl.check.facts import Absent, Fact, Known, Unknown, value_or_none
from tpuctl.clock import SystemClock
from tpuctl.cloud.credentials import account_of, gcloud_access_token
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.errors import TransportError, credential_error, translate
from tpuctl.cloud.transport import AuthRequest, Http
from tpuctl.config.sources import adc_path, gcloud_may_have_login
from tpuctl.doctor.doctor_facts import AccessFailure, AccessToken, CredentialFile, HostAnswer
from tpuctl.doctor.local_probes import fact_of, find_program, path_status, read_text_fact
from tpuctl.durations import parse_http_date
from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.sandbox.administration import read_status
from tpuctl.sandbox.state import SandboxStateError
from tpuctl.shapes import Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.clock import Clock
    from tpuctl.config.settings import Settings

GOOGLE_HOSTS = ("tpu.googleapis.com", "compute.googleapis.com", "storage.googleapis.com", "oauth2.googleapis.com")
# The URL that the sandbox answers itself, by its name in findings: its http object has no socket.
_SANDBOX_HOSTS = {"the sandbox": f"https://{GOOGLE_HOSTS[0]}/"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCloud:
    """The cloud that commands use, without credentials. No request is sent to a host that is not listed here.

    `origins` are the hosts by name, each with a URL; there are none if the settings do not say which cloud is meant, or if the
    chosen sandbox cannot be opened. `clock` is compared with theirs. `load` returns the credentials, and `request` the
    transport for them; None if no account is needed.
    """

    clock: Clock
    endpoint: Fact[ApiEndpoint]
    is_sandbox: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)
    http: Callable[[], Any] = lambda: None
    load: Callable[[], Any] | None = None
    request: Callable[[], Any] = lambda: None
    sandbox_failure: AccessFailure | None = None

    @property
    def is_local(self) -> bool:
        """Return whether calls stay on this machine, so that no account is needed."""
        endpoint = value_or_none(self.endpoint)
        return self.is_sandbox or (endpoint is not None and endpoint.is_loopback)


def choose_cloud(app: App, settings: Fact[Settings], transport: TransportOptions) -> ChosenCloud:
    """Return the chosen cloud. It has no hosts as long as the sandbox may be meant but cannot be used."""
    clock = app.invocation.clock or SystemClock()
    if not isinstance(settings, Known):
        return ChosenCloud(clock=clock, endpoint=Unknown("the settings are invalid"))
    is_sandbox = fact_of(lambda: app.is_sandbox)
    if not isinstance(is_sandbox, Known):
        return ChosenCloud(clock=clock, endpoint=Unknown(is_sandbox.reason))
    if is_sandbox.value:
        return _choose_sandbox(app, clock)
    text = settings.value.text("endpoint")
    endpoint = fact_of(lambda: ApiEndpoint.parse(text)) if text else Absent()
    if isinstance(endpoint, Unknown):
        return ChosenCloud(clock=clock, endpoint=endpoint)
    cloud = ChosenCloud(
        clock=clock,
        endpoint=endpoint,
        origins=_host_origins(value_or_none(endpoint)),
        # Without an account, so that no project is billed.
        http=lambda: Http(replace(transport, quota_project=None)),
        load=lambda: load_credentials(app, gcloud_token=lambda: _gcloud_token(app.invocation.environ)),
        request=lambda: AuthRequest(transport),
    )
    return replace(cloud, load=None) if cloud.is_local else cloud


def _choose_sandbox(app: App, real_clock: Clock) -> ChosenCloud:
    try:
        http, _ = http_access(app)
        # A damaged sandbox may open without an error, so its state is read once.
        read_status(app.sandbox)
        return ChosenCloud(clock=app.clock, endpoint=Absent(), is_sandbox=True, origins=_SANDBOX_HOSTS, http=http)
    except SandboxStateError as error:
        failure = AccessFailure.of(error)
        return ChosenCloud(clock=real_clock, endpoint=Absent(), is_sandbox=True, sandbox_failure=failure)
    except TpuctlError as error:
        return ChosenCloud(clock=real_clock, is_sandbox=True, endpoint=Unknown(error.message))


def _host_origins(endpoint: ApiEndpoint | None) -> dict[str, str]:
    """Return the hosts that commands call, of Google or of another endpoint, each with a URL for a request."""
    google = {name: f"https://{name}/" for name in GOOGLE_HOSTS}
    if endpoint is None:
        return google
    own = {f"{endpoint.host}:{endpoint.port}": endpoint.url()}
    return own if endpoint.is_loopback else {**own, GOOGLE_HOSTS[3]: google[GOOGLE_HOSTS[3]]}


def _gcloud_token(environ: Mapping[str, str]) -> str:
    """Return gcloud's token. Without a login gcloud is not started: it takes a second, and creates its folder."""
    if find_program("gcloud", environ) and not gcloud_may_have_login(environ):
        raise CredentialsError("gcloud is not logged in", hint="run `gcloud auth login`")
    return gcloud_access_token(environ)


# A `Date` header has no fractions of a second.
_HALF = timedelta(seconds=0.5)


def resolve_host(host: str) -> Fact[tuple[str, ...]]:
    """Return the addresses of a host, each once."""
    name, _, port = host.partition(":")
    try:
        found = socket.getaddrinfo(name, int(port or 443), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Unknown((getattr(error, "strerror", None) or str(error)).lower())
    return Known(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))


def probe_host(cloud: ChosenCloud, url: str) -> Fact[HostAnswer]:
    """Send a request without credentials to a host of the cloud, and return its answer; any status is fine."""
    http, real = cloud.http(), SystemClock()
    began, asked = real.monotonic(), cloud.clock.now()
    try:
        response, _ = http.request(url, method="GET")
    except TransportError as error:
        return Unknown(str(error))
    except OSError as error:
        return Unknown(str(error).lower())
    finally:
        http.close()
    answered = cloud.clock.now()
    date, ours = parse_http_date(response.get("date")), asked + (answered - asked) / 2
    ahead = None if date is None else date + _HALF - ours
    return Known(HostAnswer(real.monotonic() - began, ahead))


CREDENTIALS_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
# The token is sent in the body, which no proxy logs [documentation: tokeninfo].
_TOKEN_INFO_URL = "https://oauth2.googleapis.com/tokeninfo"  # noqa: S105  # an address
_TOKEN_INFO = Shape("oauth2.v2 Tokeninfo", {"scope": str, "email": str})


def read_credential_file(environ: Mapping[str, str]) -> Fact[CredentialFile]:
    """Return the contents of the credentials file, without secrets. Absent if there is no file and no variable names one."""
    source = CREDENTIALS_VARIABLE if environ.get(CREDENTIALS_VARIABLE) else None
    path = adc_path(environ)
    text = read_text_fact(path)
    if isinstance(text, Absent):
        return Unknown(f"there is no `{path}`") if source else text
    if isinstance(text, Unknown):
        return Unknown(f"`{path}`: {text.reason}")
    try:
        about = parse_json(text.value)
    except ShapeError:
        about = None
    texts = {name: value for name, value in about.items() if isinstance(value, str)} if isinstance(about, dict) else {}
    if "type" not in texts:
        return Unknown(f"`{path}` contains no credentials")
    account = texts.get("client_email") or texts.get("account")
    quota_project = texts.get("quota_project_id")
    return Known(CredentialFile(path_status(path), texts["type"], source, account or None, quota_project or None))


def fetch_token(load: Callable[[], Any], make_request: Callable[[], Any]) -> AccessToken | AccessFailure:
    """Fetch a token and ask Google for its properties. The token is not kept.

    Raises `ServiceUnavailableError` if the network fails.
    """
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415  # 20 ms

    try:
        credentials, request = load(), make_request()
        try:
            if not credentials.valid:
                credentials.refresh(request)
            return _describe_token(credentials, request)
        finally:
            request.close()
    except CredentialsError as error:
        return AccessFailure.of(error)
    except GoogleAuthError as error:
        failure = credential_error(error)
        if isinstance(failure, TransportError):
            raise translate(failure) from error
        return AccessFailure.of(failure)


def _describe_token(credentials: Any, request: Any) -> AccessToken:  # google-auth ships no types
    about: Mapping[str, Any] = {}
    with suppress(Exception):  # without the answer the properties are unknown, but the token is valid
        answer = request(
            _TOKEN_INFO_URL,
            method="POST",
            body=urlencode({"access_token": str(credentials.token)}).encode(),
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        if answer.status == 200:
            about = _TOKEN_INFO.read(parse_json(answer.data))
    scopes, expiry = str(about.get("scope") or "").split(), credentials.expiry
    return AccessToken(
        account=account_of(credentials, request) or about.get("email"),
        scopes=frozenset(scopes) if scopes else None,
        expires=expiry.replace(tzinfo=UTC) if expiry else None,
    )
