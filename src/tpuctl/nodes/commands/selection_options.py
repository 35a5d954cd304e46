"""The options that select nodes: names and globs, `-l`, `--older-than`, `--state`, `--type`, `--mine` and `--all`."""

# a call that declares an option returns a field

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.spec_options import GivenOptions
from tpuctl.app.value_completion import complete_label, complete_node, complete_state, complete_type
from tpuctl.errors import InvalidInputError
from tpuctl.names import check_new_node_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tpuctl.app.app import App
    from tpuctl.nodes.selection import Selection

_SHORTEST_AGE = timedelta(minutes=1)
_LABEL_NAMES = ("-l", "--selector")
_LABEL: dict[str, Any] = {
    "metavar": "KEY[=VALUE]",
    "multiple": True,
    "shell_complete": complete_label,
    "help": "Label of the nodes: KEY=VALUE, KEY or KEY!=VALUE. Repeatable; all must hold.",
}

label_option = grouped_option(*_LABEL_NAMES, "selector", group=OptionGroup.SELECTION, **_LABEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions(GivenOptions):
    """The conditions as given; a node must meet all of them."""

    selector: tuple[str, ...] = option(*_LABEL_NAMES, **_LABEL)
    older_than: timedelta | str | None = option(
        "--older-than", type=DurationType(), metavar="TIME", help="Minimum age of the nodes, such as 2d."
    )
    states: tuple[str, ...] = option(
        "--state",
        metavar="STATE,...",
        multiple=True,
        shell_complete=complete_state,
        help="States of the nodes, such as READY,STOPPED.",
    )
    types: tuple[str, ...] = option(
        "--type",
        "--accelerator-type",
        metavar="TYPE,...",
        multiple=True,
        shell_complete=complete_type,
        help="Accelerator types of the nodes, or patterns such as 'v4-*'.",
    )
    mine: bool = option("--mine", is_flag=True, help="Only nodes that you created, by their label `tpuctl-owner`.")
    select_all: bool = option("--all", is_flag=True, help="All nodes of the project, or of --zone.")


@dataclass(frozen=True, slots=True)
class GivenSelection:
    """Names, globs and conditions as given."""

    names: tuple[str, ...]
    options: SelectionOptions

    @property
    def is_given(self) -> bool:
        """Return whether there is any."""
        return bool(self.names or self.options.given)

    @property
    def is_pattern(self) -> bool:
        """Return whether more than names is given: a condition, `--all` or a glob."""
        from tpuctl.nodes.selection import is_glob  # noqa: PLC0415  # not needed by --help

        return bool(self.options.given) or any(map(is_glob, self.names))

    def parse(self, app: App) -> Selection:
        """Return the selection.

        Raises `InvalidInputError` for an empty or contradictory selection, and for an invalid part of it.
        """
        from tpuctl.nodes.selection import (  # noqa: PLC0415  # not needed by --help
            Selection,
            parse_label_conditions,
            parse_states,
            parse_type_patterns,
        )

        options = self.options
        if self.names and options.select_all:
            raise InvalidInputError(
                "`--all` and names exclude one another", hint="leave out `--all`, or the names; conditions narrow both"
            )
        selection = Selection(
            names=parse_names(app, self.names),
            labels=parse_label_conditions(options.selector),
            older_than=shortest_age("--older-than", options.older_than, "2d"),
            states=parse_states(options.states),
            types=parse_type_patterns(options.types),
            is_mine=options.mine,
            is_all=options.select_all,
        )
        if selection.is_empty:
            raise InvalidInputError("no nodes given", hint="name them, or use `-l KEY=VALUE`, `--mine` or `--all`")
        return selection


def parse_labelled(app: App, names: Sequence[str], labels: Sequence[str]) -> Selection:
    """Return the selection of a command that has only names and `-l`. Raises `InvalidInputError` without any."""
    if not names and not labels:
        raise InvalidInputError("no nodes given", hint="name them, or use `-l KEY=VALUE`")
    return GivenSelection(tuple(names), SelectionOptions(selector=tuple(labels))).parse(app)


def parse_names(app: App, texts: Sequence[str]) -> tuple[Any, ...]:  # of `NamePattern`, which --help need not import
    """Parse names and globs, each once. Raises `InvalidInputError`; its hint says if a text is the name of a local file."""
    from tpuctl.nodes.selection import NamePattern  # noqa: PLC0415  # not needed by --help

    found = []
    for text in dict.fromkeys(texts):
        is_file = len(texts) > 1 and (app.invocation.folder / text).exists()
        try:
            # A node can have any name, but one that tpuctl gives is hardly that of a file.
            found.append(NamePattern.parse(check_new_node_id(text) if is_file else text))
        except InvalidInputError as error:
            if is_file:
                error.hint = (
                    f"`{text}` is a local file: quote patterns, `'sweep-*'`, or the shell replaces them by file names"
                )
            raise
    return tuple(found)


def shortest_age(flag: str, value: timedelta | str | None, example: str) -> timedelta | None:
    """Return the value of an option for an age. Raises `InvalidInputError` below a minute, and for `forever`."""
    if value is None:
        return None
    if not isinstance(value, timedelta) or value < _SHORTEST_AGE:
        raise InvalidInputError(f"`{flag}` is at least 1m", hint=f"write it like `{flag} {example}`")
    return value


def selection_options(*, without: Collection[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `NODE...` and the options that select nodes, but for those in `without`. The command gets one `selection`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(
            *arguments: Any, nodes: tuple[str, ...], conditions: SelectionOptions, **values: Any
        ) -> Any:  # click's
            return function(*arguments, selection=GivenSelection(nodes, conditions), **values)

        with_options = takes_options(SelectionOptions, "conditions", without=without, group=OptionGroup.SELECTION)(call)
        return click.argument("nodes", metavar="[NODE...]", nargs=-1, shell_complete=complete_node)(with_options)

    return decorate
