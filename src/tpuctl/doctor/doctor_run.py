"""One run of `tpuctl doctor`: gather facts, evaluate the rules, show the findings; again after a fix."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.app.hints import report_with_typed_options
from tpuctl.check.facts import value_or_none
from tpuctl.check.findings import ALL_CHECKS, Level, evaluate_rules, join_reports
from tpuctl.check.preflight import preflight_check
from tpuctl.check.report_rendering import findings_view, waiting_notice
from tpuctl.clock import SystemClock
from tpuctl.cloud.requests import FEW_RETRIES
from tpuctl.cloud.tpu import TpuClient
from tpuctl.doctor.doctor_facts import NodeFacts, environment_json
from tpuctl.doctor.environment_probe import EnvironmentProbe
from tpuctl.doctor.node_probes import (
    WORKER_TIMEOUT,
    gather_workers_facts,
    probe_ports_between,
    read_guest_attributes,
)
from tpuctl.doctor.rule_catalogue import DOCTOR_RULE_IDS, NODE_RULES, WORKER_RULES, evaluate_environment
from tpuctl.errors import AccessError, InvalidInputError, ServiceUnavailableError, SettingError, TpuctlError
from tpuctl.models.spec import NodeSpec
from tpuctl.nodes.conditions import check_login_state
from tpuctl.nodes.lookup import get_node
from tpuctl.output.terminal import show_view
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.check.findings import CheckReport
    from tpuctl.doctor.doctor_facts import AllWorkersFacts, EnvironmentFacts
    from tpuctl.models.node import Node
    from tpuctl.ssh.connection import Connection

_DEFAULT_TIMEOUT = timedelta(seconds=4)


class DoctorRun:
    """One run of `tpuctl doctor`. `failure` is why the node could not be checked, if no finding explains it."""

    failure: TpuctlError | None = None
    _facts: EnvironmentFacts

    def __init__(
        self,
        app: App,
        nodes: tuple[str, ...],
        *,
        accepted: tuple[str, ...],
        timeout: timedelta | None,
        shows_all: bool,
        can_fix: bool,
    ) -> None:
        self._app, self._nodes, self._timeout, self._accepted = app, nodes, timeout, parse_skipped_ids(accepted)
        self._shows_all, self._can_fix = shows_all, can_fix
        self._clock = SystemClock()
        self.format = app.format_or_guess  # `doctor` reports an invalid configuration file itself

    def check(self) -> CheckReport:
        """Gather all facts now, and return the report about them."""
        self._start = self._clock.monotonic()
        with waiting_notice(self._app.terminal):
            timeout = _DEFAULT_TIMEOUT if self._timeout is None else self._timeout
            self._facts = EnvironmentProbe(self._app, timeout=timeout, node=next(iter(self._nodes), None)).gather()
            report = evaluate_environment(self._facts)
            return join_reports(report, *self._check_nodes(report), accepted=self._accepted)

    def show(self, report: CheckReport) -> None:
        """Show the findings of the last check, in the chosen format."""
        project = value_or_none(self._facts.cloud.project)
        view = findings_view(
            report_with_typed_options(self._app, report),
            about={
                "target": {"project": project, "nodeIds": list(self._nodes)},
                "surroundings": environment_json(self._facts),
            },
            elapsed=self._clock.monotonic() - self._start,
            verbose=self._shows_all or self._app.is_verbose,
            can_fix=self._can_fix,
        )
        # Not `app.show`, which needs settings that are valid.
        show_view(view, self._app.terminal, self.format, sandbox=self._facts.configuration.is_sandbox)

    def _check_nodes(self, environment: CheckReport) -> tuple[CheckReport, ...]:
        """Return the reports about the nodes that are named. A failure does not hide the other findings."""
        if not self._nodes:
            return ()
        what = " and ".join(f"`{node}`" for node in self._nodes)
        failure: TpuctlError
        # A cloud that is known not to answer is not called again.
        if why := self._facts.cloud.skip_reason:
            failure = ServiceUnavailableError(f"{what} was not checked: {why}")
        else:
            try:
                return reports_of_nodes(self._app, self._nodes, timeout=self._timeout)
            except TpuctlError as error:
                why, failure = error.message, error
        is_explained = isinstance(failure, (AccessError, ServiceUnavailableError, SettingError)) and bool(
            environment.of(Level.ERROR)
        )
        if is_explained:
            self._app.terminal.warn(f"{what} was not checked: {why}")
        else:
            self.failure = failure
        return ()


def parse_skipped_ids(given: tuple[str, ...]) -> frozenset[str]:
    """Return the ids that `--skip` names. Raises `InvalidInputError` for an unknown one."""
    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if word.lower() != ALL_CHECKS and word.upper() not in DOCTOR_RULE_IDS:
            near = closest_match(word.upper(), DOCTOR_RULE_IDS)
            hint = f"did you mean `{near}`?" if near else "`tpuctl doctor --all` shows the ids; `all` accepts all"
            raise InvalidInputError(f"`--skip {word}`: unknown finding", hint=hint)
    return frozenset(ALL_CHECKS if word.lower() == ALL_CHECKS else word.upper() for word in words)


def reports_of_nodes(app: App, nodes: Sequence[str], *, timeout: timedelta | None = None) -> tuple[CheckReport, ...]:
    """Return the reports about nodes, as `check` judges existing ones, about their workers, and the ports between these.

    Nothing is changed: no ssh key is created or put on a node.

    `timeout` limits each worker. A fact that cannot be read is a finding; an error that prevents finding a node itself is
    raised.
    """
    limit = WORKER_TIMEOUT if timeout is None else timeout
    reports: list[CheckReport] = []
    examined: list[AllWorkersFacts] = []
    for node in nodes:
        facts = _examine_node(app, node)
        found = facts.node
        gate, place = preflight_check(app, {}), (found.name.project, found.name.zone)
        wanted = gate.settings.wanted(*place, NodeSpec.from_node(found), name=found.name, node=found, creates=False)
        reports += gate.report(wanted), evaluate_rules(facts, NODE_RULES)
        if facts.obstacle is None:
            examined.append(
                gather_workers_facts(
                    found,
                    partial(_connect, app, found),
                    now=app.now(),
                    timeout=limit,
                    has_own_key=app.settings["ssh_key"] is not None,
                )
            )
    if examined:
        # They are between all nodes, and reported with the first.
        examined[0] = replace(examined[0], ports=probe_ports_between(examined, partial(_connect, app), timeout=limit))
    return (*reports, *(evaluate_rules(facts, WORKER_RULES) for facts in examined))


def _connect(app: App, node: Node, worker: int) -> Connection:
    return app.services.workers.connection(node, worker, makes_key=False)


def _examine_node(app: App, node: str) -> NodeFacts:
    """Return the facts about a node, among them why its workers cannot be examined."""
    _, _, name = node.rpartition("@")
    if name != node:
        app.log_in_as(node.removesuffix(f"@{name}"))
    factory, endpoint = app.services.http_access()
    # Short retries: users do not want to wait for a diagnosis.
    client = TpuClient(factory, app.clock, endpoint=endpoint, policy=FEW_RETRIES)
    found = get_node(client, app.place, app.reference(name))
    # Why no worker can be examined, and what helps.
    obstacle, remedy = None, None
    try:
        check_login_state(found)  # rules cover its warnings
        obstacle = app.services.workers.obstacle(found)
        if obstacle is None:
            app.services.workers.learn_host_keys(found)
    except TpuctlError as error:
        obstacle, remedy = error.message, error.hint
    return NodeFacts(
        node=found,
        now=app.now(),
        published=read_guest_attributes(client, found.name),
        obstacle=obstacle,
        remedy=remedy,
    )
