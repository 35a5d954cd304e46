"""Asking workers about their jobs, all at once, each in one ssh session."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.errors import RemoteCommandError
from tpuctl.remote.failures import explain_failures, look_around
from tpuctl.remote.jobs.session import opened
from tpuctl.remote.jobs.values import Share, parse_share
from tpuctl.remote.running.frames import MARK, Decoder, Told
from tpuctl.remote.ssh import FRESH, SSH_FAILED, Connection

if TYPE_CHECKING:
    from tpuctl.errors import TpuctlError
    from tpuctl.remote.member import Member

# Handshakes under way at once.
AT_ONCE = 32
PATIENCE = timedelta(seconds=30)
_NO_PROGRAM = 127
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker that gave no answer. `code` is ssh's, nothing where the time was up; `words` are ssh's, or the worker's."""

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

    Each method returns an answer of each worker, in their order, and raises `SshProgramMissingError`.
    """

    members: Sequence[Member]
    ssh_options: Callable[[Connection], tuple[str, ...]]

    def jobs(self, *, names: Sequence[str] = (), limit: int, tail: int | None = None) -> list[Listed | Silence]:
        """Return the newest jobs, or those that are named. With `tail` a share's `starts` says where its last lines begin."""

        def parse(member: Member, told: Any) -> Listed:  # a literal
            return Listed(tuple(parse_share(member, one) for one in told["jobs"]), int(told["total"]))

        return self._each({"do": "list", "names": list(names), "limit": limit, "tail": tail}, parse)

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
        return self._each(order, parse)

    def _each(
        self, order: dict[str, Any], parse: Callable[[Member, Any], _T], *, patience: timedelta = PATIENCE
    ) -> list[_T | Silence]:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms

        def one(member: Member) -> _T | Silence:
            return _ask(member, order, parse, self.ssh_options(member.way), patience)

        with ThreadPoolExecutor(min(AT_ONCE, len(self.members)) or 1) as pool:
            return list(pool.map(one, self.members))


def failures(silences: Iterable[Silence]) -> list[TpuctlError]:
    """Return why workers gave no answer: one error for all of a node that share a cause."""
    silent = list(silences)
    late = [one for one in silent if one.code is None]
    apart = [one for one in silent if one.code == SSH_FAILED]
    errors: list[TpuctlError] = [
        RemoteCommandError(f"worker {one.member.label}: {one.words or f'the session ended with {one.code}'}")
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
