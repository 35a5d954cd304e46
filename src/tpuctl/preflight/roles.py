"""What predefined roles permit, without asking: a table of those that accounts of TPUs usually have.

Source of the table: `data/roles.yaml`, which names the permissions that matter here and not all that a role has. It is whole
in what it says of objects in Cloud Storage.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_PREDEFINED = "roles/"


def permissions(role: str) -> frozenset[str] | None:
    """Return what a role such as `roles/storage.objectViewer` permits; nothing where the table does not have it."""
    name = role.removeprefix(_PREDEFINED)
    return _permissions(name) if role.startswith(_PREDEFINED) and name in _table() else None


def _permissions(name: str) -> frozenset[str]:
    entry = _table()[name]
    included = (_permissions(other) for other in entry.get("includes", ()))
    return frozenset(entry.get("permissions", ())).union(*included)


@cache
def _table() -> dict[str, Any]:
    from importlib.resources import files  # noqa: PLC0415  # only where a policy has been read

    import yaml  # noqa: PLC0415  # costs 20 ms to import

    text = files("tpuctl.data").joinpath("roles.yaml").read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return dict(yaml.load(text, Loader=loader))  # noqa: S506  # both are the safe loader
