"""What a run of the program gets from outside: all that a test replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from random import Random

    from tpuctl.clock import Clock
    from tpuctl.output.terminal import Streams


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a run of the program gets from outside. A clock and a source of chance are given by tests only."""

    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    streams: Streams
    folder: Path
    clock: Clock | None = None
    random: Random | None = None
