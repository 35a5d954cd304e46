"""`tpuctl update`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import cli_command, dry_run_option, node_argument, option, takes_options
from tpuctl.app.spec_options import GivenOptions, metadata_from_files, parse_items, parse_pairs
from tpuctl.errors import InvalidInputError
from tpuctl.models.spec import check_labels, check_tags
from tpuctl.nodes.actions import changed_fields, update_node
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.plan import PlanStep
from tpuctl.nodes.rendering import show_node

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.models.node import Node


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
@node_argument
@takes_options(UpdateOptions, "wanted", group=OptionGroup.NODE)
@dry_run_option
def command(app: App, *, node: str, wanted: UpdateOptions, dry_run: bool) -> None:
    """Change the labels, network tags, metadata or description of a node. Everything else stays unchanged.

    \b
    Examples:
      tpuctl update trainer --labels team=vision,run=7
      tpuctl update trainer --remove-labels run --description "free to use"
    """
    if not wanted.given:
        raise InvalidInputError("no change given", hint="see `tpuctl update --help`")
    check_labels(parse_pairs("--labels", wanted.labels))
    check_tags(parse_items(wanted.tags))
    found = app.find(node)
    changes = _changes(app, found, wanted)
    if dry_run:
        steps = (PlanStep(Verb.UPDATE, found.name, ", ".join(changes)),) if changes else ()
        show_plan(app, steps, spec=None, node=found, changes=changes)
        return
    if changes:
        update_node(app.client, app.clock, found.name, changes, timeout=app.settings.duration("timeout"))
    show_node(app, app.client.find_node(found.name) or found)


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
