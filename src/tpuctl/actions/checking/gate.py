"""The check right before something is created: errors stop it, warnings are said, and nothing is asked twice."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from tpuctl import __version__
from tpuctl.errors import CheckFailedError
from tpuctl.events import Event, EventKind
from tpuctl.preflight.evaluation import ALL, Report, evaluate
from tpuctl.preflight.findings import Finding, Found, Level
from tpuctl.preflight.lines import head, warning_line
from tpuctl.preflight.wanted import Wishes
from tpuctl.shapes import Fields, ListOf, Scalar, Shape, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from tpuctl.actions.checking.gathering import Gathering
    from tpuctl.actions.checking.sources import Sources
    from tpuctl.actions.cloud import NodeListing
    from tpuctl.clock import Clock
    from tpuctl.model import Node, NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.preflight.fact import Fact
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.findings import Rule
    from tpuctl.preflight.wanted import Wanted
    from tpuctl.preflight.zones import Ranking

# Answers serve all nodes of one run, but not for longer than they are remembered between runs.
_LASTS = timedelta(minutes=10)
_SAID = (Level.WARNING, Level.UNKNOWN)


class Memory(Protocol):
    """What was checked lately and found good."""

    def recall(self, key: str) -> Any:  # JSON
        """Return what was said lately; nothing where it was not asked, or too long ago."""

    def remember(self, key: str, said: Any) -> None:  # JSON
        """Keep what was said."""

    def forget(self, *, but: str = "") -> None:
        """Forget what was said of every question, `but` of one."""


class Gate:
    """Checks each node of one run before it is created. `real` is the clock that a network's answers take."""

    def __init__(
        self,
        sources: Callable[[], Sources],
        wishes: Wishes,
        memory: Memory,
        *,
        accepted: frozenset[str],
        timeout: timedelta,
        real: Clock,
        now: Callable[[], datetime],
        identity: str,
    ) -> None:
        self._sources, self._wishes, self._memory = sources, wishes, memory
        self._accepted, self._timeout, self._real, self._now = accepted, timeout, real, now
        self._identity = identity
        self._gathering: tuple[Gathering, datetime] | None = None
        self._passed: dict[NodeName, datetime] = {}
        self.siblings: Mapping[NodeName, NodeSpec] = {}

    def check(self, name: NodeName, spec: NodeSpec, *, replaces: Node | None, tell: Callable[[Event], None]) -> None:
        """Return if the node may be created. `replaces` is the one that is deleted before.

        Raises `CheckFailedError` naming what is wrong and what mends it, `CredentialsError`.
        """
        now = self._now()
        if ALL in self._accepted or self._has_passed(name, now):
            return
        others = tuple(spec for other, spec in self.siblings.items() if other != name)
        wanted = self._wishes.wanted(name.project, name.zone, spec, name=name, replaces=replaces, siblings=others)
        key = question_key(wanted, self._accepted, self._identity)
        remembered = self._memory.recall(key)
        findings = _read(remembered)
        if findings is None:
            findings = self._ask(wanted)
        self._passed[name] = now
        # What is created now takes of the quota, and of the grants, that others were found to have.
        self._memory.forget(but=key)
        for line in said(findings):
            tell(Event(EventKind.NOTE, now, name, line, {"check": True}))

    @property
    def wishes(self) -> Wishes:
        """What the user says about every node."""
        return self._wishes

    @property
    def was_heard(self) -> bool:
        """Tell whether the cloud has answered anything at all to the last report."""
        return self._gathering is not None and self._gathering[0].was_heard

    def forget(self) -> None:
        """Ask everything anew: something was changed."""
        self._gathering = None

    def ranking(self, project: str, spec: NodeSpec, zones: tuple[str, ...]) -> Ranking:
        """Return the zones that offer the type of a spec, or those of `zones` that do, the best first."""
        from tpuctl.preflight.zones import rank  # noqa: PLC0415  # not needed where there is a zone

        wishes, now = self._wishes, self._now()
        found = self._new_gathering().everywhere(wishes.wanted(project, "", spec))
        return rank(
            spec,
            project=project,
            today=now.date(),
            zones=zones,
            offers=found.offers,
            buckets=found.buckets,
            quotas=found.quotas,
            held=found.held,
            grants=wishes.grants,
            egress_prices=wishes.egress_prices,
        )

    def nodes(self, project: str) -> Fact[NodeListing]:
        """Return the nodes of all zones; the report that follows has what is left of the time, and asks no second time."""
        self._gathering = self._new_gathering(), self._now()
        return self._gathering[0].nodes(project)

    def report(self, wanted: Wanted) -> Report:
        """Return what the rules say of what is there now; what is good is remembered. Raises `CredentialsError`."""
        now = self._now()
        if self._gathering is None or now - self._gathering[1] > _LASTS:
            self._gathering = self._new_gathering(), now
        facts = self._gathering[0].facts(wanted, now, meanwhile=_rules)
        report = evaluate(facts, _rules(), accepted=self._accepted)
        if report.of(Level.ERROR):
            # Something has changed since, and may be wrong for other questions too.
            self._memory.forget()
        elif report.is_lasting:
            key = question_key(wanted, self._accepted, self._identity)
            self._memory.remember(key, [_written(finding) for finding in report.of(*_SAID)])
        return report

    def _ask(self, wanted: Wanted) -> tuple[Finding, ...]:
        report = self.report(wanted)
        if errors := report.of(Level.ERROR):
            raise failure(errors, wanted.what)
        return report.of(*_SAID)

    def _new_gathering(self) -> Gathering:
        from tpuctl.actions.checking.gathering import Gathering  # noqa: PLC0415  # 20 ms, and most runs create nothing

        return Gathering(self._sources(), self._real, self._timeout)

    def _has_passed(self, name: NodeName, now: datetime) -> bool:
        return name in self._passed and now - self._passed[name] < _LASTS


def question_key(wanted: Wanted, accepted: frozenset[str], identity: str) -> str:
    """Return what tells one question from another: everything that a rule looks at, and who asks."""
    wishes = {entry.name: getattr(wanted, entry.name) for entry in fields(Wishes)}
    about = [
        *(__version__, identity, wanted.project, wanted.zone, str(wanted.name)),
        # Of a node that is there only some of the rules ask, so that what they find good does not let it be made.
        *(wanted.creates, wanted.replaces and wanted.replaces.id),
        *(_weighed(wanted.spec), [_weighed(other) for other in wanted.siblings], sorted(accepted), wishes),
    ]
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()


def _weighed(spec: NodeSpec) -> dict[str, Any]:
    """Return the parts of a spec that rules look at."""
    unseen = {"metadata", "labels", "description", "setup", "named"}
    return {name: value for name, value in spec.to_json().items() if name not in unseen}


def failure(errors: tuple[Finding, ...], what: str) -> CheckFailedError:
    """Return the error that says what the check has found, and what mends it."""
    count = f"{what} was not created: the check found {len(errors)} error{'s' * (len(errors) > 1)}"
    lines = []
    for finding in errors:
        lines.append(f"  {head(finding)}")
        lines += [f"    {finding.found.why}"] if finding.found.why else []
        lines += [
            f"    → {remedy.text}" + (f": `{remedy.command}`" if remedy.command else "")
            for remedy in finding.found.remedies
        ]
    skip = " ".join(f"--skip-check {id_}" for id_ in dict.fromkeys(finding.id for finding in errors))
    return CheckFailedError(count, details=lines, hint=f"fix it, or continue with `{skip}`")


def said(findings: tuple[Finding, ...]) -> list[str]:
    """Return a line for each warning, and one for all that could not be read."""
    lines = [warning_line(finding) for finding in findings if finding.level is Level.WARNING]
    unknown = dict.fromkeys(finding.id for finding in findings if finding.level is Level.UNKNOWN)
    if unknown:
        lines.append(f"not checked, since it could not be read: {', '.join(unknown)} (`tpuctl check` says why)")
    return lines


def _rules() -> tuple[Rule[Facts], ...]:
    from tpuctl.preflight.rules import RULES  # noqa: PLC0415  # 20 ms, which pass while answers are on their way

    return RULES


def _written(finding: Finding) -> dict[str, Any]:
    found = finding.found
    about = {"subject": found.subject, "text": found.text, "why": found.why}
    return {"id": finding.id, "accepted": finding.accepted, "level": str(found.level), **about}


_FIELDS: Fields = {
    **dict.fromkeys(("id", "subject", "text", "why"), str),
    "accepted": bool,
    "level": Scalar("a level", lambda value: value in list(Level)),
}
_REMEMBERED = ListOf(Shape("", _FIELDS, required=("id", "level", "subject", "text", "accepted"), nullable=True))


def _read(remembered: Any) -> tuple[Finding, ...] | None:  # what `_written` made
    """Return what was remembered; None where it is not what `_written` makes."""
    try:
        _REMEMBERED.check(remembered)
    except ShapeError:
        return None
    return tuple(
        Finding(
            entry["id"],
            "",
            Found(level=Level(entry["level"]), subject=entry["subject"], text=entry["text"], why=entry.get("why")),
            accepted=entry["accepted"],
        )
        for entry in remembered
    )
