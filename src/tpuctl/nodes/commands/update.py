"""`tpuctl update`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import cli_command, dry_run_option, option, takes_options
from tpuctl.app.spec_options import GivenOptions, metadata_from_files, parse_items, parse_pairs
from tpuctl.errors import ExitCode, InvalidInputError, NotFoundError, TpuctlError
from tpuctl.models.spec import check_labels, check_tags
from tpuctl.nodes.actions import changed_fields, update_node
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.commands.node_lookup import report_silent_zones, select_nodes
from tpuctl.nodes.commands.selected_changes import selection_check
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.controller import NodeResult
from tpuctl.nodes.plan import PlanStep
from tpuctl.nodes.rendering import show_results

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.nodes.commands.selection_options import GivenSelection


@dataclass(frozen=True, slots=True)
class UpdateOptions(GivenOptions):
    """The changes of `tpuctl update`, as given."""

    labels: tuple[str, ...] = option(
        "--labels", "--update-labels", metavar="KEY=VALUE,...", multiple=True, help="Labels to set; keeps other labels."
    )
    remove_labels: tuple[str, ...] = option(
        "--remove-labels", metavar="KEY,...", multiple=True, help="Labels to remove."
    )
    tags: tuple[str, ...] = option(
        "--tags", "--add-tags", metavar="TAG,...", multiple=True, help="Network tags to add."
    )
    remove_tags: tuple[str, ...] = option(
        "--remove-tags", metavar="TAG,...", multiple=True, help="Network tags to remove."
    )
    metadata: tuple[str, ...] = option(
        "--metadata",
        "--update-metadata",
        metavar="KEY=VALUE,...",
        multiple=True,
        help="Metadata to set; keeps other keys.",
    )
    metadata_from_file: tuple[str, ...] = option(
        "--metadata-from-file",
        metavar="KEY=FILE,...",
        multiple=True,
        help="Metadata to set, with values from local files.",
    )
    remove_metadata: tuple[str, ...] = option(
        "--remove-metadata", metavar="KEY,...", multiple=True, help="Metadata to remove."
    )
    description: str | None = option(
        "--description", metavar="TEXT", help="New description of the node; empty removes it."
    )


@cli_command("update")
@selection_options()
@takes_options(UpdateOptions, "wanted", group=OptionGroup.NODE)
@dry_run_option
def command(app: App, *, selection: GivenSelection, wanted: UpdateOptions, dry_run: bool) -> int:
    """Change the labels, network tags, metadata or description of nodes. Everything else stays unchanged.

    \b
    Examples:
      tpuctl update trainer --labels team=vision,run=7
      tpuctl update trainer --remove-labels run --description "free to use"
      tpuctl update 'sweep-*' -l team=vision --labels tpuctl-keep=yes
    """
    if not wanted.given:
        raise InvalidInputError("no change given", hint="see `tpuctl update --help`")
    check_labels(parse_pairs("--labels", wanted.labels))
    check_tags(parse_items(wanted.tags))
    try:
        chosen = selection.parse(app)
        selected = select_nodes(app, chosen)
    except (InvalidInputError, NotFoundError):
        if not wanted.metadata or len(selection.names) < 2:
            raise
        raise InvalidInputError(
            f"one of the {len(selection.names)} names is no node; it is not shown, because it may be part of a secret value",
            hint="quote a value of `--metadata` that contains spaces",
        ) from None
    recheck, outcomes = selection_check(app, chosen), list[NodeResult | TpuctlError]()
    if dry_run:
        changes = {node.name: found for node in selected.nodes if (found := _changes(app, node, wanted))}
        steps = tuple(PlanStep(Verb.UPDATE, name, ", ".join(fields)) for name, fields in changes.items())
        show_plan(app, steps, spec=None, nodes=selected.nodes, changes=changes)
        return report_silent_zones(app, selected.unreachable, ExitCode.OK)
    for node in selected.nodes:
        try:
            if fields := _changes(app, node, wanted):
                recheck(node)
                update_node(app.client, app.clock, node.name, fields, timeout=app.settings.duration("timeout"))
            outcomes.append(NodeResult(app.client.find_node(node.name) or node))
        except TpuctlError as error:
            error.node = node.name.node_id if len(selected.nodes) > 1 else None
            outcomes.append(error)
    return report_silent_zones(app, selected.unreachable, show_results(app, outcomes))


def _changes(app: App, node: Node, wanted: UpdateOptions) -> dict[str, Any]:
    """Return the API fields to write: only those whose value changes."""
    metadata = {
        **parse_pairs("--metadata", wanted.metadata),
        **metadata_from_files(app, wanted.metadata_from_file),
    }
    tags = [tag for tag in node.raw.get("tags") or () if tag not in parse_items(wanted.remove_tags)]
    fields: dict[str, Any] = {
        "labels": _merged(node.labels, parse_pairs("--labels", wanted.labels), parse_items(wanted.remove_labels)),
        "tags": [*tags, *(tag for tag in parse_items(wanted.tags) if tag not in tags)],
        "metadata": _merged(node.metadata, metadata, parse_items(wanted.remove_metadata)),
        "description": node.raw.get("description", "") if wanted.description is None else wanted.description,
    }
    return changed_fields(node, fields)


def _merged(present: Any, added: dict[str, str], removed: tuple[str, ...]) -> dict[str, str]:  # a mapping
    return {key: value for key, value in {**present, **added}.items() if key not in removed}
