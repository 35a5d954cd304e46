"""`tpuctl config`: show settings with their sources, and set or remove one in a file.

A value is checked before it is written, with the same functions that the commands use.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from tpuctl.accelerators import check_accelerator_type
from tpuctl.app.app import ANY_ZONE
from tpuctl.app.hints import may_exist, near_zone
from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import CLOUD_OPTIONS, CommandGroup, cli_command, yes_option
from tpuctl.app.value_completion import (
    complete_file,
    complete_label,
    complete_project,
    complete_tier,
    complete_type,
    complete_version,
    complete_zone,
    completion_item,
)
from tpuctl.check.facts import parse_bucket_use
from tpuctl.cloud.endpoint import ApiEndpoint
from tpuctl.config import sources
from tpuctl.config.settings import (
    SETTINGS,
    FileKind,
    ValueKind,
    as_items,
    as_pairs,
    check_file_entry,
    masked_value,
    parse_setting,
)
from tpuctl.config.sources import (
    PROJECT_FILE_NAME,
    check_startup_script,
    parse_command_line_value,
    render_yaml_value,
    set_in_config_file,
    unset_in_config_file,
    user_config_path,
)
from tpuctl.errors import InvalidInputError, NotConfirmedError, SettingError, TpuctlError
from tpuctl.files import folder_lock, make_private_folder, output_path, real_path, replace_private_file
from tpuctl.models.spec import check_tags, check_user_labels
from tpuctl.names import BucketPath, check_login, check_project, check_zone
from tpuctl.output.terminal import Cell, OutputFormat, table_view
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from tpuctl.app.app import App
    from tpuctl.config.settings import Settings, SettingSpec

# A command that changes a file has no output to format.
_WITHOUT = (*CLOUD_OPTIONS, "output")


def _complete_key(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [completion_item(key, help=spec.description) for key, spec in SETTINGS.items() if key.startswith(incomplete)]


def _complete_value(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem | str]:
    """Complete the value of a setting as that of its option."""
    spec = SETTINGS.get(ctx.params.get("key", ""))
    if spec is None:
        return []
    if spec.kind is ValueKind.PATH:
        return [*complete_file(ctx, param, incomplete)]
    if completer := _VALUE_COMPLETERS.get(spec.key):
        return [*completer(ctx, param, incomplete)]
    choices = ("true", "false") if spec.kind is ValueKind.BOOLEAN else spec.choices
    return [choice for choice in choices if choice.startswith(incomplete)]


_VALUE_COMPLETERS = {
    "project": complete_project,
    "quota_project": complete_project,
    "billing_project": complete_project,
    "zone": complete_zone,
    "type": complete_type,
    "version": complete_version,
    "tier": complete_tier,
    "labels": complete_label,
}


@click.group("config", cls=CommandGroup)
def command() -> None:
    """Show and change settings.

    The first source with a value wins: flags, TPUCTL_* variables, gcloud's variables, tpuctl.yaml (here or in a parent
    directory), your user file, gcloud's active configuration.
    """


@cli_command("show", asks_trust=False, short_help="Show every setting and where its value comes from.")
@click.argument("key", required=False, shell_complete=_complete_key)
@grouped_option("--all", "show_all", is_flag=True, help="Include settings without a value.")
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
    settings = app.settings.for_display()
    for spec, setting in settings:
        if key not in (None, spec.key) or (setting is None and not show_all and key is None):
            continue
        source = str(setting.source) if setting else "not set"
        source += " (not trusted)" if spec.key in app.settings.untrusted else ""
        rows.append((spec.key, _value(settings, spec, shows_metadata=app.terminal.shows_metadata), source))
    if key is None:
        rows.append(("identity", *_identity(app)))
    if key is not None and app.format is OutputFormat.NAME:
        app.terminal.document("".join(_text(value) + "\n" for _, value, _ in rows))  # unchanged, for scripts
        return
    cells = []
    for name, value, source in rows:
        text = _text(value)
        lines = text.splitlines()
        # Of several lines a terminal shows the first and their number, a pipe all of them.
        is_long = len(lines) > 1
        shown = Cell(f"{lines[0]} … ({len(lines)} lines)", "\\n".join(lines)) if is_long else Cell(text)
        cells.append((Cell(name), shown, Cell(source)))
    app.show(
        table_view(
            ("KEY", "VALUE", "SOURCE"),
            cells,
            value=lambda: [{"key": name, "value": value, "source": source} for name, value, source in rows],
            names=lambda: [_text(value) for _, value, _ in rows],
            is_marked=False,
        )
    )


@cli_command(
    "set", asks_trust=False, short_help="Set a value in your user file, or in the project file.", without=_WITHOUT
)
@click.argument("key", shell_complete=_complete_key)
@click.argument("value", shell_complete=_complete_value)
@grouped_option("--here", is_flag=True, help="Change the project's tpuctl.yaml, not your user file.")
def set_(app: App, *, key: str, value: str, here: bool) -> None:
    """Set a value in your user file, or with --here in the tpuctl.yaml of this project. Keeps the rest of the file.

    \b
    Examples:
      tpuctl config set zone us-central2-b
      tpuctl config set labels team=vision,run=7
      tpuctl config set sandbox true --here
    """
    _require_known(key)
    path = _file(app, here=here)
    note = check_setting(key, value, file=path)
    with _changing(app, path, here=here):
        set_in_config_file(path, key, value)
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
@grouped_option("--here", is_flag=True, help="Change the project's tpuctl.yaml, not your user file.")
def unset(app: App, *, key: str, here: bool) -> None:
    """Remove a value from your user file, or with --here from the tpuctl.yaml of this project.

    \b
    Examples:
      tpuctl config unset zone
    """
    _require_known(key)
    path = _file(app, here=here)
    with _changing(app, path, here=here):
        was_set = unset_in_config_file(path, key)
    app.terminal.note(f"`{key}` was removed from {path}" if was_set else f"`{key}` is not set in {path}")


@cli_command("path", asks_trust=False, short_help="Print the files that settings are read from.", without=CLOUD_OPTIONS)
def path(app: App) -> None:
    """Print the paths of the files with settings, in the order of precedence; the user file even if it does not exist.

    \b
    Examples:
      tpuctl config path
      $EDITOR "$(tpuctl config path | tail -n 1)"
    """
    environ = app.invocation.environ
    project_file = app.files.project_path
    files = {"project file": project_file, "user file": user_config_path(environ)}
    found = [(kind, str(file), file.is_file()) for kind, file in files.items() if file]
    form = app.format_or_guess  # the command helps to find a broken file
    if form in {OutputFormat.JSON, OutputFormat.YAML}:
        app.terminal.data([{"path": path, "kind": kind, "exists": there} for kind, path, there in found], form)
    else:
        app.terminal.names(path for _, path, _ in found)


# The settings that `config init` asks for: the key, or the one for `any`; what it is for, and an example for an empty answer.
_QUESTIONS = {
    "project": ("Project of the nodes.", "my-project"),
    "zone": ("Zone of the nodes. `zones: any` tries all of them for a new node.", "us-central2-b"),
    "type": ("Accelerator type: generation and size. `tpuctl types` lists them.", "v4-8"),
    "tier": ("How a node is bought: on-demand, spot, preemptible or reserved.", "spot"),
    "buckets": ("Buckets that programs read and write; they must be near the zone.", "gs://my-bucket"),
}


@cli_command(
    "init",
    asks_trust=False,
    short_help="Write a tpuctl.yaml for this folder.",
    without=_WITHOUT,
)
@grouped_option("--project", metavar="ID", shell_complete=complete_project, help="Google Cloud project of the nodes.")
@grouped_option("--zone", metavar="ZONE", shell_complete=complete_zone, help="Zone of the nodes, or any.")
@grouped_option("--type", metavar="TYPE", shell_complete=complete_type, help="Accelerator type, such as v4-8.")
@grouped_option("--tier", metavar="TIER", shell_complete=complete_tier, help="Capacity type, such as spot.")
@grouped_option(
    "--bucket",
    "buckets",
    metavar="URL",
    multiple=True,
    help="Bucket that the nodes read and write, as gs://BUCKET/PREFIX. Repeatable.",
)
@yes_option
def init(app: App, *, yes: bool, buckets: tuple[str, ...], **options: str | None) -> None:
    """Write a commented tpuctl.yaml in this folder, with answers to a few questions.

    It asks for project, zone, type, tier and buckets; the answer in brackets, which is known from your settings and gcloud, is
    that of an empty line. Without a terminal, options answer instead. The file is yours, so it is trusted.

    \b
    Examples:
      tpuctl config init
      tpuctl config init --zone any --type v5litepod-8 --tier spot --yes
    """
    path = app.invocation.folder / PROJECT_FILE_NAME
    given = {**options, "buckets": ",".join(buckets) or None}
    for key, value in given.items():
        if value is not None:
            _check_answer(key, value, path)
    may_ask = app.terminal.may_ask and not yes
    if not may_ask and not any(given.values()):
        raise InvalidInputError(
            "cannot ask for the settings: stdin is not a terminal" if not yes else "no settings given",
            hint="give them: `tpuctl config init --zone any --type v4-8`",
        )
    # A symlink that leads nowhere is a file, too.
    exists = path.is_symlink() or path.exists()
    if exists and not app.terminal.confirm(f"replace {path}?", yes=yes):
        raise NotConfirmedError("nothing was done", hint="change one setting: `tpuctl config set --here KEY VALUE`")
    answers: dict[str, str | None] = {}
    for key in _QUESTIONS:  # click passes options in the order in which they were typed
        answers[key] = given[key]
        if answers[key] is None:
            answers[key] = _ask(app, key, path) if may_ask else _known(app, key)
    from tpuctl.app.trust_question import trust_written_file  # noqa: PLC0415  # only for changes

    with folder_lock(real_path(path).parent):
        try:
            replace_private_file(output_path(path, path.parent), _commented_file(answers).encode())
        except OSError as error:
            raise SettingError(f"cannot write {path}: {error.strerror or error}") from error
        trust_written_file(app, path)
    app.terminal.note(f"wrote {path}", "next: `tpuctl check`, then `tpuctl up NODE`")


_HEAD = """\
# Settings of tpuctl for this folder and those below. Flags and TPUCTL_* variables override them;
# `tpuctl config show` says where each value comes from, `tpuctl help settings` lists all settings.
"""


def _ask(app: App, key: str, path: Path) -> str | None:
    """Ask for a setting until the answer is valid. An empty answer is the known value; None if there is none."""
    known, (about, example) = _known(app, key), _QUESTIONS[key]
    app.terminal.note(about)
    while True:
        answer = app.terminal.ask(f"{key} [{known or f'none; such as {example}'}]: ") or known
        try:
            if answer is not None:
                _check_answer(key, answer, path)
        except TpuctlError as error:
            app.show_error(error)
            known = None
        else:
            return answer


def _known(app: App, key: str) -> str | None:
    """Return the value of a setting in the syntax of the command line; None if it has none, or one that is not trusted."""
    # The file that is written is trusted: what came with a repository must not get into it unseen.
    if key in app.settings.untrusted or key not in app.settings.values:
        return None
    return _text(_value(app.settings, SETTINGS[key], shows_metadata=False))


def _check_answer(key: str, value: str, path: Path) -> None:
    """Raise `SettingError` or `InvalidInputError` for a value that the file cannot have."""
    if key == "zone" and value == ANY_ZONE:
        return
    check_file_entry(FileKind.PROJECT, key, value, place=f"`{key}`")
    check_setting(key, value, file=path)


def _commented_file(answers: Mapping[str, str | None]) -> str:
    """Return the text of a project file: each setting below what it is for; one without a value as a comment."""
    parts = [_HEAD]
    for key, value in answers.items():
        about, example = _QUESTIONS[key]
        name = "zones" if key == "zone" and value == ANY_ZONE else key
        written = parse_command_line_value(SETTINGS[name], value or example)
        line = f"{name}: {render_yaml_value(written)}"
        parts.append(f"# {about}\n{line if value else f'# {line}'}\n")
    return "\n".join(parts)


for _entry in (show, init, set_, unset, path):
    command.add_command(_entry)


def _value(settings: Settings, spec: SettingSpec, *, shows_metadata: bool) -> Any:  # JSON
    """Return the value of a setting as JSON, None if it is not set."""
    setting = settings[spec.key]
    if setting is None:
        return None
    if spec.secret and not (spec.key == "metadata" and shows_metadata):
        return masked_value(spec, setting.value)
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
                return masked_value(spec, setting.value)
    except SettingError:
        # An invalid value fails the command that needs it; here it is shown unchanged.
        return masked_value(spec, setting.value)


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
        return user_config_path(app.invocation.environ)
    return app.files.project_path or app.invocation.folder / PROJECT_FILE_NAME


@contextmanager
def _changing(app: App, path: Path, *, here: bool) -> Iterator[None]:
    """Change a file while no other command changes one in its folder, and keep a trusted project file trusted."""
    from tpuctl.app.trust_question import trust_own_change  # noqa: PLC0415  # only for changes

    if not here:
        with suppress(OSError):  # reported when the file is written
            make_private_folder(path.parent)
    with folder_lock(real_path(path).parent):
        before = None
        with suppress(SettingError):
            before = sources.load_project_file(path, app.invocation.environ) if here else None
        yield
        with suppress(SettingError):
            trust_own_change(app, path, before=before)


def _identity(app: App) -> tuple[str, str]:
    """Return the identity of API calls, as far as it is known without a call, and its source."""
    if app.is_sandbox:
        return "none", "the sandbox needs no account"

    if account := app.settings["impersonate_service_account"]:
        return str(account.value), f"impersonated: {account.source}"
    adc = sources.adc_path(app.invocation.environ)
    if adc.exists():
        return "application default credentials", str(adc)
    if account := app.settings["account"]:
        return str(account.value), f"gcloud's login: {account.source}"
    return "", "no credentials on this machine: `gcloud auth application-default login`"


def _require_known(key: str) -> None:
    if key not in SETTINGS:
        near = closest_match(key, SETTINGS)
        raise InvalidInputError(
            f"`{key}` is not a setting", hint=f"did you mean `{near}`?" if near else "see `tpuctl config show --all`"
        )


# Service accounts of other domains exist (`…@developer.gserviceaccount.com`, domain-scoped projects): only the form is checked.
_EMAIL = re.compile(r"[^@\s/,]+@[^@\s/,]+\.[^@\s/,]+")
_PART_OF_A_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_setting(key: str, value: str, *, file: Path) -> str | None:
    """Return a warning for an unusual value, None for a valid one.

    Raises `InvalidInputError` for a value that no command accepts, with the one that was probably meant. The kind of value (a
    number, a duration, one of several words) is checked by `settings`.
    """
    try:
        parse_setting(SETTINGS[key], value)
    except ValueError:
        return None  # `settings` reports that when it sets the value
    if not value:
        return None
    if key == "zone":
        check_zone(value)
        near = near_zone(value)
        if near is None:
            return None
        if may_exist(value):
            return f"tpuctl knows no TPUs in `{value}`, but in `{near}`; `tpuctl types` asks the API"
        raise InvalidInputError(
            f"tpuctl knows no TPUs in `{value}`: nothing was set",
            hint=f"did you mean `{near}`?\nfor a new zone write `zone: {value}` to {file}",
        )
    if key == "startup_script" and file.name == PROJECT_FILE_NAME:
        check_startup_script(file, value)
    if check := _CHECKS.get(key):
        check(value)
    return None


def _check_name(text: str) -> None:
    """Raise `SettingError` unless the text has the form of a name or of a resource path."""
    if not all(_PART_OF_A_NAME.fullmatch(part) for part in text.removeprefix("https://").split("/")):
        raise SettingError(f"`{text}` is not a name", hint="write it like `NAME` or `projects/P/…/NAME`")


def _check_version(text: str) -> None:
    if not _PART_OF_A_NAME.fullmatch(text.rsplit("/", 1)[-1]):
        raise SettingError(f"`{text}` is not a runtime version", hint="see `tpuctl versions --zone ZONE`")


def _check_email(text: str) -> None:
    # Commas separate a chain of delegates [gcloud 528 help, --impersonate-service-account].
    if not all(_EMAIL.fullmatch(account.strip()) for account in text.split(",")):
        raise SettingError(
            f"`{text}` is not a service account", hint="write it like `NAME@PROJECT.iam.gserviceaccount.com`"
        )


def _check_buckets(text: str) -> None:
    for url in as_items(SETTINGS["buckets"], text):
        parse_bucket_use(url)


_CHECKS: dict[str, Callable[[str], object]] = {
    "project": check_project,
    "quota_project": check_project,
    "endpoint": ApiEndpoint.parse,
    "type": check_accelerator_type,
    "version": _check_version,
    "impersonate_service_account": _check_email,
    # `default` is Compute Engine's word for the default account of a machine.
    "service_account": lambda text: None if text == "default" else _check_email(text),
    "user": check_login,
    "network": _check_name,
    "subnetwork": _check_name,
    "journal": BucketPath.parse,
    "lease": BucketPath.parse,
    "labels": lambda text: check_user_labels(as_pairs(SETTINGS["labels"], text)),
    "buckets": _check_buckets,
    "data_buckets": _check_buckets,
    "checkpoint_buckets": _check_buckets,
    "billing_project": check_project,
    "tags": lambda text: check_tags(as_items(SETTINGS["tags"], text)),
}
