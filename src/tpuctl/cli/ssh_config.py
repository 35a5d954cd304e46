"""`tpuctl ssh-config`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import cli_command, complete_node, yes_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.cli.app import App


@cli_command("ssh-config")
@click.argument("nodes", metavar="[NODE...]", nargs=-1, shell_complete=complete_node)
@click.option("--all", "all_nodes", is_flag=True, help="All nodes of the project, or of --zone, that ssh can reach.")
@click.option("--prefix", default=None, metavar="PREFIX", help="Put this before the names of hosts.")
@click.option("--remove", is_flag=True, help="Remove the entries of these nodes; with --all all entries of this cloud.")
@click.option("--print", "prints", is_flag=True, help="Print the entries instead of writing them.")
@click.option("--file", metavar="FILE", default=None, help="Write to FILE, for `ssh -F FILE`.")
@reach_options
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
    """Let plain ssh, rsync and editors reach workers: NODE and NODE-0 are worker 0, NODE-3 is worker 3.

    Writes Host entries to ~/.ssh/tpuctl_config, which ~/.ssh/config includes by one line at its top; that line is added when
    you agree. `up` refreshes the entries, `down` and `delete` remove them. Without a node: shows the entries that there are.

    \b
    Examples:
      tpuctl ssh-config trainer && ssh trainer-3 hostname
      tpuctl ssh-config --all --prefix tpu-
      tpuctl ssh-config trainer --print >> my_config
      tpuctl ssh-config trainer --file ./hosts && rsync -e 'ssh -F hosts' -a data trainer:
    """
    if nodes and all_nodes:
        raise InvalidInputError("nodes are chosen in several ways", hint="name them, or use `--all`")
    if not nodes and not all_nodes and (remove or prints):
        raise InvalidInputError("which nodes?", hint="name them, or use `--all`")
    _act(
        app,
        nodes if nodes or all_nodes else None,
        _file(app, file),
        prefix=prefix,
        remove=remove,
        prints=prints,
        yes=yes,
    )


def _act(
    app: App,
    nodes: tuple[str, ...] | None,
    file: Path | None,
    *,
    prefix: str | None,
    remove: bool,
    prints: bool,
    yes: bool,
) -> None:
    """Do what was asked for; no name is every node, nothing is none."""
    from tpuctl.cli.ssh_entries import entries_file  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.ssh_writing import new_entries, offer_include, remove_entries, show, write  # noqa: PLC0415  # as above
    from tpuctl.remote.ssh_config import check_prefix, read  # noqa: PLC0415  # as above

    path = file or entries_file(app)
    if nodes is None:
        show(app, read(path).entries)
        return
    if remove:
        remove_entries(app, path, nodes)
        return
    old = () if prints else read(path).entries
    entries = new_entries(app, nodes, prefix=None if prefix is None else check_prefix(prefix), old=old)
    if prints:
        for entry in entries:
            app.terminal.document(entry.text())
        return
    write(app, path, entries)
    if file is None:
        offer_include(app, path, yes=yes)
    show(app, entries)


def _file(app: App, text: str | None) -> Path | None:
    from pathlib import Path  # noqa: PLC0415  # only with --file

    from tpuctl.userfile import expand  # noqa: PLC0415  # as above

    return None if text is None else app.invocation.folder / expand(Path(text))
