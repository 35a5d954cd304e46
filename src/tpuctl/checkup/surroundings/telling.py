"""The surroundings for scripts: versions and places, whatever the rules say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.preflight.fact import known

if TYPE_CHECKING:
    from tpuctl.checkup.surroundings.facts import Surroundings


def to_json(seen: Surroundings) -> dict[str, Any]:
    """Return what was found. Every field is always there; what is not known, or not there, is null. Nothing of it is secret."""
    machine, network = seen.machine, seen.network
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
        "account": seen.identity.account,
        "project": known(seen.cloud.project),
        "endpoint": seen.configuration.endpoint,
        "settings": _settings(seen),
    }


def _settings(seen: Surroundings) -> dict[str, str]:
    """Return where each setting that has a value comes from; the values are `tpuctl config show`'s."""
    settings = known(seen.configuration.settings)
    return {spec.key: str(setting.source) for spec, setting in settings or () if setting}
