"""The sandbox: a local Cloud TPU API that costs nothing.

It serves the API's JSON and shares no code with the client: its schema comes from Google's discovery documents, its
rules from observations of the real service.

For tests of other tools it offers `Sandbox` (docs/how-to/test-your-own-tool.md), and `SeedError` for an invalid seed.
Everything else in this package may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.sandbox.embedding import Sandbox
    from tpuctl.sandbox.seeding import SeedError

__all__ = ["Sandbox", "SeedError"]

_HOMES = {"Sandbox": "tpuctl.sandbox.embedding", "SeedError": "tpuctl.sandbox.seeding"}


def __getattr__(name: str) -> Any:  # any attribute
    # Every module of the package imports this one first, so the public names are imported on first use.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
