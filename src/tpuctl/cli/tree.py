"""The command tree: which commands there are, and where. A command's file is imported when it is asked for."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tpuctl import __version__
from tpuctl.cli.usage import WrongWordError
from tpuctl.names import nearest, printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from click.shell_completion import CompletionItem

# title: {name: (module below tpuctl.cli, what `tpuctl --help` says)}
_SECTIONS = {
    "Nodes": {
        "up": ("up", "Bring nodes up, from whatever is there, and wait until they are usable."),
        "down": ("down", "End a node and its billing; fine if it is gone already."),
        "list": ("list_nodes", "List the nodes of all zones."),
        "status": ("status", "Show one node in full."),
        "check": ("check", "Check that a TPU and all it works with belong together, before money is spent."),
        "explain": ("explain", "Explain what is wrong in a log or a message, and what to do."),
        "wait": ("wait", "Wait until nodes are usable, stopped or gone."),
        "watch": ("watch", "Keep nodes usable: make preempted ones anew, repair broken ones."),
        "history": ("history", "Show what became of a node: its states, repairs and preemptions."),
        "reset": ("reset", "Make a node fresh without losing its disk."),
        "start": ("start", "Start stopped nodes."),
        "stop": ("stop", "Stop nodes, keeping their disks."),
        "create": ("create", "Create a node; fails if it exists."),
        "delete": ("delete", "Delete nodes; fails if they do not exist."),
        "update": ("update", "Change a node's labels, tags, metadata or description."),
    },
    "Workers": {
        "ssh": ("ssh", "Open a shell on a worker, or run a command on it."),
        "run": ("run", "Run a command on all workers at once."),
        "scp": ("scp", "Copy files to all workers of a node, or from them."),
        "sync": ("sync", "Bring the files of a working tree to every worker."),
        "env": ("env", "Print, for a shell, the variables that training scripts look for."),
        "unstick": ("unstick", "Show what holds the TPU on each worker, and end it."),
        "ssh-config": ("ssh_config", "Let plain ssh, rsync and editors reach workers."),
        "ssh-key": ("ssh_key", "Show the ssh key that workers let in, or make it anew."),
    },
    "Jobs on workers": {
        "jobs": ("jobs", "List the jobs of a node, and how they have ended."),
        "logs": ("logs", "Print what a job has printed on its workers."),
        "attach": ("attach", "Follow a job to its end."),
        "kill": ("kill", "Send a signal to a job's processes on all workers."),
    },
    "More": {
        "doctor": ("doctor", "Look for what is wrong on this machine, in the project, and with a node."),
        "bundle": ("bundle", "Collect the evidence for support in one file, without secrets."),
        "types": ("types", "List the accelerator types that zones offer."),
        "versions": ("versions", "List the runtime versions that a zone offers."),
        "config": ("config", "Show and change settings."),
        "trust": ("trust", "Show what the tpuctl.yaml of a project does, and trust it."),
        "sandbox": ("sandbox", "Try tpuctl without an account, a network or a bill."),
        "completion": ("completion", "Print the completion script of a shell."),
        "version": ("version", "Print the version."),
    },
}
_ALIASES = {"ls": "list", "rm": "delete", "describe": "status", "exec": "ssh"}
# Words of other tools, and ours for them.
_ELSEWHERE = {
    "pause": "stop",
    "resume": "start",
    "restart": "reset --mode restart",
    "reboot": "reset --mode reboot",
    "recreate": "reset --mode recreate",
    "show": "status",
    "get": "status",
    "destroy": "down",
    "remove": "delete",
    "launch": "up",
    "connect": "ssh",
    "accelerator-types": "types",
    "info": "status",
}
FOREIGN_OPTIONS = {
    "--format": "`-o json`, `-o yaml` or `-o name`",
    "--json": "`-o json`",
    "--filter": "`-o json` and jq",
    "--limit": "`head`",
    "--force": "`--yes`",
    "--yes": "nothing: this command asks nothing",
    "--quiet-confirm": "`--yes`",
    "--region": "`--zone`",
    "--all-zones": "nothing: all zones are looked at unless `--zone` is given",
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
    "--strict-host-key-checking": "nothing: host keys are always checked",
    "--compress": "`Compression yes` in `~/.ssh/config`",
}


@contextmanager
def named_options(command: click.Command, ctx: click.Context) -> Iterator[None]:
    """Say which option was probably meant, also where it is another tool's."""
    try:
        yield
    except click.NoSuchOption as error:
        name = error.option_name.split("=")[0]
        params = command.get_params(ctx)
        known = [option for param in params for option in (*param.opts, *param.secondary_opts) if option[:2] == "--"]
        near = name if name in FOREIGN_OPTIONS else nearest(name, known) or nearest(name, FOREIGN_OPTIONS)
        if near and FOREIGN_OPTIONS.get(near) == "`--yes`" and "--yes" not in known:
            near = "--yes"
        if near == "--yes" and isinstance(command, click.Group):
            hint = "put `--yes` after the command"
        elif near in FOREIGN_OPTIONS and near not in known:
            ours, colon, why = FOREIGN_OPTIONS[near].partition(": ")
            hint = f"tpuctl has {ours} for that{colon}{why}"
        else:
            hint = f"did you mean `{near}`?" if near else f"see `{ctx.command_path} --help`"
        raise WrongWordError(f"`{ctx.command_path}` has no option `{name}`", hint=hint, ctx=ctx) from None
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


# Options where an empty value says something: no description, an empty list.
_MAY_BE_EMPTY = frozenset(
    {"description", "prefix", "labels", "tags", "metadata", "metadata_from_file", "skip_checks", "topic"}
    | {"remove_labels", "remove_tags", "remove_metadata"}
)


def check_texts(command: click.Command, ctx: click.Context) -> None:
    """Refuse what no option or argument can mean: an empty value (an unset variable), bytes that are no UTF-8, NUL.

    Parameters of the type `click.UNPROCESSED` take bytes: names of local files, words of remote commands.
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
            if printable(text) != text:
                raise click.BadParameter(f"`{printable(text)}` is not UTF-8 text", ctx=ctx, param=param)


class Group(click.Group):
    """A group that lists its commands in the order in which they were added, and says which one was probably meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's own signature
        """Return the commands, in the order in which they were added."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and name our option where another was given."""
        with named_options(self, ctx):
            left = super().parse_args(ctx, args)
            check_texts(self, ctx)
            return left

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was probably meant."""
        word = args[0]
        if ctx.resilient_parsing or word.startswith("-") or self.get_command(ctx, word) is not None:
            name, command, rest = super().resolve_command(ctx, args)
            # A short name such as `ls` stands for the command; messages use the real one.
            return (command.name if command else name), command, rest
        ours = self.meant(ctx, word)
        hint = f"did you mean `{ctx.command_path} {ours}`?" if ours else f"see `{ctx.command_path} --help`"
        raise WrongWordError(f"there is no command `{ctx.command_path} {word}`", hint=hint, ctx=ctx)

    def meant(self, ctx: click.Context, word: str) -> str | None:
        """Return the command that a word was probably meant to be."""
        return nearest(word, self.list_commands(ctx))


class Tree(Group):
    """A group whose commands are imported one at a time, and which knows the words of other tools."""

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
        self._table, self._aliases, self._elsewhere = commands, aliases or {}, elsewhere or {}
        self._sections = sections or {"Commands": commands}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's own signature
        """Return the commands, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        """Import and return a command, by its name or an alias."""
        entry = self._table.get(self._aliases.get(cmd_name, cmd_name))
        if entry is None:
            return None
        command = import_module(f"tpuctl.cli.{entry[0]}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"tpuctl.cli.{entry[0]} has no command")
        return command

    def meant(self, ctx: click.Context, word: str) -> str | None:  # noqa: ARG002  # as above
        """Return the command that a word of another tool, or a mistyped one, was probably meant to be."""
        return self._elsewhere.get(word) or nearest(word, [*self._table, *self._aliases])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing it, or an option."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  # only for completion

        names = [(name, text) for name, (_, text) in self._table.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in names), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as above
        """Write the table of commands, section by section, without importing them."""
        width = max(map(len, self._table))
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", self._table[name][1]) for name in names])


def root() -> Tree:
    """Return the whole tree."""
    from tpuctl.cli.options import GLOBAL_OPTIONS, take_globals  # noqa: PLC0415  # it imports this module

    @click.pass_context
    def callback(ctx: click.Context, /, **options: Any) -> None:  # click's own signature
        take_globals(ctx, options)

    tree = Tree(
        {name: entry for commands in _SECTIONS.values() for name, entry in commands.items()},
        name="tpuctl",
        sections=_SECTIONS,
        aliases=_ALIASES,
        elsewhere=_ELSEWHERE,
        help=_HELP,
        epilog="Exit codes: 0 done, 2 usage, 3 not found, 4 not allowed, 5 timed out, 6 no capacity, 7 quota, 8 conflict, "
        "9 check failed, 10 broken, 11 remote command failed.",
        params=[option() for option in GLOBAL_OPTIONS],
        callback=callback,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    return click.version_option(__version__, "-V", "--version", message="tpuctl %(version)s")(tree)


_HELP = """Bring a Google Cloud TPU from nothing to usable, and keep it there.

\b
  tpuctl up trainer --type v4-32 --zone us-central2-b
  tpuctl run trainer -- nproc
  tpuctl down trainer

Try it without an account: `export TPUCTL_SANDBOX=1`. A NODE is a name, ZONE/NODE, or a full resource name.
"""
