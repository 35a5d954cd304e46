"""Options that several commands share, and the decorator that passes a command its `App`."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.groups import check_texts, named_options
from tpuctl.cli.places import check_state_folder
from tpuctl.clock import PATIENCE, SystemClock, limit_calls, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tpuctl.cli.app import App

FORMATS = ("table", "json", "yaml", "name")


class Duration(click.ParamType[timedelta | str]):
    """A duration such as 90s, 30m or 2h, or the word `forever`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | str:
        """Return the duration, or the word `forever`."""
        if not isinstance(value, str) or value == "forever":
            return value  # type: ignore[no-any-return]  # converted before, or the word
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Command(click.Command):
    """A command that suggests our option for one of another tool.

    With `takes_command` the words after `--` are a remote command: the parameter `remote_command`.
    """

    takes_command = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and suggest our option for one of another tool."""
        words: tuple[str, ...] = ()
        if self.takes_command and "--" in args:
            at = args.index("--")
            args, words = args[:at], tuple(args[at + 1 :])
        with named_options(self, ctx):
            left = super().parse_args(ctx, args)
            check_texts(self, ctx)
        if self.takes_command:
            ctx.params["remote_command"] = words
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then those that every command accepts."""
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                (shared if param.name in _GLOBAL_NAMES or "--help" in param.opts else own).append(record)
        for title, records in (("Options", own), ("Options of every command", shared)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class RenamedOption(click.Option):
    """An option that the parser also accepts under its old name. Help and completion show the new one only."""

    def __init__(self, *args: Any, old_name: str, **kwargs: Any) -> None:  # click's own signature
        super().__init__(*args, **kwargs)
        self.old_name = old_name

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # click's private parser
        """Add the option to the parser, under both names."""
        shown = self.opts
        self.opts = [*shown, self.old_name]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


# The group and each command accept these, so that they may be given before or after the command's name.
GLOBAL_OPTIONS: tuple[Callable[[], click.Option], ...] = (
    partial(click.Option, ["--project"], metavar="ID", help="Google Cloud project of the nodes."),
    partial(click.Option, ["--zone"], metavar="ZONE", multiple=True, help="Zone; list and types accept several (a,b)."),
    partial(click.Option, ["--sandbox/--no-sandbox"], default=None, help="Use the local sandbox instead of the cloud."),
    partial(click.Option, ["--endpoint"], metavar="URL", help="Base URL of another server of the TPU API."),
    partial(
        click.Option,
        ["--impersonate-service-account"],
        metavar="EMAIL",
        help="Service account to impersonate for all API calls.",
    ),
    partial(
        click.Option, ["--quota-project"], metavar="ID", help="Project whose API quota is used for calls.", hidden=True
    ),
    partial(click.Option, ["--journal"], metavar="URL", help="Where the journal is stored (gs://BUCKET/PREFIX)."),
    partial(click.Option, ["--lease"], metavar="URL", help="Where leases are stored (gs://BUCKET/PREFIX)."),
    partial(click.Option, ["--user"], metavar="LOGIN", help="Login name on the workers."),
    partial(click.Option, ["--ssh-key"], metavar="FILE", help="Private key for ssh."),
    partial(
        click.Option,
        ["--ssh-key-expire-after"],
        metavar="TIME",
        help="Lifetime of the ssh key in metadata or OS Login, such as 8h.",
        hidden=True,
    ),
    partial(
        click.Option,
        ["--trust-project-file"],
        is_flag=True,
        default=None,
        help="Use all keys of tpuctl.yaml without asking for trust.",
    ),
    partial(click.Option, ["--output", "-o"], type=click.Choice(FORMATS), help="Output format."),
    partial(click.Option, ["--quiet", "-q"], is_flag=True, default=None, help="Print only results and errors."),
    partial(
        click.Option,
        ["--show-metadata"],
        is_flag=True,
        default=None,
        help="Show metadata values, which may be secrets.",
    ),
    partial(click.Option, ["--verbose", "-v"], is_flag=True, default=None, help="Print each API request on stderr."),
)
_GLOBAL_NAMES = tuple(option().name for option in GLOBAL_OPTIONS)
# Those that have no meaning for a command that makes no API calls.
OF_THE_CLOUD = (
    "project", "zone", "user", "ssh_key", "ssh_key_expire_after", "endpoint", "impersonate_service_account", "quota_project",
    "sandbox", "journal", "lease", "trust_project_file",
)  # fmt: skip


def take_globals(ctx: click.Context, options: dict[str, Any], *, without: Collection[str] = ()) -> App:
    """Pass the shared options to the app, and remove them from the command's own; those in `without` are the command's own."""
    from tpuctl.cli.app import App  # noqa: PLC0415  # not needed by --help

    app = ctx.find_object(App)
    if app is None:
        raise AssertionError("main puts the app into the context")
    app.set_options({name: options.pop(name, None) for name in _GLOBAL_NAMES if name and name not in without})
    return app


def cli_command(name: str, **attributes: Any) -> Callable[[Callable[..., int | None]], Command]:  # click's
    """Make a command of a function whose first parameter is the `App`; add the shared options after its own.

    The function returns the exit code, or None for 0. With `takes_command` it also gets `remote_command`: the words after
    `--`. The command requires a trusted project file before it runs. Pass `asks_trust=False` only for a command that makes no
    API call and uses no setting of a project file, or that calls `App.require_trust` itself. With `is_short` all its calls to
    the cloud end within a minute.
    """
    patience = PATIENCE if attributes.pop("is_short", False) else None
    skipped = attributes.pop("without", ())
    takes_command = attributes.pop("takes_command", False)
    asks_trust = attributes.pop("asks_trust", True)

    def decorate(function: Callable[..., int | None]) -> Command:
        def callback(**options: Any) -> int | None:  # click's own signature
            app = take_globals(click.get_current_context(), options, without=skipped)
            if name != "doctor":  # it reports this as a finding
                check_state_folder(app.invocation.environ)
            app.note_overrides(options)
            if asks_trust:
                app.require_trust()
            with limit_calls(SystemClock(), patience):
                return function(app, **options)

        update_wrapper(callback, function)
        made = click.command(name, cls=Command, **attributes)(callback)
        made.takes_command = takes_command
        made.params += [option() for option in GLOBAL_OPTIONS if option().name not in skipped]
        return made

    return decorate


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # click's own signature
    """Complete a node's name from the journals of past commands, without a request."""
    from tpuctl.cli.places import journal_folders  # noqa: PLC0415  # only for completion
    from tpuctl.journal import Journal  # noqa: PLC0415  # as above

    found = {name.node_id for folder in journal_folders(os.environ) for name in Journal(folder).names()}
    # A name with a newline would become two suggestions.
    return sorted(name for name in found if name.startswith(incomplete) and name.isprintable())


node_argument = click.argument("node", metavar="NODE", shell_complete=complete_node)
nodes_argument = click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
worker_option = click.option(
    "--worker", metavar="SET", default="all", show_default=True, help="Worker indices, such as 0 or 1,3-5; or all."
)
selector_option = click.option(
    "-l", "--selector", metavar="KEY=VALUE", multiple=True, help="Select nodes by label; may be repeated."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the steps, API requests and gcloud commands, and change nothing."
)
timeout_option = click.option(
    "--timeout",
    type=Duration(),
    metavar="TIME",
    help="Time limit of the command: 90s, 30m, 2h or forever. [default: 30m]",
)
events_option = click.option(
    "--events", metavar="FILE", help="File to append events to, one JSON object on each line; - for stdout."
)
steal_option = click.option(
    "--force-lease",
    cls=RenamedOption,
    old_name="--steal",
    is_flag=True,
    help="Take over a node that another run of tpuctl holds.",
)
anyway_option = click.option(
    "--skip-validation",
    cls=RenamedOption,
    old_name="--anyway",
    is_flag=True,
    help="Send the request even if tpuctl expects the API to reject it.",
)


def fanout_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--fanout`. `what` names in the plural what runs at once on all workers after its ssh handshake."""
    return click.option(
        "--fanout",
        type=click.IntRange(min=1),
        metavar="N",
        default=64,
        show_default=True,
        help=f"Limit of simultaneous ssh handshakes; {what} themselves all run at once.",
    )


def selecting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `NODE...`, `--all` and `-l`. The command checks that exactly one is given."""
    function = selector_option(function)
    function = click.option("--all", "all_nodes", is_flag=True, help="Select all nodes of the project, or of --zone.")(
        function
    )
    return click.argument("nodes", metavar="[NODE...]", nargs=-1, shell_complete=complete_node)(function)


def no_wait_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--no-wait`, also under gcloud's name `--async`."""
    return click.option(
        "--no-wait", "--async", "no_wait", is_flag=True, help="Return as soon as the API accepts the request."
    )(function)
