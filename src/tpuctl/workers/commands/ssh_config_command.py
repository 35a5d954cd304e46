"""`tpuctl ssh-config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, yes_option
from tpuctl.app.route_options import route_options
from tpuctl.app.ssh_options import entries_file
from tpuctl.app.value_completion import complete_node
from tpuctl.errors import InvalidInputError
from tpuctl.files import expand_user_path, output_path

if TYPE_CHECKING:
    from tpuctl.app.app import App


@cli_command("ssh-config")
@click.argument("nodes", metavar="[NODE...]", nargs=-1, shell_complete=complete_node)
@grouped_option(
    "--all",
    "all_nodes",
    group=OptionGroup.SELECTION,
    is_flag=True,
    help="Write entries for all nodes of the project, or of --zone, that ssh can reach.",
)
@grouped_option(
    "--prefix",
    group=OptionGroup.FILES,
    default=None,
    metavar="PREFIX",
    help="Text before the host names, such as tpu-. [default: none]",
)
@grouped_option(
    "--remove",
    group=OptionGroup.FILES,
    is_flag=True,
    help="Remove the entries of the nodes; with --all those of all nodes.",
)
@grouped_option(
    "--print", "prints", group=OptionGroup.FILES, is_flag=True, help="Print the entries instead of writing them."
)
@grouped_option(
    "--file",
    group=OptionGroup.FILES,
    metavar="FILE",
    default=None,
    help="File to write, for `ssh -F FILE`. [default: ~/.ssh/tpuctl_config]",
)
@route_options
@yes_option
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    all_nodes: bool,
    prefix: str | None,
    remove: bool,
    prints: bool,
    file: str | None,
    yes: bool,
) -> None:
    """Write ssh host entries for workers, for plain ssh, rsync and editors: NODE and NODE-0 are worker 0, NODE-3 is worker 3.

    The entries are in ~/.ssh/tpuctl_config. ~/.ssh/config includes that file with one line at its top, which is added when you
    agree. `up` refreshes the entries, `down` and `delete` remove them. Without a node: show the existing entries.

    \b
    Examples:
      tpuctl ssh-config trainer && ssh trainer-3 hostname
      tpuctl ssh-config --all --prefix tpu-
      tpuctl ssh-config trainer --print >> my_config
      tpuctl ssh-config trainer --file ./hosts && rsync -e 'ssh -F hosts' -a data trainer:
    """
    if nodes and all_nodes:
        raise InvalidInputError("cannot combine node names with `--all`", hint="use one of them")
    if not nodes and not all_nodes and (remove or prints):
        raise InvalidInputError("no node is named", hint="name the nodes, or use `--all`")

    from tpuctl.ssh.ssh_config import check_prefix, read_ssh_config  # noqa: PLC0415  # as above
    from tpuctl.workers.commands.ssh_config_writing import (  # noqa: PLC0415  # not needed by --help
        new_entries,
        offer_include,
        remove_entries,
        show_entries,
        without_known_hosts,
        write_entries,
    )

    path = entries_file(app)
    # The user's own file may be a link.
    if file is not None and app.invocation.folder / expand_user_path(Path(file)) != path:
        path = output_path(Path(file), app.invocation.folder)
    if not nodes and not all_nodes:
        show_entries(app, read_ssh_config(path).entries)
        return
    if remove:
        remove_entries(app, path, nodes)
        return
    old = () if prints else read_ssh_config(path).entries
    entries = new_entries(app, nodes, prefix=None if prefix is None else check_prefix(prefix), old=old)
    if all_nodes:
        entries = without_known_hosts(app, path, entries)
    if prints:
        for entry in entries:
            app.terminal.document(entry.text())
        return
    write_entries(app, path, entries)
    if file is None:
        offer_include(app, path, yes=yes)
    show_entries(app, entries)
