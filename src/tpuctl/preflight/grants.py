"""Grants of free TPU capacity, such as the TPU Research Cloud gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import date


@dataclass(frozen=True, slots=True)
class Grant:
    """So much of a type, in a zone, in a tier, until a day."""

    zone: str
    type: str
    tier: str
    count: int
    until: date | None
