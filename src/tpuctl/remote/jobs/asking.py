"""Asking workers about their jobs, all at once, each in one ssh session."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.errors import RemoteCommandError
from tpuctl.remote.failures import explain_failures, look_around
from tpuctl.remote.jobs.session import opened
from tpuctl.remote.jobs.values import Share, parse_share
from tpuctl.remote.running.failure import ended_here, may_pass
from tpuctl.remote.running.frames import MARK, Decoder, Told
from tpuctl.remote.running.values import Limits
from tpuctl.remote.ssh import FRESH, SSH_FAILED, Connection

if TYPE_CHECKING:
    from tpuctl.clock import Clock
    from tpuctl.errors import TpuctlError
    from tpuctl.remote.member import Member

# Handshakes under way at once.
AT_ONCE = 32
PATIENCE = timedelta(seconds=30)
# As long as `run` tries to reach a worker, and as often.
_TRIED = Limits().connect_within
_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (0.5, 1, 2, 4))
_NO_PROGRAM = 127
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker that gave no answer. `words` are ssh's, or the worker's.

    `code` is ssh's, negative where a signal ended it, nothing where the time was up.
    """

    member: Member
    code: int | None
    words: str


@dataclass(frozen=True, slots=True)
class Listed:
    """What a worker tells of its jobs: the newest of them, the newest first, and how many there are."""

    shares: tuple[Share, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Signaled:
    """What a signal met: whether it was sent, and how the job was afterwards."""

    was_sent: bool
    share: Share


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers that are asked; `ssh_options` gives what else ssh is passed for a connection.

    What only looks is asked again where a link breaks, or a worker lets nobody in yet, for as long as `run` would try.
    Each method returns an answer of each worker, in their order, and raises `SshProgramMissingError`.
    """

    members: Sequence[Member]
    ssh_options: Callable[[Connection], tuple[str, ...]]
    clock: Clock

    def jobs(self, *, names: Sequence[str] = (), limit: int, tail: int | None = None) -> list[Listed | Silence]:
        """Return the newest jobs, or those that are named. With `tail` a share's `starts` says where its last lines begin."""

        def parse(member: Member, told: Any) -> Listed:  # a literal
            return Listed(tuple(parse_share(member, one) for one in told["jobs"]), int(told["total"]))

        return self._each({"do": "list", "names": list(names), "limit": limit, "tail": tail}, parse, again=True)

    def signal(self, job: str, number: int, *, wait: timedelta) -> list[Signaled | Silence | None]:
        """Send a signal to all processes of a job, if it runs, and wait so long for its end. None: there is no such job."""

        def parse(member: Member, told: Any) -> Signaled | None:  # a literal
            return None if told is None else Signaled(bool(told["sent"]), parse_share(member, told["job"]))

        order = {"do": "signal", "name": job, "number": number, "wait": wait.total_seconds()}
        return self._each(order, parse, patience=PATIENCE + wait)

    def remove(
        self, names: Sequence[str], *, older: timedelta, only_looks: bool = False
    ) -> list[Mapping[str, str] | Silence]:
        """Remove jobs that are named, or all that ended so long ago, but none that runs.

        Returns what came of each: `removed`, `missing`, `running`, `followed` (its output is being read). With `only_looks`
        nothing is removed: what would be is `ended`.
        """

        def parse(member: Member, told: Any) -> Mapping[str, str]:  # noqa: ARG001  # a literal; all parsers are called alike
            return {str(name): str(outcome) for name, outcome in told.items()}

        order = {"do": "remove", "names": list(names), "older": older.total_seconds(), "only_looks": only_looks}
        return self._each(order, parse, again=only_looks)

    def _each(
        self,
        order: dict[str, Any],
        parse: Callable[[Member, Any], _T],
        *,
        patience: timedelta = PATIENCE,
        again: bool = False,
    ) -> list[_T | Silence]:
        """Ask each for an answer; with `again` more than once, for nothing is changed by it."""
        answers = self._round(range(len(self.members)), order, parse, patience, self.ssh_options)
        until = self.clock.monotonic() + _TRIED
        for tries in count(1) if again else ():
            pause = _PAUSES[min(tries, len(_PAUSES)) - 1]
            cut = [index for index, answer in enumerate(answers) if _is_cut(answer, is_first=tries == 1)]
            if not cut or self.clock.monotonic() + pause > until:
                break
            self.clock.sleep(pause)
            # What was kept from an earlier command may be what broke.
            for index, answer in zip(cut, self._round(cut, order, parse, patience, lambda _: FRESH), strict=True):
                answers[index] = answer
        return answers

    def _round(
        self,
        indices: Sequence[int],
        order: dict[str, Any],
        parse: Callable[[Member, Any], _T],
        patience: timedelta,
        ssh_options: Callable[[Connection], tuple[str, ...]],
    ) -> list[_T | Silence]:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms

        def one(index: int) -> _T | Silence:
            member = self.members[index]
            return _ask(member, order, parse, ssh_options(member.way), patience)

        with ThreadPoolExecutor(min(AT_ONCE, len(indices)) or 1) as pool:
            return list(pool.map(one, indices))


def failures(silences: Iterable[Silence]) -> list[TpuctlError]:
    """Return why workers gave no answer: one error for all of a node that share a cause."""
    silent = list(silences)
    late = [one for one in silent if one.code is None]
    apart = [one for one in silent if one.code == SSH_FAILED]
    errors: list[TpuctlError] = [
        RemoteCommandError(f"worker {one.member.label}: {_why(one)}")
        for one in silent
        if one.code not in {None, SSH_FAILED}
    ]
    for group, waited in ((apart, None), (late, PATIENCE)):
        if group:
            seen = look_around(group[0].member, waited=waited)
            errors += explain_failures([(one.member, one.words) for one in group], seen)
    return errors


def _is_cut(answer: object, *, is_first: bool) -> bool:
    return isinstance(answer, Silence) and may_pass(answer.code, answer.words, is_first=is_first)


def _why(silence: Silence) -> str:
    return ended_here(silence.code) or silence.words or f"the session ended with {silence.code}"


def _ask(
    member: Member,
    order: Mapping[str, Any],
    parse: Callable[[Member, Any], _T],
    options: tuple[str, ...],
    patience: timedelta,
) -> _T | Silence:
    with opened(member, order, options) as session:
        output = session.answer(patience)
        code, words = session.end(), session.words()
    if MARK not in output:
        if code == SSH_FAILED and options and not words and options != FRESH:
            # A kept connection hides what its ProxyCommand says.
            return _ask(member, order, parse, FRESH, patience)
        if code == _NO_PROGRAM:
            words = words or "there is no `python3` on it"
        return Silence(member, code, words)
    try:
        kind, payload = Decoder().feed(output)[0]
        if kind is Told.REFUSED:
            return Silence(member, 1, payload.decode(errors="replace"))
        return parse(member, ast.literal_eval(payload.decode()) if kind is Told.EXIT else None)
    except (ValueError, IndexError, SyntaxError, KeyError, TypeError, OverflowError, AttributeError):
        # A session that was cut off, or something that prints into it.
        return Silence(member, code, words or "its answer is not understood")
