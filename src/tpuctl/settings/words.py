"""Errors and hints for settings that are missing, invalid, or in a file that may not set them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import SettingError
from tpuctl.masking import public_url
from tpuctl.settings.table import FileKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tpuctl.settings.table import SettingSpec
    from tpuctl.settings.values import Value


_NOT_SHOWN = "(set, not shown)"
_URLS = frozenset({"endpoint", "proxy_address"})


class UntrustedFileError(SettingError):
    """A project file that is not trusted has settings that require trust. Nothing was done, and none of them was used."""

    kind = "untrusted_file"

    def __init__(
        self,
        path: Path | None,
        places: Mapping[str, object],
        *,
        has_changed: bool = False,
        command: str = "tpuctl trust",
    ) -> None:
        keys = ", ".join(f"`{key}` ({place})" for key, place in places.items())
        state = "has changed since it was trusted" if has_changed else "is not trusted"
        super().__init__(
            f"{path} {state}, and it sets {keys}",
            hint=f"`{command}` shows what that does, and asks\nwithout a terminal, for a file of your own: pass "
            "`--trust-project-file`, or set `TPUCTL_TRUST_PROJECT_FILE=1`",
        )


def bad_value(spec: SettingSpec, value: Value, place: str, reason: str) -> SettingError:
    """Return the error for an invalid value; a possible secret is not shown."""
    hides = spec.secret or not isinstance(value, str)
    shown = f"`{spec.key}`" if hides else f"`{spec.key}` is `{shown_value(spec, value)}`"
    return SettingError(f"{place}: {shown}: {reason}")


def shown_value(spec: SettingSpec, value: Value) -> str:
    """Return a value as text, with secrets masked."""
    if spec.secret:
        return _NOT_SHOWN
    return public_url(str(value)) if spec.key in _URLS else str(value)


def how_to_set(spec: SettingSpec) -> str:
    """Return all ways to set a setting."""
    example = spec.choices[0] if spec.choices else spec.key.rsplit("_", 1)[-1].upper()
    ways = [f"pass `{spec.flag} {example}`"] if spec.flag else []
    ways += [f"set `{name}`" for name in (spec.environment, *(() if spec.environment else spec.foreign)) if name]
    if spec.files:
        ways.append(f"run `tpuctl config set {spec.key} {example}`")
    if spec.gcloud:
        ways.append(f"run `gcloud config set {spec.gcloud} {example}`")
    return ", ".join(ways[:-1]) + f" or {ways[-1]}" if len(ways) > 1 else ways[0]


def where_it_belongs(spec: SettingSpec) -> str:
    """Return the hint with the sources that may set a setting."""
    places = [f"`{place}`" for place in (spec.flag, spec.environment or next(iter(spec.foreign), None)) if place]
    if FileKind.USER in spec.files:
        places.append("the user file ($XDG_CONFIG_HOME/tpuctl/config.yaml)")
    if spec.gcloud:
        places.append(f"`gcloud config set {spec.gcloud}`")
    return "use " + ", ".join(places[:-1]) + f" or {places[-1]}"
