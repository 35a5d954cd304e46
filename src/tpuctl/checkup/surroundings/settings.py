"""The settings: whether they can be read, where each comes from, and what stands in the environment unasked."""

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

# Read by tpuctl beside those of the settings; what it tells remote commands and hooks is not read, and does no harm.
_OTHERS = frozenset({"TPUCTL_STATE_DIR", "TPUCTL_SANDBOX_SPEED"})
_TOLD = (
    "NODE", "WORKER", "HOOK_STDIN", "STATE", "HEALTH", "REASON", "EVENT", "AT", "STARTUP", "METADATA_ROOT", "DEVICE_ROOT",
)  # fmt: skip
# Variables that lead gcloud somewhere, where tpuctl does not follow [gcloud 528 source].
_OVERRIDES = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"


@rule("TPU912", "variables of TPU libraries")
def tpu_variables(seen: Surroundings) -> Iterator[Found]:
    """Look at `TPU_LOG_DIR`, `TPU_MIN_LOG_LEVEL` and `TPU_STDERR_LOG_LEVEL` where they are set on this machine.

    It is a warning where the first is neither an absolute path nor the word `disabled` (a translated guide's `deaktiviert`
    makes a folder of that name), or a level none of 0 to 3. Source: troubleshooting guides of Cloud TPU.
    """
    variables = seen.configuration.variables
    found = {name: variables[name] for name in (LOG_DIR, *LEVEL_NAMES) if name in variables}
    whys = {name: why for name, value in found.items() if (why := misread(name, value))}
    for name, why in whys.items():
        advice = f"name an absolute path, or `{NO_LOG}` in English" if name == LOG_DIR else "write 0, 1, 2 or 3"
        yield Found(
            level=Level.WARNING,
            subject=name,
            text=f"`{name}={found[name]}` is set here, which libtpu does not understand",
            why=why,
            remedies=(Remedy(advice),),
            facts={"value": found[name]},
        )
    if found and not whys:
        words = ", ".join(f"`{name}={text}`" for name, text in found.items())
        yield Found(level=Level.OK, subject="variables", text=f"set here, not on workers: {words}", facts=found)


@rule("TPU945", "files of settings")
def files(seen: Surroundings) -> Iterator[Found]:
    """Read the files of settings: the `tpuctl.yaml` that is found upward from the working directory, and your own.

    It is an error where one cannot be read or has an unknown key or value: every other command ends with that.
    """
    configuration = seen.configuration
    there = [str(entry.path) for entry in configuration.entries if entry.is_there]
    if isinstance(configuration.settings, Unknown):
        remedy = Remedy("mend that line; these are the files", "tpuctl config path")
        text = configuration.settings.reason
        yield Found(
            level=Level.ERROR,
            subject="settings",
            text=text,
            why="every other command ends with this",
            remedies=(remedy,),
        )
        return
    for problem in configuration.problems:
        remedy = Remedy("mend the value, or unset it; this shows where it stands", "tpuctl config show")
        why = "commands that need it end with this"
        yield Found(level=Level.ERROR, subject="settings", text=problem, why=why, remedies=(remedy,))
    text = (
        f"settings are read from {' and '.join(f'`{path}`' for path in there)}"
        if there
        else "there are no files of settings"
    )
    yield Found(level=Level.OK, subject="settings", text=text, facts={"files": there})


@rule("TPU946", "where settings come from")
def sources(seen: Surroundings) -> Iterator[Found]:
    """Tell where each setting comes from, and which of the environment hide another value in a file: these are notes."""
    settings = known(seen.configuration.settings)
    if settings is None:
        return
    chosen = {
        spec.key: setting for spec, setting in settings if setting and setting.source.kind is not SourceKind.DEFAULT
    }
    for key, setting in chosen.items():
        yield from _hidden(seen, key, setting)
    words = [f"`{key}` is {_shown(key, setting)}, from {setting.source}" for key, setting in chosen.items()]
    text = "; ".join(words) or "nothing is set; every value is the default"
    facts = {key: {"value": _plain(key, one), "source": str(one.source)} for key, one in chosen.items()}
    yield Found(level=Level.OK, subject="settings", text=text, facts=facts)


@rule("TPU947", "variables that nobody reads")
def variables(seen: Surroundings) -> Iterator[Found]:
    """Look for variables that nothing reads, though their name begins with `TPUCTL_`: warnings.

    Those that lead gcloud to another endpoint, where tpuctl does not go, are notes.
    """
    known_names = [spec.environment for spec in SETTINGS.values() if spec.environment] + sorted(_OTHERS)
    fine = []
    for name, value in seen.configuration.variables.items():
        if name.startswith("TPUCTL_") and name not in known_names:
            if name.removeprefix("TPUCTL_").startswith(_TOLD):
                continue
            near = nearest(name, known_names)
            remedy = Remedy(
                f"did you mean `{near}`?" if near else "unset it; `tpuctl config show --all` shows what there is"
            )
            yield Found(level=Level.WARNING, subject=name, text=f"nothing reads `{name}`", remedies=(remedy,))
        elif name.startswith(_OVERRIDES) and value:
            place = public_url(value)
            text = f"`{name}` leads gcloud to {place}, where tpuctl does not go"
            remedy = Remedy(f"lead tpuctl there too: `--endpoint {place}`, or unset it")
            yield Found(level=Level.NOTE, subject=name, text=text, remedies=(remedy,))
        else:
            fine.append(name)
    if fine:
        text = f"set in the environment: {', '.join(fine)}"
        yield Found(level=Level.OK, subject="variables", text=text, facts={"variables": fine})


@rule("TPU948", "which cloud")
def which_cloud(seen: Surroundings) -> Iterator[Found]:
    """Tell which cloud commands talk to: Google's, another endpoint, or the sandbox, where nothing is real: a note."""
    configuration = seen.configuration
    settings = known(configuration.settings)
    if settings is None:
        return
    facts = {"sandbox": configuration.is_sandbox, "endpoint": configuration.endpoint}
    if configuration.is_sandbox:
        source = _source(settings["sandbox"])
        text = f"commands use the local sandbox{source}: nothing is real or billed, and real credentials are left alone"
        yield Found(level=Level.NOTE, subject="cloud", text=text, facts=facts)
    elif configuration.endpoint:
        text = f"calls go to `{configuration.endpoint}`{_source(settings['endpoint'])}, and not to Google"
        yield Found(level=Level.NOTE, subject="cloud", text=text, facts=facts)
    else:
        yield Found(level=Level.OK, subject="cloud", text="commands use Google Cloud", facts=facts)


def _hidden(seen: Surroundings, key: str, setting: Setting) -> Iterator[Found]:
    if setting.source.kind not in {SourceKind.ENVIRONMENT, SourceKind.CLOUDSDK}:
        return
    for file in seen.configuration.files:
        entry = file.entries.get(key)
        if entry is None or str(entry.value) == str(setting.value):
            continue
        place = f"`{file.path}` line {entry.line}"
        yield Found(
            level=Level.NOTE,
            subject=f"setting {key}",
            text=f"`{setting.source}` sets `{key}` to {_shown(key, setting)}, and hides what stands in {place}",
            remedies=(Remedy(f"unset `{setting.source}` where the file should count"),),
            facts={"key": key, "source": str(setting.source), "hidden": f"{file.path} line {entry.line}"},
        )


def _plain(key: str, setting: Setting) -> str:
    return shown_value(SETTINGS[key], setting.value)


def _shown(key: str, setting: Setting) -> str:
    return _plain(key, setting) if SETTINGS[key].secret else f"`{_plain(key, setting)}`"


def _source(setting: Setting | None) -> str:
    return f" (`{setting.source}`)" if setting else ""


RULES: tuple[Rule[Surroundings], ...] = (tpu_variables, files, sources, variables, which_cloud)
