"""Where each shell looks for completion scripts, and the scripts."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

SHELLS: Final = ("bash", "zsh", "fish")
# The package bash-completion loads scripts on demand; bash alone does not.
BASH_COMPLETION: Final = tuple(
    Path(prefix, "share/bash-completion/bash_completion")
    for prefix in ("/usr", "/usr/local", "/opt/homebrew", "/opt/local", "/run/current-system/sw")
)
# What an interactive bash reads: Debian, Fedora and macOS; Fedora's reads `profile.d` too.
BASH_STARTUP: Final = (Path("/etc/bash.bashrc"), Path("/etc/bashrc"))
_BASH_PROFILE: Final = Path("/etc/profile.d/bash_completion.sh")


@dataclass(frozen=True, slots=True)
class CompletionPlace:
    """The path of a shell's completion script, and the lines that load it from a startup file; none if the shell finds it."""

    shell: str
    path: Path
    startup_file: Path
    home: Path
    lines: tuple[str, ...] = ()


def completion_script(shell: str) -> str:
    """Return the completion script of a shell."""
    return (Path(__file__).parents[1] / "data" / "completion" / shell).read_text("utf-8")


def detect_shell(environ: Mapping[str, str]) -> str:
    """Return the login shell, else the shell that started this process. Raises `InvalidInputError` for another one."""
    names = [Path(environ.get("SHELL", "")).name]
    with suppress(OSError):  # macOS, where SHELL is always set
        names.append(Path("/proc", str(os.getppid()), "comm").read_text("utf-8", "replace").strip())
    for name in names:
        if name in SHELLS:
            return name
    shown = f"`SHELL` is `{environ['SHELL']}`" if environ.get("SHELL") else "`SHELL` is not set"
    raise InvalidInputError(
        f"your shell is unknown: {shown}", hint=f"name one of {', '.join(SHELLS)}: `tpuctl completion --install bash`"
    )


def completion_place(
    shell: str,
    environ: Mapping[str, str],
    *,
    bash_completion: tuple[Path, ...] = BASH_COMPLETION,
    bash_startup: tuple[Path, ...] = BASH_STARTUP,
) -> CompletionPlace:
    """Return where a shell's completion script belongs. Raises `InvalidInputError` if no home directory is known."""
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        raise InvalidInputError(
            "HOME is not an absolute path" if home else "HOME is not set", hint="set HOME to your home directory"
        )
    data = _base_folder(environ, "XDG_DATA_HOME", Path(home, ".local/share"))
    match shell:
        case "bash":
            folder = _base_folder(environ, "BASH_COMPLETION_USER_DIR", data / "bash-completion")
            path = folder / "completions" / "tpuctl"
            script = shlex.quote(str(path))
            startup = (Path(home, ".bashrc"), Path(home, ".bash_profile"), *bash_startup)
            is_found = any(file.exists() for file in bash_completion) and any(map(_loads_bash_completion, startup))
            # Harmless if bash-completion loads it, too.
            loading = () if is_found else (f"[ -r {script} ] && . {script}",)
            return CompletionPlace(shell, path, Path(home, ".bashrc"), Path(home), loading)
        case "zsh":
            folder = data / "zsh/site-functions"
            startup_file = _base_folder(environ, "ZDOTDIR", Path(home)) / ".zshrc"
            if str(folder) in environ.get("FPATH", "").split(":"):
                return CompletionPlace(shell, folder / "_tpuctl", startup_file, Path(home))
            # They work before and after other lines that call compinit.
            script = shlex.quote(str(folder / "_tpuctl"))
            lines = (
                f"fpath=({shlex.quote(str(folder))} $fpath)",
                "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }",
                f"[[ -r {script} ]] && autoload -Uz _tpuctl && compdef _tpuctl tpuctl",
            )
            return CompletionPlace(shell, folder / "_tpuctl", startup_file, Path(home), lines)
        case _:
            folder = _base_folder(environ, "XDG_CONFIG_HOME", Path(home, ".config")) / "fish"
            return CompletionPlace(shell, folder / "completions" / "tpuctl.fish", folder / "config.fish", Path(home))


def _loads_bash_completion(startup_file: Path) -> bool:
    """Return whether a line that is no comment names the package bash-completion: the package alone is not loaded."""
    with suppress(OSError):
        lines = [line.strip() for line in startup_file.read_text("utf-8", "replace").splitlines()]
        active = "\n".join(line for line in lines if not line.startswith("#"))
        return "bash_completion" in active or ("/etc/profile.d/" in active and _BASH_PROFILE.exists())
    return False


def _base_folder(environ: Mapping[str, str], variable: str, default: Path) -> Path:
    # The XDG specification says to ignore relative paths.
    named = environ.get(variable, "").split(":")[0]
    return Path(named) if named.startswith("/") else default
