"""What `tpuctl check` does once its options are parsed: find the target, run the checks, show and fix the findings.

Apart from the command, as `--help` and completion need not wait for its imports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.accelerators import (
    accelerator_types_of_size,
    canonical_type,
    check_accelerator_type,
    find_accelerator_type,
    find_type_of_other_service,
)
from tpuctl.app.hints import report_with_typed_options
from tpuctl.app.spec_options import build_spec
from tpuctl.check.commands.translate_job import translate_job_file
from tpuctl.check.facts import Fact, Known, Purpose, Unknown
from tpuctl.check.fixes import check_and_fix
from tpuctl.check.preflight import preflight_check
from tpuctl.check.report_rendering import announce_findings, findings_view, ranking_view, waiting_notice, wanted_to_json
from tpuctl.clock import SystemClock
from tpuctl.command_text import fill_text
from tpuctl.errors import (
    AccessError,
    ExitCode,
    InvalidInputError,
    NodeNotFoundError,
    NodeNotInProjectError,
    ServiceUnavailableError,
)
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName, NodeReference
from tpuctl.nodes.lookup import likely_zone, only_node, unreachable_zones_error, zone_to_create

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.app.spec_options import SpecOptions
    from tpuctl.check.commands.check import CheckCommandOptions
    from tpuctl.check.commands.preflight_options import CheckOptions
    from tpuctl.check.facts import WantedNode
    from tpuctl.check.findings import CheckReport
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.cloud.tpu import NodeListing


def run_check_command(
    app: App,
    *,
    target: str | None,
    checks: CheckOptions,
    options: CheckCommandOptions,
    yes: bool,
    described: SpecOptions,
) -> int:
    """Convert the job file of AI Platform Training if one is named, else check."""
    if options.ai_platform:
        return translate_job_file(
            app,
            options.ai_platform,
            write=options.write,
            yes=yes,
            strict=options.strict,
            skip_checks=checks.skip_checks,
        )
    return run_check(app, target, options, checks=checks, described=described, yes=yes)


def run_check(
    app: App,
    target: str | None,
    options: CheckCommandOptions,
    *,
    checks: CheckOptions,
    described: SpecOptions,
    yes: bool,
) -> int:
    """Check a target and return the exit code of `tpuctl check`."""
    if target and target.endswith(_YAML_SUFFIXES):
        # The settings are read from a file named in place of a node.
        path = app.invocation.folder / target
        if not path.is_file():
            hint = "name a node, a type such as `v4-8`, or a file"
            raise InvalidInputError(f"there is no file `{target}`", hint=hint)
        app.use_project_file(path)
        target = None
    else:
        app.require_trust()
    purpose = Purpose(options.purpose) if options.purpose else None
    gate = preflight_check(app, checks.given, purpose=purpose, machine=options.vm)
    found = _find_target(app, gate, target, described, ranks_zones=options.where)
    if isinstance(found, ZoneSearch):
        if options.fix:
            raise InvalidInputError("`--fix` needs a zone, as the fixes depend on it", hint="name one with `--zone`")
        if options.slices is not None:
            raise InvalidInputError("`--slices` needs a zone: a group is in one", hint="name one with `--zone`")
        # Without a zone, those that offer the type are shown, the best first.
        with waiting_notice(app.terminal):
            ranking = gate.ranking(app.project, found.spec, found.zones)
        app.show(ranking_view(ranking))
        is_missing = any(bucket.is_absent for bucket in ranking.unplaced)
        return ExitCode.OK if ranking.zones and not is_missing else ExitCode.CHECK_FAILED
    if options.slices is not None:
        found = _as_group(found, options.slices)
    report, fix_code = _check_node(app, gate, found, options, yes=yes)
    announce_findings(app, report)
    if not gate.has_answer:
        hint = "check the network, the proxy and the endpoint"
        raise ServiceUnavailableError("nothing could be checked: the cloud did not answer", hint=hint)
    return ExitCode.CHECK_FAILED if report.fails(strict=options.strict) else fix_code


def _as_group(wanted: WantedNode, count: int) -> WantedNode:
    """Return the check target for so many slices."""
    spec = replace(wanted.spec, slices=count)
    return replace(wanted, spec=spec, siblings=(spec,) * (count - 1))


def _check_node(
    app: App, checks: PreflightCheck, wanted: WantedNode, options: CheckCommandOptions, *, yes: bool
) -> tuple[CheckReport, ExitCode]:
    """Check, show the report, apply fixes if requested. Return the last report and the exit code of the fixes."""
    real = app.invocation.clock or SystemClock()
    began, runs = real.monotonic(), 0

    def check() -> CheckReport:
        nonlocal began, runs
        if runs:
            # A fix was applied since.
            checks.discard_answers()
            began = real.monotonic()
        runs += 1
        with waiting_notice(app.terminal):
            return checks.report(wanted)

    def show(report: CheckReport) -> None:
        view = findings_view(
            report_with_typed_options(app, report),
            about={"target": wanted_to_json(wanted)},
            elapsed=real.monotonic() - began,
            verbose=options.shows_all or app.is_verbose,
            can_fix=not options.fix,
        )
        app.show(view)

    if options.fix:
        return check_and_fix(app, check, show, yes=yes, form=app.format)
    report = check()
    show(report)
    return report, ExitCode.OK


_YAML_SUFFIXES = (".yaml", ".yml")
_TYPE_PATTERN = re.compile(r"(tpu)?v\d")


@dataclass(frozen=True, slots=True)
class ZoneSearch:
    """A type without a zone; `zones` limits the search, empty means all."""

    spec: NodeSpec
    zones: tuple[str, ...]


def _find_target(
    app: App, gate: PreflightCheck, text: str | None, described: SpecOptions, *, ranks_zones: bool
) -> WantedNode | ZoneSearch:
    """Return the target of the check. Raises `InvalidInputError` if no type is given, `NodeNotFoundError`."""
    if text and text.startswith("gs://"):
        hint = fill_text("name a type that reads it: `tpuctl check v4-8 --bucket {bucket_url}`", {"bucket_url": text})
        raise InvalidInputError(f"`{text}` is not a node", hint=hint)
    if text and (find_accelerator_type(text) or find_type_of_other_service(text)):
        described, text = replace(described, type=text), None
    kind = described.type or ""
    if find_type_of_other_service(kind):
        # For types of another service no image is known, and none is needed to report that.
        spec: NodeSpec | None = NodeSpec(accelerator_type=kind, runtime_version=described.version or "")
    else:
        spec = build_spec(app, described)
    if text:
        return _target_node(app, gate, text, spec, is_type_given=bool(described.given_with_tier))
    if spec is None:
        raise InvalidInputError("no node or type to check", hint="name a node, a file, or a type: `tpuctl check v4-8`")
    if ranks_zones or len(app.zones) > 1:
        return ZoneSearch(spec, app.zones)
    zone = app.place.zone or app.place.default_zone
    if zone is None:
        return ZoneSearch(spec, ())
    return gate.settings.wanted(app.project, zone, spec)


def _target_node(
    app: App, gate: PreflightCheck, text: str, spec: NodeSpec | None, *, is_type_given: bool
) -> WantedNode:
    """Return the existing node; if it is missing, dead or differs from the requested one, return the new node.

    Settings of a file apply to new nodes only; `is_type_given` says that a flag names the type. If the existence of the node is
    unknown, the requested node is checked.
    """
    reference, place = app.reference(text), app.place
    project, zone = reference.project or place.project, reference.zone or place.zone
    fact = gate.nodes(project)
    listed = fact.value.nodes if isinstance(fact, Known) else ()
    found = only_node([node for node in listed if node.name.zone == zone or zone is None], reference.node_id)
    if found is None:
        if spec is None:
            zone = zone or likely_zone(app, reference)
            spec = _last_known_spec(app, NodeReference(reference.node_id, zone, project), fact)
        name = NodeName(project, zone or zone_to_create(app, reference, spec), reference.node_id)
        return gate.settings.wanted(name.project, name.zone, spec, name=name)
    name = found.name
    if found.state.is_dead or (is_type_given and spec is not None and spec.differences(found)):
        return gate.settings.wanted(
            name.project, name.zone, spec or NodeSpec.from_node(found), name=name, replaces=found
        )
    return gate.settings.wanted(
        name.project, name.zone, NodeSpec.from_node(found), name=name, node=found, creates=False
    )


def _last_known_spec(app: App, reference: NodeReference, fact: Fact[NodeListing]) -> NodeSpec:
    """Return the last known spec of the node. Raises an error with the reason if there is none, and a suggestion."""
    node_id, zone, project = reference.node_id, reference.zone, reference.project or app.project
    if not isinstance(fact, Known):
        kind = AccessError if isinstance(fact, Unknown) and not fact.is_passing else ServiceUnavailableError
        raise kind(f"could not read whether the node `{node_id}` exists: {fact.reason}")
    if silent := [each for each in fact.value.unreachable if zone in {None, each}]:
        raise unreachable_zones_error(node_id, silent)
    remembered = app.services.journal.past(NodeName(project, zone, node_id)).spec if zone else None
    if remembered is None:
        if meant := canonical_type(node_id):
            hint = f"as a type it is `{meant}`: `tpuctl check {meant}`"
            raise InvalidInputError(f"no node `{node_id}`", hint=hint)
        if _TYPE_PATTERN.match(node_id):
            check_accelerator_type(node_id)
            known = ", ".join(f"`{name}`" for name in accelerator_types_of_size(node_id))
            raise InvalidInputError(
                f"`{node_id}` is neither a node nor an accelerator type that tpuctl knows",
                hint=f"types of that size are {known}; see `tpuctl types`" if known else "see `tpuctl types`",
            )
        raise NodeNotFoundError(node_id, zone) if zone else NodeNotInProjectError(node_id, project)
    app.terminal.note(f"`{node_id}` does not exist: checking its last known type, {remembered.accelerator_type}")
    return remembered
