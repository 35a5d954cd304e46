"""Options that several commands share, the decorator of commands, groups of commands, and errors of the command line.

`@cli_command` passes a command its `App`. `LazyGroup` imports the module of a command when it is called. `show_usage_error`
prints what click raises in the form of all other errors.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial, update_wrapper, wraps
from itertools import dropwhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tpuctl.app.app import App
from tpuctl.app.lazy_import import load
from tpuctl.app.option_help import (
    GroupedOption,
    HelpContext,
    OptionGroup,
    RenamedOption,
    grouped_option,
    write_own_options,
    write_shared_line,
)
from tpuctl.app.state_paths import check_state_folder
from tpuctl.app.value_completion import complete_node, complete_project, complete_zone, completion_item
from tpuctl.clock import CLOUD_CALL_TIMEOUT, SystemClock, limit_cloud_calls
from tpuctl.durations import parse_duration
from tpuctl.errors import InvalidInputError
from tpuctl.names import escape_undecodable
from tpuctl.output.tables import choose_columns
from tpuctl.output.terminal import OutputFormat
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from tpuctl.output.column_widths import Column
    from tpuctl.output.tables import TableLayout
    from tpuctl.output.terminal import Terminal

FORMATS = ("table", "wide", "tsv", "json", "yaml", "name")


class DurationType(click.ParamType[timedelta | str]):
    """A duration such as 90s, 30m or 2h, or the word `forever`."""

    name = "duration"

    def __init__(self, parse: Callable[[str], timedelta] = parse_duration) -> None:
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | str:
        """Return the duration, or the word `forever`."""
        if not isinstance(value, str) or value == "forever":
            return value  # type: ignore[no-any-return]  # converted before, or the word
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TpuctlCommand(click.Command):
    """A command that suggests our option for one of another tool.

    With `takes_command` the words after `--` are a remote command: the parameter `remote_command`. `spellings` are words that
    stand for an option: a flag cannot have a value that may be left out, since it would take the next argument for it.
    """

    context_class = HelpContext
    takes_command = False
    spellings: Mapping[str, str] = MappingProxyType({})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and suggest our option for one of another tool."""
        words: tuple[str, ...] = ()
        if self.takes_command and "--" in args:
            at = args.index("--")
            args, words = args[:at], tuple(args[at + 1 :])
        args = [self.spellings.get(word, word) for word in args]
        with suggesting_options(self, ctx):
            left = super().parse_args(ctx, args)
            check_parameter_text(self, ctx)
        if self.takes_command:
            ctx.params["remote_command"] = words
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, and where those of every command are."""
        write_own_options(self.get_params(ctx), ctx, formatter)
        write_shared_line(formatter)


def _shared(*names: str, group: OptionGroup, **attributes: Any) -> Callable[[], GroupedOption]:  # click's
    return partial(GroupedOption, names, group=group, is_shared=True, **attributes)


# The group and each command accept these, so that they may be given before or after the command's name. Help shows them in
# `tpuctl options`.
GLOBAL_OPTIONS: tuple[Callable[[], GroupedOption], ...] = (
    _shared(
        "--project",
        group=OptionGroup.WHERE,
        metavar="ID",
        shell_complete=complete_project,
        help="Google Cloud project of the nodes.",
    ),
    _shared(
        "--zone",
        group=OptionGroup.WHERE,
        metavar="ZONE",
        multiple=True,
        shell_complete=complete_zone,
        help="Zone of the nodes; several as ZONE,ZONE for up, list and types. [default: all zones; for a new node none]",
    ),
    _shared(
        "--sandbox/--no-sandbox",
        group=OptionGroup.WHERE,
        default=None,
        help="Use the local sandbox instead of the cloud: no account, no costs.",
    ),
    _shared(
        "--endpoint",
        group=OptionGroup.WHERE,
        metavar="URL",
        help="Base URL of another server of the TPU API. [default: Google's]",
    ),
    _shared(
        "--impersonate-service-account",
        group=OptionGroup.ACCESS,
        metavar="EMAIL",
        help="Service account to impersonate for all API calls.",
    ),
    _shared(
        "--quota-project",
        group=OptionGroup.ACCESS,
        metavar="ID",
        shell_complete=complete_project,
        help="Project whose API quota is used for calls. [default: that of the credentials]",
    ),
    _shared(
        "--user", group=OptionGroup.ACCESS, metavar="LOGIN", help="Login name on the workers. [default: your own name]"
    ),
    _shared("--ssh-key", group=OptionGroup.ACCESS, metavar="FILE", help="Private key for ssh to the workers."),
    _shared(
        "--ssh-key-expire-after",
        group=OptionGroup.ACCESS,
        metavar="TIME",
        help="Lifetime of the ssh key in metadata or OS Login, such as 8h.",
    ),
    _shared(
        "--journal",
        group=OptionGroup.STATE,
        metavar="URL",
        help="Bucket for the journal, as gs://BUCKET/PREFIX: what tpuctl did, shared by machines. [default: a local folder]",
    ),
    _shared(
        "--lease",
        group=OptionGroup.STATE,
        metavar="URL",
        help="Bucket for leases, as gs://BUCKET/PREFIX: one run of tpuctl at a time changes a node. [default: a local folder]",
    ),
    _shared(
        "--trust-project-file",
        group=OptionGroup.STATE,
        is_flag=True,
        default=None,
        help="Use all keys of tpuctl.yaml without asking for trust.",
    ),
    _shared(
        "--output",
        "-o",
        group=OptionGroup.OUTPUT,
        type=click.Choice(FORMATS),
        help="Output format, see `tpuctl help output`. [default: table]",
    ),
    _shared(
        "--no-header",
        group=OptionGroup.OUTPUT,
        is_flag=True,
        default=None,
        help="Print tables without the line of headings.",
    ),
    _shared(
        "--timestamps",
        group=OptionGroup.OUTPUT,
        type=click.Choice(["auto", "on", "off"]),
        help="Time of day in UTC before each line of progress; auto is on if stderr is not a terminal. [default: auto]",
    ),
    _shared(
        "--quiet", "-q", group=OptionGroup.OUTPUT, is_flag=True, default=None, help="Print only results and errors."
    ),
    _shared(
        "--show-metadata",
        group=OptionGroup.OUTPUT,
        is_flag=True,
        default=None,
        help="Show metadata values, which may be secrets.",
    ),
    _shared(
        "--verbose",
        "-v",
        group=OptionGroup.OUTPUT,
        is_flag=True,
        default=None,
        help="Print each API request on stderr.",
    ),
)


def shared_options() -> list[GroupedOption]:
    """Return new options of those that every command accepts: a command may change its own."""
    return [option() for option in GLOBAL_OPTIONS]


_GLOBAL_NAMES = tuple(option.name for option in shared_options())
# Those that have no meaning for a command that makes no API calls.
CLOUD_OPTIONS = (
    "project", "zone", "user", "ssh_key", "ssh_key_expire_after", "endpoint", "impersonate_service_account", "quota_project",
    "sandbox", "journal", "lease", "trust_project_file", "timestamps",
)  # fmt: skip


def apply_global_options(ctx: click.Context, options: dict[str, Any], *, without: Collection[str] = ()) -> App:
    """Pass the shared options to the app, and remove them from the command's own; those in `without` are the command's own."""
    app = ctx.find_object(App)
    if app is None:
        raise AssertionError("main puts the app into the context")
    app.set_options({name: options.pop(name, None) for name in _GLOBAL_NAMES if name and name not in without})
    return app


def cli_command(name: str, **attributes: Any) -> Callable[[Callable[..., int | None]], TpuctlCommand]:  # click's
    """Make a command of a function whose first parameter is the `App`; add the shared options after its own.

    The function returns the exit code, or None for 0. With `takes_command` it also gets `remote_command`: the words after
    `--`. The command requires a trusted project file before it runs. Pass `asks_trust=False` only for a command that makes no
    API call and uses no setting of a project file, or that calls `App.require_trust` itself. With `is_short` all its calls to
    the cloud end within a minute. `shows` names the shared options that matter most to the command: its help shows
    them too, with the text here or, for None, their own.
    """
    patience = CLOUD_CALL_TIMEOUT if attributes.pop("is_short", False) else None
    skipped = attributes.pop("without", ())
    shown: dict[str, str | None] = attributes.pop("shows", {})
    takes_command, spellings = attributes.pop("takes_command", False), attributes.pop("spellings", {})
    asks_trust = attributes.pop("asks_trust", True)

    def decorate(function: Callable[..., int | None]) -> TpuctlCommand:
        def callback(**options: Any) -> int | None:  # click's own signature
            app = apply_global_options(click.get_current_context(), options, without=skipped)
            if name != "doctor":  # it reports this as a finding
                check_state_folder(app.invocation.environ)
            app.note_overrides(options)
            if asks_trust:
                app.require_trust()
            # `--watch` looks again and again: each look has a limit of its own.
            with limit_cloud_calls(SystemClock(), None if options.get("watch") else patience):
                return function(app, **options)

        update_wrapper(callback, function)
        made = click.command(name, cls=TpuctlCommand, **attributes)(callback)
        made.takes_command, made.spellings = takes_command, spellings
        shared = [option for option in shared_options() if option.name not in skipped]
        promoted = [option.promoted(shown[option.name]) for option in shared if option.name in shown]
        made.params = [*promoted, *made.params, *(option for option in shared if option.name not in shown)]
        return made

    return decorate


node_argument = click.argument("node", metavar="NODE", shell_complete=complete_node)
nodes_argument = click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
worker_option = grouped_option(
    "--worker",
    group=OptionGroup.WORKERS,
    metavar="SET",
    default="all",
    show_default=True,
    help="Worker indices, such as 0 or 1,3-5; or all.",
)
watch_option = grouped_option(
    "--watch",
    "-w",
    group=OptionGroup.OUTPUT,
    is_flag=True,
    help="Look again every 2 s, on one screen until q or Ctrl-C; with -o json print a line for each change.",
)
yes_option = grouped_option("--yes", "-y", group=OptionGroup.SAFETY, is_flag=True, help="Do not ask for confirmation.")
if_idle_option = grouped_option(
    "--if-idle",
    group=OptionGroup.SAFETY,
    is_flag=True,
    help="Fail if a job, a TPU process or an ssh session uses a node, or if its workers do not answer within 5 s.",
)
dry_run_option = grouped_option(
    "--dry-run",
    group=OptionGroup.SAFETY,
    is_flag=True,
    help="Print the next API requests and the gcloud commands, and change nothing.",
)
timeout_option = grouped_option(
    "--timeout",
    group=OptionGroup.WAITING,
    type=DurationType(),
    metavar="TIME",
    help="Time limit of the command: 90s, 30m, 2h or forever. [default: 30m]",
)
events_option = grouped_option(
    "--events",
    group=OptionGroup.OUTPUT,
    metavar="FILE",
    help="File to append events to, one JSON object on each line; - for stdout.",
)
force_lease_option = click.option(
    "--force-lease",
    group=OptionGroup.SAFETY,
    cls=RenamedOption,
    old_name="--steal",
    is_flag=True,
    help="Take over a node that another run of tpuctl holds.",
)
skip_validation_option = click.option(
    "--skip-validation",
    group=OptionGroup.SAFETY,
    cls=RenamedOption,
    old_name="--anyway",
    is_flag=True,
    help="Send the request even if tpuctl expects the API to reject it.",
)


def option(*names: str, **attributes: Any) -> Any:  # click's own signature
    """Declare an option of a command: a field of a frozen dataclass for `takes_options`."""
    missing = () if attributes.get("multiple") else False if attributes.get("is_flag") else None
    return field(default=attributes.pop("default", missing), metadata={"option": (names, attributes)})


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Which columns of a table are shown, and how its rows are sorted."""

    columns: str | None = option(
        "--columns",
        group=OptionGroup.OUTPUT,
        metavar="NAME,NAME",
        help="Columns of the table, in this order, such as name,state; all for all of them. [default: most]",
    )
    sort: str | None = option(
        "--sort",
        group=OptionGroup.OUTPUT,
        metavar="NAME,NAME",
        help="Columns to sort by, such as age, or -age for the oldest first. [default: by zone or time]",
    )

    def layout(self, app: App, columns: Sequence[Column]) -> TableLayout:
        """Return the layout of a table with these columns. Raises `InvalidInputError` for the name of another."""
        is_terminal = app.terminal.is_interactive and app.format is OutputFormat.TABLE
        return choose_columns(columns, self.columns, sort=self.sort, is_wide=app.is_wide, is_terminal=is_terminal)


def takes_options(
    kind: type[Any],
    parameter: str,
    *,
    without: Collection[str] = (),
    table: tuple[str, Mapping[str, Any]] | None = None,
    **attributes: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that the fields of a dataclass declare. The command gets them as one value, in `parameter`.

    Fields in `without` keep their defaults. `attributes` apply to each option that does not declare its own, such as
    `hidden=True` or `group=OptionGroup.NODE`. A `table` names the field that has the values of further options.
    """
    declared = {each.name: each for each in fields(kind) if "option" in each.metadata and each.name not in without}
    field_of_table = table[0] if table else ""
    further = {name: each for name, each in (table[1] if table else {}).items() if name not in without}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **values: Any) -> Any:  # click's
            own = {name: values.pop(name) for name in declared}
            if field_of_table:
                own[field_of_table] = {name: values.pop(name) for name in further}
            return function(*arguments, **values, **{parameter: kind(**own)})

        for name, each in reversed([*declared.items(), *further.items()]):
            names, own = each.metadata["option"]
            call = grouped_option(*names, name, default=each.default, **{**attributes, **own})(call)
        return call

    return decorate


def fanout_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--fanout`. `what` names in the plural what runs at once on all workers after its ssh handshake."""
    return grouped_option(
        "--fanout",
        group=OptionGroup.WORKERS,
        type=click.IntRange(min=1),
        metavar="N",
        default=64,
        show_default=True,
        help=f"Limit of simultaneous ssh handshakes; {what} themselves all run at once.",
    )


def no_wait_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--no-wait`, also under gcloud's name `--async`. The command gets `wait`."""

    @wraps(function)
    def call(*arguments: Any, no_wait: bool, **values: Any) -> Any:  # click's
        return function(*arguments, wait=not no_wait, **values)

    return grouped_option(
        "--no-wait",
        "--async",
        "no_wait",
        group=OptionGroup.WAITING,
        is_flag=True,
        help="Return as soon as the API accepts the request.",
    )(call)


# Options of other tools, and what to use in tpuctl, or why there is no such option.
FOREIGN_OPTIONS = {
    "--format": "`-o json`, `-o yaml` or `-o name`",
    "--json": "`-o json`",
    "--filter": "`-o json` and jq",
    "--limit": "`head`",
    "--sort-by": "`--sort`",
    "--no-headers": "`--no-header`",
    "--no-pager": "`PAGER=cat` before the command",
    "--force": "`--yes`",
    "--yes": "not needed: this command never asks",
    "--quiet-confirm": "`--yes`",
    "--region": "`--zone`",
    "--best-effort": "`--tier best-effort`",
    "--guaranteed": "`--reserved`",
    "--provisioning-model": "`--tier`, for RESERVATION_BOUND `--calendar`",
    "--valid-until-time": "`--queue-for`, a duration from now",
    "--node-id": "the node's name as an argument",
    "--node-count": "several names as arguments: each gets its own queued resource",
    "--node-prefix": "several names as arguments: each gets its own queued resource",
    "--all-zones": "not needed: all zones are searched unless `--zone` is given",
    "--tpu": "the node's name as an argument",
    "--name": "the node's name as an argument",
    "--tpu-name": "the node's name as an argument",
    "--accelerator": "`--type`",
    "--runtime": "`--version`",
    "--image": "`--version`",
    "--verbosity": "`-v`",
    "--ssh-key-file": "`--ssh-key`",
    "--force-key-file-overwrite": "`tpuctl ssh-key renew`",
    "--output-directory": "`tpuctl run --log-dir`",
    "--strict-host-key-checking": "not needed: host keys are always checked",
    "--batch-size": "`--fanout`",
    "--volume": "`--mount`",
    "--compress": "`Compression yes` in `~/.ssh/config`",
    # Of earlier versions.
    "--zone-order": "not needed: a list of zones is tried in its order, and `any` by rank",
    **{
        f"--{name.replace('_', '-')}": f"`TPUCTL_{name.upper()}`, or the setting `{name}`"
        for name in (
            *("unhealthy_after", "unanswered_after", "devices_after", "starting_after", "restarting_after"),
            *("repairing_after", "provisioning_after", "recheck_after", "per_worker"),
        )
    },
}


# What people type for a value of ours.
_FOREIGN_VALUES = {"absent": "gone", "deleted": "gone", "removed": "gone", "running": "ready", "up": "ready"}
# A shorter beginning fits too many words, and words of four letters are similar that mean different things.
_LEAST_OF_A_WORD = 3
_SIMILARITY = 0.7


def suggest_word(word: str, known: Collection[str]) -> str | None:
    """Return the known word that was probably meant: one that goes on like the typed one, else one that is similar.

    The first letter is the same: `top` is not `stop`, and `own` is not `down`.
    """
    if (meant := _FOREIGN_VALUES.get(word)) in known:
        return meant
    dashes = len(word) - len(word.lstrip("-"))
    # The beginning of an option says less: `--all` is not `--all-nodes`.
    begun = [one for one in known if not dashes and len(word) >= _LEAST_OF_A_WORD and one.startswith(word)]
    similar = [one for one in known if one[: dashes + 1] == word[: dashes + 1]]
    return min(begun, key=len, default=None) or closest_match(word, similar, similarity=_SIMILARITY)


# What selects nodes, as a filter of gcloud does.
_SELECTING = {
    "--selector": "`-l KEY=VALUE`",
    "--state": "`--state READY`",
    "--older-than": "`--older-than 2d`",
    "--mine": "`--mine`",
}


@contextmanager
def suggesting_options(command: click.Command, ctx: click.Context) -> Iterator[None]:
    """Replace click's error for an unknown option by one that suggests ours. Other usage errors get the context."""
    try:
        yield
    except click.NoSuchOption as error:
        name = error.option_name.split("=")[0]
        params = command.get_params(ctx)
        known = [option for param in params for option in (*param.opts, *param.secondary_opts) if option[:2] == "--"]
        near = name if name in FOREIGN_OPTIONS else suggest_word(name, known) or suggest_word(name, FOREIGN_OPTIONS)
        if near and FOREIGN_OPTIONS.get(near) == "`--yes`" and "--yes" not in known:
            near = "--yes"
        if near == "--yes" and isinstance(command, click.Group):
            hint = "put `--yes` after the command"
        elif near in FOREIGN_OPTIONS and near not in known:
            ours = FOREIGN_OPTIONS[near]
            if near == "--name" and any("[JOB]" in (param.metavar or "") for param in params):
                ours = "the job's name as the last argument, after the node's"
            if near == "--filter" and "--selector" in known:
                ours = ", ".join(text for flag, text in _SELECTING.items() if flag in known)
            hint = f"use {ours}" if ours.startswith("`") else ours
        else:
            hint = f"did you mean `{near}`?" if near else f"see `{ctx.command_path} --help`"
        raise UnknownWordError(f"`{ctx.command_path}` has no option `{name}`", hint=hint, ctx=ctx) from None
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


# Options whose empty value has a meaning: no description, an empty list.
_MAY_BE_EMPTY = frozenset(
    {"description", "prefix", "labels", "tags", "metadata", "metadata_from_file", "skip_checks", "topic"}
    | {"remove_labels", "remove_tags", "remove_metadata"}
)


def check_parameter_text(command: click.Command, ctx: click.Context) -> None:
    """Raise `click.BadParameter` for an empty value (an unset variable), for bytes that are not UTF-8, and for NUL.

    Parameters of the type `click.UNPROCESSED` may be any bytes: names of local files, words of remote commands.
    """
    for param in command.get_params(ctx):
        value = ctx.params.get(param.name or "")
        if param.type is click.UNPROCESSED or value is None:
            continue
        for text in value if isinstance(value, tuple) else (value,):
            if not isinstance(text, str):
                continue
            is_option = isinstance(param, click.Option) and param.name not in _MAY_BE_EMPTY
            if not text and is_option and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
                raise click.BadParameter("`` is empty", ctx=ctx, param=param)
            if escape_undecodable(text) != text:
                raise click.BadParameter(f"`{escape_undecodable(text)}` is not UTF-8 text", ctx=ctx, param=param)


class CommandGroup(click.Group):
    """A group that lists its commands in the order in which they were added, and suggests the one that was meant."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's own signature
        """Return the commands, in the order in which they were added."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and suggest our option for an unknown one."""
        with suggesting_options(self, ctx):
            left = super().parse_args(ctx, args)
            check_parameter_text(self, ctx)
            return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and where the options of every command are."""
        self.format_commands(ctx, formatter)
        write_own_options(self.get_params(ctx), ctx, formatter)
        write_shared_line(formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises `UnknownWordError` with the command that was probably meant."""
        word = args[0]
        if ctx.resilient_parsing or word.startswith("-") or self.get_command(ctx, word) is not None:
            name, command, rest = super().resolve_command(ctx, args)
            # Messages use the full name of a command, also for an alias such as `ls`.
            return (command.name if command else name), command, rest
        suggestion = self.suggest(ctx, args)
        hint = f"did you mean `{ctx.command_path} {suggestion}`?" if suggestion else f"see `{ctx.command_path} --help`"
        raise UnknownWordError(f"there is no command `{ctx.command_path} {word}`", hint=hint, ctx=ctx)

    def suggest(self, ctx: click.Context, words: Sequence[str]) -> str | None:
        """Return the command that was probably meant by the words of a command line, None if no name is similar."""
        return suggest_word(words[0], self.list_commands(ctx))


class LazyGroup(CommandGroup):
    """A group that imports each command when it is called, and knows the words of other tools.

    `table` has for each name the module that defines `command`, and the line for `--help`; `sections` the names of each title.
    """

    def __init__(
        self,
        commands: Mapping[str, tuple[str, str]],
        *args: Any,  # click's own signature
        sections: Mapping[str, Collection[str]] | None = None,
        aliases: Mapping[str, str] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        **kwargs: Any,  # click's own signature
    ) -> None:
        super().__init__(*args, **kwargs)
        self.table, self._aliases, self._elsewhere = commands, aliases or {}, elsewhere or {}
        self.sections = sections or {"Commands": commands}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's own signature
        """Return the commands, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        """Import and return a command, by its name or an alias; None if there is no such command."""
        entry = self.table.get(self._aliases.get(cmd_name, cmd_name))
        if entry is None:
            return None
        place = entry[0]
        command = load(place if ":" in place else f"{place}:command")
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry[0]} is not a command")
        return command

    def suggest(self, ctx: click.Context, words: Sequence[str]) -> str | None:  # noqa: ARG002  # as above
        """Return the command that was probably meant by words of another tool, or a mistyped one."""
        known = [*self.table, *self._aliases]
        meant = [*dropwhile(_GCLOUD_GROUPS.__contains__, words)] if self._elsewhere else [*words]
        if not meant:
            return "--help"
        if len(meant) < len(words) and meant[0] in known:
            return meant[0]
        return (
            self._elsewhere.get(" ".join(meant[:2])) or self._elsewhere.get(meant[0]) or suggest_word(meant[0], known)
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing it, or an option."""
        names = [(name, text) for name, (_, text) in self.table.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(completion_item(name, help=text) for name, text in names), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as above
        """Write the table of commands, section by section, without importing them."""
        width = max(map(len, self.table))
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", self.table[name][1]) for name in names])


# What stands before a command of gcloud.
_GCLOUD_GROUPS = frozenset({"gcloud", "alpha", "beta", "compute", "tpus", "tpu-vm"})
# The beginning of click's message that repeats the extra arguments.
_UNEXPECTED_ARGUMENT = re.compile(r"Got unexpected extra argument")


class CommandLineError(InvalidInputError):
    """The command line could not be parsed; nothing was done."""

    kind = "usage"


class UnknownWordError(click.UsageError):
    """An unknown command or option, perhaps of another tool. `hint` names ours."""

    def __init__(self, message: str, *, hint: str, ctx: click.Context) -> None:
        super().__init__(message, ctx)
        self.hint = hint


def show_usage_error(error: click.ClickException, terminal: Terminal, *, form: OutputFormat) -> None:
    """Print what is wrong with the command line. A group that was called without a command prints its help."""
    # Newer versions of click raise this, older ones print the help and exit with 0.
    if type(error).__name__ == "NoArgsIsHelpError":
        terminal.help(error.format_message())
        return
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "tpuctl"
    hint = f"see `{path} --help`"
    match error:
        case UnknownWordError():
            message, hint = error.message, error.hint
        case click.MissingParameter() if error.param is not None:
            is_argument = isinstance(error.param, click.Argument)
            name = error.param.make_metavar(error.ctx) if is_argument and error.ctx else error.param.opts[-1]
            message = f"`{path}` needs {name}"
        case click.BadParameter():
            message = _restyled(error.format_message())
            if error.param is not None and isinstance(error.param.type, click.Choice):
                wrong = re.match(r"'([^']*)'", error.message)
                if choice := suggest_word(wrong[1], [*map(str, error.param.type.choices)]) if wrong else None:
                    hint = f"did you mean `{choice}`?"
        case click.UsageError() if (
            _UNEXPECTED_ARGUMENT.match(error.message)
            and error.ctx is not None
            and any(error.ctx.params.get(name) for name in ("metadata", "env"))
        ):
            message = "too many arguments; they are not shown, because they may be part of a secret value"
            hint = "quote a value of `--metadata` or `--env` that contains spaces"
        case _:
            message = _restyled(error.format_message())
    terminal.error(CommandLineError(message, hint=hint), form=form)


def _restyled(message: str) -> str:
    """Return click's message in our style: lower case, backticks, no full stop."""
    text = re.sub(r"'([^']*)'", r"`\1`", message).rstrip(".")
    return text[:1].lower() + text[1:]
