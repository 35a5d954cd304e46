"""One run of `tpuctl doctor`: looking, also again after something was mended, and showing what was found."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.actions.checkup.gathering import Looking
from tpuctl.checkup.catalogue import IDS, judge
from tpuctl.checkup.surroundings.telling import to_json
from tpuctl.cli.check_waiting import sign_of_life
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
    """Looks and shows. `failure` is why the node could not be looked at, where nothing else says so."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self._app, self._options = app, options
        self._accepted = accepted(options["skipped"])
        self._real = app.invocation.clock or SystemClock()
        self._began = self._real.monotonic()
        self._seen: Surroundings | None = None
        self.failure: TpuctlError | None = None
        self.form = _form(app)

    def look(self) -> Report:
        """Look at everything, now."""
        app, timeout = self._app, self._options["timeout"]
        self._began = self._real.monotonic()
        with sign_of_life(app.terminal):
            patience = timeout if isinstance(timeout, timedelta) else _TIMEOUT
            given = ways(app, timeout=patience, node=self._options["node"])
            self._seen = Looking(given).look(given.cloud_clock.now())
            findings = judge(self._seen)
            return as_report((*findings, *self._of_node(findings)), accepted=self._accepted)

    def show(self, report: Report) -> None:
        """Show what was found."""
        app, options = self._app, self._options
        show_findings(
            app.terminal,
            app.as_typed(report),
            self.form,
            about=self._about(),
            elapsed=self._real.monotonic() - self._began,
            verbose=options["shows_all"] or app.is_verbose,
            can_fix=not options["fix"],
            sandbox=self._seen is not None and self._seen.configuration.is_sandbox,
        )

    def _of_node(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Return what is to be said of the node; where that cannot be said, what was found here is shown all the same."""
        node = self._options["node"]
        if node is None:
            return ()
        from tpuctl.cli.doctor_node import findings_of_node  # noqa: PLC0415  # only with a node

        unseen = f"`{node}` was not looked at"
        # A cloud that is known not to answer is not asked again.
        if self._seen is not None and (why := self._seen.cloud.unasked):
            self._end(f"{unseen}: {why}", ServiceUnavailableError(f"{unseen}: {why}"), findings)
            return ()
        try:
            return findings_of_node(self._app, node, self._options)
        except (AccessError, ServiceUnavailableError, SettingError) as error:
            self._end(f"{unseen}: {error.message}", error, findings)
        except TpuctlError as error:
            self.failure = error
        return ()

    def _end(self, text: str, failure: TpuctlError, findings: tuple[Finding, ...]) -> None:
        """Say why there is nothing about the node. It is a failure of its own where no finding is an error that explains it."""
        if any(finding.level is Level.ERROR for finding in findings):
            self._app.terminal.warn(text)
        else:
            self.failure = failure

    def _about(self) -> dict[str, Any]:
        if self._seen is None:
            return {}
        target = {"project": known(self._seen.cloud.project), "nodeId": self._options["node"]}
        return {"target": target, "surroundings": to_json(self._seen)}


def accepted(given: tuple[str, ...]) -> frozenset[str]:
    """Return the ids that `--skip` names. Raises `InvalidInputError` for one that no rule has."""
    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if word.lower() != ALL and word.upper() not in IDS:
            near = nearest(word.upper(), IDS)
            hint = f"did you mean `{near}`?" if near else "`tpuctl doctor --all` shows the ids; `all` is every one"
            raise InvalidInputError(f"`--skip {word}`: there is no such finding", hint=hint)
    return frozenset(ALL if word.lower() == ALL else word.upper() for word in words)


def _form(app: App) -> Format:
    """Return the format that was asked for, also while a file of settings is broken: that is what this helps to find."""
    try:
        return app.format
    except (TpuctlError, ValueError):
        as_json = asked_for_json(app.invocation.arguments, app.invocation.environ)
        return Format.JSON if as_json else Format.TABLE
