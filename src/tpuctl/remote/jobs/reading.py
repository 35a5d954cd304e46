"""Read the stored output of jobs: all workers are connected in parallel, and shown one after the other."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.remote.answers import UnexpectedAnswerError, decimal, one_line
from tpuctl.remote.jobs.asking import AT_ONCE, PATIENCE, Silence
from tpuctl.remote.jobs.session import Session, opened
from tpuctl.remote.running.failure import may_pass
from tpuctl.remote.running.frames import Decoder, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tpuctl.clock import Clock
    from tpuctl.remote.jobs.values import Share
    from tpuctl.remote.running.values import Audience
    from tpuctl.remote.ssh import Connection

# Before reconnecting to a worker.
_PAUSES = (timedelta(seconds=0.5), timedelta(seconds=2), timedelta(seconds=5))


@dataclass(slots=True)
class _Part:
    """The output to read from one worker. `at`: the position in stdout and in stderr, in bytes."""

    share: Share
    at: list[int]

    @property
    def request(self) -> dict[str, object]:
        parts = list(zip(self.at, self.share.sizes, strict=True))
        return {"do": "read", "name": self.share.job, "parts": parts}

    def move(self, index: int, size: int) -> None:
        """Advance the position by `size`. Raises `UnexpectedAnswerError` beyond the requested end."""
        self.at[index] += size
        if not size or self.at[index] > self.share.sizes[index]:
            raise UnexpectedAnswerError(f"{size} bytes of output, to {self.at[index]} of {self.share.sizes[index]}")


class Reader:
    """Reads workers and passes their output on. A broken connection is replaced, and reading continues where it broke."""

    def __init__(self, audience: Audience, ssh_options: Callable[[Connection], tuple[str, ...]], clock: Clock) -> None:
        self._audience, self._ssh_options, self._clock = audience, ssh_options, clock

    def read(self, shares: Sequence[Share]) -> list[Silence]:
        """Pass on the output of jobs from `starts` to `sizes`; return the workers that could not be read.

        Memory is bounded: a worker waits for its turn with a full pipe. Raises `SshProgramMissingError`.
        """
        parts = [_Part(share, list(share.starts)) for share in shares]
        silent = []
        with ExitStack() as stack:
            sessions: dict[int, Session] = {}
            for index, part in enumerate(parts):
                for ahead in range(len(sessions), min(index + AT_ONCE, len(parts))):
                    sessions[ahead] = stack.enter_context(self._open(parts[ahead]))
                if silence := self._read_worker(part, sessions[index]):
                    silent.append(silence)
                self._audience.ended(part.share.ending)
        return silent

    def _open(self, part: _Part) -> AbstractContextManager[Session]:
        return opened(part.share.member, part.request, self._ssh_options(part.share.member.way))

    def _read_worker(self, part: _Part, session: Session) -> Silence | None:
        """Read one worker to the end, over several connections if they break."""
        before, tries = list(part.at), 0
        silence = self._pass_on(part, session)
        while silence is not None and may_pass(silence.code, silence.words, is_first=not tries):
            # No limit as long as each connection brings something.
            tries = 0 if part.at != before else tries
            if tries == len(_PAUSES):
                break
            self._clock.sleep(_PAUSES[tries])
            before, tries = list(part.at), tries + 1
            with self._open(part) as again:
                silence = self._pass_on(part, again)
        return silence

    def _pass_on(self, part: _Part, session: Session) -> Silence | None:
        """Pass on the output of one connection and advance the position; return why it ended before all was read."""
        decoder, member = Decoder(), part.share.member
        try:
            while data := session.read(PATIENCE):
                for kind, payload in decoder.feed(data):
                    match kind:
                        case Told.OUT | Told.ERR:
                            part.move(kind is Told.ERR, len(payload))
                            self._audience.output(member, payload, is_error=kind is Told.ERR)
                        case Told.OUT_GONE | Told.ERR_GONE:
                            gone = decimal(payload, "bytes that are not stored", low=1)
                            part.move(kind is Told.ERR_GONE, gone)
                            self._audience.note(member, f"{gone} bytes of its output are no longer stored")
                        case Told.EXIT if not payload:
                            return None
                        case Told.MISSING if not payload:
                            return Silence(member, 1, "the job no longer exists")
                        case Told.REFUSED:
                            return Silence(member, 1, one_line(payload.decode(errors="replace")))
                        case _:
                            return Silence.unexpected(
                                member, UnexpectedAnswerError(f"a frame `{kind.name}` within the output of the job")
                            )
        except UnexpectedAnswerError as error:
            return Silence.unexpected(member, error)
        return Silence(member, None if data is None else session.end(), session.words())
