"""What a run of the program gets from outside, and what it leaves behind when it is cut off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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

    def command_line(self) -> str:
        """Return the command as it was typed, to be typed again; with hidden values where they may be secrets."""
        import shlex  # noqa: PLC0415  # only for messages

        from tpuctl.masking import without_secret_values  # noqa: PLC0415  # as above

        return shlex.join(("tpuctl", *without_secret_values(self.arguments, self.environ)))


@dataclass(frozen=True, slots=True)
class InFlight:
    """What goes on in the cloud if this process ends now, and what to type then."""

    what: str | Callable[[], str]
    resume: str
    undo: str | None = None
