"""Rules about this machine: Python, tpuctl, its folders, the terminal, gcloud, ssh, the ssh key and the settings."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import TYPE_CHECKING

from tpuctl.check.facts import Absent, Known, Unknown, value_or_none
from tpuctl.check.findings import AddKeyToSshAgent, CreateSshKey, Level, Remedy, RuleResult, SetFileMode
from tpuctl.command_text import command_word, fitting, join_command
from tpuctl.config.settings import SETTINGS, SourceKind, masked_value
from tpuctl.doctor.framework_rules import is_older
from tpuctl.doctor.verdicts import environment_rule, error, note, unknown, unread, verdict, warning
from tpuctl.doctor.worker_rules import LEVEL_NAMES, LOG_DIR, NO_LOG, log_variable_problem
from tpuctl.escaping import mask_url
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.config.settings import ResolvedSetting
    from tpuctl.doctor.doctor_facts import EnvironmentFacts, SshKeyFacts

_OLDEST_PYTHON = (3, 11)
# The last day of the month in which security fixes end [PEP 664, 693, 719, 745].
_PYTHON_END_OF_LIFE = {
    (3, 11): date(2027, 10, 31),
    (3, 12): date(2028, 10, 31),
    (3, 13): date(2029, 10, 31),
    (3, 14): date(2030, 10, 31),
}
_END_OF_LIFE_NOTICE = timedelta(days=182)
_UPGRADES = {
    "pipx": "pipx upgrade tpuctl",
    "uv tool": "uv tool upgrade tpuctl",
    "pip": "python -m pip install --upgrade tpuctl",
    "uv": "uv pip install --upgrade tpuctl",
}
_MIB = 2**20
_LOW_SPACE, _NO_SPACE = 500 * _MIB, 20 * _MIB
_FOLDERS = {"state": "state", "config": "configuration"}


@environment_rule("TPU901", "Python", "Python")
def check_python(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the Python that runs tpuctl: 3.11 or later.

    A warning if it gets no security fixes any more, a note half a year before. Source: Python's release schedules.
    """
    machine, today = environment.machine, environment.now.date()
    version = ".".join(map(str, machine.python))
    place = f", in the virtual environment `{machine.environment}`" if machine.environment else ""
    where = f": `{machine.executable}`{place}"
    facts = {"version": version, "executable": machine.executable, "environment": machine.environment}
    ends = _PYTHON_END_OF_LIFE.get(machine.python[:2], date.max)
    newer = Remedy("install a newer Python, and tpuctl with it")
    if machine.python[:2] < _OLDEST_PYTHON:
        yield error(f"Python {version} is older than 3.11{where}", newer, facts=facts)
    elif today > ends:
        yield warning(f"Python {version} gets no security fixes since {ends}{where}", newer, facts=facts)
    elif today > ends - _END_OF_LIFE_NOTICE:
        yield note(f"Python {version} gets no security fixes after {ends}{where}", newer, facts=facts)


@environment_rule("TPU903", "packages that tpuctl imports", "packages")
def check_packages(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the packages that tpuctl imports are installed, in the versions that its metadata requires."""
    machine = environment.machine
    for name, fact in machine.packages.items():
        least = machine.required.get(name)
        match fact:
            case Known(version) if least is None or not is_older(version, least):
                continue
            case Known(version):
                level, text = Level.WARNING, f"{name} {version} is older than {least}"
            case Absent():
                level, text = Level.ERROR, f"the package `{name}` cannot be imported"
            case Unknown(reason):
                level, text = Level.UNKNOWN, f"the version of `{name}` is not known: {reason}"
        reinstall = join_command([machine.executable, "-m", "pip", "install", "--upgrade", name])
        facts = {"package": name, "least": least}
        yield verdict(level, text, Remedy("reinstall it", reinstall), subject=name, facts=facts)


@environment_rule("TPU908", "folders of tpuctl")
def check_folders(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that tpuctl can write to its own folders, and that only their owner may read them.

    An error for the state folder: without it tpuctl records no change, and refuses destructive ones. Specs and metadata in it
    may be secret.
    """
    for what, entry in environment.machine.folders.items():
        subject, is_state, folder = str(entry.path), what == "state", f"the {_FOLDERS[what]} folder"
        facts = {"path": subject, "mode": entry.octal}
        if entry.problem:
            advice = "make it writable for your user" + (", or set another one: `TPUCTL_STATE_DIR`" if is_state else "")
            yield verdict(
                Level.ERROR if is_state else Level.WARNING,
                f"{folder} cannot be used: {entry.problem}",
                Remedy(advice),
                subject=subject,
                facts=facts,
            )
        elif is_state and entry.is_open():
            # A folder that was named may be there for others too: `--fix` leaves it alone.
            remedy = Remedy("restrict it to your user, or set a private one: `TPUCTL_STATE_DIR`")
            if environment.configuration.is_sandbox or "TPUCTL_STATE_DIR" not in environment.configuration.variables:
                remedy = Remedy.by(SetFileMode(subject, 0o700), "restrict it to your user")
            yield note(f"other users may read {folder} (mode {entry.octal})", remedy, subject=subject, facts=facts)


@environment_rule("TPU909", "free disk space")
def check_free_space(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the free space of the disk that tpuctl writes to: less than 500 MiB is a warning, less than 20 MiB an error."""
    for place, left in environment.machine.bytes_left.items():
        text, about = f"its disk has {left // _MIB} MiB left", {"subject": place, "facts": {"bytesLeft": left}}
        free = Remedy("free some space, or set another folder: `TPUCTL_STATE_DIR`")
        if left < _NO_SPACE:
            yield error(text, free, why="changes of nodes could not be recorded", **about)
        elif left < _LOW_SPACE:
            yield warning(text, free, **about)


@environment_rule("TPU910", "journal", "journal")
def check_journal(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the journal of past changes can be read: tpuctl recreates nodes from it."""
    match environment.machine.journal:
        case Unknown(reason):
            remedy = Remedy("make its files readable for your user")
            why = "the spec of a deleted node could not be looked up"
            yield warning(f"the journal cannot be read: {reason}", remedy, why=why)


@environment_rule("TPU911", "terminal and locale", "terminal")
def check_terminal(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the terminal and the locale of this machine.

    Any language works: tpuctl reads exit codes, JSON, files, and messages of OpenSSH, which are never translated. A note if the
    encoding cannot represent all characters.
    """
    term, locale, encoding = environment.machine.term, environment.machine.locale, environment.machine.encoding
    text = f"TERM is {term or 'not set'}, the locale is {locale or 'not set'}, the encoding {encoding}"
    facts = {"term": term, "locale": locale, "encoding": encoding}
    if encoding.lower().replace("-", "").replace("_", "") != "utf8":
        utf8 = Remedy("set a UTF-8 locale", "export LC_ALL=C.UTF-8")
        yield note(text, utf8, why="other characters are printed as question marks or escapes", facts=facts)


# The version with which the printed gcloud commands were tested.
_TRIED_GCLOUD = "528.0.0"
_UPDATES = {
    "apt": "sudo apt-get update && sudo apt-get install --only-upgrade google-cloud-cli",
    "dnf": "sudo dnf upgrade google-cloud-cli",
    "snap": "sudo snap refresh google-cloud-cli",
}
_OPENSSH = "install the OpenSSH client (Debian and Ubuntu: `sudo apt-get install openssh-client`)"
_RSYNC = "install it with the package manager (Debian and Ubuntu: `sudo apt-get install rsync`)"
# The effect of each missing program.
_PROGRAM_USES = {
    "ssh": (Level.ERROR, "commands cannot run on workers"),
    "scp": (Level.WARNING, "`tpuctl scp` cannot copy"),
    "ssh-keygen": (Level.ERROR, "keys can be neither created nor checked"),
    "ssh-add": (Level.NOTE, "keys of an ssh agent cannot be used"),
    "rsync": (Level.NOTE, "huge trees are copied with it, over the hosts of `tpuctl ssh-config`"),
}
_SSH_VERSION = re.compile(r"OpenSSH\w*_(\d{1,3})\.(\d{1,3})")
# `accept-new` of StrictHostKeyChecking, used for workers that publish no host key [OpenSSH release notes 7.6].
_OLDEST_SSH = (7, 6)


@environment_rule("TPU904", "gcloud", "gcloud")
def check_gcloud(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the Google Cloud CLI on PATH, and read its version from its own folder without starting it.

    tpuctl needs it to log in, and for Identity-Aware Proxy tunnels. If it is missing: a note if credentials exist and no tunnel
    is configured, else a warning. A note if it is older than the version that the printed commands were tested with. Source:
    gcloud 528, file `VERSION` of its root.
    """
    settings, identity, gcloud = environment.configuration.settings, environment.identity, environment.machine.gcloud
    if not isinstance(gcloud, Known):
        iap = settings.value["iap"] if isinstance(settings, Known) else None
        tunnels = iap is not None and str(iap.value).lower() in {"true", "1", "yes", "on"}
        is_needed = tunnels or (identity.is_needed and not isinstance(identity.file, Known))
        yield verdict(
            Level.WARNING if is_needed else Level.NOTE,
            f"gcloud is not on PATH{f': {gcloud.reason}' if gcloud.reason else ''}",
            Remedy("install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install"),
            why="gcloud provides the tunnels through Identity-Aware Proxy" if tunnels else "gcloud logs you in",
            facts={"path": None, "root": None, "version": None},
        )
        return
    found = gcloud.value
    facts = {"path": found.path, "root": found.root, "version": value_or_none(found.version)}
    match found.version:
        case Known(version) if is_older(version, _TRIED_GCLOUD):
            text = f"gcloud {version} is older than {_TRIED_GCLOUD}, with which the printed commands were tested"
            update = _UPDATES.get(found.packaging or "", "gcloud components update")
            yield note(text, Remedy("update it", update), facts=facts)
        case Known():
            pass
        case Absent(reason) | Unknown(reason):
            text = f"the version of `{found.path}` could not be read: {reason}"
            yield unknown(text, Remedy("check whether it runs", "gcloud version"), facts=facts)


@environment_rule("TPU906", "gcloud's configuration", "gcloud")
def check_gcloud_configuration(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the active gcloud configuration can be read; tpuctl uses its properties as fallback for its own settings.

    A warning if it cannot be read, or if a variable names one that does not exist. Source: gcloud 528.
    """
    entry, name = environment.configuration.gcloud_entry, environment.configuration.gcloud_name
    facts = {"configuration": name, "path": str(entry.path) if entry else None}
    if entry is None:
        return
    if entry.problem:
        choose = f"make `{entry.path}` readable for you, or choose another"
        remedy = Remedy(choose, "gcloud config configurations list")
        yield warning(f"the configuration `{name}` of gcloud cannot be read: {entry.problem}", remedy, facts=facts)
    elif not entry.exists and "CLOUDSDK_ACTIVE_CONFIG_NAME" in environment.configuration.variables:
        text = f"gcloud has no configuration `{name}`, which `CLOUDSDK_ACTIVE_CONFIG_NAME` names"
        create = f"gcloud config configurations create {command_word('configuration', name)}"
        yield warning(text, Remedy("unset the variable, or create the configuration", create), facts=facts)


@environment_rule("TPU907", "programs for workers")
def check_programs(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the programs that connect to workers: `ssh`, `scp`, `ssh-keygen`, `ssh-add` of OpenSSH 7.6 or later, and `rsync`.

    An error if `ssh` or `ssh-keygen` is missing.
    """
    for name, fact in environment.machine.programs.items():
        match fact:
            case Known(program):
                version = value_or_none(program.version)
                facts = {"path": program.path, "version": version}
                number = _SSH_VERSION.search(version or "") if name == "ssh" else None
                if number and (int(number[1]), int(number[2])) < _OLDEST_SSH:
                    text = f"`{program.path}` is {version}, older than OpenSSH 7.6"
                    why = "it lacks options that tpuctl uses"
                    yield warning(text, Remedy(_OPENSSH), subject=name, why=why, facts=facts)
            case Unknown():
                yield unread(f"`{name}` could not be checked", fact, subject=name)
            case Absent():
                level, why = _PROGRAM_USES[name]
                install = Remedy(_RSYNC if name == "rsync" else _OPENSSH)
                yield verdict(level, f"`{name}` is not on PATH", install, subject=name, why=why, facts={"path": None})


_RENEW = Remedy("create a new key pair; the old one is kept under another name", "tpuctl ssh-key renew")
_NAME_ANOTHER = Remedy("name another key with `--ssh-key`")
_NEW_AGENT = 'eval "$(ssh-agent)"'
# Others may read the folder, which ssh does not mind, but not write to it.
_WRITABLE = 0o022
_FILE_MODE, _FOLDER_MODE, _SSH_FOLDER = 0o600, 0o700, ".ssh"


@environment_rule("TPU915", "the ssh key")
def check_ssh_key(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the ssh key for workers: `~/.ssh/google_compute_engine`, which gcloud uses too, or the one named by a setting.

    An error if other users may read the private key, since ssh refuses to use it, or if a named key does not exist. A note if
    gcloud's key does not exist: it is created when first needed.
    """
    keys, key = environment.keys, environment.keys.private
    path = str(key.path)
    about = {"subject": path, "facts": {"path": path, "mode": key.octal}}
    if key.is_open():
        restrict = Remedy.by(SetFileMode(path, _FILE_MODE), "restrict it to your user")
        text = f"other users may read the private key (mode {key.octal})"
        yield error(text, restrict, why="ssh refuses to use such a key", **about)
    elif key.problem:
        advice = Remedy("make it readable for your user, or name another key with `--ssh-key`")
        yield error(f"the private key cannot be read: {key.problem}", advice, **about)
    elif key.exists or _agent_has(keys):
        return
    elif keys.home is not None:
        text = "no ssh key exists yet; `tpuctl up` and `tpuctl ssh` create it when they need it"
        yield note(text, Remedy.by(CreateSshKey(str(keys.home)), "create it now"), **about)
    else:
        create = join_command(["ssh-keygen", "-t", "ed25519", "-f", fitting("path", path)])
        text = "the key does not exist, and no agent holds it"
        yield error(text, Remedy("name an existing key, or create this one", create), **about)


@environment_rule("TPU916", "ssh key pair")
def check_key_pair(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Compare the public ssh key, which is put on the workers, with the private one, which logs in.

    An error if they are not one pair; unknown if the private key has a passphrase.
    """
    keys, subject = environment.keys, str(environment.keys.public_half.path)
    if keys.private.exists and not keys.private.problem and not keys.private.is_open():
        found = _judge_key_pair(keys, subject)
        yield from [] if found is None else [found]


def _judge_key_pair(keys: SshKeyFacts, subject: str) -> RuleResult | None:
    """Return the problem of a usable private key and its public key; None without one, or if TPU917 reports it."""
    public, derived = keys.public, keys.derived
    derive = join_command(["ssh-keygen", "-y", "-f", fitting("path", keys.private.path)])
    match public:
        case Unknown(reason):
            away = Remedy("move it away: tpuctl writes it again from the private key")
            return error(f"the public key cannot be used: {reason}", away, subject=subject)
        case Known(line) if isinstance(derived, Known):
            if derived.value == line:
                return None
            words = "move the public key away: tpuctl writes it again from the private key"
            return error(
                "the public key does not belong to the private key",
                Remedy(words, join_command(["mv", fitting("path", subject), fitting("path", f"{subject}.old")])),
                *((_RENEW,) if keys.home else ()),
                subject=subject,
                why="workers would accept only a key that you do not have, and refuse yours: `Permission denied (publickey)`",
            )
        case Known() if keys.is_locked:
            text = "the ssh keys could not be compared: the private key has a passphrase"
            return None if _agent_has(keys) else unknown(text, Remedy("compare them", derive), subject=subject)
        case Known() if isinstance(derived, Unknown):
            if derived.is_passing:
                return unread("the ssh keys could not be compared", derived, subject=subject)
            text = f"`{keys.private.path}` is not a usable private key: {derived.reason}"
            return error(text, _RENEW if keys.home else _NAME_ANOTHER, subject=subject)
        case Known():
            return None
        case _ if keys.is_locked:
            write = Remedy("write it from the private key", f"{derive} > {command_word('path', subject)}")
            text = "the public key does not exist, and the private one has a passphrase"
            return error(text, write, subject=subject)
        case _:
            return None


@environment_rule("TPU917", "passphrase and agent", "ssh agent")
def check_ssh_agent(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that an ssh agent holds a key that has a passphrase: tpuctl never asks for a passphrase.

    A warning if no agent holds it.
    """
    keys, count = environment.keys, None
    match keys.agent:
        case None:
            return
        case Known(held):
            count = len(held)
            text = f"an agent answers and holds {count} key{'' if count == 1 else 's'}"
        case Unknown(reason):
            text = f"the agent of `SSH_AUTH_SOCK` does not answer: {reason}"
        case Absent():
            text = "no agent is running"
    facts = {"agentKeys": count}
    if keys.is_locked and not _agent_has(keys):
        path = str(keys.private.path)
        yield warning(
            f"the key has a passphrase, and no agent holds it: {text}",
            *(() if isinstance(keys.agent, Known) else (Remedy("start an agent first", _NEW_AGENT),)),
            Remedy.by(AddKeyToSshAgent(path), "add the key to the agent"),
            subject=path,
            why="tpuctl does not ask for a passphrase, so every login would fail",
            facts=facts,
        )
    elif isinstance(keys.agent, Unknown):
        yield note(text, Remedy("unset `SSH_AUTH_SOCK`, or start a new agent", _NEW_AGENT), facts=facts)


@environment_rule("TPU918", "permissions of ssh files", "ssh files")
def check_ssh_file_modes(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the permissions of the key's folder and of the known_hosts files.

    A warning if other users may write to them: someone who can change them can impersonate a worker. A note if other users may
    read a folder `.ssh`. The mode of another folder, which may hold more than a key, is not judged.
    """
    folder = environment.keys.folder
    for entry in (folder, *environment.keys.known_hosts):
        is_ssh = entry.path.name == _SSH_FOLDER
        remedy = Remedy("make it readable for your user")
        if entry.is_open() and (entry is not folder or is_ssh):
            mode = _FOLDER_MODE if entry is folder else _FILE_MODE
            remedy = Remedy.by(SetFileMode(str(entry.path), mode), "restrict it to your user")
        elif entry.is_open():
            remedy = Remedy("move the key to a private folder such as `~/.ssh`, and name it there")
        about = {"subject": str(entry.path), "facts": {"mode": entry.octal}}
        if entry.is_open(_WRITABLE):
            yield warning(f"other users may write to it (mode {entry.octal})", remedy, **about)
        elif entry.problem:
            yield warning(f"it cannot be used: {entry.problem}", remedy, **about)
        elif is_ssh and entry.is_open():
            yield note(f"other users may read it (mode {entry.octal})", remedy, **about)


def _agent_has(keys: SshKeyFacts) -> bool:
    return isinstance(keys.public, Known) and keys.public.value in (value_or_none(keys.agent) or ())


# tpuctl reads these besides those of the settings. The others it sets for remote commands and hooks: harmless here.
_OTHER_VARIABLES = frozenset({"TPUCTL_STATE_DIR", "TPUCTL_SANDBOX_SPEED"})
_EXPORTED_PREFIXES = (
    "NODE", "WORKER", "HOOK_STDIN", "STATE", "HEALTH", "REASON", "EVENT", "AT", "STARTUP", "METADATA_ROOT", "DEVICE_ROOT",
)  # fmt: skip
# Variables that send gcloud to another endpoint, which tpuctl does not use [gcloud 528 source].
_OVERRIDES = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"


@environment_rule("TPU912", "environment variables of TPU libraries", "variables")
def check_tpu_variables(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check `TPU_LOG_DIR`, `TPU_MIN_LOG_LEVEL` and `TPU_STDERR_LOG_LEVEL` if they are set on this machine.

    A warning if the first is neither an absolute path nor the word `disabled` (the `deaktiviert` of a translated guide creates
    a folder of that name), or if a level is not 0 to 3. Source: troubleshooting guides of Cloud TPU.
    """
    variables = environment.configuration.variables
    found = {name: variables[name] for name in (LOG_DIR, *LEVEL_NAMES) if name in variables}
    whys = {name: why for name, value in found.items() if (why := log_variable_problem(name, value))}
    for name, why in whys.items():
        text = f"`{name}={found[name]}` is set here, and libtpu does not accept that value"
        advice = f"use an absolute path, or the English word `{NO_LOG}`" if name == LOG_DIR else "use 0, 1, 2 or 3"
        yield warning(text, Remedy(advice), subject=name, why=why, facts={"value": found[name]})


@environment_rule("TPU945", "configuration files", "settings")
def check_config_files(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the configuration files: the nearest `tpuctl.yaml` in or above the working directory, and the user file.

    An error if one cannot be read or has an unknown key or value: every other command then fails with that error.
    """
    configuration = environment.configuration
    if isinstance(configuration.settings, Unknown):
        fix = Remedy("fix that line; these are the files", "tpuctl config path")
        yield error(configuration.settings.reason, fix, why="every other command fails with this error")
        return
    for problem in configuration.problems:
        fix = Remedy("fix the value, or unset it; this shows where it comes from", "tpuctl config show")
        yield error(problem, fix, why="commands that need it fail with this error")


@environment_rule("TPU946", "where settings come from", "settings")
def check_setting_sources(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Report each variable that overrides another value of a setting in a file: a note."""
    settings = value_or_none(environment.configuration.settings)
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
            yield note(
                f"`{setting.source}` sets `{key}` to {_shown(key, setting)}, which overrides "
                f"`{file.path}` line {entry.line}",
                Remedy(f"unset `{setting.source}` to use the value of the file"),
                subject=f"setting {key}",
                facts={"key": key, "source": str(setting.source), "hidden": f"{file.path} line {entry.line}"},
            )


@environment_rule("TPU947", "environment variables without effect", "variables")
def check_unused_variables(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check for variables that begin with `TPUCTL_` but that tpuctl does not read: warnings.

    A note for each variable that sends gcloud to another endpoint, which tpuctl does not use.
    """
    known_names = [spec.environment for spec in SETTINGS.values() if spec.environment] + sorted(_OTHER_VARIABLES)
    for name, value in environment.configuration.variables.items():
        if name.startswith("TPUCTL_") and name not in known_names:
            if name.removeprefix("TPUCTL_").startswith(_EXPORTED_PREFIXES):
                continue
            near = closest_match(name, known_names)
            advice = f"did you mean `{near}`?" if near else "unset it; `tpuctl config show --all` lists all variables"
            yield warning(f"`{name}` has no effect: tpuctl does not read it", Remedy(advice), subject=name)
        elif name.startswith(_OVERRIDES) and value:
            place = mask_url(value)
            advice = f"use it with tpuctl too (`--endpoint {place}`), or unset it"
            text = f"`{name}` sends gcloud to {place}, which tpuctl does not use"
            yield note(text, Remedy(advice), subject=name)


@environment_rule("TPU948", "chosen cloud", "cloud")
def check_chosen_cloud(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Show which cloud commands use: Google's, another endpoint, or the sandbox, where nothing is real: a note."""
    configuration = environment.configuration
    settings = value_or_none(configuration.settings)
    if settings is None:
        return
    facts = {"sandbox": configuration.is_sandbox, "endpoint": configuration.endpoint}
    if configuration.is_sandbox:
        source = _source(settings["sandbox"])
        text = f"commands use the local sandbox{source}: nothing is real or billed, and real credentials are not used"
        yield note(text, facts=facts)
    elif configuration.endpoint:
        text = f"calls go to `{configuration.endpoint}`{_source(settings['endpoint'])}, not to Google"
        yield note(text, facts=facts)


def _plain(key: str, setting: ResolvedSetting) -> str:
    return masked_value(SETTINGS[key], setting.value)


def _shown(key: str, setting: ResolvedSetting) -> str:
    return _plain(key, setting) if SETTINGS[key].secret else f"`{_plain(key, setting)}`"


def _source(setting: ResolvedSetting | None) -> str:
    return f" (`{setting.source}`)" if setting else ""
