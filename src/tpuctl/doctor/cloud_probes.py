"""Gather all facts about this machine and its access to the cloud.

Slow probes run in parallel, with one deadline; a probe without a result by then is unknown.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from tpuctl.check.facts import Absent, CheckFacts, Fact, Known, Unknown, value_or_none
from tpuctl.check.gathering import QueryPool, project_calls
from tpuctl.cloud.credentials import account_of
from tpuctl.cloud.errors import TransportError, credential_error, translate
from tpuctl.config.sources import adc_path, gcloud_configuration_file, gcloud_configuration_name
from tpuctl.doctor.cloud_rules import NEEDED_PERMISSIONS
from tpuctl.doctor.doctor_facts import (
    AccessToken,
    CallerIdentity,
    CloudHost,
    ConfigFacts,
    CredentialFile,
    EnvironmentFacts,
    HostAnswer,
    NetworkFacts,
    ProjectFacts,
    TokenFailure,
)
from tpuctl.doctor.local_probes import (
    PROBED_PROGRAMS,
    DerivedPublicKey,
    derive_public_key,
    list_agent_keys,
    path_status,
    private_key_path,
    probe_program,
    read_local_machine,
    read_ssh_keys,
    read_text_fact,
)
from tpuctl.durations import parse_http_date
from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.models.spec import NodeSpec
from tpuctl.shapes import Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.check.gathering import Query
    from tpuctl.clock import Clock
    from tpuctl.cloud.endpoint import ApiEndpoint
    from tpuctl.config.settings import Settings
    from tpuctl.doctor.local_probes import CloudAccess, ProbeContext, TokenAccess

T = TypeVar("T")

# Variables that tpuctl, gcloud and Google's libraries read. Only the values of the second group are kept: others may be secret.
_CLOUD_VARIABLE_PREFIXES = ("TPUCTL_", "CLOUDSDK_", "GOOGLE_", "TPU_", "GCE_METADATA_", "NO_GCE_CHECK", "SSH_AUTH_SOCK")
_SHOWN_VARIABLE_PREFIXES = ("TPU_", "CLOUDSDK_API_ENDPOINT_OVERRIDES_", "CLOUDSDK_ACTIVE_CONFIG_NAME")


class EnvironmentProbe:
    """Runs all probes once. Slow ones are started before the first one is waited for."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._queries = QueryPool(context.clock, context.timeout)

    def gather(self, now: datetime) -> EnvironmentFacts:
        """Return all facts. A probe that fails raises nothing: it yields an Unknown with its reason."""
        context, derived = self._context, None
        token = self._start_token_query()
        hosts = self._start_host_probes()
        programs = {
            name: self._start_probe(("program", name), probe_program, name, context.environ) for name in PROBED_PROGRAMS
        }
        private = private_key_path(context)
        if path_status(private).exists:
            derived = self._queries.ask("key", partial(derive_public_key, private, context.environ))
        agent = None if context.is_sandbox else self._start_probe("agent", list_agent_keys, context.environ)
        answer = self._queries.answer(derived) if derived else None
        public = answer.value if isinstance(answer, Known) else DerivedPublicKey(answer) if answer is not None else None
        token_fact: Fact[AccessToken | TokenFailure] | None = None
        if token is not None:
            token_fact = self._queries.answer(token)
        elif not context.is_local:
            token_fact = Unknown("the settings or the proxy are invalid, so no token was requested")
        caller = read_identity(context, value_or_none(context.settings), token_fact)
        network_facts = gather_network_facts(
            context,
            {
                name: (self._result(resolved) if resolved else None, self._result(asked))
                for name, (resolved, asked) in hosts.items()
            },
        )
        return EnvironmentFacts(
            now=now,
            machine=read_local_machine(context, {name: self._result(query) for name, query in programs.items()}),
            keys=read_ssh_keys(context, public, self._result(agent) if agent else None),
            identity=caller,
            network=network_facts,
            configuration=_read_configuration(context),
            cloud=replace(self._gather_project_facts(now, caller, network_facts), node=context.node),
        )

    def _start_host_probes(self) -> dict[str, tuple[Query[Fact[tuple[str, ...]]] | None, Query[Fact[HostAnswer]]]]:
        """Start resolving and calling the hosts of the chosen cloud; none if no cloud may be called."""
        context, cloud = self._context, self._context.cloud
        if cloud is None or isinstance(context.proxy, Unknown):  # no request could be sent
            return {}
        return {
            name: (
                self._start_probe(("name", name), resolve_host, name) if resolves_locally(context, name) else None,
                self._start_probe(("host", name), probe_host, cloud, context.clock, name),
            )
            for name in cloud.origins
        }

    def _start_token_query(self) -> Query[AccessToken | TokenFailure] | None:
        """Start fetching a token. None if no token is needed, or none can be requested."""
        context = self._context
        tokens = context.cloud.tokens if context.cloud else None
        if tokens is None or isinstance(context.proxy, Unknown):
            return None
        # With an unreadable credentials file there is no token, and the error of google-auth is less clear.
        if isinstance(read_credential_file(context), Unknown):
            return None
        return self._queries.ask("token", partial(fetch_token, tokens))

    def _gather_project_facts(self, now: datetime, caller: CallerIdentity, network_facts: NetworkFacts) -> ProjectFacts:
        """Ask the cloud about the project, unless credentials or network make that impossible."""
        context = self._context
        obstacle = None
        if not isinstance(context.settings, Known):
            obstacle = "the settings cannot be read"
        elif context.sandbox_failure is not None:
            obstacle = "the sandbox cannot be opened"
        elif not any(isinstance(host.answer, Known) for host in network_facts.hosts):
            obstacle = "the cloud was not reached"
        elif caller.is_needed and not isinstance(value_or_none(caller.token), AccessToken):
            obstacle = "there are no credentials"
        if obstacle is not None:
            return ProjectFacts(project=context.project, skip_reason=obstacle)
        if not isinstance(context.project, Known):
            return ProjectFacts(project=context.project)
        name = context.project.value
        try:
            sources = context.sources()
        except TpuctlError as error:
            return ProjectFacts(project=context.project, skip_reason=error.message)
        wanted = context.check_settings.wanted(
            name, context.zone, NodeSpec(accelerator_type="", runtime_version=""), creates=False
        )
        calls = project_calls(sources, name)
        asked = [self._queries.start(calls[about]) for about in ("project", "services", "billing")]
        allowed = self._queries.ask("permissions", lambda: sources.projects.test_permissions(name, NEEDED_PERMISSIONS))
        try:
            project, services, billing = (self._queries.answer(query) for query in asked)
            permissions = self._queries.answer(allowed)
        except CredentialsError as error:
            return ProjectFacts(project=context.project, skip_reason=error.message)
        facts = CheckFacts(now=now, wanted=wanted, project=project, services=services, billing=billing)
        return ProjectFacts(
            project=context.project, facts=facts, wanted_permissions=tuple(NEEDED_PERMISSIONS), permissions=permissions
        )

    def _start_probe(self, key: object, probe: Callable[..., Fact[T]], *arguments: object) -> Query[Fact[T]]:
        """Start a probe that returns a fact itself."""
        return self._queries.ask(key, partial(probe, *arguments))

    def _result(self, query: Query[Fact[T]]) -> Fact[T]:
        """Return the fact of a probe, Unknown if there was none in time."""
        answer = self._queries.answer(query)
        return answer.value if isinstance(answer, Known) else answer


def _read_configuration(context: ProbeContext) -> ConfigFacts:
    """Return settings, their files and the environment variables."""
    paths = (*((context.project_file,) if context.project_file else ()), context.user_file)
    file = gcloud_configuration_file(context.environ)
    variables = {
        name: text if name.startswith(_SHOWN_VARIABLE_PREFIXES) else ""
        for name, text in sorted(context.environ.items())
        if text
    }
    endpoint = value_or_none(context.endpoint)
    return ConfigFacts(
        settings=context.settings,
        problems=context.problems,
        files=context.files,
        entries=tuple(map(path_status, paths)),
        gcloud_name=gcloud_configuration_name(context.environ),
        gcloud_entry=path_status(file) if file else None,
        variables={name: text for name, text in variables.items() if name.startswith(_CLOUD_VARIABLE_PREFIXES)},
        is_sandbox=context.is_sandbox,
        endpoint=endpoint.url() if endpoint else None,
    )


_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
# The token is sent in the body, which no proxy logs [documentation: tokeninfo].
_TOKEN_INFO_URL = "https://oauth2.googleapis.com/tokeninfo"  # noqa: S105  # an address
_TOKEN_INFO = Shape("oauth2.v2 Tokeninfo", {"scope": str, "email": str})


def read_identity(
    context: ProbeContext, settings: Settings | None, token: Fact[AccessToken | TokenFailure] | None
) -> CallerIdentity:
    """Return the account that calls are made as, from files and settings. For a sandbox none of them is read."""
    if context.is_local:
        return CallerIdentity(is_needed=False, file=Absent())
    named = context.environ.get(_VARIABLE)
    return CallerIdentity(
        file=read_credential_file(context),
        named_by=_VARIABLE if named else None,
        token=token,
        impersonated=settings.text("impersonate_service_account") if settings else None,
        gcloud_account=settings.text("account") if settings else None,
        quota_project=settings.text("quota_project") if settings else None,
    )


def read_credential_file(context: ProbeContext) -> Fact[CredentialFile]:
    """Return the contents of the credentials file, without secrets. Absent if there is no file and no variable names one."""
    source = _VARIABLE if context.environ.get(_VARIABLE) else None
    path = adc_path(context.environ)
    text = read_text_fact(path)
    if isinstance(text, Absent):
        return Unknown(f"there is no `{path}`") if source else text
    if isinstance(text, Unknown):
        return Unknown(f"`{path}`: {text.reason}")
    try:
        about = parse_json(text.value)
        kind = about.get("type") if isinstance(about, dict) else None
    except ShapeError:
        kind = None
    if not isinstance(kind, str):
        return Unknown(f"`{path}` contains no credentials")
    account = about.get("client_email") or about.get("account")
    quota = about.get("quota_project_id")
    return Known(
        CredentialFile(
            path_status(path),
            kind,
            source,
            account if isinstance(account, str) and account else None,
            quota if isinstance(quota, str) and quota else None,
        )
    )


def fetch_token(access: TokenAccess) -> AccessToken | TokenFailure:
    """Fetch a token and ask Google for its properties. The token is not kept.

    Raises `ServiceUnavailableError` if the network fails.
    """
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415  # 20 ms

    try:
        credentials = access.load()
        request = access.request()
        try:
            if not credentials.valid:
                credentials.refresh(request)
            return _describe_token(credentials, request)
        finally:
            request.close()
    except CredentialsError as error:
        return _token_failure(error)
    except GoogleAuthError as error:
        failure = credential_error(error)
        if isinstance(failure, TransportError):
            raise translate(failure) from error
        return _token_failure(failure)


def _describe_token(credentials: Any, request: Any) -> AccessToken:  # google-auth ships no types

    about: dict[str, Any] = {}
    with suppress(Exception):  # without the answer the properties are unknown, but the token is valid
        answer = request(
            _TOKEN_INFO_URL,
            method="POST",
            body=urlencode({"access_token": str(credentials.token)}).encode(),
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        properties = dict(_TOKEN_INFO.read(parse_json(answer.data)))
        about = properties if answer.status == 200 else {}
    scopes = str(about.get("scope") or "").split()
    expiry = credentials.expiry
    return AccessToken(
        account=account_of(credentials, request) or about.get("email"),
        scopes=frozenset(scopes) if scopes else None,
        expires=expiry.replace(tzinfo=UTC) if expiry else None,
    )


def _token_failure(error: Exception) -> TokenFailure:
    advice = (getattr(error, "hint", None) or "").splitlines()
    return TokenFailure(str(error), tuple(advice), getattr(error, "error_id", None))


GOOGLE_HOSTS = ("tpu.googleapis.com", "compute.googleapis.com", "storage.googleapis.com", "oauth2.googleapis.com")
# The URL that the sandbox answers itself, by its name in findings: its http object has no socket.
SANDBOX_HOSTS = {"the sandbox": f"https://{GOOGLE_HOSTS[0]}/"}
# The variables of `HttpProxy.from_environment`, in its order.
PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
# A `Date` header has no fractions of a second.
_HALF = timedelta(seconds=0.5)


def host_origins(endpoint: ApiEndpoint | None) -> dict[str, str]:
    """Return the hosts that commands call, of Google or of another endpoint, each with a URL for a request."""
    if endpoint is None:
        return {name: f"https://{name}/" for name in GOOGLE_HOSTS}
    own = {f"{endpoint.host}:{endpoint.port}": endpoint.url()}
    return own if endpoint.is_loopback else {**own, GOOGLE_HOSTS[3]: f"https://{GOOGLE_HOSTS[3]}/"}


def gather_network_facts(
    context: ProbeContext, hosts: Mapping[str, tuple[Fact[tuple[str, ...]] | None, Fact[HostAnswer]]]
) -> NetworkFacts:
    """Return the facts about the network, with the answers of the hosts."""
    found = value_or_none(context.proxy)
    names = tuple(name for name in hosts if found is not None and not found.applies_to(name.partition(":")[0]))
    given = {name: context.environ[name] for name in PROXY_VARIABLES if context.environ.get(name)}
    first = next(iter(given.values()), None)
    now = datetime.now().astimezone()
    return NetworkFacts(
        proxy=Known(str(found)) if found else context.proxy,  # type: ignore[arg-type]  # it is absent or unknown
        proxy_source=context.proxy_source,
        bypassed=names,
        other_proxies=tuple(name for name, value in given.items() if value != first),
        ca_file=path_status(context.ca_file) if context.ca_file else None,
        hosts=tuple(CloudHost(name, addresses, answer) for name, (addresses, answer) in hosts.items()),
        sandbox_failure=context.sandbox_failure,
        is_local=context.is_local,
        time_zone=str(now.tzinfo),
    )


def resolves_locally(context: ProbeContext, host: str) -> bool:
    """Return whether this machine resolves the name: a proxy does so for its requests, a sandbox has no names."""
    found = value_or_none(context.proxy)
    has_names = context.cloud is not None and context.cloud.has_names
    return has_names and (found is None or not found.applies_to(host.partition(":")[0]))


def resolve_host(host: str) -> Fact[tuple[str, ...]]:
    """Return the addresses of a host, each once."""
    name, _, port = host.partition(":")
    try:
        found = socket.getaddrinfo(name, int(port or 443), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Unknown((getattr(error, "strerror", None) or str(error)).lower())
    return Known(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))


def probe_host(cloud: CloudAccess, clock: Clock, name: str) -> Fact[HostAnswer]:
    """Send a request without credentials to a host of the cloud, and return its answer; any status is fine."""
    http, url = cloud.http(), cloud.origins[name]
    began, asked = clock.monotonic(), cloud.clock.now()
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
    return Known(HostAnswer(int(response.status), clock.monotonic() - began, ahead))
