"""What `tpuctl check` is about: a node that is there, one that is to be made, or a type that looks for a zone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.accelerators import find, sold_elsewhere
from tpuctl.cli.spec import build_spec, take_spec
from tpuctl.errors import InvalidInputError
from tpuctl.model import NodeSpec

if TYPE_CHECKING:
    from tpuctl.actions.checking.gate import Gate
    from tpuctl.cli.app import App
    from tpuctl.names import NodeName
    from tpuctl.preflight.wanted import Wanted

_FILES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Somewhere:
    """A type that looks for a zone, among some or all."""

    spec: NodeSpec
    zones: tuple[str, ...]


def use_file(app: App, options: dict[str, Any]) -> None:
    """Read the settings from the file that was named in place of a node, if one was."""
    text = options["target"]
    if not text or not text.endswith(_FILES):
        return
    path = app.invocation.folder / text
    if not path.is_file():
        raise InvalidInputError(f"there is no file `{text}`", hint="name a node, a type such as `v4-8`, or a file")
    app.use_project_file(path)
    options["target"] = None


def find_target(app: App, gate: Gate, options: dict[str, Any]) -> Wanted | Somewhere:
    """Return what is to be checked. Raises `InvalidInputError` where nothing says which type, `NodeNotFoundError`."""
    text, given = options["target"], take_spec(options)
    if text and text.startswith("gs://"):
        raise InvalidInputError(f"`{text}` is no node", hint=f"name what reads it: `tpuctl check v4-8 --bucket {text}`")
    if text and (find(text) or sold_elsewhere(text)):
        given, text = {**given, "type": text}, None
    spec = _spec(app, given)
    if text:
        return _node(app, gate, text, spec, is_asked=bool(given))
    if spec is None:
        raise InvalidInputError("what is to be checked?", hint="name a node, a file, or a type: `tpuctl check v4-8`")
    if options["where"] or len(app.zones) > 1:
        return Somewhere(spec, app.zones)
    zone = app.place.zone or app.place.default_zone
    if zone is None:
        return Somewhere(spec, ())
    return gate.wishes.wanted(app.project, zone, spec)


def _spec(app: App, given: dict[str, Any]) -> NodeSpec | None:
    """Return what is asked for. Of what another service rents no image is known, and none is needed to say so."""
    wanted = given.get("type", "")
    if sold_elsewhere(wanted):
        return NodeSpec(accelerator_type=wanted, runtime_version=given.get("version", ""))
    return build_spec(app, given)


def _node(app: App, gate: Gate, text: str, spec: NodeSpec | None, *, is_asked: bool) -> Wanted:
    """Return the node as it is; where it is not there, is dead or differs from what is asked for, as it would be made.

    What a file says about new nodes is not asked of one that is there: `is_asked` tells that a flag did.
    """
    from tpuctl.cli.target import where_to_create  # noqa: PLC0415  # completion and --help need not wait for it

    name, found = where_to_create(app, text, spec)
    if found is None:
        spec = spec or _remembered(app, name)
        return gate.wishes.wanted(name.project, name.zone, spec, name=name)
    if found.state.is_dead or (is_asked and spec is not None and spec.differences(found)):
        return gate.wishes.wanted(name.project, name.zone, spec or NodeSpec.from_node(found), name=name, replaces=found)
    return gate.wishes.wanted(name.project, name.zone, NodeSpec.from_node(found), name=name, node=found, creates=False)


def _remembered(app: App, name: NodeName) -> NodeSpec:
    from tpuctl.errors import NodeNotFoundError  # noqa: PLC0415  # a rare way

    remembered = app.journal.last_spec(name)
    if remembered is None:
        raise NodeNotFoundError(name.node_id, name.zone)
    app.terminal.note(f"`{name.node_id}` is not there: checking what it was, {remembered.spec.accelerator_type}")
    return remembered.spec
