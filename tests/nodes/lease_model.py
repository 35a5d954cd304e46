"""A model that checks the lease with interleavings: the real `LeaseKeeper`, and a store and a cloud that can fail anywhere.

Every actor is a thread that runs only while it has the baton, and gives it back before and after each thing that others
could see: a read or write of the store, a request to the cloud, a sleep. The schedule, a string of bytes, says who goes
on, when time passes, who dies and which write of the store gets lost. So a run is repeated by its bytes.

The heartbeat of an actor runs in its pauses, also in those in which it sleeps or waits for an answer of the cloud. It holds the
lock of the leases while it writes, so nothing that the actor does itself could come between the pauses of the heartbeat.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tpuctl.errors import OutcomeUnknownError, PreconditionFailedError
from tpuctl.names import NodeName
from tpuctl.nodes.lease import Lease, LeaseOwner, LeasePolicy, LeaseRecord

NAME = NodeName("p", "us-central2-b", "trainer")
POLICY = LeasePolicy()
_SECOND = timedelta(seconds=1)
_START = datetime(2026, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The process was killed here."""


@dataclass
class Request:
    """A change of the cloud in flight; it takes effect within the margin, even if its sender is killed."""

    sender: Actor
    verb: str
    latest: timedelta
    is_done: bool = False


class Actor:
    """One process. `wake` is when it continues, `waits_for` what must happen before."""

    def __init__(self, model: Model, name: str, play: Callable[[Actor], None]) -> None:
        self.model, self.name = model, name
        self.identity = LeaseOwner("host", len(model.actors), name)
        self.wake = timedelta()
        self.waits_for: Request | None = None
        self.is_killed = self.has_ended = False
        self._beat: Callable[[], None] | None = None
        self._period = self._beats_at = timedelta()
        self.error: BaseException | None = None
        self._go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(play,), daemon=True)
        self._thread.start()

    @property
    def is_waiting(self) -> bool:
        return (self.waits_for is not None and not self.waits_for.is_done) or self.wake > self.model.time

    @property
    def must_beat(self) -> bool:
        return self._beat is not None and self._beats_at <= self.model.time

    @property
    def can_go_on(self) -> bool:
        return not self.has_ended and (not self.is_waiting or self.must_beat)

    @property
    def next_moment(self) -> timedelta:
        return self.wake if self._beat is None else min(self.wake, self._beats_at)

    def go_on(self) -> None:
        """Run it until it pauses."""
        self._go.release()
        self.model.baton.acquire()
        if self.has_ended:
            self._thread.join()

    def kill(self) -> None:
        self.is_killed = True
        if not self.has_ended:
            self.go_on()

    def pause(self) -> None:
        """Pause: others may do anything before this returns, and so may the heartbeat."""
        self._hand_over()
        while True:
            # An actor that has hung may go on before its heartbeat does.
            if self._beat is not None and self.must_beat and (self.is_waiting or self.model.draw() < 128):
                beat, self._beats_at = self._beat, self.model.time + self._period
                wake, waits_for = self.wake, self.waits_for
                self.wake, self.waits_for = timedelta(), None
                beat()
                self.wake, self.waits_for = wake, waits_for
            elif self.is_waiting:
                self._hand_over()
            else:
                return

    def _hand_over(self) -> None:
        self.model.baton.release()
        self._go.acquire()
        if self.is_killed:
            raise Killed

    def _run(self, play: Callable[[Actor], None]) -> None:
        self._go.acquire()
        try:
            if not self.is_killed:
                play(self)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again by the model, in the test's thread
            self.error = error
        self.has_ended = True
        self.model.baton.release()

    # The actor's clock.
    def now(self) -> datetime:
        return _START + self.model.time

    def monotonic(self) -> timedelta:
        return self.model.time

    def sleep(self, duration: timedelta) -> None:
        self.wake = self.model.time + duration
        self.pause()

    def every(self, period: timedelta, act: Callable[[], None]) -> Callable[[], None]:
        self._beat, self._period, self._beats_at = act, period, self.model.time + period
        return self._end_heartbeat

    def _end_heartbeat(self) -> None:
        self._beat = None

    # The actor's store.
    def read(self, name: NodeName) -> Lease | None:
        assert name == NAME
        self.pause()
        found = self.model.stored()
        self.pause()
        return found

    def write(self, name: NodeName, record: LeaseRecord, *, expected: str | None) -> str:
        assert name == NAME
        self.pause()
        version = self._write(record, expected)
        self.pause()
        return version

    def remove(self, name: NodeName, *, expected: str) -> None:
        assert name == NAME
        self.pause()
        self._write(None, expected)
        self.pause()

    def names(self, project: str) -> list[NodeName]:
        return [NAME] if project == NAME.project else []

    def _write(self, record: LeaseRecord | None, expected: str | None) -> str:
        match self.model.draw():
            case fate if fate >= 250:
                self.model.late.append((record, expected))
                raise OutcomeUnknownError("on its way")
            case fate if fate >= 245:
                self.model.swap(record, expected)
                raise OutcomeUnknownError("its answer was lost")
        if not self.model.swap(record, expected):
            raise PreconditionFailedError("another writer was quicker")
        return str(self.model.version)

    def change(self, verb: str) -> None:
        """Send a change and wait for its answer. Nothing happens between the last check of the caller and the request."""
        self.waits_for = self.model.send(self, verb)
        self.pause()


@dataclass
class Model:
    """Store, cloud and time. `wrong` collects what must never happen. `detects_dead`: as the store on one machine."""

    schedule: bytes
    detects_dead: bool = False
    time: timedelta = timedelta()
    record: LeaseRecord | None = None
    written: timedelta = timedelta()
    version: int = 0
    late: list[tuple[LeaseRecord | None, str | None]] = field(default_factory=list)
    node: str = "PREEMPTED"
    requests: list[Request] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    plays: dict[str, Callable[[Actor], None]] = field(default_factory=dict)
    is_down: bool = False
    changes: int = 0
    wrong: list[str] = field(default_factory=list)
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    current: Actor | None = None
    drawn: int = 0

    def draw(self) -> int:
        """Return the next byte of the schedule; 0, which is the quiet choice, after its end."""
        self.drawn += 1
        return self.schedule[self.drawn - 1] if self.drawn <= len(self.schedule) else 0

    def stored(self) -> Lease | None:
        if self.record is None:
            return None
        owner = self.record.owner
        is_alive = any(actor.identity.owner == owner and not actor.has_ended for actor in self.actors)
        alive = is_alive if self.detects_dead else None
        return Lease(self.record, str(self.version), self.time - self.written, alive)

    def swap(self, record: LeaseRecord | None, expected: str | None) -> bool:
        if (str(self.version) if self.record else None) != expected:
            return False
        self.record, self.written, self.version = record, self.time, self.version + 1
        return True

    def send(self, sender: Actor, verb: str) -> Request:
        others = [other.sender.name for other in self.requests if other.sender is not sender]
        if others:
            self.wrong.append(f"{sender.name} sends {verb} while {others} are at it")
        if self.is_down and verb == "create":
            self.wrong.append(f"{sender.name} sends create after the down")
        # Strictly less than the margin: at the margin's end the lease may have gone to another.
        self.requests.append(Request(sender, verb, self.time + POLICY.margin - _SECOND))
        return self.requests[-1]

    def take_effect(self, request: Request) -> None:
        if request.verb == "create":
            if self.node == "READY":
                self.wrong.append(f"{request.sender.name} creates what is there")
            if self.is_down:
                self.wrong.append(f"{request.sender.name} creates after the down")
        self.node = "READY" if request.verb == "create" else "ABSENT"
        self.changes += 1
        request.is_done = True
        self.requests.remove(request)

    def pass_time(self, duration: timedelta) -> None:
        """Let time pass; requests in flight take effect in time."""
        until = self.time + duration
        for request in sorted(self.requests, key=lambda request: request.latest):
            if request.latest <= until:
                self.time = max(self.time, request.latest)
                self.take_effect(request)
        self.time = until

    def run(self) -> list[str]:
        """Run everything to its end; return the violations."""
        for name, play in self.plays.items():
            self.actors.append(Actor(self, name, play))
        for _ in range(3000):
            if all(actor.has_ended for actor in self.actors) or self.wrong:
                break
            self._step(self.draw())
        else:
            self.wrong.append("it does not end")
        for actor in self.actors:
            actor.kill()
        for request in list(self.requests):
            self.take_effect(request)
        if self.is_down and self.node != "ABSENT":
            self.wrong.append(f"{self.node} after the down")
        for actor in self.actors:
            if actor.error is not None:
                raise actor.error
        return self.wrong

    def _step(self, choice: int) -> None:
        able = [actor for actor in self.actors if actor.can_go_on]
        match choice:
            case _ if choice >= 248:
                self._die(choice)
            case _ if choice >= 215:
                self.pass_time((5, 25, 95, 125, 200)[choice % 5] * _SECOND)
            case _ if choice >= 205 and self.requests:
                self.take_effect(self.requests[choice % len(self.requests)])
            case _ if choice >= 198 and self.late:
                self.swap(*self.late.pop(choice % len(self.late)))
            case _ if choice >= 195 and self.node == "READY":
                self.node = "PREEMPTED"
            case _ if able:
                # The quiet choice continues with the same actor, so that one byte is one change of actors.
                actor = self.current if choice == 0 and self.current in able else able[choice % len(able)]
                self.current = actor
                actor.go_on()
            case _ if self.requests:
                self.take_effect(self.requests[0])
            case _:
                self.time = max(self.time, min(actor.next_moment for actor in self.actors if not actor.has_ended))

    def _die(self, choice: int) -> None:
        """Kill a watcher, which comes back as a new process."""
        living = [actor for actor in self.actors if actor.name != "down" and not actor.has_ended]
        if not living or len(self.actors) > 6:
            return
        victim = living[choice % len(living)]
        victim.kill()
        if self.detects_dead:
            # On one machine dead processes are replaced at once: their requests count as arrived.
            for request in [request for request in self.requests if request.sender is victim]:
                self.take_effect(request)
        self.actors.append(Actor(self, victim.name, self.plays[victim.name]))
