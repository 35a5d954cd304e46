"""The meaning of a failed command's output: the end of each worker's output is kept, and read after a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tpuctl.remote.running.values import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpuctl.remote.member import Member
    from tpuctl.remote.running.values import Audience, Ending

# Bytes that are kept of each worker's stdout and of its stderr, and of all workers together.
_KEPT: Final = 64 * 1024
_KEPT_OF_ALL: Final = 8 * 1024 * 1024
_LEAST_KEPT: Final = 4 * 1024
# Of a large slice only the workers that failed first are read: the others mostly report that those are missing.
_READ: Final = 16
_FAILED: Final = frozenset({Outcome.EXITED, Outcome.SIGNALED, Outcome.LOST})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The most likely cause, in one line for people and as JSON for scripts.

    `id` is that of a known message, `worker` the label of the first worker that printed it.
    """

    id: str
    worker: str
    action: str
    confidence: str
    meaning: str
    remedy: tuple[str, ...]

    @property
    def line(self) -> str:
        """One line: the message, the worker, the meaning and the best remedy."""
        advice = f"; {self.remedy[0]}" if self.remedy else ""
        return (
            f"diagnosis: {self.id} on worker {self.worker}: {self.meaning}{advice} (more: `tpuctl explain {self.id}`)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form for scripts."""
        return {
            "id": self.id,
            "worker": self.worker,
            "action": self.action,
            "confidence": self.confidence,
            "meaning": self.meaning,
            "remedy": list(self.remedy),
        }


class LastWords:
    """Passes everything on to a sink, and keeps the end of each worker's output, in bounded memory."""

    def __init__(self, audience: Audience, count: int) -> None:
        self._audience = audience
        self._most = max(_LEAST_KEPT, min(_KEPT, _KEPT_OF_ALL // (2 * max(count, 1))))
        self._tails: dict[tuple[str, bool], bytearray] = {}
        self._cut: set[tuple[str, bool]] = set()

    def output(self, member: Member, data: bytes, *, is_error: bool) -> None:
        """Keep and pass on output of a command."""
        self._audience.output(member, data, is_error=is_error)
        key = member.label, is_error
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = bytearray()
        tail += data
        # Cut rarely: each byte is moved at most once.
        if len(tail) > 2 * self._most:
            del tail[: -self._most]
            self._cut.add(key)

    def ended(self, ending: Ending) -> None:
        """Pass on the result of one worker."""
        self._audience.ended(ending)

    def gathering(self, there: int, total: int) -> None:
        """Pass on how many workers are connected."""
        self._audience.gathering(there, total)

    def pressed(self) -> None:
        """Pass on a Ctrl-C."""
        self._audience.pressed()

    def note(self, member: Member | None, text: str) -> None:
        """Pass on a note for the user."""
        self._audience.note(member, text)

    def of(self, member: Member) -> Iterable[bytes]:
        """Return the last whole lines of a worker's stdout, then of its stderr."""
        for is_error in (False, True):
            tail = bytes(self._tails.get((member.label, is_error), b""))
            # The first line of a cut tail is not whole.
            yield tail.partition(b"\n")[2] if (member.label, is_error) in self._cut else tail


def diagnose(endings: Sequence[Ending], said: LastWords) -> Diagnosis | None:
    """Return the most likely cause of a failed command; None if it printed no known message, or only quoted one.

    Reads only the kept output, and never fails.
    """
    failed = [ending for ending in endings if not ending.is_good and ending.outcome in _FAILED]
    if not failed:
        return None
    try:
        return _conclude(failed, said)
    except Exception:  # noqa: BLE001  # it only accompanies the failure, which has to be shown in any case
        return None


def _conclude(failed: Sequence[Ending], said: LastWords) -> Diagnosis | None:
    from tpuctl.diagnosis.conclusion import conclude  # noqa: PLC0415  # 180 ms with the messages, and only after a failure
    from tpuctl.diagnosis.explanation import Confidence  # noqa: PLC0415  # as above
    from tpuctl.diagnosis.reader import LogReader  # noqa: PLC0415  # as above
    from tpuctl.diagnosis.several import together  # noqa: PLC0415  # as above

    first = sorted(failed, key=lambda one: (one.duration is None, one.duration.total_seconds() if one.duration else 0))
    logs = {}
    for ending in first[:_READ]:
        words = [text for text in said.of(ending.member) if text.strip()]
        if words:
            reader = LogReader()
            for text in words:
                reader.feed(text if text.endswith(b"\n") else text + b"\n")
            logs[ending.member.label] = reader.so_far()
    nodes = {ending.member.node.name.node_id for ending in failed}
    explained = conclude(together(logs), known={"node": nodes.pop()} if len(nodes) == 1 else {})
    for conclusion in explained.conclusions:
        if conclusion.confidence in {Confidence.HIGH, Confidence.MEDIUM}:
            place = conclusion.sighting.first
            return Diagnosis(
                id=conclusion.id,
                worker=place.source or place.worker or "",
                action=str(conclusion.sighting.message.action),
                confidence=str(conclusion.confidence),
                meaning=conclusion.meaning,
                remedy=conclusion.remedy,
            )
    return None
