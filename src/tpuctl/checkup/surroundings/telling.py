"""The facts for scripts, as JSON: versions, folders and sources of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.preflight.fact import known

if TYPE_CHECKING:
    from tpuctl.checkup.surroundings.facts import Surroundings


def to_json(facts: Surroundings) -> dict[str, Any]:
    """Return the facts as JSON. Every field is always present, null if unknown or absent. No value is a secret.

    `settings` has the source of each setting that has a value; `tpuctl config show` has the values.
    """
    machine, network, settings = facts.machine, facts.network, known(facts.configuration.settings)
    gcloud, ahead = known(machine.gcloud), network.ahead
    programs = {name: known(fact) for name, fact in machine.programs.items()}
    return {
        "python": ".".join(map(str, machine.python)),
        "executable": machine.executable,
        "tpuctl": machine.tpuctl,
        "installedBy": machine.installed_by,
        "packages": {name: known(fact) for name, fact in machine.packages.items()},
        "gcloud": known(gcloud.version) if gcloud else None,
        "programs": {name: (known(found.version) or found.path) if found else None for name, found in programs.items()},
        "locale": machine.locale,
        "timeZone": network.time_zone,
        "secondsBehind": round(ahead.total_seconds()) if ahead is not None else None,
        "proxy": known(network.proxy),
        "account": facts.identity.account,
        "project": known(facts.cloud.project),
        "endpoint": facts.configuration.endpoint,
        "settings": {spec.key: str(setting.source) for spec, setting in settings or () if setting},
    }
