"""What predefined roles permit: a table of the roles that accounts of TPUs usually have.

The table is `data/roles.yaml`. It lists only permissions that matter here; for objects in Cloud Storage it is complete.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_PREDEFINED = "roles/"


def permissions(role: str) -> frozenset[str] | None:
    """Return what a role such as `roles/storage.objectViewer` permits; None if the table lacks it."""
    name = role.removeprefix(_PREDEFINED)
    return _permissions(name) if role.startswith(_PREDEFINED) and name in _table() else None


def _permissions(name: str) -> frozenset[str]:
    entry = _table()[name]
    included = (_permissions(other) for other in entry.get("includes", ()))
    return frozenset(entry.get("permissions", ())).union(*included)


@cache
def _table() -> dict[str, Any]:
    from importlib.resources import files  # noqa: PLC0415  # only if a policy was read

    import yaml  # noqa: PLC0415  # costs 20 ms to import

    text = files("tpuctl.data").joinpath("roles.yaml").read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return dict(yaml.load(text, Loader=loader))  # noqa: S506  # both are the safe loader
