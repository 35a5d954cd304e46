"""One run of `tpuctl doctor`: gather facts, evaluate the rules, show the findings; again after a fix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.app.app import (
    asked_for_json,
    http_access,
    journal_folder,
    load_credentials,
    state_folder,
    transport_options,
)
from tpuctl.check.commands.preflight_options import CheckOptions, check_sources, preflight_check
from tpuctl.check.facts import Absent, CheckSettings, Fact, Known, Unknown, value_or_none
from tpuctl.check.findings import ALL_CHECKS, Level, build_report, run_rules
from tpuctl.check.report_rendering import show_findings, waiting_notice
from tpuctl.clock import SystemClock
from tpuctl.cloud.credentials import gcloud_access_token
from tpuctl.cloud.endpoint import ApiEndpoint, HttpProxy, TransportOptions
from tpuctl.cloud.requests import SHORT_PATIENCE
from tpuctl.cloud.tpu import OperationsClient, TpuClient
from tpuctl.cloud.transport import AuthRequest, Http
from tpuctl.config.settings import SourceKind, check_setting_value, invalid_value_error
from tpuctl.config.sources import find_project_file, gcloud_may_have_login, load_config_file, user_config_path
from tpuctl.doctor.cloud_probes import PROXY_VARIABLES, SANDBOX_HOSTS, EnvironmentProbe, host_origins
from tpuctl.doctor.doctor_facts import SandboxFailure, environment_json
from tpuctl.doctor.local_probes import CloudAccess, ProbeContext, TokenAccess, find_program
from tpuctl.doctor.node_probes import examine_workers, gather_node_facts, workers_facts
from tpuctl.doctor.rule_catalogue import DOCTOR_RULE_IDS, NODE_RULES, WORKER_RULES, evaluate_environment
from tpuctl.errors import (
    AccessError,
    CredentialsError,
    InvalidInputError,
    ServiceUnavailableError,
    SettingError,
    TpuctlError,
)
from tpuctl.names import closest_match
from tpuctl.nodes.conditions import check_login_state
from tpuctl.nodes.locate import locate_node
from tpuctl.output.terminal import OutputFormat
from tpuctl.sandbox.administration import read_status
from tpuctl.sandbox.state import SandboxStateError
from tpuctl.ssh.connection import Target, save_host_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tpuctl.app.app import App
    from tpuctl.check.findings import CheckReport, Finding
    from tpuctl.config.settings import Settings
    from tpuctl.doctor.doctor_facts import EnvironmentFacts
    from tpuctl.models.node import Node

T = TypeVar("T")

_DEFAULT_TIMEOUT = timedelta(seconds=4)
# A worker may be slow to accept ssh without being broken.
_WORKER_TIMEOUT = timedelta(seconds=30)


class DoctorRun:
    """One run of `tpuctl doctor`. `failure` is why the node could not be checked, if no finding explains it."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self._app, self._options = app, options
        self._accepted = parse_skipped_ids(options["skipped"])
        self._system_clock = app.invocation.clock or SystemClock()
        self._start = self._system_clock.monotonic()
        self._facts: EnvironmentFacts | None = None
        self.failure: TpuctlError | None = None
        try:
            self.format = app.format
        except (TpuctlError, ValueError):  # `doctor` reports an invalid configuration file itself
            as_json = asked_for_json(app.invocation.arguments, app.invocation.environ)
            self.format = OutputFormat.JSON if as_json else OutputFormat.TABLE

    def check(self) -> CheckReport:
        """Gather all facts now, and return the report about them."""
        app, given = self._app, self._options["timeout"]
        self._start = self._system_clock.monotonic()
        with waiting_notice(app.terminal):
            timeout = given if isinstance(given, timedelta) else _DEFAULT_TIMEOUT
            context = build_probe_context(app, timeout=timeout, node=self._options["node"])
            self._facts = EnvironmentProbe(context).gather(context.cloud_clock.now())
            findings = evaluate_environment(self._facts)
            return build_report((*findings, *self._check_node(findings)), accepted=self._accepted)

    def show(self, report: CheckReport) -> None:
        """Show the findings, in the chosen format."""
        app, options, facts, about = self._app, self._options, self._facts, dict[str, Any]()
        if facts is not None:
            target = {"project": value_or_none(facts.cloud.project), "nodeId": options["node"]}
            about = {"target": target, "surroundings": environment_json(facts)}
        show_findings(
            app.terminal,
            app.as_typed(report),
            self.format,
            about=about,
            elapsed=self._system_clock.monotonic() - self._start,
            verbose=options["shows_all"] or app.is_verbose,
            can_fix=not options["fix"],
            sandbox=facts is not None and facts.configuration.is_sandbox,
        )

    def _check_node(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Return the findings about the node, if one is named. A failure does not hide the other findings."""
        node = self._options["node"]
        if node is None:
            return ()
        # A cloud that is known not to answer is not called again.
        if self._facts is not None and (why := self._facts.cloud.skip_reason):
            text = f"`{node}` was not checked: {why}"
            self._skip_node(text, ServiceUnavailableError(text), findings)
            return ()
        try:
            return findings_of_node(self._app, node, self._options)
        except (AccessError, ServiceUnavailableError, SettingError) as error:
            self._skip_node(f"`{node}` was not checked: {error.message}", error, findings)
        except TpuctlError as error:
            self.failure = error
        return ()

    def _skip_node(self, text: str, failure: TpuctlError, findings: tuple[Finding, ...]) -> None:
        """Warn that the node was not checked; without another error, that is the failure of the command."""
        if any(finding.level is Level.ERROR for finding in findings):
            self._app.terminal.warn(text)
        else:
            self.failure = failure


def parse_skipped_ids(given: tuple[str, ...]) -> frozenset[str]:
    """Return the ids that `--skip` names. Raises `InvalidInputError` for an unknown one."""
    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if word.lower() != ALL_CHECKS and word.upper() not in DOCTOR_RULE_IDS:
            near = closest_match(word.upper(), DOCTOR_RULE_IDS)
            hint = f"did you mean `{near}`?" if near else "`tpuctl doctor --all` shows the ids; `all` accepts all"
            raise InvalidInputError(f"`--skip {word}`: unknown finding", hint=hint)
    return frozenset(ALL_CHECKS if word.lower() == ALL_CHECKS else word.upper() for word in words)


def findings_of_node(app: App, node: str, options: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return the findings about a node and its workers. Nothing is changed: no ssh key is created or put on the node.

    `timeout` of the options limits each worker. A fact that cannot be read is a finding; an error that prevents finding the
    node itself is raised.
    """
    given = options.get("timeout")
    timeout = given if isinstance(given, timedelta) else _WORKER_TIMEOUT
    _, _, name = node.rpartition("@")
    if name != node:
        app.log_in_as(node.removesuffix(f"@{name}"))
    factory, endpoint = http_access(app)
    # Short retries: users do not want to wait for a diagnosis.
    client = TpuClient(factory, app.clock, endpoint=endpoint, policy=SHORT_PATIENCE)
    operations = OperationsClient(factory, app.clock, endpoint=endpoint)
    found = locate_node(client, app.place, app.reference(name))
    obstacle, remedy = _why_workers_unreachable(app, found)
    facts = gather_node_facts(found, client, operations, app.journal, now=app.now(), obstacle=obstacle, remedy=remedy)
    findings = [*run_rules(facts, NODE_RULES)]
    if obstacle is None:
        targets, without_route = _find_routes(app, found)
        # Workers use the real clock, in the sandbox too.
        examined = examine_workers(targets, SystemClock(), timeout=timeout)
        has_own_key = app.settings["ssh_key"] is not None
        reports = workers_facts(found, examined, app.now(), without_route=without_route, has_own_key=has_own_key)
        findings += run_rules(reports, WORKER_RULES)
    return tuple(findings)


def _why_workers_unreachable(app: App, node: Node) -> tuple[str | None, str | None]:
    """Return why no worker can be examined, and what helps; None if they can."""
    try:
        check_login_state(node)  # rules cover its warnings
        if obstacle := app.workers.obstacle(node):
            return obstacle, None
        app.workers.learn_host_keys(node)
    except TpuctlError as error:
        return error.message, error.hint
    return None, None


def _find_routes(app: App, node: Node) -> tuple[list[Target], dict[int, TpuctlError]]:
    """Return the ssh route to each worker, and for workers without one the error."""
    found, without_route = [], {}
    for worker in range(node.workers):
        try:
            found.append(Target(node, worker, app.workers.connection(node, worker, makes_key=False), str(worker)))
        except TpuctlError as error:
            without_route[worker] = error
    # Without known host keys ssh would refuse to connect, or trust any host that answers. They are saved on this machine.
    save_host_keys([target.connection for target in found])
    return found, without_route


@dataclass(frozen=True, slots=True)
class _ChosenCloud:
    """The cloud that commands use; `access` is None if no cloud may be called."""

    is_sandbox: bool
    endpoint: Fact[ApiEndpoint]
    access: CloudAccess | None = None
    sandbox_failure: SandboxFailure | None = None


def build_probe_context(app: App, *, timeout: timedelta, node: str | None = None) -> ProbeContext:
    """Return the context of the probes. Invalid settings raise nothing: values that depend on them are Unknown."""
    environ = app.invocation.environ
    settings = _fact_of(lambda: _trusted_settings(app))
    configured = settings if isinstance(settings, Unknown) else _fact_of(lambda: transport_options(app))
    # The deadline of doctor ends calls without an answer; a timeout of the transport must not come first.
    longer = timeout + timedelta(seconds=1)
    transport = replace(value_or_none(configured) or TransportOptions(), connect_timeout=longer, timeout=longer)
    cloud = _choose_cloud(app, settings, transport)
    check_settings: Fact[CheckSettings] = settings if isinstance(settings, Unknown) else Known(CheckSettings())
    if isinstance(settings, Known) and cloud.sandbox_failure is None:  # without the sandbox there is no clock for it
        check_settings = _fact_of(lambda: preflight_check(app, CheckOptions()).settings)
    values = value_or_none(settings)
    gcloud_proxy = values["proxy_address"] if values else None
    proxy_source = None
    if variable := next((name for name in PROXY_VARIABLES if environ.get(name)), None):
        proxy_source = f"`{variable}`"
    elif gcloud_proxy and gcloud_proxy.source.kind is not SourceKind.DEFAULT:
        proxy_source = str(gcloud_proxy.source)
    home = Path(environ.get("HOME") or Path.home())
    project_file, user_file = find_project_file(app.invocation.folder, home=home), user_config_path(environ)
    files = [_fact_of(partial(load_config_file, path)) for path in (project_file, user_file) if path]
    state = state_folder(environ) / "sandbox" if cloud.is_sandbox else state_folder(environ)
    gcloud_hosts = () if cloud.is_sandbox else (home / ".ssh" / "google_compute_known_hosts",)
    return ProbeContext(
        environ=environ,
        home=state if cloud.is_sandbox else home,
        key=values.path("ssh_key") if values else None,
        state=state,
        user_file=user_file,
        project_file=project_file,
        files=tuple(file.value for file in files if isinstance(file, Known)),
        journal=None if values and values["journal"] else journal_folder(environ, sandbox=cloud.is_sandbox),
        known_hosts=(state / "known_hosts", *gcloud_hosts),
        settings=settings,
        problems=tuple(dict.fromkeys(_problems(values, check_settings, cloud.endpoint))),
        project=_find_project(app, settings),
        check_settings=value_or_none(check_settings) or CheckSettings(),
        zone=(values and values.text("zone")) or "",
        is_sandbox=cloud.is_sandbox,
        endpoint=cloud.endpoint,
        proxy=_find_proxy(environ, settings, configured),
        proxy_source=proxy_source,
        ca_file=transport.ca_file,
        clock=app.invocation.clock or SystemClock(),
        timeout=timeout,
        cloud=cloud.access,
        sandbox_failure=cloud.sandbox_failure,
        node=node,
        sources=lambda: check_sources(app),
    )


def _trusted_settings(app: App) -> Settings:
    """Return the settings. Raises an error if they cannot be used, or if their file is not trusted."""
    app.require_trust()
    return app.settings


def _choose_cloud(app: App, settings: Fact[Settings], transport: TransportOptions) -> _ChosenCloud:
    """Return the chosen cloud. None is called as long as the sandbox may be meant but cannot be used."""
    if not isinstance(settings, Known):
        return _ChosenCloud(is_sandbox=False, endpoint=Unknown("the settings are invalid"))
    is_sandbox = _fact_of(lambda: app.is_sandbox)
    if not isinstance(is_sandbox, Known):
        return _ChosenCloud(is_sandbox=False, endpoint=Unknown(is_sandbox.reason))
    if is_sandbox.value:
        return _choose_sandbox(app)
    text = settings.value["endpoint"]
    endpoint: Fact[ApiEndpoint] = _fact_of(lambda: ApiEndpoint.parse(str(text.value))) if text else Absent()
    if isinstance(endpoint, Unknown):
        return _ChosenCloud(is_sandbox=False, endpoint=endpoint)
    other = value_or_none(endpoint)
    environ = app.invocation.environ
    tokens = TokenAccess(
        load=lambda: load_credentials(app, gcloud_token=lambda: _gcloud_token(environ)),
        request=lambda: AuthRequest(transport),
    )
    access = CloudAccess(
        origins=host_origins(other),
        # Without an account, so that no project is billed.
        http=lambda: Http(replace(transport, quota_project=None)),
        clock=app.invocation.clock or SystemClock(),
        tokens=None if other and other.is_loopback else tokens,
    )
    return _ChosenCloud(is_sandbox=False, endpoint=endpoint, access=access)


def _choose_sandbox(app: App) -> _ChosenCloud:
    try:
        http, _ = http_access(app)
        access = CloudAccess(origins=SANDBOX_HOSTS, http=http, clock=app.clock, has_names=False)
        # A damaged sandbox may open without an error, so its state is read once.
        read_status(app.sandbox)
    except SandboxStateError as error:
        failure = SandboxFailure(error.message, tuple((error.hint or "").splitlines()))
        return _ChosenCloud(is_sandbox=True, endpoint=Absent(), sandbox_failure=failure)
    except TpuctlError as error:
        return _ChosenCloud(is_sandbox=True, endpoint=Unknown(error.message))
    return _ChosenCloud(is_sandbox=True, endpoint=Absent(), access=access)


def _gcloud_token(environ: Mapping[str, str]) -> str:
    """Return gcloud's token. Without a login gcloud is not started: it takes a second, and creates its folder."""
    if find_program("gcloud", environ) and not gcloud_may_have_login(environ):
        raise CredentialsError("gcloud is not logged in", hint="run `gcloud auth login`")
    return gcloud_access_token(environ)


def _problems(
    values: Settings | None, check_settings: Fact[CheckSettings], endpoint: Fact[ApiEndpoint]
) -> Iterator[str]:
    """Yield what is wrong with values that commands read only when they need them."""
    if values is None:
        return
    wrong = False
    for spec, setting in values:
        if setting is None:
            continue
        try:
            check_setting_value(spec, setting.value)
        except ValueError as error:
            wrong = True
            yield invalid_value_error(spec, setting.value, setting.source.place, str(error)).message
    if isinstance(endpoint, Unknown):
        yield endpoint.reason
    # One invalid value is reason enough for invalid settings of checks.
    if isinstance(check_settings, Unknown) and not wrong:
        yield check_settings.reason


def _find_project(app: App, settings: Fact[Settings]) -> Fact[str]:
    """Return the project of the settings, Absent if none is set."""
    if not isinstance(settings, Known):
        return Unknown("the settings cannot be read")
    if settings.value["project"] is None and value_or_none(_fact_of(lambda: app.is_sandbox)) is False:
        return Absent()
    return _fact_of(lambda: app.project)


def _find_proxy(
    environ: Mapping[str, str], settings: Fact[Settings], transport: Fact[TransportOptions]
) -> Fact[HttpProxy]:
    """Return the proxy for requests; with invalid settings that of the environment, if it has one."""
    found = transport
    if isinstance(settings, Unknown):
        found = _fact_of(lambda: TransportOptions(proxy=HttpProxy.from_environment(environ)))
    if isinstance(found, Known):
        return Known(found.value.proxy) if found.value.proxy else Absent()
    return found


def _fact_of(get: Callable[[], T]) -> Fact[T]:
    """Return the value as a fact, Unknown with the message of an error."""
    try:
        return Known(get())
    except (TpuctlError, OSError) as error:
        return Unknown(error.message if isinstance(error, TpuctlError) else str(error))
