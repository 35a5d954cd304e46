"""The sandbox: a local Cloud TPU API that costs nothing.

It speaks the API's JSON and shares nothing with the client: its schema comes from Google's discovery documents, its
rules from what is known of the real service.

For tests of your own there is `Sandbox` (docs/how-to/test-your-own-tool.md), and `SeedError` for what a seed cannot
mean. Everything else in this package may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.sandbox.embedding import Sandbox
    from tpuctl.sandbox.seeding import SeedError

__all__ = ["Sandbox", "SeedError"]

_HOMES = {"Sandbox": "tpuctl.sandbox.embedding", "SeedError": "tpuctl.sandbox.seeding"}


def __getattr__(name: str) -> Any:  # whatever it is
    # Every module of the package imports this one first: what is public is imported when it is asked for.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
