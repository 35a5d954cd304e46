"""The target of `tpuctl check`: an existing node, a new node, or a type without a zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.accelerators import check, find, of_size, sold_elsewhere
from tpuctl.actions.locate import the_only, unreachable
from tpuctl.cli.spec import build_spec, take_spec
from tpuctl.errors import AccessError, InvalidInputError, NodeNotFoundError, NodeNowhereError, ServiceUnavailableError
from tpuctl.model import NodeSpec
from tpuctl.names import NodeName, NodeReference
from tpuctl.preflight.fact import Fact, Known, Unknown

if TYPE_CHECKING:
    from tpuctl.actions.checking.gate import Gate
    from tpuctl.actions.cloud import NodeListing
    from tpuctl.cli.app import App
    from tpuctl.preflight.wanted import Wanted

_FILES = (".yaml", ".yml")
_LIKE_A_TYPE = re.compile(r"(tpu)?v\d")


@dataclass(frozen=True, slots=True)
class Somewhere:
    """A type without a zone; `zones` limits the search, empty means all."""

    spec: NodeSpec
    zones: tuple[str, ...]


def use_file(app: App, options: dict[str, Any]) -> None:
    """Read the settings from the file named in place of a node, else from `tpuctl.yaml` if it is trusted."""
    text = options["target"]
    if not text or not text.endswith(_FILES):
        app.require_trust()
        return
    path = app.invocation.folder / text
    if not path.is_file():
        raise InvalidInputError(f"there is no file `{text}`", hint="name a node, a type such as `v4-8`, or a file")
    app.use_project_file(path)
    options["target"] = None


def find_target(app: App, gate: Gate, options: dict[str, Any]) -> Wanted | Somewhere:
    """Return the target of the check. Raises `InvalidInputError` if no type is given, `NodeNotFoundError`."""
    text, given = options["target"], take_spec(options)
    if text and text.startswith("gs://"):
        raise InvalidInputError(
            f"`{text}` is not a node", hint=f"name a type that reads it: `tpuctl check v4-8 --bucket {text}`"
        )
    if text and (find(text) or sold_elsewhere(text)):
        given, text = {**given, "type": text}, None
    kind = given.get("type", "")
    if sold_elsewhere(kind):
        # For types of another service no image is known, and none is needed to report that.
        spec: NodeSpec | None = NodeSpec(accelerator_type=kind, runtime_version=given.get("version", ""))
    else:
        spec = build_spec(app, given)
    if text:
        return _node(app, gate, text, spec, is_asked=bool(given))
    if spec is None:
        raise InvalidInputError("no node or type to check", hint="name a node, a file, or a type: `tpuctl check v4-8`")
    if options["where"] or len(app.zones) > 1:
        return Somewhere(spec, app.zones)
    zone = app.place.zone or app.place.default_zone
    if zone is None:
        return Somewhere(spec, ())
    return gate.wishes.wanted(app.project, zone, spec)


def _node(app: App, gate: Gate, text: str, spec: NodeSpec | None, *, is_asked: bool) -> Wanted:
    """Return the existing node; if it is missing, dead or differs from the requested one, return the new node.

    Settings of a file apply to new nodes only; `is_asked` says that a flag names the type. If the existence of the node is
    unknown, the requested node is checked.
    """
    from tpuctl.cli.target import likely_zone, zone_to_create  # noqa: PLC0415  # completion and --help need not wait for it

    reference, place = app.reference(text), app.place
    project, zone = reference.project or place.project, reference.zone or place.zone
    fact = gate.nodes(project)
    listed = fact.value.nodes if isinstance(fact, Known) else ()
    found = the_only([node for node in listed if node.name.zone == zone or zone is None], reference.node_id)
    if found is None:
        if spec is None:
            zone = zone or likely_zone(app, reference)
            spec = _remembered(app, NodeReference(reference.node_id, zone, project), fact)
        name = NodeName(project, zone or zone_to_create(app, reference, spec), reference.node_id)
        return gate.wishes.wanted(name.project, name.zone, spec, name=name)
    name = found.name
    if found.state.is_dead or (is_asked and spec is not None and spec.differences(found)):
        return gate.wishes.wanted(name.project, name.zone, spec or NodeSpec.from_node(found), name=name, replaces=found)
    return gate.wishes.wanted(name.project, name.zone, NodeSpec.from_node(found), name=name, node=found, creates=False)


def _remembered(app: App, reference: NodeReference, fact: Fact[NodeListing]) -> NodeSpec:
    """Return the last known spec of the node. Raises an error with the reason if there is none, and a suggestion."""
    node_id, zone, project = reference.node_id, reference.zone, reference.project or app.project
    if not isinstance(fact, Known):
        kind = AccessError if isinstance(fact, Unknown) and not fact.is_passing else ServiceUnavailableError
        raise kind(f"could not read whether the node `{node_id}` exists: {fact.reason}")
    if silent := [each for each in fact.value.unreachable if zone in {None, each}]:
        raise unreachable(node_id, silent)
    remembered = app.journal.last_spec(NodeName(project, zone, node_id)) if zone else None
    if remembered is None:
        if _LIKE_A_TYPE.match(node_id):
            check(node_id)
            known = ", ".join(f"`{name}`" for name in of_size(node_id))
            raise InvalidInputError(
                f"`{node_id}` is neither a node nor an accelerator type that tpuctl knows",
                hint=f"types of that size are {known}; see `tpuctl types`" if known else "see `tpuctl types`",
            )
        raise NodeNotFoundError(node_id, zone) if zone else NodeNowhereError(node_id, project)
    app.terminal.note(f"`{node_id}` does not exist: checking its last known type, {remembered.spec.accelerator_type}")
    return remembered.spec
