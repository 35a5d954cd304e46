"""`tpuctl update`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.options import cli_command, dry_run_option, node_argument
from tpuctl.app.spec_options import metadata_from_files, parse_items, parse_pairs
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


@cli_command("update")
@node_argument
@click.option(
    "--labels", "--update-labels", metavar="KEY=VALUE,...", multiple=True, help="Labels to set; keeps other labels."
)
@click.option("--remove-labels", metavar="KEY,...", multiple=True, help="Labels to remove.")
@click.option("--tags", "--add-tags", metavar="TAG,...", multiple=True, help="Network tags to add.")
@click.option("--remove-tags", metavar="TAG,...", multiple=True, help="Network tags to remove.")
@click.option(
    "--metadata", "--update-metadata", metavar="KEY=VALUE,...", multiple=True, help="Metadata to set; keeps other keys."
)
@click.option("--metadata-from-file", metavar="KEY=FILE,...", multiple=True, help="Metadata with values from files.")
@click.option("--remove-metadata", metavar="KEY,...", multiple=True, help="Metadata to remove.")
@click.option("--description", metavar="TEXT", help="Description of the node.")
@dry_run_option
def command(app: App, *, node: str, dry_run: bool, **options: Any) -> None:  # click's options
    """Change the labels, network tags, metadata or description of a node. Everything else stays unchanged.

    \b
    Examples:
      tpuctl update trainer --labels team=vision,run=7
      tpuctl update trainer --remove-labels run --description "free to use"
    """
    if not any(value not in (None, ()) for value in options.values()):
        raise InvalidInputError("no change given", hint="see `tpuctl update --help`")
    check_labels(parse_pairs("--labels", options["labels"]))
    check_tags(parse_items(options["tags"]))
    found = app.find(node)
    changes = _changes(app, found, options)
    if dry_run:
        steps = (PlanStep(Verb.UPDATE, found.name, ", ".join(changes)),) if changes else ()
        show_plan(app, steps, spec=None, node=found, changes=changes)
        return
    if changes:
        update_node(app.client, app.clock, found.name, changes, timeout=app.settings.duration("timeout"))
    show_node(app, app.client.find_node(found.name) or found)


def _changes(app: App, node: Node, options: dict[str, Any]) -> dict[str, Any]:
    """Return the API fields to write: only those whose value changes."""
    metadata = {
        **parse_pairs("--metadata", options["metadata"]),
        **metadata_from_files(app, options["metadata_from_file"]),
    }
    tags = [tag for tag in node.raw.get("tags") or () if tag not in parse_items(options["remove_tags"])]
    wanted: dict[str, Any] = {
        "labels": _merged(
            node.labels, parse_pairs("--labels", options["labels"]), parse_items(options["remove_labels"])
        ),
        "tags": [*tags, *(tag for tag in parse_items(options["tags"]) if tag not in tags)],
        "metadata": _merged(node.metadata, metadata, parse_items(options["remove_metadata"])),
        "description": options["description"]
        if options["description"] is not None
        else node.raw.get("description", ""),
    }
    return changed_fields(node, wanted)


def _merged(present: Any, added: dict[str, str], removed: tuple[str, ...]) -> dict[str, str]:  # a mapping
    return {key: value for key, value in {**present, **added}.items() if key not in removed}
