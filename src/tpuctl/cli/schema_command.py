"""`tpuctl schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import CLOUD_OPTIONS, UnknownWordError, cli_command
from tpuctl.escaping import dump_printable_json, dump_printable_yaml
from tpuctl.output.terminal import Cell, OutputFormat, show_view, table_view
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App


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
def command(app: App, *, words: tuple[str, ...], events: bool) -> None:
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
    from tpuctl.cli.output_schemas import EVENTS, output_schema  # noqa: PLC0415  # not needed by --help and completion

    if not words and not events:
        _list_outputs(app)
        return
    name = _output_name(words, events=events) if words else EVENTS
    schema, form = output_schema(EVENTS if events else name), app.format_or_guess
    with app.terminal.paged():
        # Not `show_view`: it would mask the schema of metadata as if it were metadata.
        match form:
            case OutputFormat.NAME:
                app.terminal.write(schema["$id"])
            case OutputFormat.YAML:
                app.terminal.document(dump_printable_yaml(schema))
            case _:
                app.terminal.document(dump_printable_json(schema, indent=2))


def _list_outputs(app: App) -> None:
    from tpuctl.cli.output_schemas import load_outputs, outputs_in_order  # noqa: PLC0415  # not needed by --help

    outputs = {name: str(load_outputs()[name]["description"]) for name in outputs_in_order()}
    view = table_view(
        ("COMMAND", "OUTPUT"),
        [(Cell(name), Cell(text)) for name, text in outputs.items()],
        value=lambda: [{"command": name, "description": text} for name, text in outputs.items()],
        names=lambda: outputs,
        is_marked=False,
    )
    show_view(view, app.terminal, app.format_or_guess, sandbox=False)


def _output_name(words: Sequence[str], *, events: bool) -> str:
    """Return the name of the output that the words name. Raises `UnknownWordError` if it has no schema."""
    from tpuctl.cli.output_schemas import ERROR, EVENTS, load_outputs  # noqa: PLC0415  # as above

    context = click.get_current_context()
    typed = " ".join(words)
    if typed in {EVENTS, ERROR}:
        return typed
    root = context.find_root()
    found, names = root.command, list[str]()
    for word in words:
        below = found.get_command(root, word) if isinstance(found, click.Group) else None
        if below is None:
            near = closest_match(typed.lower(), load_outputs())
            hint = f"did you mean `tpuctl schema {near}`?" if near else "list the commands: `tpuctl schema`"
            raise UnknownWordError(f"there is no command `{typed}`", hint=hint, ctx=context)
        found, names = below, [*names, str(below.name)]
    name = " ".join(names)
    if events and "events" not in {parameter.name for parameter in found.params}:
        raise UnknownWordError(
            f"`tpuctl {name}` has no `--events`", hint="see what events are: `tpuctl schema events`", ctx=context
        )
    if name not in load_outputs() and not events:
        below_it = next((known for known in load_outputs() if known.startswith(f"{name} ")), None)
        hint = f"did you mean `tpuctl schema {below_it}`?" if below_it else "list the commands: `tpuctl schema`"
        if "events" in {parameter.name for parameter in found.params}:
            hint = f"its events have a schema: `tpuctl schema {name} --events`"
        raise UnknownWordError(f"`tpuctl {name}` has no JSON output", hint=hint, ctx=context)
    return name
