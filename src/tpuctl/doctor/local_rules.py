"""Rules about this machine: Python, tpuctl, its folders, the terminal, gcloud, ssh, the ssh key and the settings."""

from __future__ import annotations

import re
import shlex
from datetime import date, timedelta
from typing import TYPE_CHECKING

from tpuctl.check.facts import Absent, Known, Unknown, value_or_none
from tpuctl.check.findings import AddKeyToSshAgent, CreateSshKey, Level, Remedy, RuleResult, SetFileMode, check_rule
from tpuctl.config.settings import SETTINGS, SourceKind, masked_value
from tpuctl.doctor.worker_rules import LEVEL_NAMES, LOG_DIR, NO_LOG, log_variable_problem
from tpuctl.escaping import mask_url
from tpuctl.names import closest_match

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.check.findings import CheckRule
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
_PIP = ("-m", "pip", "install", "--upgrade")
_MIB = 2**20
_LOW_SPACE, _NO_SPACE = 500 * _MIB, 20 * _MIB


@check_rule("TPU901", "Python")
def check_python(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the Python that runs tpuctl: 3.11 or later.

    A warning if it gets no security fixes any more, a note half a year before. Source: Python's release schedules.
    """
    machine, today = environment.machine, environment.now.date()
    version = ".".join(map(str, machine.python))
    where = f"`{machine.executable}`" + (
        f", in the virtual environment `{machine.environment}`" if machine.environment else ""
    )
    facts = {"version": version, "executable": machine.executable, "environment": machine.environment}
    ends = _PYTHON_END_OF_LIFE.get(machine.python[:2])
    level, text = Level.OK, f"Python {version}: {where}"
    remedy = Remedy("install a newer Python, and tpuctl with it")
    if machine.python[:2] < _OLDEST_PYTHON:
        level, text = Level.ERROR, f"Python {version} is older than 3.11: {where}"
    elif ends and today > ends:
        level, text = Level.WARNING, f"Python {version} gets no security fixes since {ends}: {where}"
    elif ends and today > ends - _END_OF_LIFE_NOTICE:
        level, text = Level.NOTE, f"Python {version} gets no security fixes after {ends}: {where}"
    yield RuleResult(
        level=level, subject="Python", text=text, remedies=() if level is Level.OK else (remedy,), facts=facts
    )


@check_rule("TPU902", "tpuctl")
def check_tpuctl(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Show the version of tpuctl, how it was installed, and the command that updates it. No package index is queried."""
    machine, by = environment.machine, environment.machine.installed_by
    update = f"; update it with `{_UPGRADES[by]}`" if by in _UPGRADES else ""
    yield RuleResult(
        level=Level.OK,
        subject="tpuctl",
        text=f"tpuctl {machine.tpuctl}, " + (f"installed by {by}{update}" if by else "installed in an unknown way"),
        facts={"version": machine.tpuctl, "installedBy": by},
    )


@check_rule("TPU903", "packages that tpuctl imports")
def check_packages(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the packages that tpuctl imports are installed, in the versions that its metadata requires."""
    machine, passed = environment.machine, []
    for name, fact in machine.packages.items():
        least = machine.required.get(name)
        match fact:
            case Known(version) if least is None or not is_older_version(version, least):
                passed.append(f"{name} {version}")
                continue
            case Known(version):
                level, text = Level.WARNING, f"{name} {version} is older than {least}"
            case Absent():
                level, text = Level.ERROR, f"the package `{name}` cannot be imported"
            case Unknown(reason):
                level, text = Level.UNKNOWN, f"the version of `{name}` is not known: {reason}"
        remedy = Remedy("reinstall it", shlex.join([machine.executable, *_PIP, name]))
        yield RuleResult(
            level=level, subject=name, text=text, remedies=(remedy,), facts={"package": name, "least": least}
        )
    if passed:
        yield RuleResult(level=Level.OK, subject="packages", text=", ".join(passed), facts={"packages": passed})


@check_rule("TPU908", "folders of tpuctl")
def check_folders(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that tpuctl can write to its own folders, and that only their owner may read them.

    An error for the state folder: without it tpuctl records no change, and refuses destructive ones. Specs and metadata in it
    may be secret.
    """
    for what, entry in environment.machine.folders.items():
        facts = {"path": str(entry.path), "mode": entry.octal}
        subject = str(entry.path)
        if entry.problem:
            level = Level.ERROR if what == "state" else Level.WARNING
            text = f"the {_FOLDERS[what]} folder cannot be used: {entry.problem}"
            advice = "make it writable for your user"
            advice += "" if what != "state" else ", or set another one: `TPUCTL_STATE_DIR`"
            yield RuleResult(level=level, subject=subject, text=text, remedies=(Remedy(advice),), facts=facts)
        elif what == "state" and entry.is_open():
            text = f"other users may read the {_FOLDERS[what]} folder (mode {entry.octal})"
            # A folder that was named may be there for others too: `--fix` leaves it alone.
            remedy = Remedy("restrict it to your user, or set a private one: `TPUCTL_STATE_DIR`")
            if environment.configuration.is_sandbox or "TPUCTL_STATE_DIR" not in environment.configuration.variables:
                remedy = Remedy.by(SetFileMode(subject, 0o700), "restrict it to your user")
            yield RuleResult(level=Level.NOTE, subject=subject, text=text, remedies=(remedy,), facts=facts)
        else:
            state = "is writable" if entry.exists else "is created when needed"
            yield RuleResult(level=Level.OK, subject=subject, text=f"the {_FOLDERS[what]} folder {state}", facts=facts)


@check_rule("TPU909", "free disk space")
def check_free_space(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the free space of the disk that tpuctl writes to: less than 500 MiB is a warning, less than 20 MiB an error."""
    for place, left in environment.machine.bytes_left.items():
        level = Level.ERROR if left < _NO_SPACE else Level.WARNING if left < _LOW_SPACE else Level.OK
        yield RuleResult(
            level=level,
            subject=place,
            text=f"its disk has {left // _MIB} MiB left",
            why="changes of nodes could not be recorded" if level is Level.ERROR else None,
            remedies=(Remedy("free some space, or set another folder: `TPUCTL_STATE_DIR`"),)
            if level is not Level.OK
            else (),
            facts={"bytesLeft": left},
        )


@check_rule("TPU910", "journal")
def check_journal(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the journal of past changes can be read: tpuctl recreates nodes from it."""
    match environment.machine.journal:
        case Known(count):
            text = f"the journal has {count} node{'' if count == 1 else 's'}"
            yield RuleResult(level=Level.OK, subject="journal", text=text, facts={"nodes": count})
        case Unknown(reason):
            remedy = Remedy("make its files readable for your user")
            text = f"the journal cannot be read: {reason}"
            why = "the spec of a deleted node could not be looked up"
            yield RuleResult(level=Level.WARNING, subject="journal", text=text, why=why, remedies=(remedy,))
        case _:
            return


@check_rule("TPU911", "terminal and locale")
def check_terminal(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the terminal and the locale of this machine.

    Any language works: tpuctl reads exit codes, JSON, files, and messages of OpenSSH, which are never translated. A note if the
    encoding cannot represent all characters.
    """
    machine = environment.machine
    words = f"TERM is {machine.term or 'not set'}, the locale is {machine.locale or 'not set'}, the encoding {machine.encoding}"
    facts = {"term": machine.term, "locale": machine.locale, "encoding": machine.encoding}
    if machine.encoding.lower().replace("-", "").replace("_", "") == "utf8":
        yield RuleResult(level=Level.OK, subject="terminal", text=words, facts=facts)
        return
    yield RuleResult(
        level=Level.NOTE,
        subject="terminal",
        text=words,
        why="other characters are printed as question marks or escapes",
        remedies=(Remedy("set a UTF-8 locale", "export LC_ALL=C.UTF-8"),),
        facts=facts,
    )


_FOLDERS = {"state": "state", "config": "configuration"}


def is_older_version(version: str, than: str) -> bool:
    """Return whether a version is older than another one, by their first three numbers."""
    return _version_numbers(version) < _version_numbers(than)


def _version_numbers(version: str) -> tuple[int, ...]:
    found = [int(part) for part in re.findall(r"\d{1,9}", version)[:3]]
    return tuple(found + [0] * (3 - len(found)))


MACHINE_RULES: tuple[CheckRule[EnvironmentFacts], ...] = (
    check_python,
    check_tpuctl,
    check_packages,
    check_folders,
    check_free_space,
    check_journal,
    check_terminal,
)


# The version with which the printed gcloud commands were tested.
_TRIED_GCLOUD = "528.0.0"
_UPDATES = {
    "apt": "sudo apt-get update && sudo apt-get install --only-upgrade google-cloud-cli",
    "dnf": "sudo dnf upgrade google-cloud-cli",
    "snap": "sudo snap refresh google-cloud-cli",
}
# The effect of each missing program.
_PROGRAM_USES = {
    "ssh": (Level.ERROR, "commands cannot run on workers"),
    "scp": (Level.WARNING, "`tpuctl scp` cannot copy"),
    "ssh-keygen": (Level.ERROR, "keys can be neither created nor checked"),
    "ssh-add": (Level.NOTE, "keys of an ssh agent cannot be used"),
    "rsync": (Level.NOTE, "`tpuctl sync` uses its own protocol, which is slower for large trees"),
}
_INSTALL = {
    "rsync": "install it with the package manager (Debian and Ubuntu: `sudo apt-get install rsync`)",
}
_OPENSSH = "install the OpenSSH client (Debian and Ubuntu: `sudo apt-get install openssh-client`)"
_SSH_VERSION = re.compile(r"OpenSSH\w*_(\d{1,3})\.(\d{1,3})")
# `accept-new` of StrictHostKeyChecking, used for workers that publish no host key [OpenSSH release notes 7.6].
_OLDEST_SSH = (7, 6)


@check_rule("TPU904", "gcloud")
def check_gcloud(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the Google Cloud CLI on PATH, and read its version from its own folder without starting it.

    tpuctl needs it to log in, and for Identity-Aware Proxy tunnels. If it is missing: a note if credentials exist and no tunnel
    is configured, else a warning. A note if it is older than the version that the printed commands were tested with. Source:
    gcloud 528, file `VERSION` of its root.
    """
    settings = value_or_none(environment.configuration.settings)
    match environment.machine.gcloud:
        case Known(found):
            version = value_or_none(found.version)
            facts = {"path": found.path, "root": found.root, "version": version}
            if version is None:
                why = found.version.reason if isinstance(found.version, (Absent, Unknown)) else ""
                text = f"the version of `{found.path}` could not be read: {why}"
                remedy = Remedy("check whether it runs", "gcloud version")
                yield RuleResult(level=Level.UNKNOWN, subject="gcloud", text=text, remedies=(remedy,), facts=facts)
            elif is_older_version(version, _TRIED_GCLOUD):
                text = f"gcloud {version} is older than {_TRIED_GCLOUD}, with which the printed commands were tested"
                update = Remedy("update it", _UPDATES.get(found.packaging or "", "gcloud components update"))
                yield RuleResult(level=Level.NOTE, subject="gcloud", text=text, remedies=(update,), facts=facts)
            else:
                text = f"gcloud {version} at `{found.path}`"
                yield RuleResult(level=Level.OK, subject="gcloud", text=text, facts=facts)
        case Absent() | Unknown() as fact:
            iap = str(getattr(settings["iap"], "value", "")) if settings is not None else ""
            tunnels = iap.lower() in {"true", "1", "yes", "on"}
            can_do_without = not tunnels and (
                isinstance(environment.identity.file, Known) or not environment.identity.is_needed
            )
            yield RuleResult(
                level=Level.NOTE if can_do_without else Level.WARNING,
                subject="gcloud",
                text=f"gcloud is not on PATH{f': {fact.reason}' if fact.reason else ''}",
                why="gcloud provides the tunnels through Identity-Aware Proxy" if tunnels else "gcloud logs you in",
                remedies=(Remedy("install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install"),),
                facts={"path": None, "root": None, "version": None},
            )


@check_rule("TPU905", "how gcloud is updated")
def check_gcloud_updates(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Show which command updates gcloud.

    If a package manager installed it, its own component manager is disabled, and the `gcloud components` of older guides fails.
    Source: gcloud 528, `disable_updater` in lib/googlecloudsdk/core/config.json.
    """
    found = value_or_none(environment.machine.gcloud)
    if found is None or found.root is None:
        return
    if found.packaging is None:
        yield RuleResult(level=Level.OK, subject="gcloud", text="gcloud updates itself: `gcloud components update`")
        return
    command = _UPDATES.get(found.packaging)
    by = f"by `{command}`" if command else "by the program that installed it"
    yield RuleResult(
        level=Level.OK,
        subject="gcloud",
        text=f"gcloud's component manager is disabled; gcloud is updated {by}",
        facts={"packaging": found.packaging, "command": command},
    )


@check_rule("TPU906", "gcloud's configuration")
def check_gcloud_configuration(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the active gcloud configuration can be read; tpuctl uses its properties as fallback for its own settings.

    A warning if it cannot be read, or if a variable names one that does not exist. Source: gcloud 528.
    """
    configuration = environment.configuration
    entry, name = configuration.gcloud_entry, configuration.gcloud_name
    named = configuration.variables.get("CLOUDSDK_ACTIVE_CONFIG_NAME")
    facts = {"configuration": name, "path": str(entry.path) if entry else None}
    if entry is None:
        yield RuleResult(level=Level.OK, subject="gcloud", text="gcloud is set to use no configuration", facts=facts)
    elif entry.problem:
        text = f"the configuration `{name}` of gcloud cannot be read: {entry.problem}"
        remedy = Remedy(f"make `{entry.path}` readable for you, or choose another", "gcloud config configurations list")
        yield RuleResult(level=Level.WARNING, subject="gcloud", text=text, remedies=(remedy,), facts=facts)
    elif entry.exists:
        yield RuleResult(
            level=Level.OK, subject="gcloud", text=f"gcloud's active configuration is `{name}`", facts=facts
        )
    elif named:
        text = f"gcloud has no configuration `{name}`, which `CLOUDSDK_ACTIVE_CONFIG_NAME` names"
        remedy = Remedy(
            "unset the variable, or create the configuration", f"gcloud config configurations create {name}"
        )
        yield RuleResult(level=Level.WARNING, subject="gcloud", text=text, remedies=(remedy,), facts=facts)
    else:
        yield RuleResult(level=Level.OK, subject="gcloud", text="gcloud has no configuration yet", facts=facts)


@check_rule("TPU907", "programs for workers")
def check_programs(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the programs that connect to workers: `ssh`, `scp`, `ssh-keygen`, `ssh-add` of OpenSSH 7.6 or later, and `rsync`.

    An error if `ssh` or `ssh-keygen` is missing.
    """
    for name, fact in environment.machine.programs.items():
        level, why = _PROGRAM_USES[name]
        if isinstance(fact, Known):
            program, version = fact.value, value_or_none(fact.value.version)
            facts = {"path": program.path, "version": version}
            number = _SSH_VERSION.search(version) if name == "ssh" and version is not None else None
            if number and (int(number[1]), int(number[2])) < _OLDEST_SSH:
                yield RuleResult(
                    level=Level.WARNING,
                    subject=name,
                    text=f"`{program.path}` is {version}, older than OpenSSH 7.6",
                    why="it lacks options that tpuctl uses",
                    remedies=(Remedy(_OPENSSH),),
                    facts=facts,
                )
                continue
            known_as = f" ({version})" if version else ""
            yield RuleResult(level=Level.OK, subject=name, text=f"`{program.path}`{known_as}", facts=facts)
            continue
        if isinstance(fact, Unknown):
            text = f"`{name}` could not be checked: {fact.reason}"
            yield RuleResult(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)
            continue
        remedy = Remedy(_INSTALL.get(name, _OPENSSH))
        text = f"`{name}` is not on PATH"
        yield RuleResult(level=level, subject=name, text=text, why=why, remedies=(remedy,), facts={"path": None})


PROGRAM_RULES: tuple[CheckRule[EnvironmentFacts], ...] = (
    check_gcloud,
    check_gcloud_updates,
    check_gcloud_configuration,
    check_programs,
)


_RENEW = Remedy("create a new key pair; the old one is kept under another name", "tpuctl ssh-key renew")
# Others may read the folder, which ssh does not mind, but not write to it.
_WRITABLE = 0o022
_FILE_MODE, _SSH_FOLDER = 0o600, ".ssh"


@check_rule("TPU915", "the ssh key")
def check_ssh_key(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the ssh key for workers: `~/.ssh/google_compute_engine`, which gcloud uses too, or the one named by a setting.

    An error if other users may read the private key, since ssh refuses to use it, or if a named key does not exist. A note if
    gcloud's key does not exist: it is created when first needed.
    """
    keys = environment.keys
    subject = str(keys.private.path)
    facts = {"path": subject, "mode": keys.private.octal}
    if keys.private.is_open():
        text = f"other users may read the private key (mode {keys.private.octal})"
        remedy = Remedy.by(SetFileMode(subject, 0o600), "restrict it to your user")
        why = "ssh refuses to use such a key"
        yield RuleResult(level=Level.ERROR, subject=subject, text=text, why=why, remedies=(remedy,), facts=facts)
    elif keys.private.problem:
        text = f"the private key cannot be read: {keys.private.problem}"
        remedy = Remedy("make it readable for your user, or name another key with `--ssh-key`")
        yield RuleResult(level=Level.ERROR, subject=subject, text=text, remedies=(remedy,), facts=facts)
    elif keys.private.exists:
        yield RuleResult(level=Level.OK, subject=subject, text="the private key exists", facts=facts)
    elif _agent_has(keys):
        text = "an agent holds the private key; there is no key file"
        yield RuleResult(level=Level.OK, subject=subject, text=text, facts=facts)
    elif keys.home is not None:
        text = "no ssh key exists yet; `tpuctl up` and `tpuctl ssh` create it when they need it"
        remedy = Remedy.by(CreateSshKey(str(keys.home)), "create it now")
        yield RuleResult(level=Level.NOTE, subject=subject, text=text, remedies=(remedy,), facts=facts)
    else:
        remedy = Remedy(
            "name an existing key, or create this one", shlex.join(["ssh-keygen", "-t", "ed25519", "-f", subject])
        )
        text = "the key does not exist, and no agent holds it"
        yield RuleResult(level=Level.ERROR, subject=subject, text=text, remedies=(remedy,), facts=facts)


@check_rule("TPU916", "ssh key pair")
def check_key_pair(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Compare the public ssh key, which is put on the workers, with the private one, which logs in.

    An error if they are not one pair; unknown if the private key has a passphrase.
    """
    keys = environment.keys
    subject = str(keys.public_half.path)
    if not keys.private.exists or keys.private.problem or keys.private.is_open():
        return
    public, derived = keys.public, keys.derived
    if isinstance(public, Unknown):
        text = f"the public key cannot be used: {public.reason}"
        remedy = Remedy("move it away: tpuctl writes it again from the private key")
        yield RuleResult(level=Level.ERROR, subject=subject, text=text, remedies=(remedy,))
    elif not isinstance(public, Known):
        level = Level.ERROR if keys.is_locked else Level.OK
        text = "the public key does not exist" + (
            ", and the private one has a passphrase" if keys.is_locked else " yet"
        )
        remedy = Remedy("write it from the private key", f"{_derive_command(keys)} > {shlex.quote(subject)}")
        yield RuleResult(level=level, subject=subject, text=text, remedies=(remedy,) if keys.is_locked else ())
    elif isinstance(derived, Known):
        if derived.value == public.value:
            yield RuleResult(level=Level.OK, subject=subject, text="the public and the private key are one pair")
            return
        text = "the public key does not belong to the private key"
        why = "workers would accept only a key that you do not have, and refuse yours: `Permission denied (publickey)`"
        words = "move the public key away: tpuctl writes it again from the private key"
        away = Remedy(words, shlex.join(["mv", subject, f"{subject}.old"]))
        remedies = (away, *((_RENEW,) if keys.home else ()))
        yield RuleResult(level=Level.ERROR, subject=subject, text=text, why=why, remedies=remedies)
    elif keys.is_locked and not _agent_has(keys):
        text = "the ssh keys could not be compared: the private key has a passphrase"
        remedy = Remedy("compare them", _derive_command(keys))
        yield RuleResult(level=Level.UNKNOWN, subject=subject, text=text, remedies=(remedy,))
    elif isinstance(derived, Unknown) and not keys.is_locked:
        if derived.is_passing:
            text = f"the ssh keys could not be compared: {derived.reason}"
            yield RuleResult(level=Level.UNKNOWN, subject=subject, text=text, is_passing=True)
            return
        text = f"`{keys.private.path}` is not a usable private key: {derived.reason}"
        remedies = (_RENEW,) if keys.home else (Remedy("name another key with `--ssh-key`"),)
        yield RuleResult(level=Level.ERROR, subject=subject, text=text, remedies=remedies)


@check_rule("TPU917", "passphrase and agent")
def check_ssh_agent(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that an ssh agent holds a key that has a passphrase: tpuctl never asks for a passphrase.

    A warning if no agent holds it.
    """
    keys = environment.keys
    if keys.agent is None:
        return
    agent_keys = value_or_none(keys.agent)
    count = None if agent_keys is None else len(agent_keys)
    match keys.agent:
        case Known(_):
            agent_text = f"an agent answers and holds {count} key{'' if count == 1 else 's'}"
        case Unknown(reason):
            agent_text = f"the agent of `SSH_AUTH_SOCK` does not answer: {reason}"
        case _:
            agent_text = "no agent is running"
    if keys.is_locked and not _agent_has(keys):
        path = str(keys.private.path)
        start = () if isinstance(keys.agent, Known) else (Remedy("start an agent first", 'eval "$(ssh-agent)"'),)
        remedies = (*start, Remedy.by(AddKeyToSshAgent(path), "add the key to the agent"))
        yield RuleResult(
            level=Level.WARNING,
            subject=path,
            text=f"the key has a passphrase, and no agent holds it: {agent_text}",
            why="tpuctl does not ask for a passphrase, so every login would fail",
            remedies=remedies,
            facts={"agentKeys": count},
        )
    elif isinstance(keys.agent, Unknown):
        remedy = Remedy("unset `SSH_AUTH_SOCK`, or start a new agent", 'eval "$(ssh-agent)"')
        yield RuleResult(
            level=Level.NOTE, subject="ssh agent", text=agent_text, remedies=(remedy,), facts={"agentKeys": None}
        )
    else:
        yield RuleResult(level=Level.OK, subject="ssh agent", text=agent_text, facts={"agentKeys": count})


@check_rule("TPU918", "permissions of ssh files")
def check_ssh_file_modes(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the permissions of the key's folder and of the known_hosts files.

    A warning if other users may write to them: someone who can change them can impersonate a worker. A note if other users may
    read a folder `.ssh`. The mode of another folder, which may hold more than a key, is not judged.
    """
    passed = []
    for entry, mode in (
        (environment.keys.folder, 0o700),
        *((file, _FILE_MODE) for file in environment.keys.known_hosts),
    ):
        subject, is_ssh = str(entry.path), entry.path.name == _SSH_FOLDER
        if entry.is_open(_WRITABLE):
            level, text = Level.WARNING, f"other users may write to it (mode {entry.octal})"
        elif entry.problem:
            level, text = Level.WARNING, f"it cannot be used: {entry.problem}"
        elif is_ssh and entry.is_open():
            level, text = Level.NOTE, f"other users may read it (mode {entry.octal})"
        else:
            passed += [subject] if entry.exists else []
            continue
        remedy = Remedy("make it readable for your user")
        if entry.is_open() and (mode == _FILE_MODE or is_ssh):
            remedy = Remedy.by(SetFileMode(subject, mode), "restrict it to your user")
        elif entry.is_open():
            remedy = Remedy("move the key to a private folder such as `~/.ssh`, and name it there")
        yield RuleResult(level=level, subject=subject, text=text, remedies=(remedy,), facts={"mode": entry.octal})
    if passed:
        names = ", ".join(f"`{name}`" for name in passed)
        yield RuleResult(level=Level.OK, subject="ssh files", text=f"only your user may write to {names}")


def _derive_command(keys: SshKeyFacts) -> str:
    return shlex.join(["ssh-keygen", "-y", "-f", str(keys.private.path)])


def _agent_has(keys: SshKeyFacts) -> bool:
    public, agent_keys = value_or_none(keys.public), value_or_none(keys.agent)
    return public is not None and agent_keys is not None and public in agent_keys


KEY_RULES: tuple[CheckRule[EnvironmentFacts], ...] = (
    check_ssh_key,
    check_key_pair,
    check_ssh_agent,
    check_ssh_file_modes,
)


# tpuctl reads these besides those of the settings. The others it sets for remote commands and hooks: harmless here.
_OTHER_VARIABLES = frozenset({"TPUCTL_STATE_DIR", "TPUCTL_SANDBOX_SPEED"})
_EXPORTED_PREFIXES = (
    "NODE", "WORKER", "HOOK_STDIN", "STATE", "HEALTH", "REASON", "EVENT", "AT", "STARTUP", "METADATA_ROOT", "DEVICE_ROOT",
)  # fmt: skip
# Variables that send gcloud to another endpoint, which tpuctl does not use [gcloud 528 source].
_OVERRIDES = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"


@check_rule("TPU912", "environment variables of TPU libraries")
def check_tpu_variables(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check `TPU_LOG_DIR`, `TPU_MIN_LOG_LEVEL` and `TPU_STDERR_LOG_LEVEL` if they are set on this machine.

    A warning if the first is neither an absolute path nor the word `disabled` (the `deaktiviert` of a translated guide creates
    a folder of that name), or if a level is not 0 to 3. Source: troubleshooting guides of Cloud TPU.
    """
    variables = environment.configuration.variables
    found = {name: variables[name] for name in (LOG_DIR, *LEVEL_NAMES) if name in variables}
    whys = {name: why for name, value in found.items() if (why := log_variable_problem(name, value))}
    for name, why in whys.items():
        advice = f"use an absolute path, or the English word `{NO_LOG}`" if name == LOG_DIR else "use 0, 1, 2 or 3"
        yield RuleResult(
            level=Level.WARNING,
            subject=name,
            text=f"`{name}={found[name]}` is set here, and libtpu does not accept that value",
            why=why,
            remedies=(Remedy(advice),),
            facts={"value": found[name]},
        )
    if found and not whys:
        words = ", ".join(f"`{name}={text}`" for name, text in found.items())
        yield RuleResult(level=Level.OK, subject="variables", text=f"set here, not on workers: {words}", facts=found)


@check_rule("TPU945", "configuration files")
def check_config_files(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the configuration files: the nearest `tpuctl.yaml` in or above the working directory, and the user file.

    An error if one cannot be read or has an unknown key or value: every other command then fails with that error.
    """
    configuration = environment.configuration
    existing = [str(entry.path) for entry in configuration.entries if entry.exists]
    if isinstance(configuration.settings, Unknown):
        remedy = Remedy("fix that line; these are the files", "tpuctl config path")
        text = configuration.settings.reason
        yield RuleResult(
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
        yield RuleResult(level=Level.ERROR, subject="settings", text=problem, why=why, remedies=(remedy,))
    text = (
        f"settings are read from {' and '.join(f'`{path}`' for path in existing)}"
        if existing
        else "there are no configuration files"
    )
    yield RuleResult(level=Level.OK, subject="settings", text=text, facts={"files": existing})


@check_rule("TPU946", "where settings come from")
def check_setting_sources(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Show where each setting comes from; a note for each variable that overrides another value in a file."""
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
            yield RuleResult(
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
    yield RuleResult(level=Level.OK, subject="settings", text=text, facts=facts)


@check_rule("TPU947", "environment variables without effect")
def check_unused_variables(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check for variables that begin with `TPUCTL_` but that tpuctl does not read: warnings.

    A note for each variable that sends gcloud to another endpoint, which tpuctl does not use.
    """
    known_names = [spec.environment for spec in SETTINGS.values() if spec.environment] + sorted(_OTHER_VARIABLES)
    passed = []
    for name, value in environment.configuration.variables.items():
        if name.startswith("TPUCTL_") and name not in known_names:
            if name.removeprefix("TPUCTL_").startswith(_EXPORTED_PREFIXES):
                continue
            near = closest_match(name, known_names)
            remedy = Remedy(
                f"did you mean `{near}`?" if near else "unset it; `tpuctl config show --all` lists all variables"
            )
            yield RuleResult(
                level=Level.WARNING,
                subject=name,
                text=f"`{name}` has no effect: tpuctl does not read it",
                remedies=(remedy,),
            )
        elif name.startswith(_OVERRIDES) and value:
            place = mask_url(value)
            text = f"`{name}` sends gcloud to {place}, which tpuctl does not use"
            remedy = Remedy(f"use it with tpuctl too (`--endpoint {place}`), or unset it")
            yield RuleResult(level=Level.NOTE, subject=name, text=text, remedies=(remedy,))
        else:
            passed.append(name)
    if passed:
        text = f"set in the environment: {', '.join(passed)}"
        yield RuleResult(level=Level.OK, subject="variables", text=text, facts={"variables": passed})


@check_rule("TPU948", "chosen cloud")
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
        yield RuleResult(level=Level.NOTE, subject="cloud", text=text, facts=facts)
    elif configuration.endpoint:
        text = f"calls go to `{configuration.endpoint}`{_source(settings['endpoint'])}, not to Google"
        yield RuleResult(level=Level.NOTE, subject="cloud", text=text, facts=facts)
    else:
        yield RuleResult(level=Level.OK, subject="cloud", text="commands use Google Cloud", facts=facts)


def _plain(key: str, setting: ResolvedSetting) -> str:
    return masked_value(SETTINGS[key], setting.value)


def _shown(key: str, setting: ResolvedSetting) -> str:
    return _plain(key, setting) if SETTINGS[key].secret else f"`{_plain(key, setting)}`"


def _source(setting: ResolvedSetting | None) -> str:
    return f" (`{setting.source}`)" if setting else ""


SETTING_RULES: tuple[CheckRule[EnvironmentFacts], ...] = (
    check_tpu_variables,
    check_config_files,
    check_setting_sources,
    check_unused_variables,
    check_chosen_cloud,
)
