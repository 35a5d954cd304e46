"""Rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.preflight.findings import Rule

RULES: tuple[Rule, ...] = ()
