"""A few made-up messages, so that tests of the scanner do not depend on the known messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.explain.messages import Action, Detail, Message, MessageOrigin
from tpuctl.explain.scanner import LogReader

if TYPE_CHECKING:
    from tpuctl.explain.log_lines import ScanResult


def message(id_: str, match: str, *anchors: str, **more: Any) -> Message:
    """Return a message of a training log."""
    return Message(
        id=id_,
        where=MessageOrigin.TRAINING_LOG,
        match=match,
        kind="failure",
        meaning="it failed",
        remedy=("try again",),
        action=Action.NONE,
        retriable=False,
        source="made up",
        anchors=anchors,
        **more,
    )


BUSY = message("busy", r"TPU is already in use by process(?: with pid (?P<pid>\d{1,12}))?", "already in use by process")
OOM = message("oom", "Ran out of memory in memory space hbm", "in memory space hbm", detail=Detail.MEMORY)
GENERIC = message("generic", "Ran out of memory", "ran out of memory")
RETRYING = message(
    "retrying",
    r"Retrying \((?P<attempt>\d{1,6})/(?P<attempts>\d{1,6})\)",
    "retrying (",
    latest=frozenset({"attempt"}),
)
BARRIER = message("barrier", r"Barrier timed out\.", "barrier timed out", detail=Detail.TASKS)
KILLED = message("killed", r"\bexit 137\b", "exit 137")
CHECK = message("check", "Something is odd about the answer", "odd about the answer")
KNOWN = (OOM, BUSY, GENERIC, RETRYING, BARRIER, KILLED, CHECK)


def scan(log: str | bytes, known: tuple[Message, ...] = KNOWN) -> ScanResult:
    """Return the scan of a log that arrives in one piece."""
    reader = LogReader(known)
    reader.feed(log.encode() if isinstance(log, str) else log)
    return reader.so_far()


def found(log: str | bytes) -> dict[str, int]:
    """Return how often each message occurs, in the order of the log."""
    return {sighting.message.id: sighting.count for sighting in scan(log).sightings}
