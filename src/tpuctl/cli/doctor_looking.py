"""One run of `tpuctl doctor`: gather facts, evaluate the rules, show the findings; again after a fix."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.actions.checkup.gathering import Looking
from tpuctl.checkup.catalogue import IDS, judge
from tpuctl.checkup.surroundings.telling import to_json
from tpuctl.cli.check_waiting import sign_of_life
from tpuctl.cli.doctor_node import findings_of_node
from tpuctl.cli.doctor_ways import ways
from tpuctl.cli.invocation import asked_for_json
from tpuctl.clock import SystemClock
from tpuctl.errors import AccessError, InvalidInputError, ServiceUnavailableError, SettingError, TpuctlError
from tpuctl.names import nearest
from tpuctl.output.findings import show_findings
from tpuctl.output.terminal import Format
from tpuctl.preflight.evaluation import ALL, as_report
from tpuctl.preflight.fact import known
from tpuctl.preflight.findings import Level

if TYPE_CHECKING:
    from tpuctl.checkup.surroundings.facts import Surroundings
    from tpuctl.cli.app import App
    from tpuctl.preflight.evaluation import Report
    from tpuctl.preflight.findings import Finding

_TIMEOUT = timedelta(seconds=4)


class Visit:
    """One run of `tpuctl doctor`. `failure` is why the node could not be checked, if no finding explains it."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self._app, self._options = app, options
        self._accepted = accepted(options["skipped"])
        self._real = app.invocation.clock or SystemClock()
        self._began = self._real.monotonic()
        self._facts: Surroundings | None = None
        self.failure: TpuctlError | None = None
        self.form = _form(app)

    def check(self) -> Report:
        """Gather all facts now, and return the report about them."""
        app, timeout = self._app, self._options["timeout"]
        self._began = self._real.monotonic()
        with sign_of_life(app.terminal):
            patience = timeout if isinstance(timeout, timedelta) else _TIMEOUT
            given = ways(app, timeout=patience, node=self._options["node"])
            self._facts = Looking(given).gather(given.cloud_clock.now())
            findings = judge(self._facts)
            return as_report((*findings, *self._check_node(findings)), accepted=self._accepted)

    def show(self, report: Report) -> None:
        """Show the findings, in the chosen format."""
        app, options, facts, about = self._app, self._options, self._facts, dict[str, Any]()
        if facts is not None:
            target = {"project": known(facts.cloud.project), "nodeId": options["node"]}
            about = {"target": target, "surroundings": to_json(facts)}
        show_findings(
            app.terminal,
            app.as_typed(report),
            self.form,
            about=about,
            elapsed=self._real.monotonic() - self._began,
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


def accepted(given: tuple[str, ...]) -> frozenset[str]:
    """Return the ids that `--skip` names. Raises `InvalidInputError` for an unknown one."""
    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if word.lower() != ALL and word.upper() not in IDS:
            near = nearest(word.upper(), IDS)
            hint = f"did you mean `{near}`?" if near else "`tpuctl doctor --all` shows the ids; `all` accepts all"
            raise InvalidInputError(f"`--skip {word}`: unknown finding", hint=hint)
    return frozenset(ALL if word.lower() == ALL else word.upper() for word in words)


def _form(app: App) -> Format:
    """Return the requested format, also if a configuration file is invalid: `doctor` finds that."""
    try:
        return app.format
    except (TpuctlError, ValueError):
        as_json = asked_for_json(app.invocation.arguments, app.invocation.environ)
        return Format.JSON if as_json else Format.TABLE
