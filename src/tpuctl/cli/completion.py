"""`tpuctl completion`: print a shell's completion script, write it where the shell looks for it, or remove it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import CLOUD_OPTIONS, UnknownWordError, cli_command, yes_option
from tpuctl.cli.completion_places import SHELLS, completion_place, completion_script, detect_shell
from tpuctl.errors import ExitCode, InvalidInputError, TpuctlError, worst_exit_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App


@cli_command("completion", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@click.argument("shell", metavar="[SHELL]", required=False, type=click.Choice(SHELLS))
@grouped_option("--install", is_flag=True, help="Write the script where the shell looks for it. [default: your shell]")
@grouped_option("--uninstall", is_flag=True, help="Remove what --install wrote. [default: for all shells]")
@yes_option
def command(app: App, *, shell: str | None, install: bool, uninstall: bool, yes: bool) -> int:
    """Complete commands, options and values in bash (4.4 or newer), zsh and fish: SHELL is one of them.

    Without --install print the script. The Tab key never sends a request: it offers the nodes, jobs and labels that tpuctl
    has seen on this machine. If zsh, or bash without the package bash-completion, must load the script in its startup file,
    --install asks before it adds the lines, or prints them.

    \b
    Examples:
      tpuctl completion --install
      tpuctl completion --install zsh --yes
      tpuctl completion --uninstall
      tpuctl completion fish > ~/.config/fish/completions/tpuctl.fish
    """
    from tpuctl.cli.completion_install import install_completion  # noqa: PLC0415  # not needed to print

    environ = app.invocation.environ
    if install and uninstall:
        raise InvalidInputError("`--install` and `--uninstall` exclude each other", hint="leave one of them out")
    if install:
        install_completion(app.terminal, completion_place(shell or detect_shell(environ), environ), yes=yes)
    elif uninstall:
        return _remove(app, [shell] if shell else SHELLS)
    elif shell is None:
        context = click.get_current_context()
        raise UnknownWordError(
            "`tpuctl completion` needs a shell", hint="install for yours: `tpuctl completion --install`", ctx=context
        )
    else:
        app.terminal.document(completion_script(shell))
    return ExitCode.OK


def _remove(app: App, shells: Sequence[str]) -> int:
    """Remove the completion of shells, also after an error; return the exit code.

    A file of the user's own is an error only if its shell was named.
    """
    from tpuctl.cli.completion_install import ForeignScriptError, remove_completion  # noqa: PLC0415  # not needed to print

    codes: list[ExitCode] = []
    is_removed = False
    for shell in shells:
        try:
            is_removed |= remove_completion(app.terminal, completion_place(shell, app.invocation.environ))
        except TpuctlError as error:
            if isinstance(error, ForeignScriptError) and len(shells) > 1:
                app.terminal.warn(f"{error}: it stays")
                continue
            app.show_error(error)
            codes.append(error.exit_code)
    if not codes and not is_removed:
        app.terminal.note("no completion is installed")
    return worst_exit_code(codes)
