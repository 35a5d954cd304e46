"""`tpuctl completion`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from tpuctl.app.options import CLOUD_OPTIONS, cli_command
from tpuctl.cli.program import COMPLETION_VARIABLE

if TYPE_CHECKING:
    from tpuctl.app.app import App


@cli_command("completion", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(app: App, *, shell: str) -> None:
    """Print a shell script that completes commands, options and node names.

    \b
    Examples:
      tpuctl completion bash > ~/.local/share/bash-completion/completions/tpuctl
      tpuctl completion zsh > ~/.zfunc/_tpuctl
      tpuctl completion fish > ~/.config/fish/completions/tpuctl.fish
    """
    completion = get_completion_class(shell)
    tree = click.get_current_context().find_root().command
    if completion is None:
        raise AssertionError(f"click knows no completion for {shell}")
    app.terminal.document(completion(tree, {}, "tpuctl", COMPLETION_VARIABLE).source().rstrip())
