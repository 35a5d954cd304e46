"""Write a shell's completion script and the lines that load it; remove both. A file that tpuctl did not write stays."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tpuctl.cli.completion_places import completion_script
from tpuctl.command_text import command_word, fill_text
from tpuctl.errors import ConflictError, InvalidInputError, TpuctlError
from tpuctl.files import MIB, folder_lock, read_regular_file, real_path, replace_private_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tpuctl.cli.completion_places import CompletionPlace
    from tpuctl.output.terminal import Terminal

# The beginning of a line in the head of each script.
_MARK: Final = b"# tpuctl completion for "
_BLOCK_START: Final = "# >>> tpuctl completion >>>"
_BLOCK_END: Final = "# <<< tpuctl completion <<<"
_BLOCK: Final = re.compile(
    rb"^%b\n(?:(?!%b).*\n){0,9}?%b\n" % (_BLOCK_START.encode(), _BLOCK_START.encode(), _BLOCK_END.encode()),
    re.MULTILINE,
)
_OLDEST_BASH: Final = (4, 4)


class ForeignScriptError(ConflictError):
    """A file that tpuctl did not write is where its script would be."""


def install_completion(terminal: Terminal, place: CompletionPlace, *, yes: bool) -> None:
    """Write the script, and the lines that load it if the user agrees. Print the path of the script.

    Raises `ConflictError` if a file is there that is not tpuctl's, `InvalidInputError` for an old bash.
    """
    if place.shell == "bash":
        _check_bash()
    _check_owner(place.path)
    script = completion_script(place.shell).encode()
    is_current = _read_own_script(place.path) == script
    is_loaded = not place.lines or _loads(place, _read_startup_file(place.startup_file))
    if not is_current:
        with _failing_with("write", place.path):
            replace_private_file(place.path, script, mode=0o644)
    terminal.write(str(place.path))
    if is_loaded and is_current:
        terminal.note(f"{place.shell} completion is already up to date")
    elif is_loaded or _add_lines(terminal, place, yes=yes):
        terminal.note(f"{place.shell} completion is installed: open a new shell to use it")


def _add_lines(terminal: Terminal, place: CompletionPlace, *, yes: bool) -> bool:
    """Add the lines that load the script to the startup file, and return whether the user agreed."""
    block = _block(place)
    if not yes:
        terminal.note(f"{place.shell} must load it in {place.startup_file}:")
        for line in block.splitlines():
            terminal.note(f"  {line}")
        if not terminal.may_ask or not terminal.confirm("add these lines?", yes=False):
            terminal.warn(f"{place.shell} does not load it yet: add the lines, or pass `--yes`")
            return False
    # Lines of an earlier installation, in another folder, would load the script that is there.
    with folder_lock(real_path(place.startup_file).parent):
        before = _BLOCK.sub(b"", _read_startup_file(place.startup_file))
        ending = b"" if not before or before.endswith(b"\n") else b"\n"
        _write_startup_file(place.startup_file, before + ending + block.encode())
    terminal.note(f"added {len(block.splitlines())} lines to {place.startup_file}")
    return True


def remove_completion(terminal: Terminal, place: CompletionPlace) -> bool:
    """Remove the lines that load the script, and the script; return whether any was there. Print the paths of changed files.

    Raises `ForeignScriptError` if the script is not tpuctl's.
    """
    with folder_lock(real_path(place.startup_file).parent):
        startup = _read_startup_file(place.startup_file)
        without = _BLOCK.sub(b"", startup)
        if without != startup:
            _write_startup_file(place.startup_file, without)
    if without != startup:
        terminal.write(str(place.startup_file))
    is_installed = _read_own_script(place.path) is not None
    if is_installed:
        place.path.unlink()
        terminal.write(str(place.path))
    return is_installed or without != startup


def _read_own_script(path: Path) -> bytes | None:
    """Return the installed script, None if there is none. Raises `ForeignScriptError` for a file that is not tpuctl's."""
    if path.is_symlink():
        raise ForeignScriptError(f"{path} is a symlink", hint=_move_away(path))
    if not path.exists():
        return None
    with _failing_with("read", path):
        content, _ = read_regular_file(path, longest=MIB)
    if not any(line.startswith(_MARK) for line in content.splitlines()[:2]):
        raise ForeignScriptError(f"{path} was not written by tpuctl", hint=_move_away(path))
    return content


def _move_away(path: Path) -> str:
    return f"move it away: `mv {command_word('path', path)} {command_word('path', f'{path}.old')}`"


def _check_owner(path: Path) -> None:
    """Raise `ConflictError` if the file would be in another user's folder: with sudo, in the home of the caller."""
    folder = next(parent for parent in path.parents if parent.exists())
    if folder.stat().st_uid != os.geteuid():
        raise ConflictError(f"{folder} belongs to another user", hint="run it as that user, without sudo")


def _read_startup_file(path: Path) -> bytes:
    """Return the content of a startup file, empty if there is none."""
    if not path.exists():
        return b""
    with _failing_with("read", path):
        return read_regular_file(path, longest=4 * MIB)[0]


def _write_startup_file(path: Path, content: bytes) -> None:
    """Replace a startup file, or the file that it is a symlink to; remove one that becomes empty."""
    if path.is_symlink() and not path.exists():
        hint = fill_text("remove it: `rm {path}`", {"path": path})
        raise ConflictError(f"{path} is a symlink to a file that does not exist", hint=hint)
    file = real_path(path)
    _check_owner(file)
    with _failing_with("write", path):
        if content or path.is_symlink():
            mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o644
            replace_private_file(file, content, mode=mode)
        else:
            file.unlink()


@contextmanager
def _failing_with(verb: str, path: Path) -> Iterator[None]:
    """Turn an error of the system into one that names the path, and what can be done."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        there = next(each for each in (path, *path.parents) if os.path.lexists(each))
        hint = fill_text("see what is there: `ls -ld {path}`", {"path": there})
        raise TpuctlError(f"cannot {verb} {path}: {reason}", hint=hint) from error


def _loads(place: CompletionPlace, startup: bytes) -> bool:
    """Return whether the startup file has the lines, in the block, or written by the user: `fpath` of zsh, `source` of bash."""
    if blocks := _BLOCK.findall(startup):
        return blocks == [_block(place).encode()]
    path = str(place.path.parent if place.shell == "zsh" else place.path)
    names = [path, *(path.replace(str(place.home), word, 1) for word in ("~", "$HOME", "${HOME}"))]
    name = rf"(?:{'|'.join(map(re.escape, names))})(?![\w./-])"
    loading = (
        rf"\b(?:fpath|FPATH)\b[^#]*{name}" if place.shell == "zsh" else rf"(?:^|[\s;&])(?:\.|source)\s+[\"']?{name}"
    )
    lines = [line.strip() for line in startup.decode(errors="replace").splitlines()]
    return any(not line.startswith("#") and re.search(loading, line) for line in lines)


def _block(place: CompletionPlace) -> str:
    return "".join(f"{line}\n" for line in (_BLOCK_START, *place.lines, _BLOCK_END))


def _check_bash() -> None:
    """Raise `InvalidInputError` if bash is older than 4.4, as on macOS."""
    environ = {name: value for name, value in os.environ.items() if name not in {"BASH_ENV", "ENV"}}
    program = 'echo "${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]}"'
    try:
        done = subprocess.run(["bash", "-c", program], env=environ, capture_output=True, timeout=5, check=True)
        major, minor = map(int, done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return  # bash may be elsewhere
    if (major, minor) < _OLDEST_BASH:
        raise InvalidInputError(
            f"bash {major}.{minor} is too old: completion needs 4.4 or newer",
            hint="install a newer bash, or use zsh: `tpuctl completion --install zsh`",
        )
