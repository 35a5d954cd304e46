"""Ask workers about their jobs, in parallel, each in one ssh session."""

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

# Handshakes in progress at the same time.
AT_ONCE = 32
PATIENCE = timedelta(seconds=30)
# As long as `run` tries to connect to a worker, and as often.
_TRIED = Limits().connect_within
_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (0.5, 1, 2, 4))
_NO_PROGRAM = 127
_LONGEST_ANSWER = 4 << 20
# No home directory has more jobs than this.
_MOST_JOBS = 100_000
_T = TypeVar("_T")
_A = TypeVar("_A")


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker that gave no answer. `words`: the message of ssh or of the worker.

    `code`: the exit code of ssh, negative after a signal, None after a timeout. `error`: why the answer was rejected.
    """

    member: Member
    code: int | None
    words: str
    error: UnexpectedAnswerError | None = None

    @classmethod
    def unexpected(cls, member: Member, error: UnexpectedAnswerError) -> Silence:
        """Return the value for a worker whose answer was rejected."""
        return cls(member, 1, "", error.of(member.label))


@dataclass(frozen=True, slots=True)
class Listed:
    """The newest jobs of a worker, the newest first, and the number of all its jobs."""

    shares: tuple[Share, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Signaled:
    """Whether a signal was sent, and the job afterwards."""

    was_sent: bool
    share: Share


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers to ask; `ssh_options` returns additional options of ssh for a connection.

    A query that changes nothing is repeated after a broken connection, and while a worker does not accept ssh yet, for as long
    as `run` would try. Each method returns one answer for each worker, in their order, and raises `SshProgramMissingError`.
    """

    members: Sequence[Member]
    ssh_options: Callable[[Connection], tuple[str, ...]]
    clock: Clock

    def jobs(self, *, names: Sequence[str] = (), limit: int, tail: int | None = None) -> list[Listed | Silence]:
        """Return the newest jobs, or those in `names`. With `tail` a share's `starts` is the position of its last lines."""

        def parse(member: Member, value: Any) -> Listed:
            fields = Fields(value, "the list")
            shares = fields.each("jobs", partial(parse_share, member), most=limit)
            found = [share.job for share in shares]
            for at, name in enumerate(found):
                if names and name not in names:
                    raise UnexpectedAnswerError(f"the list.jobs[{at}]: `{name}` was not requested")
                if name in found[:at]:
                    raise UnexpectedAnswerError(f"the list.jobs[{at}]: `{name}` a second time")
            return Listed(shares, fields.get("total", integer, low=len(shares), high=_MOST_JOBS))

        return self._each({"do": "list", "names": list(names), "limit": limit, "tail": tail}, parse, retries=True)

    def signal(self, job: str, number: int, *, wait: timedelta) -> list[Signaled | Silence | None]:
        """Send a signal to all processes of a job, if it runs, and wait up to `wait` for its end. None: no such job."""

        def parse(member: Member, value: Any) -> Signaled | None:
            if value is None:
                return None
            fields = Fields(value, "the answer")
            share = fields.get("job", partial(parse_share, member))
            if share.job != job:
                raise UnexpectedAnswerError(f"the answer.job: `{share.job}` was not requested")
            return Signaled(fields.get("sent", boolean), share)

        request = {"do": "signal", "name": job, "number": number, "wait": wait.total_seconds()}
        return self._each(request, parse, patience=PATIENCE + wait)

    def ended(self, names: Sequence[str], *, older: timedelta) -> list[Mapping[str, str] | Silence]:
        """Return the states of the jobs in `names`, or which of all jobs ended longer ago than `older`. Changes nothing.

        A state is `ended`, `missing`, `running` or `followed` (a client reads its output).
        """
        request = {"do": "remove", "names": list(names), "older": older.total_seconds(), "only_looks": True}
        return self._each(request, _parse_outcomes(names, ("ended", "missing", "running", "followed")), retries=True)

    def remove(self, names: Sequence[Sequence[str]], *, older: timedelta) -> list[Mapping[str, str] | Silence]:
        """Remove the jobs in `names[i]` from worker `i`, except those that run; a worker without names is not asked.

        Returns the outcome of each: `removed`, `missing`, `running`, `followed`.
        """
        outcomes = ("removed", "missing", "running", "followed")

        def one(member: Member, names: Sequence[str]) -> Mapping[str, str] | Silence:
            request = {"do": "remove", "names": list(names), "older": older.total_seconds(), "only_looks": False}
            options = self.ssh_options(member.way)
            return _ask(member, request, _parse_outcomes(names, outcomes), options, PATIENCE) if names else {}

        return _at_once(one, self.members, names)

    def _each(
        self,
        request: dict[str, Any],
        parse: Callable[[Member, Any], _T],
        *,
        patience: timedelta = PATIENCE,
        retries: bool = False,
    ) -> list[_T | Silence]:
        """Ask each worker; with `retries` again after a broken connection."""

        def ask(member: Member, options: tuple[str, ...]) -> _T | Silence:
            return _ask(member, request, parse, options, patience)

        answers = _at_once(ask, self.members, [self.ssh_options(member.way) for member in self.members])
        until = self.clock.monotonic() + _TRIED
        for tries in count(1) if retries else ():
            pause = _PAUSES[min(tries, len(_PAUSES)) - 1]
            cut = [
                index
                for index, answer in enumerate(answers)
                if isinstance(answer, Silence) and may_pass(answer.code, answer.words, is_first=tries == 1)
            ]
            if not cut or self.clock.monotonic() + pause > until:
                break
            self.clock.sleep(pause)
            # A shared connection may be what broke.
            second = _at_once(ask, [self.members[index] for index in cut], [FRESH] * len(cut))
            for index, answer in zip(cut, second, strict=True):
                answers[index] = answer
        return answers


def _at_once(act: Callable[[Member, _A], _T], members: Sequence[Member], each: Sequence[_A]) -> list[_T]:
    """Call `act` for each worker with its value from `each`; return the results in their order."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms

    with ThreadPoolExecutor(min(AT_ONCE, len(members)) or 1) as pool:
        return list(pool.map(act, members, each))


def _parse_outcomes(names: Sequence[str], outcomes: Sequence[str]) -> Callable[[Member, Any], Mapping[str, str]]:
    """Return a parser for an answer about these jobs; without names, about any."""

    def parse(member: Member, value: Any) -> Mapping[str, str]:  # noqa: ARG001  # all parsers are called alike
        found = {}
        for at, (name, outcome) in enumerate(record(value, "the answer").items()):
            if names and name not in names:
                raise UnexpectedAnswerError(f"{shown(name)} was not requested")
            found[parse_name(name, f"name {at}")] = choice(outcome, name, outcomes)
        return found

    return parse


def failures(silences: Iterable[Silence]) -> list[TpuctlError]:
    """Return why workers gave no answer: one error for all workers of a node that share a cause."""
    unanswered = list(silences)
    silent = [one for one in unanswered if one.error is None]
    late = [one for one in silent if one.code is None]
    apart = [one for one in silent if one.code == SSH_FAILED]
    errors: list[TpuctlError] = [one.error for one in unanswered if one.error is not None]
    errors += [
        RemoteCommandError(
            f"worker {one.member.label}: {ended_here(one.code) or one.words or f'the session ended with {one.code}'}"
        )
        for one in silent
        if one.code not in {None, SSH_FAILED}
    ]
    for group, waited in ((apart, None), (late, PATIENCE)):
        if group:
            seen = look_around(group[0].member, waited=waited)
            errors += explain_failures([(one.member, one.words) for one in group], seen)
    return errors


def _ask(
    member: Member,
    request: Mapping[str, Any],
    parse: Callable[[Member, Any], _T],
    options: tuple[str, ...],
    patience: timedelta,
) -> _T | Silence:
    try:
        with opened(member, request, options) as session:
            output = session.answer(patience, most=LONGEST_BANNER + _LONGEST_ANSWER)
            code, words = session.end(), session.words()
        if MARK not in output:
            if code == SSH_FAILED and options and not words and options != FRESH:
                # A shared connection hides the messages of its ProxyCommand.
                return _ask(member, request, parse, FRESH, patience)
            if code == _NO_PROGRAM:
                words = words or "`python3` is not installed on it"
            return Silence(member, code, words)
        frames = Decoder(_LONGEST_ANSWER).feed(output)
        if not frames and code != 0:
            return Silence(member, code, words or "its answer is incomplete")
        return _read(member, frames, parse, may_miss=request["do"] == "signal")
    except UnexpectedAnswerError as error:
        return Silence.unexpected(member, error)


def _read(
    member: Member, frames: Sequence[tuple[Told, bytes]], parse: Callable[[Member, Any], _T], *, may_miss: bool
) -> _T | Silence:
    """Parse the one frame of an answer. Raises `UnexpectedAnswerError`."""
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
