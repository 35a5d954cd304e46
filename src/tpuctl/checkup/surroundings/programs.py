"""Rules about the programs that tpuctl starts: gcloud and its updates, ssh and rsync."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpuctl.checkup.surroundings.machine import is_older
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.surroundings.facts import Surroundings
    from tpuctl.preflight.findings import Rule

# The version with which the printed gcloud commands were tested.
_TRIED_GCLOUD = "528.0.0"
_UPDATES = {
    "apt": "sudo apt-get update && sudo apt-get install --only-upgrade google-cloud-cli",
    "dnf": "sudo dnf upgrade google-cloud-cli",
    "snap": "sudo snap refresh google-cloud-cli",
}
# The effect of each missing program.
_NEEDED = {
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


@rule("TPU904", "gcloud")
def gcloud(environment: Surroundings) -> Iterator[Found]:
    """Check the Google Cloud CLI on PATH, and read its version from its own folder without starting it.

    tpuctl needs it to log in, and for Identity-Aware Proxy tunnels. If it is missing: a note if credentials exist and no tunnel
    is configured, else a warning. A note if it is older than the version that the printed commands were tested with. Source:
    gcloud 528, file `VERSION` of its root.
    """
    settings = known(environment.configuration.settings)
    match environment.machine.gcloud:
        case Known(found):
            version = known(found.version)
            facts = {"path": found.path, "root": found.root, "version": version}
            if version is None:
                why = found.version.reason if isinstance(found.version, (Absent, Unknown)) else ""
                text = f"the version of `{found.path}` could not be read: {why}"
                remedy = Remedy("check whether it runs", "gcloud version")
                yield Found(level=Level.UNKNOWN, subject="gcloud", text=text, remedies=(remedy,), facts=facts)
            elif is_older(version, _TRIED_GCLOUD):
                text = f"gcloud {version} is older than {_TRIED_GCLOUD}, with which the printed commands were tested"
                update = Remedy("update it", _UPDATES.get(found.packaging or "", "gcloud components update"))
                yield Found(level=Level.NOTE, subject="gcloud", text=text, remedies=(update,), facts=facts)
            else:
                text = f"gcloud {version} at `{found.path}`"
                yield Found(level=Level.OK, subject="gcloud", text=text, facts=facts)
        case Absent() | Unknown() as fact:
            iap = str(getattr(settings["iap"], "value", "")) if settings is not None else ""
            tunnels = iap.lower() in {"true", "1", "yes", "on"}
            can_do_without = not tunnels and (
                isinstance(environment.identity.file, Known) or not environment.identity.needed
            )
            yield Found(
                level=Level.NOTE if can_do_without else Level.WARNING,
                subject="gcloud",
                text=f"gcloud is not on PATH{f': {fact.reason}' if fact.reason else ''}",
                why="gcloud provides the tunnels through Identity-Aware Proxy" if tunnels else "gcloud logs you in",
                remedies=(Remedy("install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install"),),
                facts={"path": None, "root": None, "version": None},
            )


@rule("TPU905", "how gcloud is updated")
def gcloud_updates(environment: Surroundings) -> Iterator[Found]:
    """Show which command updates gcloud.

    If a package manager installed it, its own component manager is disabled, and the `gcloud components` of older guides fails.
    Source: gcloud 528, `disable_updater` in lib/googlecloudsdk/core/config.json.
    """
    found = known(environment.machine.gcloud)
    if found is None or found.root is None:
        return
    if found.packaging is None:
        yield Found(level=Level.OK, subject="gcloud", text="gcloud updates itself: `gcloud components update`")
        return
    command = _UPDATES.get(found.packaging)
    by = f"by `{command}`" if command else "by the program that installed it"
    yield Found(
        level=Level.OK,
        subject="gcloud",
        text=f"gcloud's component manager is disabled; gcloud is updated {by}",
        facts={"packaging": found.packaging, "command": command},
    )


@rule("TPU906", "gcloud's configuration")
def gcloud_configuration(environment: Surroundings) -> Iterator[Found]:
    """Check that the active gcloud configuration can be read; tpuctl uses its properties as fallback for its own settings.

    A warning if it cannot be read, or if a variable names one that does not exist. Source: gcloud 528.
    """
    configuration = environment.configuration
    entry, name = configuration.gcloud_entry, configuration.gcloud_name
    named = configuration.variables.get("CLOUDSDK_ACTIVE_CONFIG_NAME")
    facts = {"configuration": name, "path": str(entry.path) if entry else None}
    if entry is None:
        yield Found(level=Level.OK, subject="gcloud", text="gcloud is set to use no configuration", facts=facts)
    elif entry.problem:
        text = f"the configuration `{name}` of gcloud cannot be read: {entry.problem}"
        remedy = Remedy(f"make `{entry.path}` readable for you, or choose another", "gcloud config configurations list")
        yield Found(level=Level.WARNING, subject="gcloud", text=text, remedies=(remedy,), facts=facts)
    elif entry.is_there:
        yield Found(level=Level.OK, subject="gcloud", text=f"gcloud's active configuration is `{name}`", facts=facts)
    elif named:
        text = f"gcloud has no configuration `{name}`, which `CLOUDSDK_ACTIVE_CONFIG_NAME` names"
        remedy = Remedy(
            "unset the variable, or create the configuration", f"gcloud config configurations create {name}"
        )
        yield Found(level=Level.WARNING, subject="gcloud", text=text, remedies=(remedy,), facts=facts)
    else:
        yield Found(level=Level.OK, subject="gcloud", text="gcloud has no configuration yet", facts=facts)


@rule("TPU907", "programs for workers")
def programs(environment: Surroundings) -> Iterator[Found]:
    """Check the programs that connect to workers: `ssh`, `scp`, `ssh-keygen`, `ssh-add` of OpenSSH 7.6 or later, and `rsync`.

    An error if `ssh` or `ssh-keygen` is missing.
    """
    for name, fact in environment.machine.programs.items():
        level, why = _NEEDED[name]
        if isinstance(fact, Known):
            program, version = fact.value, known(fact.value.version)
            facts = {"path": program.path, "version": version}
            number = _SSH_VERSION.search(version) if name == "ssh" and version is not None else None
            if number and (int(number[1]), int(number[2])) < _OLDEST_SSH:
                yield Found(
                    level=Level.WARNING,
                    subject=name,
                    text=f"`{program.path}` is {version}, older than OpenSSH 7.6",
                    why="it lacks options that tpuctl uses",
                    remedies=(Remedy(_OPENSSH),),
                    facts=facts,
                )
                continue
            known_as = f" ({version})" if version else ""
            yield Found(level=Level.OK, subject=name, text=f"`{program.path}`{known_as}", facts=facts)
            continue
        if isinstance(fact, Unknown):
            text = f"`{name}` could not be checked: {fact.reason}"
            yield Found(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)
            continue
        remedy = Remedy(_INSTALL.get(name, _OPENSSH))
        text = f"`{name}` is not on PATH"
        yield Found(level=level, subject=name, text=text, why=why, remedies=(remedy,), facts={"path": None})


RULES: tuple[Rule[Surroundings], ...] = (gcloud, gcloud_updates, gcloud_configuration, programs)
