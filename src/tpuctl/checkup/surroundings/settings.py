"""Rules about settings: whether they can be read, where each comes from, and variables without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.checkup.log_variables import LEVEL_NAMES, LOG_DIR, NO_LOG, misread
from tpuctl.masking import public_url
from tpuctl.names import nearest
from tpuctl.preflight.fact import Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.settings import SETTINGS, SourceKind
from tpuctl.settings.words import shown_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.surroundings.facts import Surroundings
    from tpuctl.preflight.findings import Rule
    from tpuctl.settings import Setting

# tpuctl reads these besides those of the settings. The others it sets for remote commands and hooks: harmless here.
_OTHERS = frozenset({"TPUCTL_STATE_DIR", "TPUCTL_SANDBOX_SPEED"})
_TOLD = (
    "NODE", "WORKER", "HOOK_STDIN", "STATE", "HEALTH", "REASON", "EVENT", "AT", "STARTUP", "METADATA_ROOT", "DEVICE_ROOT",
)  # fmt: skip
# Variables that send gcloud to another endpoint, which tpuctl does not use [gcloud 528 source].
_OVERRIDES = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"


@rule("TPU912", "environment variables of TPU libraries")
def tpu_variables(environment: Surroundings) -> Iterator[Found]:
    """Check `TPU_LOG_DIR`, `TPU_MIN_LOG_LEVEL` and `TPU_STDERR_LOG_LEVEL` if they are set on this machine.

    A warning if the first is neither an absolute path nor the word `disabled` (the `deaktiviert` of a translated guide creates
    a folder of that name), or if a level is not 0 to 3. Source: troubleshooting guides of Cloud TPU.
    """
    variables = environment.configuration.variables
    found = {name: variables[name] for name in (LOG_DIR, *LEVEL_NAMES) if name in variables}
    whys = {name: why for name, value in found.items() if (why := misread(name, value))}
    for name, why in whys.items():
        advice = f"use an absolute path, or the English word `{NO_LOG}`" if name == LOG_DIR else "use 0, 1, 2 or 3"
        yield Found(
            level=Level.WARNING,
            subject=name,
            text=f"`{name}={found[name]}` is set here, and libtpu does not accept that value",
            why=why,
            remedies=(Remedy(advice),),
            facts={"value": found[name]},
        )
    if found and not whys:
        words = ", ".join(f"`{name}={text}`" for name, text in found.items())
        yield Found(level=Level.OK, subject="variables", text=f"set here, not on workers: {words}", facts=found)


@rule("TPU945", "configuration files")
def files(environment: Surroundings) -> Iterator[Found]:
    """Check the configuration files: the nearest `tpuctl.yaml` in or above the working directory, and the user file.

    An error if one cannot be read or has an unknown key or value: every other command then fails with that error.
    """
    configuration = environment.configuration
    existing = [str(entry.path) for entry in configuration.entries if entry.is_there]
    if isinstance(configuration.settings, Unknown):
        remedy = Remedy("fix that line; these are the files", "tpuctl config path")
        text = configuration.settings.reason
        yield Found(
            level=Level.ERROR,
            subject="settings",
            text=text,
            why="every other command fails with this error",
            remedies=(remedy,),
        )
        return
    for problem in configuration.problems:
        remedy = Remedy("fix the value, or unset it; this shows where it comes from", "tpuctl config show")
        why = "commands that need it fail with this error"
        yield Found(level=Level.ERROR, subject="settings", text=problem, why=why, remedies=(remedy,))
    text = (
        f"settings are read from {' and '.join(f'`{path}`' for path in existing)}"
        if existing
        else "there are no configuration files"
    )
    yield Found(level=Level.OK, subject="settings", text=text, facts={"files": existing})


@rule("TPU946", "where settings come from")
def sources(environment: Surroundings) -> Iterator[Found]:
    """Show where each setting comes from; a note for each variable that overrides another value in a file."""
    settings = known(environment.configuration.settings)
    if settings is None:
        return
    chosen = {
        spec.key: setting for spec, setting in settings if setting and setting.source.kind is not SourceKind.DEFAULT
    }
    for key, setting in chosen.items():
        if setting.source.kind not in {SourceKind.ENVIRONMENT, SourceKind.CLOUDSDK}:
            continue
        for file in environment.configuration.files:
            entry = file.entries.get(key)
            if entry is None or str(entry.value) == str(setting.value):
                continue
            yield Found(
                level=Level.NOTE,
                subject=f"setting {key}",
                text=f"`{setting.source}` sets `{key}` to {_shown(key, setting)}, which overrides "
                f"`{file.path}` line {entry.line}",
                remedies=(Remedy(f"unset `{setting.source}` to use the value of the file"),),
                facts={"key": key, "source": str(setting.source), "hidden": f"{file.path} line {entry.line}"},
            )
    words = [f"`{key}` is {_shown(key, setting)}, from {setting.source}" for key, setting in chosen.items()]
    text = "; ".join(words) or "all settings have their defaults"
    facts = {key: {"value": _plain(key, one), "source": str(one.source)} for key, one in chosen.items()}
    yield Found(level=Level.OK, subject="settings", text=text, facts=facts)


@rule("TPU947", "environment variables without effect")
def variables(environment: Surroundings) -> Iterator[Found]:
    """Check for variables that begin with `TPUCTL_` but that tpuctl does not read: warnings.

    A note for each variable that sends gcloud to another endpoint, which tpuctl does not use.
    """
    known_names = [spec.environment for spec in SETTINGS.values() if spec.environment] + sorted(_OTHERS)
    fine = []
    for name, value in environment.configuration.variables.items():
        if name.startswith("TPUCTL_") and name not in known_names:
            if name.removeprefix("TPUCTL_").startswith(_TOLD):
                continue
            near = nearest(name, known_names)
            remedy = Remedy(
                f"did you mean `{near}`?" if near else "unset it; `tpuctl config show --all` lists all variables"
            )
            yield Found(
                level=Level.WARNING,
                subject=name,
                text=f"`{name}` has no effect: tpuctl does not read it",
                remedies=(remedy,),
            )
        elif name.startswith(_OVERRIDES) and value:
            place = public_url(value)
            text = f"`{name}` sends gcloud to {place}, which tpuctl does not use"
            remedy = Remedy(f"use it with tpuctl too (`--endpoint {place}`), or unset it")
            yield Found(level=Level.NOTE, subject=name, text=text, remedies=(remedy,))
        else:
            fine.append(name)
    if fine:
        text = f"set in the environment: {', '.join(fine)}"
        yield Found(level=Level.OK, subject="variables", text=text, facts={"variables": fine})


@rule("TPU948", "chosen cloud")
def which_cloud(environment: Surroundings) -> Iterator[Found]:
    """Show which cloud commands use: Google's, another endpoint, or the sandbox, where nothing is real: a note."""
    configuration = environment.configuration
    settings = known(configuration.settings)
    if settings is None:
        return
    facts = {"sandbox": configuration.is_sandbox, "endpoint": configuration.endpoint}
    if configuration.is_sandbox:
        source = _source(settings["sandbox"])
        text = f"commands use the local sandbox{source}: nothing is real or billed, and real credentials are not used"
        yield Found(level=Level.NOTE, subject="cloud", text=text, facts=facts)
    elif configuration.endpoint:
        text = f"calls go to `{configuration.endpoint}`{_source(settings['endpoint'])}, not to Google"
        yield Found(level=Level.NOTE, subject="cloud", text=text, facts=facts)
    else:
        yield Found(level=Level.OK, subject="cloud", text="commands use Google Cloud", facts=facts)


def _plain(key: str, setting: Setting) -> str:
    return shown_value(SETTINGS[key], setting.value)


def _shown(key: str, setting: Setting) -> str:
    return _plain(key, setting) if SETTINGS[key].secret else f"`{_plain(key, setting)}`"


def _source(setting: Setting | None) -> str:
    return f" (`{setting.source}`)" if setting else ""


RULES: tuple[Rule[Surroundings], ...] = (tpu_variables, files, sources, variables, which_cloud)
