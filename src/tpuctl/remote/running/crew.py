"""The loop that serves all workers of a run: who connects next, when the command begins, what is done when a link breaks."""

from __future__ import annotations

import selectors
import signal
from contextlib import suppress
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Protocol

from tpuctl.remote.answers import UnexpectedAnswerError
from tpuctl.remote.running.failure import Failure, failure
from tpuctl.remote.running.inquiry import LOOK_AGAIN, Inquiry
from tpuctl.remote.running.post import Post
from tpuctl.remote.running.stopping import Stopping
from tpuctl.remote.running.values import Ending, Limits, Outcome, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member
    from tpuctl.remote.running.feeding import Source
    from tpuctl.remote.running.values import Audience

_PAUSES = (0.5, 1.0, 2.0, 4.0)
_LONGEST_WAIT = timedelta(seconds=5)
# Most links that break are joined again before.
_DOUBTFUL = timedelta(seconds=2)
_WONDERING = timedelta(seconds=1)
_FAREWELL = timedelta(seconds=2)
# ssh notices by itself what it waits for, and says more about it.
_MARGIN = timedelta(seconds=1)
_ABSENT = (Outcome.UNREACHABLE, Outcome.REFUSED)


class Interrupts(Protocol):
    """The signals that this process was sent."""

    def fileno(self) -> int:
        """Return what becomes readable when there is one."""

    def take(self) -> list[int]:
        """Return those that have come since the last call."""


class Crew:
    """All workers of one run. `inquire` tells why a node cannot be running any more, or nothing.

    `is_unheard` tells that nobody takes the output any more: then the commands are ended.
    """

    def __init__(
        self,
        posts: Sequence[Post],
        limits: Limits,
        audience: Audience,
        clock: Clock,
        *,
        interrupts: Interrupts,
        inquire: Callable[[Member], str | None],
        source: Source | None = None,
        is_unheard: Callable[[], bool] = lambda: False,
    ) -> None:
        self._posts, self._limits, self._audience, self._clock = posts, limits, audience, clock
        self._interrupts, self._inquiry, self._source = interrupts, Inquiry(inquire), source
        self._is_unheard = is_unheard
        self._selector = selectors.DefaultSelector()
        self._stopping = Stopping(limits, clock.monotonic())
        # Whether the command may begin: all that are to run it answer, or need not.
        self._may_begin = all(post.order.must_exist for post in posts)
        self._began, self._there = clock.monotonic(), -1
        # Why we ended connections ourselves that are to be made again.
        self._dropped: dict[Post, str] = {}

    @property
    def stopping(self) -> Stopping:
        """Why the commands were told to end, if they were."""
        return self._stopping

    def work(self) -> tuple[Ending, ...]:
        """Run it to its end on all workers. Raises `SshProgramMissingError`."""
        self._selector.register(self._interrupts.fileno(), selectors.EVENT_READ, None)
        try:
            while any(post.phase is not Phase.ENDED for post in self._posts):
                self._advance()
                self._listen()
        except BaseException:
            # Somebody wants to get on with something else.
            for post in self._posts:
                post.drop()
            raise
        finally:
            self._close()
        return tuple(post.ending for post in self._posts if post.ending is not None)

    def _advance(self) -> None:
        """Do what is due."""
        now = self._clock.monotonic()
        self._stop(now)
        self._lose_patience(now)
        self._connect(now)
        self._begin()
        for post in self._posts:
            if post.may_run and post.is_adrift and now - (post.trying_since or now) >= _DOUBTFUL:
                self._doubt(post, now)
        if self._source is not None:
            self._feed(self._source)

    def _feed(self, source: Source) -> None:
        """Read what the one worker that has our stdin may take, and send it."""
        # First what was taken makes room, then that is filled, then it is sent: nothing else would wake us for it.
        source.serve(self._posts[0])
        known = source in self._selector.get_map()
        if not source.may_wait:
            while source.wants_more:
                source.fill()
        elif source.wants_more and not known:
            self._selector.register(source, selectors.EVENT_READ, None)
        elif known and not source.wants_more:
            self._selector.unregister(source)
        source.serve(self._posts[0])

    def _stop(self, now: timedelta) -> None:
        failed = self._limits.fail_fast and any(post.ending and not post.ending.is_good for post in self._posts)
        signals = self._interrupts.take()
        if signal.SIGINT in signals:
            self._audience.pressed()
        order = self._stopping.due(now, signals, has_failed=failed, is_unheard=self._is_unheard())
        if order is None:
            return
        if order.text:
            told = any(post.may_run and post.phase is not Phase.ENDED for post in self._posts)
            self._audience.note(None, order.text if told else self._untold())
        for post in self._posts:
            if post.phase is Phase.ENDED:
                continue
            if not post.may_run:
                post.end(Outcome.NOT_STARTED, order.why)
            elif order.number is None:
                post.end(Outcome.LOST, order.why)
            else:
                post.signal(order.number)

    def _untold(self) -> str:
        """Return what comes of a stop where the command runs nowhere."""
        if all(post.order.must_exist for post in self._posts):
            return "nothing was sent to the job: no connection to it was made yet"
        return "nothing more is started" if any(post.may_run for post in self._posts) else "nothing was started"

    def _lose_patience(self, now: timedelta) -> None:
        """End connections on which nothing has answered for too long: a login may hang where the link does not."""
        for post in self._posts:
            if post.phase is Phase.CONNECTING and now - post.since > self._limits.connect_within + _MARGIN:
                self._dropped[post] = f"no answer within {self._limits.connect_within.total_seconds():g} s"
                if not post.may_run:
                    post.end(Outcome.UNREACHABLE, self._dropped[post])
                post.drop()

    def _connect(self, now: timedelta) -> None:
        """Let those whose turn it is connect: so many handshakes at once, however many commands run."""
        free = self._limits.fanout - sum(post.phase is Phase.CONNECTING for post in self._posts)
        for post in self._posts:
            if free <= 0:
                return
            if post.phase is Phase.WAITING and post.next_try <= now:
                if post.trying_since is None:
                    post.trying_since = now
                post.since = now
                post.connect(self._limits.connect_within)
                self._selector.register(post.stdout, selectors.EVENT_READ, post)
                free -= 1

    def _begin(self) -> None:
        """Give the word when all are there that shall run the command."""
        if not self._may_begin:
            awaited = sum(self._is_awaited(post) for post in self._posts)
            if awaited:
                self._tell_gathering(len(self._posts) - awaited)
                return
            absent = [post for post in self._posts if post.ending and post.ending.outcome in _ABSENT]
            if absent and not self._limits.partial:
                self._call_off(absent)
                return
            self._may_begin = True
        running = sum(post.phase is Phase.RUNNING for post in self._posts)
        for post in self._posts:
            if post.phase is Phase.READY and (self._limits.batch is None or running < self._limits.batch):
                post.go()
                running += 1

    def _tell_gathering(self, there: int) -> None:
        """Tell how far it is, where it takes long enough to wonder."""
        if there != self._there and self._clock.monotonic() - self._began > _WONDERING:
            self._there = there
            self._audience.gathering(there, len(self._posts))

    def _is_awaited(self, post: Post) -> bool:
        return post.phase in {Phase.WAITING, Phase.CONNECTING} and not post.may_run

    def _call_off(self, absent: Sequence[Post]) -> None:
        """Start the command nowhere: on a part of a slice it would wait for the rest for ever."""
        names = ", ".join(post.member.label for post in absent)
        for post in self._posts:
            if post.phase is not Phase.ENDED:
                post.end(Outcome.NOT_STARTED, f"worker {names} cannot run it")

    def _listen(self) -> None:
        """Wait for whatever comes first, and serve it."""
        for post in self._posts:
            self._watch_writing(post)
        if all(post.phase is Phase.ENDED for post in self._posts):
            return
        now = self._clock.monotonic()
        # One whose turn has come waits for another's handshake to end, not for the time.
        waits = [post.next_try for post in self._posts if post.phase is Phase.WAITING and post.next_try > now]
        patience = self._limits.connect_within + _MARGIN
        waits += [now + LOOK_AGAIN] if self._inquiry.is_pending else []
        waits += [post.since + patience for post in self._posts if post.phase is Phase.CONNECTING]
        until = min([now + _LONGEST_WAIT, *waits, *self._stopping.waits()])
        for key, mask in self._selector.select(max(0.0, (until - now).total_seconds())):
            post = key.data
            if not isinstance(post, Post):
                if self._source is not None and key.fileobj is self._source:
                    self._source.fill()
                continue
            # One of its streams may have told, this moment, that the connection is gone.
            if mask & selectors.EVENT_WRITE and post.can_write:
                post.write()
            if mask & selectors.EVENT_READ and post.is_connected:
                self._read(post)

    def _read(self, post: Post) -> None:
        streams = (post.stdout, post.stdin)
        try:
            is_there = post.read()
        except UnexpectedAnswerError as error:
            # Whether it is a hostile worker or something there that prints into the session: nothing it says counts.
            post.reject(error)
            return
        if not is_there:
            for stream in streams:
                self._forget(stream)
            self._hung_up(post)

    def _hung_up(self, post: Post) -> None:
        """Decide what the end of a connection means."""
        if post.phase is Phase.ENDED:
            return
        now = self._clock.monotonic()
        found = failure(post)
        if dropped := self._dropped.pop(post, None):
            found = Failure(dropped, is_retriable=True)
        since = post.trying_since if post.trying_since is not None else now
        post.trying_since = since
        within = self._limits.attach_within if post.may_run else self._limits.connect_within
        if not found.is_retriable or now - since > within:
            outcome = Outcome.LOST if post.may_run else Outcome.UNREACHABLE
            post.end(outcome, found.why or "the connection broke, and no other could be made", ssh_said=found.ssh_said)
            return
        if post.has_started and post.tries == 0:
            because = f" ({found.why})" if found.why else ""
            self._audience.note(post.member, f"connection lost{because}; attaching again")
        post.phase = Phase.WAITING
        post.next_try = now + timedelta(seconds=_PAUSES[min(post.tries, len(_PAUSES) - 1)])

    def _doubt(self, post: Post, now: timedelta) -> None:
        """Find out whether a worker that cannot be reached can still be there."""
        why = self._inquiry.why_gone(post.member, now)
        if why is not None:
            for other in self._posts:
                if other.member.node.name == post.member.node.name and other.is_adrift:
                    other.end(Outcome.LOST, why)

    def _watch_writing(self, post: Post) -> None:
        """Have the selector tell when ssh takes more, only while something waits to be sent."""
        if not post.can_write:
            return
        known = post.stdin in self._selector.get_map()
        if post.has_unsent and not known:
            self._selector.register(post.stdin, selectors.EVENT_WRITE, post)
        elif not post.has_unsent:
            if known:
                self._selector.unregister(post.stdin)
            if post.phase is Phase.ENDED:
                post.let_go()

    def _forget(self, stream: IO[bytes]) -> None:
        # ValueError: it was closed, and never watched.
        with suppress(KeyError, ValueError):
            self._selector.unregister(stream)

    def _close(self) -> None:
        # All are told before the first is waited for.
        for post in self._posts:
            post.let_go()
        until = self._clock.monotonic() + _FAREWELL
        for post in self._posts:
            post.close(max(timedelta(), until - self._clock.monotonic()))
        self._selector.close()
