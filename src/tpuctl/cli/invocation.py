"""What a run of the program is started with, and what to report if it is interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from random import Random

    from tpuctl.clock import Clock
    from tpuctl.output.terminal import Streams


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a run of the program is started with. Only tests pass a clock and a source of randomness."""

    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    streams: Streams
    folder: Path  # the working directory
    clock: Clock | None = None
    random: Random | None = None

    def command_line(self) -> str:
        """Return the command as typed, ready to be pasted; values that may be secrets are hidden."""
        import shlex  # noqa: PLC0415  # only for messages

        from tpuctl.masking import without_secret_values  # noqa: PLC0415  # as above

        return shlex.join(("tpuctl", *without_secret_values(self.arguments, self.environ)))


@dataclass(frozen=True, slots=True)
class InFlight:
    """Work in the cloud that continues if this process ends now, and the commands for that case."""

    what: str | Callable[[], str]
    resume: str
    undo: str | None = None


def asked_for_json(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether the user asked for JSON, for command lines and settings that could not be parsed as a whole."""
    before = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if any(word in {"-ojson", "--output=json"} for word in before):
        return True
    if any(pair in {("-o", "json"), ("--output", "json")} for pair in pairwise(before)):
        return True
    has_option = any(word.startswith(("-o", "--output")) for word in before)
    return not has_option and environ.get("TPUCTL_OUTPUT") == "json"
