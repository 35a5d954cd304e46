"""`tpuctl trust`: show, trust and revoke project files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import CLOUD_OPTIONS, cli_command, yes_option
from tpuctl.app.state_paths import trusted_folder
from tpuctl.app.trust_question import confirm_and_store, show_trusted_keys
from tpuctl.config import sources
from tpuctl.config.trusted_files import TrustedFiles
from tpuctl.errors import InvalidInputError, SettingError
from tpuctl.files import expand_user_path
from tpuctl.output.terminal import Cell, table_view

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.config.trusted_files import TrustedFile


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
        show_trusted_keys(app, project_file, f"{project_file.path} {state}; it sets")
        if not is_trusted:
            confirm_and_store(app, project_file, yes=yes)


def _project_path(app: App) -> Path:
    path = app.files.project_path
    if path is None:
        raise InvalidInputError("no tpuctl.yaml here or in a parent directory", hint="name one: `tpuctl trust FILE`")
    return path


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
