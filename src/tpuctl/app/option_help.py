"""How options are declared, and how `--help` shows them: in groups, each under one name, and without the hidden ones."""

from __future__ import annotations

import re
from copy import copy
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from tpuctl.app.value_completion import complete_file, complete_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from click.types import OptionHelpExtra


class OptionGroup(StrEnum):
    """The titles of the groups of options, in the order in which help shows them."""

    SELECTION = "Which nodes"
    PROGRAM = "What runs"
    ENVIRONMENT = "Its environment"
    WORKERS = "Which workers"
    ONE_OFF = "A node for this run"
    KEEP = "A job that ends when it is done"
    NODE = "The node"
    WHERE = "Where"
    PURCHASE = "How it is bought"
    LIFETIME = "How long it lives"
    SETUP = "Setup of its workers"
    NETWORK = "Network and identity of its workers"
    READINESS = "When it counts as usable"
    REPAIR = "Repair"
    HOOKS = "Local commands on events"
    CHECKS = "Checks"
    FILES = "Files"
    EFFECT = "What happens"
    TIMING = "When and how often"
    ACCESS = "Access"
    PORTS = "Ports"
    WAITING = "Waiting"
    SAFETY = "Safety"
    OUTPUT = "Output"
    STATE = "Settings and shared state"


# A command with more options than this shows them in groups.
_UNGROUPED: Final = 8
# Longer names stand on a line of their own.
_NAME_WIDTH: Final = 26
# Below the options of a group: of `run`, which has hidden ones for the node.
_NOTES: Final[dict[OptionGroup | None, str]] = {
    OptionGroup.ONE_OFF: "Also the options of up for the node and its checks: tpuctl help up",
}


# What a value is named by if it is the path of something on this machine; a path on workers is a PATH.
_LOCAL_PATHS: Final = {"FILE": complete_file, "DIR": complete_folder}


class GroupedOption(click.Option):
    """An option with a group. Help shows its first name only; the parser also accepts the others, such as gcloud's.

    `is_shared`: every command accepts it, and `tpuctl options` explains it.
    """

    def __init__(
        self,
        *args: Any,  # click's own signature
        group: OptionGroup | None = None,
        is_shared: bool = False,
        **attributes: Any,  # as above
    ) -> None:
        attributes.setdefault("shell_complete", _LOCAL_PATHS.get(attributes.get("metavar", "")))
        super().__init__(*args, **attributes)
        self.group, self.is_shared = group, is_shared

    def promoted(self, text: str | None) -> GroupedOption:
        """Return a shared option as one that the help of a command shows, with this text, or its own for None."""
        own = copy(self)
        own.help, own.is_shared = text or self.help, False
        return own

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the first name and the text, None for a hidden option."""
        shown = copy(self)
        long = [name for name in self.opts if name.startswith("--")]
        shown.opts = [name for name in self.opts if name not in long[1:]]
        record = super(GroupedOption, shown).get_help_record(ctx)
        return record and (record[0], record[1].replace("  [", " ["))

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Return what click adds to the text, without the range of a number."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class RenamedOption(GroupedOption):
    """An option that the parser also accepts under its old name. Help and completion show the new one only."""

    def __init__(self, *args: Any, old_name: str, **attributes: Any) -> None:  # click's own signature
        super().__init__(*args, **attributes)
        self.old_name = old_name

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # click's private parser
        """Add the option to the parser, under both names."""
        shown = self.opts
        self.opts = [*shown, self.old_name]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


# `click.option` with a group.
grouped_option = partial(click.option, cls=GroupedOption)


class HelpFormatter(click.HelpFormatter):
    """A formatter that breaks no line within `--max-price`, and none within `[default: 5m]`."""

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        super().write_text(_unbroken(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of terms and their texts."""
        super().write_dl([(term, _unbroken(text)) for term, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        """Return what was written."""
        return super().getvalue().translate({ord(stand_in): plain for plain, stand_in in _UNBROKEN.items()})


# Characters at which lines are not broken, in place of those at which they are. No text of ours has them.
_UNBROKEN: Final = {"-": "\N{NON-BREAKING HYPHEN}", " ": "\N{NO-BREAK SPACE}"}
_WHOLE: Final = re.compile(r"(?<=[\w-])-(?=[\w-])|(?<=\[default:) ")


def _unbroken(text: str) -> str:
    return _WHOLE.sub(lambda found: _UNBROKEN[found[0]], text)


class HelpContext(click.Context):
    """The context of our commands, whose help it formats."""

    formatter_class = HelpFormatter


def write_own_options(params: Sequence[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of a command without those of every command, in groups if there are many."""
    own = [param for param in params if isinstance(param, click.Option) and not is_shared(param)]
    if sum(not option.hidden for option in own) > _UNGROUPED:
        write_options(((group_of(option), option) for option in own), ctx, formatter)
    else:
        write_options(((None, option) for option in own), ctx, formatter)


def write_options(
    options: Iterable[tuple[OptionGroup | None, click.Option]],
    ctx: click.Context,
    formatter: click.HelpFormatter,
) -> None:
    """Write options group by group, those without a group first. All descriptions begin in one column."""
    records = [(group, record) for group, option in options if (record := option.get_help_record(ctx))]
    width = max((len(names) for _, (names, _) in records if len(names) <= _NAME_WIDTH), default=0)
    for group in (None, *OptionGroup):
        rows = [(f"{names:<{width}}", text) for each, (names, text) in records if each is group]
        if rows:
            with formatter.section(group or "Options"):
                formatter.write_dl(rows, col_max=width)
                if note := _NOTES.get(group):
                    formatter.write_text(note)


def write_shared_line(formatter: click.HelpFormatter) -> None:
    """Write where the options of every command are explained."""
    formatter.write_paragraph()
    formatter.write_text("Options of every command: tpuctl options")


def group_of(param: click.Parameter) -> OptionGroup | None:
    """Return the group of an option, None without one."""
    return param.group if isinstance(param, GroupedOption) else None


def is_shared(param: click.Option) -> bool:
    """Return whether every command accepts the option."""
    return "--help" in param.opts or (isinstance(param, GroupedOption) and param.is_shared)
