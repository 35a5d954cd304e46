"""Options that commands share, and the decorator that hands a command its `App`."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.places import check_state_folder
from tpuctl.cli.tree import check_texts, named_options
from tpuctl.clock import PATIENCE, SystemClock, limit_calls, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tpuctl.cli.app import App

FORMATS = ("table", "json", "yaml", "name")


class Duration(click.ParamType[timedelta | str]):
    """A duration: 90s, 30m, 2h; or the word `forever`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | str:
        """Return the duration, or `forever` as it is."""
        if not isinstance(value, str) or value == "forever":
            return value  # type: ignore[no-any-return]  # converted before, or the word
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Command(click.Command):
    """A command that knows the options of other tools.

    With `takes_command` what follows `--` is no argument but a remote command: the parameter `remote_command`.
    """

    takes_command = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and name our option where another tool's was given."""
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
        """Write the command's own options, then those that every command takes."""
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


# The group and each command take these, so that they may stand before or after the command's name.
GLOBAL_OPTIONS: tuple[Callable[[], click.Option], ...] = (
    partial(click.Option, ["--project"], metavar="ID", help="Project that owns the nodes."),
    partial(
        click.Option, ["--zone"], metavar="ZONE", multiple=True, help="Zone; list and types take several: --zone a,b."
    ),
    partial(click.Option, ["--sandbox/--no-sandbox"], default=None, help="Use the local sandbox instead of the cloud."),
    partial(click.Option, ["--endpoint"], metavar="URL", help="Another origin that serves the API."),
    partial(
        click.Option,
        ["--impersonate-service-account"],
        metavar="EMAIL",
        help="Make all calls as this service account.",
    ),
    partial(click.Option, ["--quota-project"], metavar="ID", help="Project whose API quota is used.", hidden=True),
    partial(click.Option, ["--journal"], metavar="URL", help="Place of the journal, like gs://bucket/prefix."),
    partial(click.Option, ["--lease"], metavar="URL", help="Place where machines note who may change a node."),
    partial(click.Option, ["--user"], metavar="LOGIN", help="Login name on the workers."),
    partial(click.Option, ["--ssh-key"], metavar="FILE", help="Private key for ssh."),
    partial(
        click.Option,
        ["--ssh-key-expire-after"],
        metavar="TIME",
        help="How long our ssh key counts where it is put, like 8h.",
        hidden=True,
    ),
    partial(
        click.Option,
        ["--trust-project-file"],
        is_flag=True,
        default=None,
        help="Use tpuctl.yaml in full, trusted or not.",
    ),
    partial(click.Option, ["--output", "-o"], type=click.Choice(FORMATS), help="Format of what is shown."),
    partial(click.Option, ["--quiet", "-q"], is_flag=True, default=None, help="Say nothing but results and errors."),
    partial(
        click.Option,
        ["--show-metadata"],
        is_flag=True,
        default=None,
        help="Show values of metadata: scripts, keys, perhaps secrets.",
    ),
    partial(click.Option, ["--verbose", "-v"], is_flag=True, default=None, help="Show each request on stderr."),
)
_GLOBAL_NAMES = tuple(option().name for option in GLOBAL_OPTIONS)
# Those that mean nothing to a command that makes no calls.
OF_THE_CLOUD = (
    "project", "zone", "user", "ssh_key", "ssh_key_expire_after", "endpoint", "impersonate_service_account", "quota_project",
    "sandbox", "journal", "lease", "trust_project_file",
)  # fmt: skip


def take_globals(ctx: click.Context, options: dict[str, Any], *, without: Collection[str] = ()) -> App:
    """Hand the shared options to the app, and take them out of the command's own; `without` are not shared there."""
    from tpuctl.cli.app import App  # noqa: PLC0415  # not needed by --help

    app = ctx.find_object(App)
    if app is None:
        raise AssertionError("main puts the app into the context")
    app.take({name: options.pop(name, None) for name in _GLOBAL_NAMES if name and name not in without})
    return app


def cli_command(name: str, **attributes: Any) -> Callable[[Callable[..., int | None]], Command]:  # click's
    """Make a command of a function whose first parameter is the `App`, with the shared options last.

    What the function returns, if anything, is the exit code. With `takes_command` it also gets `remote_command`: the words
    after `--`. Unless `asks_trust` is False, the command begins once the project file is trusted, where that takes trust: leave
    it out only of what makes no call and uses no setting that a project file may give, or asks by `App.require_trust` itself.
    With `is_short` all its calls to the cloud end within a minute.
    """
    patience = PATIENCE if attributes.pop("is_short", False) else None
    skipped = attributes.pop("without", ())
    takes_command = attributes.pop("takes_command", False)
    asks_trust = attributes.pop("asks_trust", True)

    def decorate(function: Callable[..., int | None]) -> Command:
        def callback(**options: Any) -> int | None:  # click's own signature
            app = take_globals(click.get_current_context(), options, without=skipped)
            if name != "doctor":  # which reports it as a finding
                check_state_folder(app.invocation.environ)
            app.take_replaced(options)
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
    """Complete a node's name from the journal of past commands; no request is made."""
    from tpuctl.cli.places import journal_folders  # noqa: PLC0415  # only for completion
    from tpuctl.journal import Journal  # noqa: PLC0415  # as above

    found = {name.node_id for folder in journal_folders(os.environ) for name in Journal(folder).names()}
    # A name with a line end would be two suggestions.
    return sorted(name for name in found if name.startswith(incomplete) and name.isprintable())


node_argument = click.argument("node", metavar="NODE", shell_complete=complete_node)
nodes_argument = click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
worker_option = click.option(
    "--worker", metavar="SET", default="all", show_default=True, help="Workers: all, 0, 1,3-5."
)
selector_option = click.option(
    "-l", "--selector", metavar="KEY=VALUE", multiple=True, help="The nodes that have this label; may be repeated."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print steps, requests and gcloud commands; change nothing."
)
timeout_option = click.option(
    "--timeout", type=Duration(), metavar="TIME", help="Deadline such as 90s, 30m, 2h, forever. [default: 30m]"
)
events_option = click.option(
    "--events", metavar="FILE", help="Write each event as a JSON line to FILE, or - for stdout."
)
steal_option = click.option("--steal", is_flag=True, help="Take the node over from whoever looks after it.")
anyway_option = click.option(
    "--anyway", is_flag=True, help="Send the request although tpuctl expects the service to refuse it."
)


def fanout_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what adds `--fanout`, where what is begun all goes on at once."""
    return click.option(
        "--fanout",
        type=click.IntRange(min=1),
        metavar="N",
        default=64,
        show_default=True,
        help=f"Handshakes at once; {what} all run at once.",
    )


def selecting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `NODE...`, `--all` and `-l`, of which one is to be given."""
    function = selector_option(function)
    function = click.option("--all", "all_nodes", is_flag=True, help="All nodes of the project, or of --zone.")(
        function
    )
    return click.argument("nodes", metavar="[NODE...]", nargs=-1, shell_complete=complete_node)(function)


def no_wait_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--no-wait`, under gcloud's name too."""
    return click.option("--no-wait", "--async", "no_wait", is_flag=True, help="Return once the request is accepted.")(
        function
    )
