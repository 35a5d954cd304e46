"""`tpuctl sandbox seed`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import OF_THE_CLOUD, cli_command
from tpuctl.userfile import MIB, expand, read_stream, read_text

if TYPE_CHECKING:
    from tpuctl.cli.app import App

# A seed may describe thousands of nodes.
_LIMIT = 64 * MIB


@cli_command("seed", asks_trust=False, without=(*OF_THE_CLOUD, "output"))
@click.argument("file", metavar="FILE")
def command(app: App, *, file: str) -> None:
    """Add the resources of a YAML file to the sandbox: all or none.

    Kinds, each a list: nodes, queuedResources, buckets, objects, quotas, stockouts, faults, networks, subnetworks, firewalls,
    disks, instances, services, projects, iamPolicies; and `settings`. Entries have the fields of the API; a node needs only a
    name. An entry replaces an existing resource of the same name.

    \b
    Examples:
      tpuctl sandbox seed team.yaml
      printf 'nodes: [{name: trainer, acceleratorType: v4-8}]' | tpuctl sandbox seed -
    """
    from tpuctl.sandbox import seeding  # noqa: PLC0415  # only for the sandbox

    source, text = read_source(app, file)
    entries = seeding.read(text, source)
    seeding.plant(app.world, entries)
    counted = Counter(entry.kind for entry in entries)
    app.terminal.note(", ".join(f"{count} {kind}" for kind, count in counted.items()) or f"{source} is empty")


def read_source(app: App, file: str) -> tuple[str, str]:
    """Return the name and the text of a file, or of stdin for `-`. Raises `InvalidInputError`."""
    if file == "-":
        return "stdin", read_stream(app.invocation.streams.stdin, limit=_LIMIT)
    return file, read_text(app.invocation.folder / expand(Path(file)), limit=_LIMIT, what=f"`{file}`")
