"""Gather all facts about this machine and its access to the cloud.

Slow probes run in parallel, with one deadline; a probe without a result by then is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.app.app import journal_folder, state_folder, transport_options
from tpuctl.check.commands.preflight_options import CheckOptions, check_sources, preflight_check
from tpuctl.check.facts import (
    COMPUTE_API,
    IAP_API,
    STORAGE_API,
    TPU_API,
    Absent,
    CheckFacts,
    CheckSettings,
    Fact,
    Known,
    Unknown,
    value_or_none,
)
from tpuctl.check.gathering import fact_from_failure
from tpuctl.clock import SystemClock
from tpuctl.cloud.endpoint import HttpProxy, TransportOptions
from tpuctl.config.settings import SourceKind, check_setting_value, invalid_value_error
from tpuctl.config.sources import (
    find_project_file,
    gcloud_configuration_file,
    gcloud_configuration_name,
    load_config_file,
    user_config_path,
)
from tpuctl.doctor.cloud_probes import (
    CREDENTIALS_VARIABLE,
    choose_cloud,
    fetch_token,
    probe_host,
    read_credential_file,
    resolve_host,
)
from tpuctl.doctor.cloud_rules import NEEDED_PERMISSIONS
from tpuctl.doctor.doctor_facts import (
    AccessToken,
    CallerIdentity,
    CloudHost,
    ConfigFacts,
    EnvironmentFacts,
    NetworkFacts,
    ProjectFacts,
)
from tpuctl.doctor.local_probes import (
    PROBED_PROGRAMS,
    derive_public_key,
    fact_of,
    list_agent_keys,
    path_status,
    private_key_path,
    probe_program,
    read_local_machine,
    read_ssh_keys,
)
from tpuctl.durations import format_duration
from tpuctl.errors import TpuctlError
from tpuctl.fan_out import FanOutTimeoutError, fan_out
from tpuctl.models.spec import NodeSpec

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.config.settings import Settings

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
        self._until = SystemClock().monotonic() + timeout
        self._settings = fact_of(lambda: _trusted_settings(app))
        self._values = value_or_none(self._settings)
        transport = self._settings if isinstance(self._settings, Unknown) else fact_of(lambda: transport_options(app))
        # The deadline of the probes ends calls without an answer; a timeout of the transport must not come first.
        longer = timeout + timedelta(seconds=1)
        options = replace(value_or_none(transport) or TransportOptions(), connect_timeout=longer, timeout=longer)
        self._ca_file = options.ca_file
        self._cloud = choose_cloud(app, self._settings, options)
        self._proxy = self._find_proxy(transport)
        self._home = Path(self._environ.get("HOME") or Path.home())
        self._check_settings: Fact[CheckSettings] = Absent()
        if self._values and self._cloud.sandbox_failure is None:  # without the sandbox there is no clock for them
            self._check_settings = fact_of(lambda: preflight_check(app, CheckOptions()).settings)
        self._state = state_folder(self._environ) / ("sandbox" if self._cloud.is_sandbox else "")

    def gather(self) -> EnvironmentFacts:
        """Return all facts. A probe that fails raises nothing: it yields an Unknown with its reason."""
        now, cloud, environ = self._cloud.clock.now(), self._cloud, self._environ
        # With an unreadable credentials file there is no token, and the error of google-auth is less clear.
        file: Fact[Any] = Absent() if cloud.is_local else read_credential_file(environ)
        key = self._values.path("ssh_key") if self._values else None
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
            if self._resolves(name):
                probes["name", name] = partial(resolve_host, name)
        if path_status(private).exists:
            probes["key"] = partial(derive_public_key, private, environ)
        if not cloud.is_sandbox:
            probes["agent"] = partial(list_agent_keys, environ)
        found = self._run(probes)
        identity, network = self._identity(file, found), self._network(found)
        return EnvironmentFacts(
            now=now,
            machine=read_local_machine(
                environ,
                {name: found["program", name] for name in PROBED_PROGRAMS},
                state=self._state,
                config=user_config_path(environ).parent,
                # None if it is in a bucket.
                journal=None
                if self._values and self._values["journal"]
                else journal_folder(environ, sandbox=cloud.is_sandbox),
            ),
            keys=read_ssh_keys(
                private,
                home=None if key else home,
                known_hosts=(
                    self._state / "known_hosts",
                    *(() if cloud.is_sandbox else (home / ".ssh" / "google_compute_known_hosts",)),
                ),
                derived=found.get("key"),
                agent=found.get("agent"),
            ),
            identity=identity,
            network=network,
            configuration=self._configuration(),
            cloud=self._project_facts(now, identity, network),
        )

    def _run(self, probes: Probes, permissions: Mapping[Hashable, str] | None = None) -> dict[Hashable, Fact[Any]]:
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
        texts = {
            name: self._values.text(name) if self._values else None
            for name in ("impersonate_service_account", "account", "quota_project")
        }
        return CallerIdentity(
            file=file,
            named_by=CREDENTIALS_VARIABLE if self._environ.get(CREDENTIALS_VARIABLE) else None,
            token=found.get("token", no_token),
            impersonated=texts["impersonate_service_account"],
            gcloud_account=texts["account"],
            quota_project=texts["quota_project"],
        )

    def _find_proxy(self, transport: Fact[TransportOptions]) -> Fact[HttpProxy]:
        """Return the proxy for requests; with invalid settings that of the environment, if it has one."""
        if isinstance(self._settings, Unknown):
            transport = fact_of(lambda: TransportOptions(proxy=HttpProxy.from_environment(self._environ)))
        if not isinstance(transport, Known):
            return transport
        return Known(transport.value.proxy) if transport.value.proxy else Absent()

    def _uses_proxy(self, host: str) -> bool:
        proxy = value_or_none(self._proxy)
        return proxy is not None and proxy.applies_to(host.partition(":")[0])

    def _resolves(self, host: str) -> bool:
        """Return whether this machine resolves the name: a proxy does so for its requests, a sandbox has no names."""
        return not self._cloud.is_sandbox and not self._uses_proxy(host)

    def _network(self, found: Mapping[Hashable, Fact[Any]]) -> NetworkFacts:
        proxy, from_gcloud = value_or_none(self._proxy), self._values["proxy_address"] if self._values else None
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
            time_zone=str(datetime.now().astimezone().tzinfo),
        )

    def _configuration(self) -> ConfigFacts:
        """Return settings, their files and the environment variables."""
        user_file = user_config_path(self._environ)
        project_file = find_project_file(self._app.invocation.folder, home=self._home)
        paths = (*((project_file,) if project_file else ()), user_file)
        files = [fact_of(partial(load_config_file, path)) for path in paths]
        gcloud_file, endpoint = gcloud_configuration_file(self._environ), value_or_none(self._cloud.endpoint)
        return ConfigFacts(
            settings=self._settings,
            problems=tuple(dict.fromkeys(self._problems())),
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

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with values that commands read only when they need them."""
        is_wrong = False
        for spec, setting in self._values or ():
            if setting is None:
                continue
            try:
                check_setting_value(spec, setting.value)
            except ValueError as error:
                is_wrong = True
                yield invalid_value_error(spec, setting.value, setting.source.place, str(error)).message
        if self._values and isinstance(self._cloud.endpoint, Unknown):
            yield self._cloud.endpoint.reason
        # One invalid value is reason enough for invalid settings of checks.
        if isinstance(self._check_settings, Unknown) and not is_wrong:
            yield self._check_settings.reason

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
        name, zone = found.project.value, self._settings.value.text("zone") or ""
        try:
            projects = check_sources(self._app).projects
            apis = (TPU_API, COMPUTE_API, STORAGE_API, IAP_API)
            answers = self._run(
                {
                    "project": lambda: Known(projects.project(name)),
                    "services": lambda: Known(projects.services(name, apis)),
                    "billing": lambda: Known(projects.billing(name)),
                    "permissions": lambda: Known(projects.test_permissions(name, NEEDED_PERMISSIONS)),
                },
                {
                    "project": "resourcemanager.projects.get",
                    "services": "serviceusage.services.get",
                    "billing": "resourcemanager.projects.get",
                },
            )
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
        if self._values is None:
            return Unknown("the settings cannot be read")
        if self._values["project"] is None and value_or_none(fact_of(lambda: self._app.is_sandbox)) is False:
            return Absent()
        return fact_of(lambda: self._app.project)


def _trusted_settings(app: App) -> Settings:
    """Return the settings. Raises an error if they cannot be used, or if their file is not trusted."""
    app.require_trust()
    return app.settings
