"""`tpuctl trust`, and the question of a command that would use an untrusted project file.

A project file may come with a cloned repository. Keys that send data, run programs, open access or cost money apply only after
the user has seen them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuctl.app.app import trusted_folder
from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import CLOUD_OPTIONS, cli_command, yes_option
from tpuctl.command_text import join_command
from tpuctl.config import sources
from tpuctl.config.settings import SETTINGS, UntrustedFileError
from tpuctl.config.sources import is_within_folder
from tpuctl.config.trusted_files import TrustedFiles
from tpuctl.errors import InvalidInputError, NotConfirmedError, SettingError
from tpuctl.escaping import mask_value
from tpuctl.files import expand_user_path, real_path
from tpuctl.output.terminal import Cell, table_view

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tpuctl.app.app import App
    from tpuctl.config.settings import ConfigEntry, ConfigFile, RawValue
    from tpuctl.config.trusted_files import TrustedFile

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


@cli_command("trust", without=CLOUD_OPTIONS, asks_trust=False)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@grouped_option("--list", "lists", is_flag=True, help="List trusted files.")
@grouped_option("--revoke", is_flag=True, help="Revoke the trust in FILE.")
@yes_option
def command(app: App, *, file: Path | None, lists: bool, revoke: bool, yes: bool) -> None:
    """Show which keys of a project's tpuctl.yaml require trust and what they do, and trust the file if you agree.

    Keys that describe a node, such as type and zone, always apply. The others apply only in a trusted file; a change of the
    file, or of its startup script, revokes the trust. The default for FILE is the tpuctl.yaml here or in a parent directory.

    \b
    Examples:
      tpuctl trust
      tpuctl trust --list
      tpuctl trust --revoke ~/src/project/tpuctl.yaml
    """
    if lists and (revoke or file):
        raise InvalidInputError("cannot combine `--list` with other options", hint="run `tpuctl trust --list`")
    if lists:
        _show_list(app)
    elif revoke:
        path = app.invocation.folder / expand_user_path(file) if file else _project_path(app)
        was_trusted = TrustedFiles(trusted_folder(app.invocation.environ)).revoke(path)
        app.terminal.note(f"{path} {'is no longer' if was_trusted else 'was not'} trusted")
    else:
        if file is None:
            path = _project_path(app)
        else:
            path = app.invocation.folder / expand_user_path(file)
            if not path.exists():
                raise InvalidInputError(f"file not found: `{file}`", hint="name a tpuctl.yaml")
            app.read_project_file(path)
        project_file = app.project_file
        if project_file is None or not project_file.trusted_keys:
            app.terminal.note(f"{project_file.path if project_file else path} has no keys that require trust")
            return
        is_trusted = TrustedFiles(trusted_folder(app.invocation.environ)).has(project_file.path, project_file.digest)
        state = "is trusted" if is_trusted else "is not trusted yet"
        _show(app, project_file, f"{project_file.path} {state}; it sets")
        if not is_trusted:
            _confirm_and_store(app, project_file, yes=yes)


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
    _show(app, file, f"{file.path} {state}; it sets")
    _confirm_and_store(app, file, yes=False)


def trust_own_change(app: App, path: Path, *, before: ConfigFile | None) -> None:
    """Keep a project file trusted after a command of the user changed it, if its content `before` was trusted."""
    store, environ = TrustedFiles(trusted_folder(app.invocation.environ)), app.invocation.environ
    if before is not None and (not before.trusted_keys or store.has(before.path, before.digest)):
        file = sources.load_project_file(path, environ, any_owner=True)
        if file.trusted_keys:
            _store(app, file)


def _project_path(app: App) -> Path:
    path = app.project_path
    if path is None:
        raise InvalidInputError("no tpuctl.yaml here or in a parent directory", hint="name one: `tpuctl trust FILE`")
    return path


def _confirm_and_store(app: App, file: ConfigFile, *, yes: bool) -> None:
    if not app.terminal.confirm("trust this file until it changes?", yes=yes):
        raise NotConfirmedError(
            "nothing was done", hint="change the file, or override its keys with flags or variables"
        )
    _store(app, file)


def _store(app: App, file: ConfigFile) -> None:
    try:
        TrustedFiles(trusted_folder(app.invocation.environ)).add(file.path, file.digest)
    except OSError as error:
        app.terminal.warn(f"cannot store the trust: {error.filename}: {error.strerror}")


def _show(app: App, file: ConfigFile, title: str) -> None:
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
    if key == "ssh_key" and is_within_folder(file.path.parent / str(entry.value), file.path.parent):
        yield "    -> THE KEY IS PART OF THE PROJECT: everyone with a copy of the project can log in to your nodes"


def _first_lines(text: str) -> Iterator[str]:
    lines = text.expandtabs(4).removesuffix("\n").split("\n")
    yield from (f"        {_short(line)}" for line in lines[:_SHOWN_LINES])
    if len(lines) > _SHOWN_LINES:
        yield f"        … and {len(lines) - _SHOWN_LINES} more lines"


def _short(value: RawValue) -> str:
    text = value if isinstance(value, str) else ", ".join(map(str, value))
    return text if len(text) <= _SHOWN_WIDTH else f"{text[:_SHOWN_WIDTH]}… ({len(text)} characters)"


def _show_list(app: App) -> None:
    rows: list[tuple[TrustedFile, str]] = []
    for file in TrustedFiles(trusted_folder(app.invocation.environ)):
        if not file.path.exists():
            rows.append((file, "gone"))
            continue
        try:
            present = sources.load_project_file(file.path, app.invocation.environ, any_owner=True)
        except SettingError:
            rows.append((file, "changed"))
        else:
            rows.append((file, "trusted" if present.digest == file.digest else "changed"))
    app.show(
        table_view(
            ("FILE", "STATE"),
            [(Cell(str(file.path)), Cell(state)) for file, state in rows],
            value=lambda: [
                {"path": str(file.path), "state": state, "trusted_at": file.at.isoformat()} for file, state in rows
            ],
            names=lambda: [str(file.path) for file, _ in rows],
            is_marked=False,
        )
    )
