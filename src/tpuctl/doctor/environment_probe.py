"""Gather all facts about this machine and its access to the cloud.

Slow probes run in parallel, with one deadline; a probe without a result by then is unknown.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tpuctl.app.connections import transport_options
from tpuctl.app.credentials import load_credentials
from tpuctl.app.state_paths import journal_folder, state_folder
from tpuctl.check.facts import Absent, CheckFacts, CheckSettings, Fact, Known, Unknown, value_or_none
from tpuctl.check.gathering import ApiCall, fact_from_failure, project_calls
from tpuctl.check.preflight import check_sources, preflight_check
from tpuctl.clock import SystemClock
from tpuctl.cloud.credentials import account_of, gcloud_access_token
from tpuctl.cloud.endpoint import ApiEndpoint, HttpProxy, TransportOptions
from tpuctl.cloud.errors import TransportError, credential_error, translate
from tpuctl.cloud.transport import AuthRequest, Http
from tpuctl.config.settings import Settings, SourceKind, invalid_value_error, parse_setting
from tpuctl.config.sources import (
    adc_path,
    find_project_file,
    gcloud_configuration_file,
    gcloud_configuration_name,
    gcloud_may_have_login,
    load_config_file,
    user_config_path,
)
from tpuctl.decoding import ShapeError, decode, parse_json
from tpuctl.doctor.cloud_rules import NEEDED_PERMISSIONS
from tpuctl.doctor.doctor_facts import (
    AccessFailure,
    AccessToken,
    CallerIdentity,
    CloudHost,
    ConfigFacts,
    CredentialFile,
    EnvironmentFacts,
    HostAnswer,
    NetworkFacts,
    ProjectFacts,
)
from tpuctl.doctor.local_probes import (
    PROBED_PROGRAMS,
    derive_public_key,
    fact_of,
    find_program,
    list_agent_keys,
    path_status,
    private_key_path,
    probe_program,
    read_local_machine,
    read_ssh_keys,
    read_text_fact,
)
from tpuctl.durations import format_duration, local_time, parse_http_date
from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.fan_out import FanOutTimeoutError, fan_out
from tpuctl.models.api_values import ApiText, OptionalText
from tpuctl.models.spec import NodeSpec
from tpuctl.sandbox.administration import read_status
from tpuctl.sandbox.state_file import SandboxStateError

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.clock import Clock

# The variables of `HttpProxy.from_environment`, in its order.
_PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
# Variables that tpuctl, gcloud and Google's libraries read. Only the values of the second group are kept: others may be secret.
_CLOUD_VARIABLE_PREFIXES = ("TPUCTL_", "CLOUDSDK_", "GOOGLE_", "TPU_", "GCE_METADATA_", "NO_GCE_CHECK", "SSH_AUTH_SOCK")
_SHOWN_VARIABLE_PREFIXES = ("TPU_", "CLOUDSDK_API_ENDPOINT_OVERRIDES_", "CLOUDSDK_ACTIVE_CONFIG_NAME")

Probes = Mapping[Hashable, Callable[[], Fact[Any]]]


class EnvironmentProbe:
    """Reads this machine and its access to the cloud, once. Invalid settings raise nothing: what depends on them is Unknown."""

    def __init__(self, app: App, *, timeout: timedelta, node: str | None = None) -> None:
        self._app, self._environ, self._timeout, self._node = app, app.invocation.environ, timeout, node

        def trusted_settings() -> Settings:
            """Return the settings. Raises an error if they cannot be used, or if their file is not trusted."""
            app.require_trust()
            return app.settings

        self._settings = fact_of(trusted_settings)
        self._values = value_or_none(self._settings) or Settings({})
        transport = self._settings if isinstance(self._settings, Unknown) else fact_of(lambda: transport_options(app))
        # The deadline of the probes ends calls without an answer; a timeout of the transport must not come first.
        longer = timeout + timedelta(seconds=1)
        options = replace(value_or_none(transport) or TransportOptions(), connect_timeout=longer, timeout=longer)
        self._ca_file = options.ca_file
        self._cloud = choose_cloud(app, self._settings, options)
        if isinstance(self._settings, Unknown):
            # With invalid settings the proxy of the environment counts, if it has one.
            transport = fact_of(lambda: TransportOptions(proxy=HttpProxy.from_environment(self._environ)))
        self._proxy: Fact[HttpProxy] = Absent()
        if not isinstance(transport, Known):
            self._proxy = transport
        elif transport.value.proxy:
            self._proxy = Known(transport.value.proxy)
        self._home = Path(self._environ.get("HOME") or Path.home())
        self._check_settings: Fact[CheckSettings] = Absent()
        if (
            isinstance(self._settings, Known) and self._cloud.sandbox_failure is None
        ):  # without the sandbox there is no clock for them
            self._check_settings = fact_of(lambda: preflight_check(app, {}).settings)
        self._state = state_folder(self._environ) / ("sandbox" if self._cloud.is_sandbox else "")

    def gather(self) -> EnvironmentFacts:
        """Return all facts. A probe that fails raises nothing: it yields an Unknown with its reason."""
        now, cloud, environ = self._cloud.clock.now(), self._cloud, self._environ
        self._until = SystemClock().monotonic() + self._timeout
        # With an unreadable credentials file there is no token, and the error of google-auth is less clear.
        file: Fact[Any] = Absent() if cloud.is_local else read_credential_file(environ)
        key = self._values.path("ssh_key")
        home = self._state if cloud.is_sandbox else self._home
        private = private_key_path(key, home)
        probes: dict[Hashable, Callable[[], Fact[Any]]] = {
            ("program", name): partial(probe_program, name, environ) for name in PROBED_PROGRAMS
        }
        # With an invalid proxy no request could be sent.
        can_call = not isinstance(self._proxy, Unknown)
        if cloud.load and can_call and not isinstance(file, Unknown):
            probes["token"] = partial(lambda load: Known(fetch_token(load, cloud.request)), cloud.load)
        for name, url in cloud.origins.items() if can_call else ():
            probes["host", name] = partial(probe_host, cloud, url)
            # A proxy resolves names for its requests, and a sandbox has none.
            if not cloud.is_sandbox and not self._uses_proxy(name):
                probes["name", name] = partial(resolve_host, name)
        if path_status(private).exists:
            probes["key"] = partial(derive_public_key, private, environ)
        if not cloud.is_sandbox:
            probes["agent"] = partial(list_agent_keys, environ)
        found = self._run(probes)
        is_in_bucket = self._values["journal"] is not None
        known_hosts = (self._state / "known_hosts", self._home / ".ssh" / "google_compute_known_hosts")
        identity, network = self._identity(file, found), self._network(found)
        return EnvironmentFacts(
            now=now,
            machine=read_local_machine(
                environ,
                {name: found["program", name] for name in PROBED_PROGRAMS},
                state=self._state,
                config=user_config_path(environ).parent,
                journal=None if is_in_bucket else journal_folder(environ, sandbox=cloud.is_sandbox),
            ),
            keys=read_ssh_keys(
                private,
                home=None if key else home,
                known_hosts=known_hosts[:1] if cloud.is_sandbox else known_hosts,
                derived=found.get("key"),
                agent=found.get("agent"),
            ),
            identity=identity,
            network=network,
            configuration=self._configuration(),
            cloud=self._project_facts(now, identity, network),
        )

    def _run(
        self, probes: Probes, permissions: Mapping[Hashable, str | None] | None = None
    ) -> dict[Hashable, Fact[Any]]:
        """Run probes until the deadline. A failed one is unknown, `permissions` say what it takes.

        Raises `CredentialsError`.
        """
        outcomes = fan_out(lambda key: probes[key](), probes, limit=max(1, len(probes)), deadline=self._until)
        late = Unknown(f"no answer within {format_duration(self._timeout)}", is_passing=True)
        found: dict[Hashable, Fact[Any]] = {}
        for outcome in outcomes:
            if isinstance(outcome.error, FanOutTimeoutError):
                found[outcome.item] = late
            elif outcome.error is not None:
                found[outcome.item] = fact_from_failure(outcome.error, (permissions or {}).get(outcome.item))
            else:
                found[outcome.item] = outcome.get()
        return found

    def _identity(self, file: Fact[Any], found: Mapping[Hashable, Fact[Any]]) -> CallerIdentity:
        """Return the account that calls are made as, from files and settings. For a sandbox none of them is read."""
        if self._cloud.is_local:
            return CallerIdentity(is_needed=False, file=file)
        no_token = Unknown("the settings or the proxy are invalid, so no token was requested")
        return CallerIdentity(
            file=file,
            named_by=CREDENTIALS_VARIABLE if self._environ.get(CREDENTIALS_VARIABLE) else None,
            token=found.get("token", no_token),
            impersonated=self._values.text("impersonate_service_account"),
            gcloud_account=self._values.text("account"),
            quota_project=self._values.text("quota_project"),
        )

    def _uses_proxy(self, host: str) -> bool:
        proxy = value_or_none(self._proxy)
        return proxy is not None and proxy.applies_to(host.partition(":")[0])

    def _network(self, found: Mapping[Hashable, Fact[Any]]) -> NetworkFacts:
        proxy, from_gcloud = value_or_none(self._proxy), self._values["proxy_address"]
        given = {name: value for name in _PROXY_VARIABLES if (value := self._environ.get(name))}
        source = None
        if given:
            source = f"`{next(iter(given))}`"
        elif from_gcloud and from_gcloud.source.kind is not SourceKind.DEFAULT:
            source = str(from_gcloud.source)
        hosts = [key[1] for key in found if isinstance(key, tuple) and key[0] == "host"]
        return NetworkFacts(
            proxy=Known(str(self._proxy.value)) if isinstance(self._proxy, Known) else self._proxy,
            proxy_source=source,
            bypassed=tuple(name for name in hosts if proxy and not self._uses_proxy(name)),
            other_proxies=tuple(name for name, value in given.items() if value != next(iter(given.values()))),
            ca_file=path_status(self._ca_file) if self._ca_file else None,
            hosts=tuple(CloudHost(name, found.get(("name", name)), found["host", name]) for name in hosts),
            sandbox_failure=self._cloud.sandbox_failure,
            is_local=self._cloud.is_local,
            time_zone=str(local_time(SystemClock().now()).tzinfo),
        )

    def _configuration(self) -> ConfigFacts:
        """Return settings, their files and the environment variables."""
        user_file = user_config_path(self._environ)
        project_file = find_project_file(self._app.invocation.folder, home=self._home)
        paths = (*((project_file,) if project_file else ()), user_file)
        files = [fact_of(partial(load_config_file, path)) for path in paths]
        gcloud_file, endpoint = gcloud_configuration_file(self._environ), value_or_none(self._cloud.endpoint)
        # What is wrong with values that commands read only when they need them.
        problems: list[str] = []
        for spec, setting in self._values:
            if setting is None:
                continue
            try:
                parse_setting(spec, setting.value)
            except ValueError as error:
                invalid = invalid_value_error(spec, setting.value, setting.source.place, str(error))
                problems.append(invalid.message)
        # One invalid value is reason enough for invalid settings of checks.
        is_wrong = bool(problems)
        if isinstance(self._settings, Known) and isinstance(self._cloud.endpoint, Unknown):
            problems.append(self._cloud.endpoint.reason)
        if isinstance(self._check_settings, Unknown) and not is_wrong:
            problems.append(self._check_settings.reason)
        return ConfigFacts(
            settings=self._settings,
            problems=tuple(dict.fromkeys(problems)),
            files=tuple(file.value for file in files if isinstance(file, Known)),
            entries=tuple(map(path_status, paths)),
            gcloud_name=gcloud_configuration_name(self._environ),
            gcloud_entry=path_status(gcloud_file) if gcloud_file else None,
            variables={
                name: text if name.startswith(_SHOWN_VARIABLE_PREFIXES) else ""
                for name, text in sorted(self._environ.items())
                if text and name.startswith(_CLOUD_VARIABLE_PREFIXES)
            },
            is_sandbox=self._cloud.is_sandbox,
            endpoint=endpoint.url() if endpoint else None,
        )

    def _project_facts(self, now: datetime, identity: CallerIdentity, network: NetworkFacts) -> ProjectFacts:
        """Ask the cloud about the project, unless credentials or network make that impossible."""
        found = ProjectFacts(project=self._project(), node=self._node)
        if not isinstance(self._settings, Known):
            return replace(found, skip_reason="the settings cannot be read")
        if self._cloud.sandbox_failure is not None:
            return replace(found, skip_reason="the sandbox cannot be opened")
        if not any(isinstance(host.answer, Known) for host in network.hosts):
            return replace(found, skip_reason="the cloud was not reached")
        if identity.is_needed and not isinstance(value_or_none(identity.token), AccessToken):
            return replace(found, skip_reason="there are no credentials")
        if not isinstance(found.project, Known):
            return found
        name, zone = found.project.value, self._values.text("zone") or ""

        def ask(call: ApiCall) -> Known[Any]:
            return Known(call.send())

        try:
            sources = check_sources(self._app)
            calls = project_calls(sources, name)
            asked = {fact: calls[fact] for fact in ("project", "services", "billing")}
            probes: Probes = {
                **{fact: partial(ask, call) for fact, call in asked.items()},
                "permissions": lambda: Known(sources.projects.test_permissions(name, NEEDED_PERMISSIONS)),
            }
            answers = self._run(probes, {fact: call.permission for fact, call in asked.items()})
        except TpuctlError as error:
            return replace(found, skip_reason=error.message)
        settings = value_or_none(self._check_settings) or CheckSettings()
        wanted = settings.wanted(name, zone, NodeSpec(accelerator_type="", runtime_version=""), creates=False)
        return replace(
            found,
            facts=CheckFacts(
                now=now,
                wanted=wanted,
                project=answers["project"],
                services=answers["services"],
                billing=answers["billing"],
            ),
            permissions=answers["permissions"],
        )

    def _project(self) -> Fact[str]:
        """Return the project of the settings, Absent if none is set."""
        if not isinstance(self._settings, Known):
            return Unknown("the settings cannot be read")
        if self._values["project"] is None and value_or_none(fact_of(lambda: self._app.is_sandbox)) is False:
            return Absent()
        return fact_of(lambda: self._app.project)


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

    def gcloud_token() -> str:
        """Return gcloud's token. Without a login gcloud is not started: it takes a second, and creates its folder."""
        environ = app.invocation.environ
        if find_program("gcloud", environ) and not gcloud_may_have_login(environ):
            raise CredentialsError("gcloud is not logged in", hint="run `gcloud auth login`")
        return gcloud_access_token(environ)

    # The hosts that commands call, of Google or of another endpoint, each with a URL for a request.
    origins = {name: f"https://{name}/" for name in GOOGLE_HOSTS}
    if isinstance(endpoint, Known):
        own = {f"{endpoint.value.host}:{endpoint.value.port}": endpoint.value.url()}
        origins = own if endpoint.value.is_loopback else {**own, GOOGLE_HOSTS[3]: origins[GOOGLE_HOSTS[3]]}
    cloud = ChosenCloud(
        clock=clock,
        endpoint=endpoint,
        origins=origins,
        # Without an account, so that no project is billed.
        http=lambda: Http(replace(transport, quota_project=None)),
        load=lambda: load_credentials(app, gcloud_token=gcloud_token),
        request=lambda: AuthRequest(transport),
    )
    return replace(cloud, load=None) if cloud.is_local else cloud


def _choose_sandbox(app: App, real_clock: Clock) -> ChosenCloud:
    try:
        http, _ = app.services.http_access()
        # A damaged sandbox may open without an error, so its state is read once.
        read_status(app.services.sandbox)
        return ChosenCloud(clock=app.clock, endpoint=Absent(), is_sandbox=True, origins=_SANDBOX_HOSTS, http=http)
    except SandboxStateError as error:
        failure = AccessFailure.of(error)
        return ChosenCloud(clock=real_clock, endpoint=Absent(), is_sandbox=True, sandbox_failure=failure)
    except TpuctlError as error:
        return ChosenCloud(clock=real_clock, is_sandbox=True, endpoint=Unknown(error.message))


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
    http, asked = cloud.http(), cloud.clock.now()
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
    return Known(HostAnswer(ahead))


CREDENTIALS_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
# The token is sent in the body, which no proxy logs [documentation: tokeninfo].
_TOKEN_INFO_URL = "https://oauth2.googleapis.com/tokeninfo"  # noqa: S105  # an address


@dataclass(frozen=True, slots=True)
class _TokenInfo:
    scope: ApiText = ""
    email: OptionalText = None


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
    about = _TokenInfo()
    with suppress(Exception):  # without the answer the properties are unknown, but the token is valid
        answer = request(
            _TOKEN_INFO_URL,
            method="POST",
            body=urlencode({"access_token": str(credentials.token)}).encode(),
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        if answer.status == 200:
            about = decode(_TokenInfo, parse_json(answer.data))
    scopes, expiry = about.scope.split(), credentials.expiry
    return AccessToken(
        account=account_of(credentials, request) or about.email,
        scopes=frozenset(scopes) if scopes else None,
        expires=expiry.replace(tzinfo=UTC) if expiry else None,
    )
