"""`tpuctl completion`: print the completion script of a shell, or add the line that loads it to the shell's startup file."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import CLOUD_OPTIONS, UnknownWordError, cli_command
from tpuctl.command_text import fill_text
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.files import folder_lock, real_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.app.app import App

# The line that loads the script of each shell, if tpuctl is there. fish reads its file only when it completes tpuctl.
_LINES: Final = {
    "bash": 'command -v tpuctl >/dev/null && eval "$(tpuctl completion bash)"',
    "zsh": '(( $+commands[tpuctl] )) && eval "$(tpuctl completion zsh)"',
    "fish": "command -q tpuctl; and tpuctl completion fish | source",
}


@cli_command("completion", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@click.argument("shell", metavar="[SHELL]", required=False, type=click.Choice([*_LINES]))
@grouped_option(
    "--install", is_flag=True, help="Add the line that loads it to your startup file. [default: your shell]"
)
def command(app: App, *, shell: str | None, install: bool) -> None:
    """Complete commands, options and values in bash (4.4 or newer), zsh and fish: SHELL is one of them.

    Without --install print the script. The Tab key never sends a request: it offers the nodes, jobs and labels that tpuctl
    has seen on this machine.

    \b
    Examples:
      tpuctl completion --install
      tpuctl completion --install zsh
      eval "$(tpuctl completion bash)"
    """
    environ = app.invocation.environ
    if install:
        shell = shell or _login_shell(environ)
        path = _startup_file(shell, environ)
        is_added = _add_line(path, _LINES[shell])
        app.terminal.write(str(path))
        done = "is installed: open a new shell to use it" if is_added else "is already installed"
        app.terminal.note(f"{shell} completion {done}")
    elif shell is None:
        context = click.get_current_context()
        raise UnknownWordError(
            "`tpuctl completion` needs a shell", hint="install for yours: `tpuctl completion --install`", ctx=context
        )
    else:
        script = Path(__file__).parents[1] / "data" / "completion" / shell
        app.terminal.document(script.read_text("utf-8"))


def _login_shell(environ: Mapping[str, str]) -> str:
    """Return the login shell, else the shell that started this process. Raises `InvalidInputError` for another one."""
    names = [Path(environ.get("SHELL", "")).name]
    with suppress(OSError):  # macOS, where SHELL is always set
        names.append(Path("/proc", str(os.getppid()), "comm").read_text("utf-8", "replace").strip())
    for name in names:
        if name in _LINES:
            return name
    shown = f"`SHELL` is `{environ['SHELL']}`" if environ.get("SHELL") else "`SHELL` is not set"
    raise InvalidInputError(
        f"your shell is unknown: {shown}", hint=f"name one of {', '.join(_LINES)}: `tpuctl completion --install bash`"
    )


def _startup_file(shell: str, environ: Mapping[str, str]) -> Path:
    """Return the file for the line. Raises `InvalidInputError` if no home directory is known."""
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        raise InvalidInputError(
            "HOME is not an absolute path" if home else "HOME is not set", hint="set HOME to your home directory"
        )
    match shell:
        case "bash":
            return Path(home, ".bashrc")
        case "zsh":
            return Path(environ.get("ZDOTDIR") or home, ".zshrc")
        case _:
            return Path(environ.get("XDG_CONFIG_HOME") or Path(home, ".config"), "fish", "completions", "tpuctl.fish")


def _add_line(path: Path, line: str) -> bool:
    """Add a line to the end of a file, unless it has it; return whether it was added. A symlink stays one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            hint = fill_text("see what is there: `ls -ld {path}`", {"path": path})
            raise InvalidInputError(f"{path} is not a file", hint=hint)
        with folder_lock(real_path(path).parent), path.open("a+b") as file:
            file.seek(0)
            content = file.read()
            if line.encode() in map(bytes.strip, content.splitlines()):
                return False
            is_cut = content and not content.endswith(b"\n")
            file.write((b"\n" if is_cut else b"") + line.encode() + b"\n")
            return True
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = f"add the line to the startup file of your shell: `{line}`"
        raise TpuctlError(f"cannot write {path}: {reason}", hint=hint) from error
