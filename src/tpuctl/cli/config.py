"""`tpuctl config`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from tpuctl import configfile
from tpuctl.cli.groups import Group
from tpuctl.cli.invocation import asked_for_json
from tpuctl.cli.options import OF_THE_CLOUD, cli_command
from tpuctl.errors import InvalidInputError, SettingError
from tpuctl.names import nearest
from tpuctl.output.tables import Cell
from tpuctl.output.terminal import Format
from tpuctl.settings import SETTINGS, ValueKind
from tpuctl.settings.words import shown_value

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.cli.app import App
    from tpuctl.settings import ConfigFile, Settings, SettingSpec

# A command that changes a file has no output to format.
_WITHOUT = (*OF_THE_CLOUD, "output")


def _complete_key(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [key for key in SETTINGS if key.startswith(incomplete)]


@click.group("config", cls=Group)
def command() -> None:
    """Show and change settings.

    The first source with a value wins: flags, TPUCTL_* variables, gcloud's variables, tpuctl.yaml (here or in a parent
    directory), your user file, gcloud's active configuration.
    """


@cli_command("show", asks_trust=False, short_help="Show every setting and where its value comes from.")
@click.argument("key", required=False, shell_complete=_complete_key)
@click.option("--all", "show_all", is_flag=True, help="Include settings without a value.")
def show(app: App, *, key: str | None, show_all: bool) -> None:
    """Show every setting that has a value, its source, and the identity that makes API calls.

    \b
    Examples:
      tpuctl config show
      tpuctl config show zone
      tpuctl config show project -o name
    """
    if key is not None:
        _require_known(key)
    rows: list[tuple[str, Any, str]] = []
    settings = app.settings.shown()
    for spec, setting in settings:
        if key not in (None, spec.key) or (setting is None and not show_all and key is None):
            continue
        source = str(setting.source) if setting else "not set"
        source += " (not trusted)" if spec.key in app.settings.untrusted else ""
        rows.append((spec.key, _value(settings, spec, shows_metadata=app.terminal.shows_metadata), source))
    if key is None:
        rows.append(("identity", *_identity(app)))
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data([{"key": name, "value": value, "source": source} for name, value, source in rows], app.format)
    elif app.format is Format.NAME:
        for _, value, _ in rows:
            if key is None:
                app.terminal.write(_text(value))
            else:
                app.terminal.document(_text(value) + "\n")  # unchanged, for scripts
    else:
        table = []
        for name, value, source in rows:
            text = _text(value)
            lines = text.splitlines()
            # Of several lines the first and their number; in a pipe all of them.
            cell = Cell(f"{lines[0]} … ({len(lines)} lines)", "\\n".join(lines)) if len(lines) > 1 else Cell(text)
            table.append((Cell(name), cell, Cell(source)))
        app.terminal.table(("KEY", "VALUE", "SOURCE"), table)


@cli_command(
    "set", asks_trust=False, short_help="Set a value in your user file, or in the project file.", without=_WITHOUT
)
@click.argument("key", shell_complete=_complete_key)
@click.argument("value")
@click.option("--here", is_flag=True, help="Change the project's tpuctl.yaml, not your user file.")
def set_(app: App, *, key: str, value: str, here: bool) -> None:
    """Set a value in your user file, or with --here in the tpuctl.yaml of this project. Keeps the rest of the file.

    \b
    Examples:
      tpuctl config set zone us-central2-b
      tpuctl config set labels team=vision,run=7
      tpuctl config set sandbox true --here
    """
    from tpuctl.cli.config_values import check_setting  # noqa: PLC0415  # only here

    _require_known(key)
    path = _file(app, here=here)
    note = check_setting(key, value, file=path)
    before = _project_file_before(app, path, here=here)
    configfile.set_value(path, key, value)
    _keep_trusted(app, path, before)
    app.terminal.note(f"`{key}` is set in {path}")
    if note:
        app.terminal.warn(note)


@cli_command(
    "unset",
    asks_trust=False,
    short_help="Remove a value from your user file, or from the project file.",
    without=_WITHOUT,
)
@click.argument("key", shell_complete=_complete_key)
@click.option("--here", is_flag=True, help="Change the project's tpuctl.yaml, not your user file.")
def unset(app: App, *, key: str, here: bool) -> None:
    """Remove a value from your user file, or with --here from the tpuctl.yaml of this project.

    \b
    Examples:
      tpuctl config unset zone
    """
    _require_known(key)
    path = _file(app, here=here)
    before = _project_file_before(app, path, here=here)
    text = f"`{key}` was removed from {path}" if configfile.unset(path, key) else f"`{key}` is not set in {path}"
    _keep_trusted(app, path, before)
    app.terminal.note(text)


@cli_command("path", asks_trust=False, short_help="Print the files that settings are read from.", without=OF_THE_CLOUD)
def path(app: App) -> None:
    """Print the paths of the files with settings, in the order of precedence; the user file even if it does not exist.

    \b
    Examples:
      tpuctl config path
      $EDITOR "$(tpuctl config path | tail -n 1)"
    """
    environ = app.invocation.environ
    project_file = app.project_path
    files = {"project file": project_file, "user file": configfile.user_file(environ)}
    found = [(kind, str(file), file.is_file()) for kind, file in files.items() if file]
    try:
        form = app.format
    except SettingError:  # the command helps to find the broken file
        as_json = asked_for_json(app.invocation.arguments, app.invocation.environ)
        form = Format.JSON if as_json else Format.TABLE
    if form in {Format.JSON, Format.YAML}:
        app.terminal.data([{"path": path, "kind": kind, "exists": there} for kind, path, there in found], form)
    else:
        app.terminal.names(path for _, path, _ in found)


for _entry in (show, set_, unset, path):
    command.add_command(_entry)


def _value(settings: Settings, spec: SettingSpec, *, shows_metadata: bool) -> Any:  # JSON
    """Return the value of a setting as JSON, None if it is not set."""
    setting = settings[spec.key]
    if setting is None:
        return None
    if spec.secret and not (spec.key == "metadata" and shows_metadata):
        return shown_value(spec, setting.value)
    try:
        match spec.kind:
            case ValueKind.BOOLEAN:
                return settings.is_on(spec.key)
            case ValueKind.NUMBER:
                return settings.number(spec.key)
            case ValueKind.LIST:
                return list(settings.items(spec.key))
            case ValueKind.PAIRS:
                return settings.pairs(spec.key)
            case ValueKind.RECORDS:
                return list(settings.records(spec.key))
            case _:
                return shown_value(spec, setting.value)
    except SettingError:
        # An invalid value fails the command that needs it; here it is shown unchanged.
        return shown_value(spec, setting.value)


def _text(value: Any) -> str:  # JSON
    """Return a value in the syntax of the command line."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list() if value and isinstance(value[0], dict):
            return ";".join(map(_text, value))
        case list():
            return ",".join(value)
        case dict():
            return ",".join(f"{key}={text}" for key, text in value.items())
        case _:
            return str(value)


def _file(app: App, *, here: bool) -> Path:
    if not here:
        return configfile.user_file(app.invocation.environ)
    return app.project_path or app.invocation.folder / configfile.PROJECT_FILE_NAME


def _project_file_before(app: App, path: Path, *, here: bool) -> ConfigFile | None:
    """Return the project file before a change; None for the user file, and for a file that cannot be read."""
    try:
        return configfile.load_project_file(path, app.invocation.environ) if here else None
    except SettingError:
        return None


def _keep_trusted(app: App, path: Path, before: ConfigFile | None) -> None:
    from tpuctl.cli.trust import trust_own_change  # noqa: PLC0415  # only for changes

    with suppress(SettingError):
        trust_own_change(app, path, before=before)


def _identity(app: App) -> tuple[str, str]:
    """Return the identity of API calls, as far as it is known without a call, and its source."""
    if app.is_sandbox:
        return "none", "the sandbox needs no account"
    from tpuctl import gcloud  # noqa: PLC0415  # only here

    if account := app.settings["impersonate_service_account"]:
        return str(account.value), f"impersonated: {account.source}"
    adc = gcloud.adc_path(app.invocation.environ)
    if adc.exists():
        return "application default credentials", str(adc)
    if account := app.settings["account"]:
        return str(account.value), f"gcloud's login: {account.source}"
    return "", "no credentials on this machine: `gcloud auth application-default login`"


def _require_known(key: str) -> None:
    if key not in SETTINGS:
        near = nearest(key, SETTINGS)
        raise InvalidInputError(
            f"`{key}` is not a setting", hint=f"did you mean `{near}`?" if near else "see `tpuctl config show --all`"
        )
