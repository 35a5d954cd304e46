"""`tpuctl config`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from tpuctl import configfile
from tpuctl.cli.options import OF_THE_CLOUD, cli_command
from tpuctl.cli.tree import Group
from tpuctl.cli.usage import asked_for_json
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

# Changing a file shows nothing.
_WITHOUT = (*OF_THE_CLOUD, "output")


def _complete_key(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [key for key in SETTINGS if key.startswith(incomplete)]


@click.group("config", cls=Group)
def command() -> None:
    """Show and change settings.

    Flags win over TPUCTL_* variables, those over gcloud's variables, those over tpuctl.yaml (found upward from here), that
    over your own file, that over gcloud's active configuration.
    """


@cli_command("show", asks_trust=False, short_help="Show every setting and where its value comes from.")
@click.argument("key", required=False, shell_complete=_complete_key)
@click.option("--all", "show_all", is_flag=True, help="Also what is set nowhere.")
def show(app: App, *, key: str | None, show_all: bool) -> None:
    """Show every setting that has a value, with the place that it comes from, and who calls are made as.

    \b
    Examples:
      tpuctl config show
      tpuctl config show zone
      tpuctl config show project -o name
    """
    if key is not None:
        _check(key)
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
                app.terminal.document(_text(value) + "\n")  # of several lines as it is: for a script
    else:
        table = [(Cell(name), _cell(_text(value)), Cell(source)) for name, value, source in rows]
        app.terminal.table(("KEY", "VALUE", "SOURCE"), table)


@cli_command("set", asks_trust=False, short_help="Set a value in your own file, or in the project's.", without=_WITHOUT)
@click.argument("key", shell_complete=_complete_key)
@click.argument("value")
@click.option("--here", is_flag=True, help="Write tpuctl.yaml of this project instead of your own file.")
def set_(app: App, *, key: str, value: str, here: bool) -> None:
    """Set a value in your own file, or with --here in the tpuctl.yaml of this project. The rest of the file stays.

    \b
    Examples:
      tpuctl config set zone us-central2-b
      tpuctl config set labels team=vision,run=7
      tpuctl config set sandbox true --here
    """
    from tpuctl.cli.config_values import check_setting  # noqa: PLC0415  # only here

    _check(key)
    path = _file(app, here=here)
    note = check_setting(key, value, file=path)
    before = _project_file_before(app, path, here=here)
    configfile.set_value(path, key, value)
    _keep_trusted(app, path, before)
    app.terminal.note(f"`{key}` is set in {path}")
    if note:
        app.terminal.warn(note)


@cli_command(
    "unset", asks_trust=False, short_help="Remove a value from your own file, or from the project's.", without=_WITHOUT
)
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
    before = _project_file_before(app, path, here=here)
    text = f"`{key}` is removed from {path}" if configfile.unset(path, key) else f"`{key}` is not set in {path}"
    _keep_trusted(app, path, before)
    app.terminal.note(text)


@cli_command("path", asks_trust=False, short_help="Print the files that settings are read from.", without=OF_THE_CLOUD)
def path(app: App) -> None:
    """Print the files that settings are read from, those that win first; your own also while it does not exist.

    \b
    Examples:
      tpuctl config path
      $EDITOR "$(tpuctl config path | tail -n 1)"
    """
    environ = app.invocation.environ
    project_file = app.project_path
    files = {"project file": project_file, "user file": configfile.user_file(environ)}
    found = [(kind, str(file), file.is_file()) for kind, file in files.items() if file]
    form = _form(app)
    if form in {Format.JSON, Format.YAML}:
        app.terminal.data([{"path": path, "kind": kind, "exists": there} for kind, path, there in found], form)
    else:
        app.terminal.names(path for _, path, _ in found)


for _entry in (show, set_, unset, path):
    command.add_command(_entry)


def _form(app: App) -> Format:
    """Return the format that was asked for, also while a file of settings is broken: this helps to find it."""
    try:
        return app.format
    except SettingError:
        as_json = asked_for_json(app.invocation.arguments, app.invocation.environ)
        return Format.JSON if as_json else Format.TABLE


def _value(settings: Settings, spec: SettingSpec, *, shows_metadata: bool) -> Any:  # JSON
    """Return what a setting says, as JSON has it: a list, an object, a number, a boolean, a text, or nothing."""
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
        # A variable that cannot be read fails the command that needs it; here it is shown as it is.
        return shown_value(spec, setting.value)


def _text(value: Any) -> str:  # JSON
    """Return a value as it is written on a command line."""
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


def _cell(text: str) -> Cell:
    """Return a value as a cell; of several lines the first and their number, in a pipe all of them with `\\n` between."""
    lines = text.splitlines()
    if len(lines) < 2:
        return Cell(text)
    return Cell(f"{lines[0]} … ({len(lines)} lines)", "\\n".join(lines))


def _file(app: App, *, here: bool) -> Path:
    if not here:
        return configfile.user_file(app.invocation.environ)
    return app.project_path or app.invocation.folder / configfile.PROJECT_FILE_NAME


def _project_file_before(app: App, path: Path, *, here: bool) -> ConfigFile | None:
    """Return a project file that is about to be changed; None for the user's own, and for one that cannot be read."""
    try:
        return configfile.load_project_file(path, app.invocation.environ) if here else None
    except SettingError:
        return None


def _keep_trusted(app: App, path: Path, before: ConfigFile | None) -> None:
    from tpuctl.cli.trust import trust_own_change  # noqa: PLC0415  # only for changes

    with suppress(SettingError):
        trust_own_change(app, path, before=before)


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
