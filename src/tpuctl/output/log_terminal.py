"""The terminal of a program that uses tpuctl as a library: messages go to its log, and a question is never asked."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING

from tpuctl.errors import NotConfirmedError
from tpuctl.escaping import escape_unprintable
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.output.terminal import StandardStreams, Terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOGGER = logging.getLogger("tpuctl")
# Without a handler Python would print warnings on stderr.
LOGGER.addHandler(logging.NullHandler())
_LEVELS = {"warning: ": logging.WARNING, "error: ": logging.ERROR}


def log_event(event: NodeEvent) -> None:
    """Log an event: a wait as DEBUG, all else as INFO."""
    level = logging.DEBUG if event.kind is EventKind.WAIT else logging.INFO
    LOGGER.log(level, "%s: %s", event.node.node_id, escape_unprintable(event.text))


class LogTerminal(Terminal):
    """Writes notes, warnings and errors to the logger `tpuctl`. What needs a confirmation is refused without it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(StandardStreams(io.StringIO(), io.StringIO(), io.StringIO()), environ)

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Return True if `yes`. Raises `NotConfirmedError` with the question otherwise."""
        if yes:
            return True
        raise NotConfirmedError(f"not confirmed: {question}", hint="nothing was done; pass `yes=True` to confirm")

    def _print(self, lines: Sequence[str], *, label: str = "", code: str = "") -> None:  # noqa: ARG002  # no colors
        LOGGER.log(_LEVELS.get(label, logging.INFO), "%s", "\n".join(map(escape_unprintable, lines)))
