"""`tpuctl schema`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import CLOUD_OPTIONS, cli_command


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # click's own signature
    """Complete the next word of an output's name."""
    from tpuctl.cli.output_schemas import load_outputs  # noqa: PLC0415  # not needed by --help

    given = list(ctx.params.get("words") or ())
    names = [name.split() for name in load_outputs()]
    found = [name[len(given)] for name in names if name[: len(given)] == given and len(name) > len(given)]
    return [word for word in dict.fromkeys(found) if word.startswith(incomplete)]


@cli_command("schema", asks_trust=False, without=CLOUD_OPTIONS)
@click.argument("words", metavar="[COMMAND]", nargs=-1, shell_complete=_complete)
@grouped_option("--events", is_flag=True, help="Print the schema of one line of --events instead.")
@body_in("tpuctl.cli.schema_run:run_schema")
def command() -> None:
    """Print the JSON Schema (2020-12) of what a command prints with -o json; without COMMAND list the commands.

    `events` is one line of --events, `error` a failure of any command, on stderr. Fields may be added; none is removed or
    changes its meaning while the version in `$id` stays the same.

    \b
    Examples:
      tpuctl schema
      tpuctl schema list
      tpuctl schema up --events
      tpuctl schema error -o yaml
    """
