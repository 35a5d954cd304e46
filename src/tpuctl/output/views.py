"""What a command shows: one value in every form that `-o` offers. `App.show` chooses the form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.output.terminal import OutputFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tpuctl.output.terminal import Cell, Terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A result. Each form is made only if it is shown."""

    value: Callable[[], Any]  # JSON: an object, or a list of them
    text: Callable[[Terminal], None]  # writes the form for people, and for pipes
    names: Callable[[], Iterable[str]] | None = None  # for `-o name`; None shows the text
    is_marked: bool = True  # whether each object says `"sandbox": true` in the sandbox


def show_view(view: View, terminal: Terminal, form: OutputFormat, *, sandbox: bool) -> None:
    """Write a result in one form. `sandbox`: it is from the sandbox, which JSON says."""
    match form:
        case OutputFormat.JSON | OutputFormat.YAML:
            value = view.value()
            if view.is_marked and sandbox:
                mark = {"sandbox": True}
                value = [{**entry, **mark} for entry in value] if isinstance(value, list) else {**value, **mark}
            terminal.data(value, form)
        case OutputFormat.NAME if view.names is not None:
            terminal.names(view.names())
        case _:
            view.text(terminal)


def table_view(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    value: Callable[[], Any],  # JSON
    names: Callable[[], Iterable[str]] | None = None,
    empty: str | None = None,
    is_marked: bool = True,
) -> View:
    """Return the view of a table. On a terminal the note `empty` replaces a table without rows."""

    def show(terminal: Terminal) -> None:
        if rows or empty is None or not terminal.is_interactive:
            terminal.table(header, rows)
        else:
            terminal.note(empty)

    return View(value=value, text=show, names=names, is_marked=is_marked)
