"""What jobs have printed so far, read from workers: all are connected at once, and told of one after the other."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.remote.jobs.asking import AT_ONCE, Silence
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

_BLOCK = 256 * 1024
# Before a worker is connected to again.
_PAUSES = (timedelta(seconds=0.5), timedelta(seconds=2), timedelta(seconds=5))


@dataclass(slots=True)
class _Part:
    """What is to be read of one worker. `at` is how far it has come, in stdout and in stderr."""

    share: Share
    at: list[int]

    @property
    def order(self) -> dict[str, object]:
        parts = list(zip(self.at, self.share.sizes, strict=True))
        return {"do": "read", "name": self.share.job, "parts": parts}


class Reader:
    """Reads workers and passes on what it reads. A connection that breaks is made again, and goes on where it broke."""

    def __init__(self, audience: Audience, ssh_options: Callable[[Connection], tuple[str, ...]], clock: Clock) -> None:
        self._audience, self._ssh_options, self._clock = audience, ssh_options, clock

    def read(self, shares: Sequence[Share]) -> list[Silence]:
        """Pass on what the shares' jobs have printed, from `starts` to `sizes`; return the workers that could not be read.

        Memory is bounded: a worker whose turn has not come waits, as its pipe is full. Raises `SshProgramMissingError`.
        """
        parts = [_Part(share, list(share.starts)) for share in shares]
        silent = []
        with ExitStack() as stack:
            sessions: dict[int, Session] = {}
            for index, part in enumerate(parts):
                for ahead in range(len(sessions), min(index + AT_ONCE, len(parts))):
                    sessions[ahead] = stack.enter_context(self._opened(parts[ahead]))
                if silence := self._read_one(part, sessions[index]):
                    silent.append(silence)
                self._audience.ended(part.share.ending)
        return silent

    def _opened(self, part: _Part) -> AbstractContextManager[Session]:
        return opened(part.share.member, part.order, self._ssh_options(part.share.member.way))

    def _read_one(self, part: _Part, session: Session) -> Silence | None:
        """Read one worker to the end of what there is."""
        before, tries = list(part.at), 0
        silence = self._pass_on(part, session)
        while silence is not None and may_pass(silence.code, silence.words, is_first=not tries):
            # As long as each connection brings something it goes on.
            tries = 0 if part.at != before else tries
            if tries == len(_PAUSES):
                break
            self._clock.sleep(_PAUSES[tries])
            before, tries = list(part.at), tries + 1
            with self._opened(part) as again:
                silence = self._pass_on(part, again)
        return silence

    def _pass_on(self, part: _Part, session: Session) -> Silence | None:
        """Pass on what comes, and note how far it has come; return how it ended before all was there."""
        decoder, member = Decoder(), part.share.member
        while data := os.read(session.stdout.fileno(), _BLOCK):
            try:
                frames = decoder.feed(data)
            except ValueError:
                return Silence(member, 1, "its answer is not understood: something there prints into the session")
            for kind, payload in frames:
                match kind:
                    case Told.OUT | Told.ERR:
                        part.at[kind is Told.ERR] += len(payload)
                        self._audience.output(member, payload, is_error=kind is Told.ERR)
                    case Told.OUT_GONE | Told.ERR_GONE:
                        part.at[kind is Told.ERR_GONE] += int(payload)
                        self._audience.note(
                            member, f"{payload.decode()} bytes of what it printed are not kept any more"
                        )
                    case Told.EXIT:
                        return None
                    case _:
                        return Silence(member, 1, payload.decode(errors="replace") or "the job is no longer there")
        return Silence(member, session.end(), session.words())
