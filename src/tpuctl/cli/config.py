"""`tpuctl config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuctl import configfile
from tpuctl.cli.options import OF_THE_CLOUD, cli_command
from tpuctl.cli.tree import Group
from tpuctl.errors import InvalidInputError
from tpuctl.names import nearest
from tpuctl.output.tables import Cell
from tpuctl.output.terminal import Format
from tpuctl.settings import SETTINGS

if TYPE_CHECKING:
    from tpuctl.cli.app import App

_HIDDEN = "(set, not shown)"


def _complete_key(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [key for key in SETTINGS if key.startswith(incomplete)]


@click.group("config", cls=Group)
def command() -> None:
    """Show and change settings.

    Flags win over TPUCTL_* variables, those over gcloud's variables, those over tpuctl.yaml (found upward from here), that
    over your own file, that over gcloud's active configuration.
    """


@cli_command("show", short_help="Show every setting and where its value comes from.")
@click.argument("key", required=False, shell_complete=_complete_key)
@click.option("--all", "show_all", is_flag=True, help="Also what is set nowhere.")
def show(app: App, *, key: str | None, show_all: bool) -> None:
    """Show every setting that has a value, with the place that it comes from, and who calls are made as.

    \b
    Examples:
      tpuctl config show
      tpuctl config show zone
    """
    if key is not None:
        _check(key)
    rows = []
    for spec, setting in app.settings:
        if key not in (None, spec.key) or (setting is None and not show_all and key is None):
            continue
        value = "" if setting is None else _HIDDEN if spec.secret else str(setting.value)
        rows.append((spec.key, value, str(setting.source) if setting else "not set"))
    if key is None:
        rows.append(("identity", *_identity(app)))
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data([{"key": name, "value": value, "source": source} for name, value, source in rows], app.format)
    elif app.format is Format.NAME:
        app.terminal.names(value for _, value, _ in rows)
    else:
        app.terminal.table(("KEY", "VALUE", "SOURCE"), [tuple(map(Cell, row)) for row in rows])


@cli_command("set", short_help="Set a value in your own file, or in the project's.", without=OF_THE_CLOUD)
@click.argument("key", shell_complete=_complete_key)
@click.argument("value")
@click.option("--here", is_flag=True, help="Write tpuctl.yaml of this project instead of your own file.")
def set_(app: App, *, key: str, value: str, here: bool) -> None:
    """Set a value in your own file, or with --here in the tpuctl.yaml of this project. The rest of the file stays.

    \b
    Examples:
      tpuctl config set zone us-central2-b
      tpuctl config set sandbox true --here
    """
    _check(key)
    path = _file(app, here=here)
    configfile.set_value(path, key, value)
    app.terminal.note(f"`{key}` is set in {path}")


@cli_command("unset", short_help="Remove a value from your own file, or from the project's.", without=OF_THE_CLOUD)
@click.argument("key", shell_complete=_complete_key)
@click.option("--here", is_flag=True, help="Change tpuctl.yaml of this project instead of your own file.")
def unset(app: App, *, key: str, here: bool) -> None:
    """Remove a value from your own file, or with --here from the tpuctl.yaml of this project.

    \b
    Examples:
      tpuctl config unset zone
    """
    _check(key)
    path = _file(app, here=here)
    text = f"`{key}` is removed from {path}" if configfile.unset(path, key) else f"`{key}` is not set in {path}"
    app.terminal.note(text)


@cli_command("path", short_help="Print the files that settings are read from.", without=OF_THE_CLOUD)
def path(app: App) -> None:
    """Print the files that settings are read from, those that win first; your own also while it does not exist.

    \b
    Examples:
      tpuctl config path
      $EDITOR "$(tpuctl config path | tail -n 1)"
    """
    environ = app.invocation.environ
    project_file = _project_file(app)
    app.terminal.names(str(entry) for entry in (project_file, configfile.user_file(environ)) if entry)


for _entry in (show, set_, unset, path):
    command.add_command(_entry)


def _project_file(app: App) -> Path | None:
    home = app.invocation.environ.get("HOME")
    return configfile.find_project_file(app.invocation.folder, home=Path(home) if home else None)


def _file(app: App, *, here: bool) -> Path:
    if not here:
        return configfile.user_file(app.invocation.environ)
    return _project_file(app) or app.invocation.folder / configfile.PROJECT_FILE_NAME


def _identity(app: App) -> tuple[str, str]:
    """Return who calls are made as, as far as can be told without a call, and how that is known."""
    if app.is_sandbox:
        return "nobody", "the sandbox needs no account"
    from tpuctl import gcloud  # noqa: PLC0415  # only here

    if account := app.settings["impersonate_service_account"]:
        return str(account.value), f"impersonated: {account.source}"
    adc = gcloud.adc_path(app.invocation.environ)
    if adc.exists():
        return "application default credentials", str(adc)
    if account := app.settings["account"]:
        return str(account.value), f"gcloud's login: {account.source}"
    return "", "no credentials on this machine: `gcloud auth application-default login`"


def _check(key: str) -> None:
    if key not in SETTINGS:
        near = nearest(key, SETTINGS)
        raise InvalidInputError(
            f"`{key}` is not a setting", hint=f"did you mean `{near}`?" if near else "see `tpuctl config show --all`"
        )
