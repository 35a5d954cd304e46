"""The body of `tpuctl schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.options import UnknownWordError
from tpuctl.cli.output_schemas import ERROR, EVENTS, load_outputs, output_schema, outputs_in_order
from tpuctl.escaping import dump_printable_json, dump_printable_yaml
from tpuctl.output.terminal import Cell, OutputFormat, show_view, table_view
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App


def run_schema(app: App, *, words: tuple[str, ...], events: bool) -> None:
    """Print the JSON Schema (2020-12) of what a command prints with -o json; without COMMAND list the commands."""
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
