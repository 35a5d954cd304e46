"""The loop that serves all workers of a run: connect, start the command, reconnect, stop."""

from __future__ import annotations

import selectors
import signal
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

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
# Most broken connections are back before that.
_DOUBTFUL = timedelta(seconds=2)
_WONDERING = timedelta(seconds=1)
_FAREWELL = timedelta(seconds=2)
# ssh reports its own timeouts first, with more detail.
_MARGIN = timedelta(seconds=1)
_ABSENT = (Outcome.UNREACHABLE, Outcome.REFUSED)


class Interrupts(Protocol):
    """The signals sent to this process."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a signal arrives."""

    def take(self) -> list[int]:
        """Return the signals that have arrived since the last call."""


class Crew:
    """All workers of one run. `inquire` returns why a node cannot be running any more, or None.

    `is_unheard` returns whether the output is no longer read; the commands are terminated then.
    """

    def __init__(
        self,
        sessions: Sequence[Post],
        limits: Limits,
        audience: Audience,
        clock: Clock,
        *,
        interrupts: Interrupts,
        inquire: Callable[[Member], str | None],
        source: Source | None = None,
        is_unheard: Callable[[], bool] = lambda: False,
    ) -> None:
        self._sessions, self._limits, self._audience, self._clock = sessions, limits, audience, clock
        self._interrupts, self._inquiry, self._source = interrupts, Inquiry(inquire), source
        self._is_unheard = is_unheard
        self._selector = selectors.DefaultSelector()
        self._stopping = Stopping(limits, clock.monotonic())
        # Whether the command may start: all workers that shall run it are connected, or need not be.
        self._may_begin = all(session.request.must_exist for session in sessions)
        self._began, self._connected = clock.monotonic(), -1
        # Why this loop itself ended connections, which it then replaces.
        self._dropped: dict[Post, str] = {}

    @property
    def stopping(self) -> Stopping:
        """Why the commands were terminated, if they were."""
        return self._stopping

    def work(self) -> tuple[Ending, ...]:
        """Run the command to its end on all workers. Raises `SshProgramMissingError`."""
        self._selector.register(self._interrupts.fileno(), selectors.EVENT_READ, None)
        try:
            while any(session.phase is not Phase.ENDED for session in self._sessions):
                now = self._clock.monotonic()
                self._stop(now)
                self._end_silent_connections(now)
                self._connect(now)
                self._start_commands()
                for session in self._sessions:
                    if session.may_run and session.is_adrift and now - (session.trying_since or now) >= _DOUBTFUL:
                        self._probe_node(session, now)
                if self._source is not None:
                    self._feed(self._source)
                self._wait_and_serve()
        except BaseException:
            # Do not keep the caller waiting.
            for session in self._sessions:
                session.kill()
            raise
        finally:
            # Close all before waiting for the first.
            for session in self._sessions:
                session.close_stdin()
            until = self._clock.monotonic() + _FAREWELL
            for session in self._sessions:
                session.close(max(timedelta(), until - self._clock.monotonic()))
            self._selector.close()
        return tuple(session.ending for session in self._sessions if session.ending is not None)

    def _feed(self, source: Source) -> None:
        """Read stdin for the one worker that receives it, and send it."""
        # Data that was received makes room, then the room is filled, then it is sent: no event would do the latter.
        source.serve(self._sessions[0])
        is_registered = source in self._selector.get_map()
        if not source.may_wait:
            while source.wants_more:
                source.fill()
        elif source.wants_more and not is_registered:
            self._selector.register(source, selectors.EVENT_READ, None)
        elif is_registered and not source.wants_more:
            self._selector.unregister(source)
        source.serve(self._sessions[0])

    def _stop(self, now: timedelta) -> None:
        """Send the signals that are due."""
        failed = self._limits.fail_fast and any(one.ending and not one.ending.is_good for one in self._sessions)
        signals = self._interrupts.take()
        if signal.SIGINT in signals:
            self._audience.pressed()
        stop = self._stopping.due(now, signals, has_failed=failed, is_unheard=self._is_unheard())
        if stop is None:
            return
        if stop.text:
            if any(session.may_run and session.phase is not Phase.ENDED for session in self._sessions):
                text = stop.text
            elif all(session.request.must_exist for session in self._sessions):
                text = "no signal was sent to the job: not connected to it yet"
            elif any(session.may_run for session in self._sessions):
                text = "not started on any further worker"
            else:
                text = "not started on any worker"
            self._audience.note(None, text)
        for session in self._sessions:
            if session.phase is Phase.ENDED:
                continue
            if not session.may_run:
                session.end(Outcome.NOT_STARTED, stop.why)
            elif stop.number is None:
                session.end(Outcome.LOST, stop.why)
            else:
                session.signal(stop.number)

    def _end_silent_connections(self, now: timedelta) -> None:
        """End connections without an answer for too long: a login may hang although the connection is up."""
        for session in self._sessions:
            if session.phase is Phase.CONNECTING and now - session.since > self._limits.connect_within + _MARGIN:
                self._dropped[session] = f"no answer within {self._limits.connect_within.total_seconds():g} s"
                if not session.may_run:
                    session.end(Outcome.UNREACHABLE, self._dropped[session])
                session.kill()

    def _connect(self, now: timedelta) -> None:
        """Connect to the next workers; `fanout` limits the handshakes in progress, not the running commands."""
        free = self._limits.fanout - sum(session.phase is Phase.CONNECTING for session in self._sessions)
        for session in self._sessions:
            if free <= 0:
                return
            if session.phase is Phase.WAITING and session.next_try <= now:
                if session.trying_since is None:
                    session.trying_since = now
                session.since = now
                session.connect(self._limits.connect_within)
                self._selector.register(session.stdout, selectors.EVENT_READ, session)
                free -= 1

    def _start_commands(self) -> None:
        """Start the command once all workers that shall run it are connected; on none if one of them is absent."""
        if not self._may_begin:
            awaited = sum(one.is_adrift and not one.may_run for one in self._sessions)
            if awaited:
                connected = len(self._sessions) - awaited
                if connected != self._connected and self._clock.monotonic() - self._began > _WONDERING:
                    self._connected = connected
                    self._audience.gathering(connected, len(self._sessions))
                return
            absent = [one for one in self._sessions if one.ending and one.ending.outcome in _ABSENT]
            if absent and not self._limits.partial:
                # On a part of a slice the command would wait for the rest for ever.
                names = ", ".join(session.member.label for session in absent)
                for session in self._sessions:
                    if session.phase is not Phase.ENDED:
                        session.end(Outcome.NOT_STARTED, f"worker {names} cannot run it")
                return
            self._may_begin = True
        running = sum(session.phase is Phase.RUNNING for session in self._sessions)
        for session in self._sessions:
            if session.phase is Phase.READY and (self._limits.batch is None or running < self._limits.batch):
                session.start()
                running += 1

    def _wait_and_serve(self) -> None:
        """Wait for the next event, and serve it."""
        for session in self._sessions:
            self._watch_stdin(session)
        if all(session.phase is Phase.ENDED for session in self._sessions):
            return
        now = self._clock.monotonic()
        # A worker whose turn has come waits for the handshake of another to end, not for a time.
        waits = [one.next_try for one in self._sessions if one.phase is Phase.WAITING and one.next_try > now]
        patience = self._limits.connect_within + _MARGIN
        waits += [now + LOOK_AGAIN] if self._inquiry.is_pending else []
        waits += [one.since + patience for one in self._sessions if one.phase is Phase.CONNECTING]
        until = min([now + _LONGEST_WAIT, *waits, *self._stopping.waits()])
        for key, mask in self._selector.select(max(0.0, (until - now).total_seconds())):
            session = key.data
            if not isinstance(session, Post):
                if self._source is not None and key.fileobj is self._source:
                    self._source.fill()
                continue
            # Another stream of the session may just have reported the end of the connection.
            if mask & selectors.EVENT_WRITE and session.can_write:
                session.write()
            if mask & selectors.EVENT_READ and session.is_connected:
                self._read(session)

    def _read(self, session: Post) -> None:
        streams = (session.stdout, session.stdin)
        try:
            is_connected = session.read()
        except UnexpectedAnswerError as error:
            # Either a hostile worker, or a program there that prints into the session: none of its output counts.
            session.reject(error)
            return
        if not is_connected:
            for stream in streams:
                # ValueError: it is closed, and was not registered.
                with suppress(KeyError, ValueError):
                    self._selector.unregister(stream)
            self._reconnect_or_end(session)

    def _reconnect_or_end(self, session: Post) -> None:
        """Decide what the end of a connection means."""
        if session.phase is Phase.ENDED:
            return
        now = self._clock.monotonic()
        found = failure(session)
        if dropped := self._dropped.pop(session, None):
            found = Failure(dropped, is_retriable=True)
        since = session.trying_since if session.trying_since is not None else now
        session.trying_since = since
        within = self._limits.attach_within if session.may_run else self._limits.connect_within
        if not found.is_retriable or now - since > within:
            outcome = Outcome.LOST if session.may_run else Outcome.UNREACHABLE
            session.end(outcome, found.why or "connection lost, and reconnecting failed", ssh_said=found.ssh_said)
            return
        if session.has_started and session.tries == 0:
            because = f" ({found.why})" if found.why else ""
            self._audience.note(session.member, f"connection lost{because}; reconnecting")
        session.phase = Phase.WAITING
        session.next_try = now + timedelta(seconds=_PAUSES[min(session.tries, len(_PAUSES) - 1)])

    def _probe_node(self, session: Post, now: timedelta) -> None:
        """Ask the API whether the node of an unreachable worker still exists; end its workers if not."""
        why = self._inquiry.why_gone(session.member, now)
        if why is not None:
            for other in self._sessions:
                if other.member.node.name == session.member.node.name and other.is_adrift:
                    other.end(Outcome.LOST, why)

    def _watch_stdin(self, session: Post) -> None:
        """Watch the stdin of ssh only while data waits to be sent."""
        if not session.can_write:
            return
        is_registered = session.stdin in self._selector.get_map()
        if session.has_unsent and not is_registered:
            self._selector.register(session.stdin, selectors.EVENT_WRITE, session)
        elif not session.has_unsent:
            if is_registered:
                self._selector.unregister(session.stdin)
            if session.phase is Phase.ENDED:
                session.close_stdin()
