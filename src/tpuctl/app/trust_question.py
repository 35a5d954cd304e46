"""The question whether to trust a project file, of a command that would use an untrusted one.

A project file may come with a cloned repository. Keys that send data, run programs, open access or cost money apply only after
the user has seen them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.state_paths import trusted_folder
from tpuctl.command_text import join_command
from tpuctl.config import sources
from tpuctl.config.settings import SETTINGS, UntrustedFileError
from tpuctl.config.trusted_files import TrustedFiles
from tpuctl.errors import NotConfirmedError
from tpuctl.escaping import mask_value
from tpuctl.files import real_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from tpuctl.app.app import App
    from tpuctl.config.settings import ConfigEntry, ConfigFile, RawValue

_SHOWN_LINES, _SHOWN_WIDTH = 20, 200
# Metadata keys that run programs or open access to the node [documentation of Compute Engine's predefined keys, cloud-init].
_EXECUTED_METADATA = frozenset(
    {
        "startup-script",
        "startup-script-url",
        "shutdown-script",
        "shutdown-script-url",
        "ssh-keys",
        "sshKeys",
        "user-data",
    }
    | {"block-project-ssh-keys", "enable-oslogin", "enable-guest-attributes", "serial-port-enable", "enable-osconfig"}
)


def ask_trust(app: App, keys: Collection[str]) -> None:
    """Show what these keys of the project file do, ask the user to trust it, and store the answer.

    Raises `UntrustedFileError` without a terminal, `NotConfirmedError` if the user refuses.
    """
    file = app.project_file
    if file is None:
        raise AssertionError("keys of a project file without a file")
    folder = trusted_folder(app.invocation.environ)
    store = TrustedFiles(folder)
    if store.problem is not None:
        app.terminal.warn(f"no file counts as trusted because of {folder}: {store.problem}")
    was_trusted = any(one.path == real_path(file.path) for one in store)
    if not app.terminal.may_ask:
        places = {key: f"line {file.entries[key].line}" for key in file.trusted_keys if key in keys}
        words = ["tpuctl", "trust", *([str(file.path)] if app.names_project_file else [])]
        raise UntrustedFileError(file.path, places, has_changed=was_trusted, command=join_command(words))
    state = "has changed since it was trusted" if was_trusted else "is not trusted yet"
    show_trusted_keys(app, file, f"{file.path} {state}; it sets")
    confirm_and_store(app, file, yes=False)


def trust_own_change(app: App, path: Path, *, before: ConfigFile | None) -> None:
    """Keep a project file trusted after a command of the user changed it, if its content `before` was trusted."""
    store, environ = TrustedFiles(trusted_folder(app.invocation.environ)), app.invocation.environ
    if before is not None and (not before.trusted_keys or store.has(before.path, before.digest)):
        file = sources.load_project_file(path, environ, any_owner=True)
        if file.trusted_keys:
            _store(app, file)


def trust_written_file(app: App, path: Path) -> None:
    """Trust a project file whose whole content a command of the user has just written."""
    file = sources.load_project_file(path, app.invocation.environ)
    if file.trusted_keys:
        _store(app, file)


def confirm_and_store(app: App, file: ConfigFile, *, yes: bool) -> None:
    """Ask whether to trust a file, and store the answer. Raises `NotConfirmedError` if the user refuses."""
    if not app.terminal.confirm("trust this file until it changes?", yes=yes):
        raise NotConfirmedError(hint="change the file, or override its keys with flags or variables")
    _store(app, file)


def _store(app: App, file: ConfigFile) -> None:
    try:
        TrustedFiles(trusted_folder(app.invocation.environ)).add(file.path, file.digest)
    except OSError as error:
        app.terminal.warn(f"cannot store the trust: {error.filename}: {error.strerror}")


def show_trusted_keys(app: App, file: ConfigFile, title: str) -> None:
    """Show each key that requires trust, also with `--quiet`."""
    lines = [title]
    for key in file.trusted_keys:
        lines += _effect(file, key, file.entries[key], shows_metadata=app.terminal.shows_metadata)
    app.terminal.warn(*lines)


def _effect(file: ConfigFile, key: str, entry: ConfigEntry, *, shows_metadata: bool) -> Iterator[str]:
    """Yield the value and the effect of a key; of scripts the first lines."""
    line = f"  line {entry.line}: {key}"
    match entry.value:
        case str() as text if entry.content is not None:
            size = len(entry.content.encode())
            yield f"{line}: {text} ({size} bytes)"
            yield from _first_lines(entry.content)
        case str() as text if "\n" in text:
            yield f"{line} ({len(text.splitlines())} lines)"
            yield from _first_lines(text)
        case str() | tuple():
            yield f"{line}: {_short(entry.value)}"
        case pairs:
            yield line
            for name, text in pairs.items():
                if key == "metadata" and name not in _EXECUTED_METADATA and not shows_metadata:
                    yield f"      {_short(name)}: {mask_value(text)}"
                elif "\n" in text:
                    yield f"      {_short(name)} ({len(text.splitlines())} lines)"
                    yield from _first_lines(text)
                else:
                    yield f"      {_short(name)}: {_short(text)}"
    yield f"    -> {SETTINGS[key].effect}"
    if key == "ssh_key" and sources.is_within_folder(file.path.parent / str(entry.value), file.path.parent):
        yield "    -> THE KEY IS PART OF THE PROJECT: everyone with a copy of the project can log in to your nodes"


def _first_lines(text: str) -> Iterator[str]:
    lines = text.expandtabs(4).removesuffix("\n").split("\n")
    yield from (f"        {_short(line)}" for line in lines[:_SHOWN_LINES])
    if len(lines) > _SHOWN_LINES:
        yield f"        … and {len(lines) - _SHOWN_LINES} more lines"


def _short(value: RawValue) -> str:
    text = value if isinstance(value, str) else ", ".join(map(str, value))
    return text if len(text) <= _SHOWN_WIDTH else f"{text[:_SHOWN_WIDTH]}… ({len(text)} characters)"
