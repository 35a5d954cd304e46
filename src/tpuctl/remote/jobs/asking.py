"""Asking workers about their jobs, all at once, each in one ssh session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.errors import RemoteCommandError
from tpuctl.remote.answers import (
    LONGEST_BANNER,
    Fields,
    UnexpectedAnswerError,
    boolean,
    choice,
    integer,
    one_line,
    parse_json,
    record,
    shown,
)
from tpuctl.remote.failures import explain_failures, look_around
from tpuctl.remote.jobs.session import opened
from tpuctl.remote.jobs.values import Share, parse_name, parse_share
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
_LONGEST_ANSWER = 4 << 20
# Worker's homes hold no more jobs than this that count.
_MOST_JOBS = 100_000
_T = TypeVar("_T")
_A = TypeVar("_A")


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker that gave no answer. `words` are ssh's, or the worker's.

    `code` is ssh's, negative where a signal ended it, nothing where the time was up. `error` is what was wrong with its answer.
    """

    member: Member
    code: int | None
    words: str
    error: UnexpectedAnswerError | None = None

    @classmethod
    def unexpected(cls, member: Member, error: UnexpectedAnswerError) -> Silence:
        """Return the silence of a worker whose answer does not count."""
        return cls(member, 1, "", error.of(member.label))


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

        def parse(member: Member, value: Any) -> Listed:
            told = Fields(value, "the list")
            shares = told.each("jobs", partial(parse_share, member), most=limit)
            found = [share.job for share in shares]
            for at, name in enumerate(found):
                if names and name not in names:
                    raise UnexpectedAnswerError(f"the list.jobs[{at}]: `{name}` was not asked for")
                if name in found[:at]:
                    raise UnexpectedAnswerError(f"the list.jobs[{at}]: `{name}` for the second time")
            return Listed(shares, told.get("total", integer, low=len(shares), high=_MOST_JOBS))

        return self._each({"do": "list", "names": list(names), "limit": limit, "tail": tail}, parse, again=True)

    def signal(self, job: str, number: int, *, wait: timedelta) -> list[Signaled | Silence | None]:
        """Send a signal to all processes of a job, if it runs, and wait so long for its end. None: there is no such job."""

        def parse(member: Member, value: Any) -> Signaled | None:
            if value is None:
                return None
            told = Fields(value, "the answer")
            share = told.get("job", partial(parse_share, member))
            if share.job != job:
                raise UnexpectedAnswerError(f"the answer.job: `{share.job}` was not asked for")
            return Signaled(told.get("sent", boolean), share)

        order = {"do": "signal", "name": job, "number": number, "wait": wait.total_seconds()}
        return self._each(order, parse, patience=PATIENCE + wait)

    def ended(self, names: Sequence[str], *, older: timedelta) -> list[Mapping[str, str] | Silence]:
        """Return how the jobs that are named are, or which of all ended so long ago; nothing is changed.

        A job is `ended`, `missing`, `running` or `followed` (its output is being read).
        """
        order = {"do": "remove", "names": list(names), "older": older.total_seconds(), "only_looks": True}
        return self._each(order, _parse_outcomes(names, ("ended", "missing", "running", "followed")), again=True)

    def remove(self, names: Sequence[Sequence[str]], *, older: timedelta) -> list[Mapping[str, str] | Silence]:
        """Remove jobs, others from each worker, but none that runs; a worker with no names is not asked.

        Returns what came of each: `removed`, `missing`, `running`, `followed`.
        """
        outcomes = ("removed", "missing", "running", "followed")

        def one(member: Member, names: Sequence[str]) -> Mapping[str, str] | Silence:
            order = {"do": "remove", "names": list(names), "older": older.total_seconds(), "only_looks": False}
            options = self.ssh_options(member.way)
            return _ask(member, order, _parse_outcomes(names, outcomes), options, PATIENCE) if names else {}

        return _at_once(one, self.members, names)

    def _each(
        self,
        order: dict[str, Any],
        parse: Callable[[Member, Any], _T],
        *,
        patience: timedelta = PATIENCE,
        again: bool = False,
    ) -> list[_T | Silence]:
        """Ask each for an answer; with `again` more than once, for nothing is changed by it."""

        def ask(member: Member, options: tuple[str, ...]) -> _T | Silence:
            return _ask(member, order, parse, options, patience)

        answers = _at_once(ask, self.members, [self.ssh_options(member.way) for member in self.members])
        until = self.clock.monotonic() + _TRIED
        for tries in count(1) if again else ():
            pause = _PAUSES[min(tries, len(_PAUSES)) - 1]
            cut = [index for index, answer in enumerate(answers) if _is_cut(answer, is_first=tries == 1)]
            if not cut or self.clock.monotonic() + pause > until:
                break
            self.clock.sleep(pause)
            # What was kept from an earlier command may be what broke.
            again_asked = _at_once(ask, [self.members[index] for index in cut], [FRESH] * len(cut))
            for index, answer in zip(cut, again_asked, strict=True):
                answers[index] = answer
        return answers


def _at_once(act: Callable[[Member, _A], _T], members: Sequence[Member], each: Sequence[_A]) -> list[_T]:
    """Return what an act gives on each worker, which has a value of its own for it, in their order."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms

    with ThreadPoolExecutor(min(AT_ONCE, len(members)) or 1) as pool:
        return list(pool.map(act, members, each))


def _parse_outcomes(names: Sequence[str], outcomes: Sequence[str]) -> Callable[[Member, Any], Mapping[str, str]]:
    """Return what parses an answer about these jobs, or about any where none are named."""

    def parse(member: Member, value: Any) -> Mapping[str, str]:  # noqa: ARG001  # all parsers are called alike
        found = {}
        for at, (name, outcome) in enumerate(record(value, "the answer").items()):
            if names and name not in names:
                raise UnexpectedAnswerError(f"{shown(name)} was not asked for")
            found[parse_name(name, f"name {at}")] = choice(outcome, name, outcomes)
        return found

    return parse


def failures(silences: Iterable[Silence]) -> list[TpuctlError]:
    """Return why workers gave no answer: one error for all of a node that share a cause."""
    told = list(silences)
    silent = [one for one in told if one.error is None]
    late = [one for one in silent if one.code is None]
    apart = [one for one in silent if one.code == SSH_FAILED]
    errors: list[TpuctlError] = [one.error for one in told if one.error is not None]
    errors += [
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
    try:
        with opened(member, order, options) as session:
            output = session.answer(patience, most=LONGEST_BANNER + _LONGEST_ANSWER)
            code, words = session.end(), session.words()
        if MARK not in output:
            if code == SSH_FAILED and options and not words and options != FRESH:
                # A kept connection hides what its ProxyCommand says.
                return _ask(member, order, parse, FRESH, patience)
            if code == _NO_PROGRAM:
                words = words or "there is no `python3` on it"
            return Silence(member, code, words)
        frames = Decoder(_LONGEST_ANSWER).feed(output)
        if not frames and code != 0:
            # It was cut off.
            return Silence(member, code, words or "its answer is not complete")
        return _read(member, frames, parse, may_miss=order["do"] == "signal")
    except UnexpectedAnswerError as error:
        return Silence.unexpected(member, error)


def _read(
    member: Member, frames: Sequence[tuple[Told, bytes]], parse: Callable[[Member, Any], _T], *, may_miss: bool
) -> _T | Silence:
    """Return what the one frame of an answer says. Raises `UnexpectedAnswerError`."""
    if len(frames) != 1:
        raise UnexpectedAnswerError(f"{len(frames)} frames where one is expected")
    kind, payload = frames[0]
    match kind:
        case Told.REFUSED:
            return Silence(member, 1, one_line(payload.decode(errors="replace")))
        case Told.EXIT:
            return parse(member, parse_json(payload))
        case Told.MISSING if may_miss and not payload:
            return parse(member, None)
        case _:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` as an answer")
