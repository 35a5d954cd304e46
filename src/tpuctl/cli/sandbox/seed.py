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
    """Put into the sandbox what a YAML file holds: all of it, or nothing.

    Kinds, each a list: nodes, queuedResources, buckets, objects, quotas, stockouts, faults, networks, subnetworks, firewalls,
    disks, instances, services, projects, iamPolicies; and `settings`. Entries have the API's own fields; a node needs only its
    name. What has the name of something that is there replaces it.

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
    app.terminal.note(", ".join(f"{count} {kind}" for kind, count in counted.items()) or f"{source} holds nothing")


def read_source(app: App, file: str) -> tuple[str, str]:
    """Return what a file, or stdin for `-`, is called and holds. Raises `InvalidInputError`."""
    if file == "-":
        return "stdin", read_stream(app.invocation.streams.stdin, limit=_LIMIT)
    return file, read_text(app.invocation.folder / expand(Path(file)), limit=_LIMIT, what=f"`{file}`")
