"""`tpuctl sandbox seed`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import OF_THE_CLOUD, cli_command

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("seed", asks_trust=False, without=(*OF_THE_CLOUD, "output"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
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

    source, text = read_text(file)
    entries = seeding.read(text, source)
    seeding.plant(app.world, entries)
    counted = Counter(entry.kind for entry in entries)
    app.terminal.note(", ".join(f"{count} {kind}" for kind, count in counted.items()) or f"{source} holds nothing")


def read_text(file: str) -> tuple[str, str]:
    """Return what a file, or stdin for `-`, is called and holds. Raises `InvalidInputError`."""
    from tpuctl.errors import InvalidInputError  # noqa: PLC0415  # below click, above the sandbox

    try:
        with click.open_file(file, encoding="utf-8") as stream:
            return ("stdin" if file == "-" else file), stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read {file}: {error}") from error
