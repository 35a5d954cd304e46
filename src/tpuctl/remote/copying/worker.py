"""The copy to or from one worker, over as many links as it takes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from tpuctl.errors import InvalidInputError, NotFoundError, RemoteCommandError, TpuctlError
from tpuctl.remote.answers import UnexpectedAnswerError
from tpuctl.remote.copying.answers import FromReceiver, FromSender
from tpuctl.remote.copying.link import DroppedError
from tpuctl.remote.copying.values import Copied, Tally, pause_after
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.onboard.copy_frames import LostError, Place, RefusedError
from tpuctl.remote.onboard.copy_keeping import Keeper, keep
from tpuctl.remote.onboard.copy_sending import Sender

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.clock import Clock
    from tpuctl.remote.copying.answers import Asked
    from tpuctl.remote.copying.link import Links, WorkerChannel
    from tpuctl.remote.copying.prefixes import Prefixes
    from tpuctl.remote.copying.values import Wish
    from tpuctl.remote.member import Member
    from tpuctl.remote.onboard.copy_sending import Listing

_FAREWELL_SECONDS = 5
_HINTS = {
    "folder": "add `-r` to copy folders",
    "target": "name a folder that is there, or one new name in such a folder",
    "new folder": "end it with `/`, and it is made",
    "full": "what has arrived is kept: make room, and the same command goes on from there",
    "read-only": "name a folder that can be written to",
    "disk": "its disk fails: name a folder on another one",
}


class Transfer(Protocol):
    """A copy of one worker that can be gone on with over a new link."""

    @property
    def call(self) -> str:
        """The line that starts the other end."""

    def go_on(self, channel: WorkerChannel) -> None:
        """Copy what is missing. Raises `LostError`, `UnexpectedAnswerError`, and `RefusedError` where it cannot be done."""

    def result(self) -> tuple[int, int, list[str], list[str]]:
        """Return how many files are whole, their bytes, what could not be copied, and what was left out."""


def copy(member: Member, transfer: Callable[[Tally], Transfer], tally: Tally, *, links: Links, clock: Clock) -> Copied:
    """Copy until all is done or it cannot be.

    A link that found more there than the one before is worth another; while none does, four more are tried.
    """
    started, one, error = clock.monotonic(), transfer(tally), None
    links_made, failures, kept, ssh_said = 0, 0, 0, ""
    while True:
        links_made += 1
        try:
            with links.open(member.way, one.call) as channel:
                one.go_on(channel)
            break
        except RefusedError as refused:
            error = _refusal(*refused.args)
            break
        except DroppedError as dropped:
            # What was only sent does not count: it may all have been lost on the way, again and again.
            failures = 1 if tally.kept > kept else failures + 1
            kept = max(kept, tally.kept)
            pause = pause_after(failures, links_made)
            if dropped.is_final or pause is None:
                ssh_said = dropped.ssh_said
                error = RemoteCommandError(dropped.detail, hint="the same command goes on where this one ended")
                break
            clock.sleep(pause)
        except SshProgramMissingError:
            raise  # it is missing for all workers
        except UnexpectedAnswerError as unexpected:
            error = unexpected.of(member.label)
            break
        except TpuctlError as unable:
            error = unable
            break
    tally.has_ended = True
    files, size, problems, notes = one.result()
    if problems and error is None:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        error = RemoteCommandError(f"{problems[0]}{more}")
    duration = clock.monotonic() - started
    return Copied(
        member=member, files=files, size=size, moved=tally.ever, duration=duration,
        problems=tuple(problems), notes=tuple(notes), error=error, ssh_said=ssh_said,
    )  # fmt: skip


def _refusal(kind: str, message: str) -> TpuctlError:
    if kind == "missing":
        return NotFoundError(
            message, hint="paths on a worker begin in the login's home; `~` and wildcards are the worker's"
        )
    if kind in {"folder", "target", "new folder"}:
        return InvalidInputError(message, hint=_HINTS[kind])
    return RemoteCommandError(message, hint=_HINTS.get(kind))


@dataclass
class Upload:
    """Sends a listing to a worker."""

    listing: Listing
    target: str
    wish: Wish
    prefixes: Prefixes
    tally: Tally
    _place: Place | None = None
    _done: dict[int, str | None] = field(default_factory=dict)
    _refused: set[int] = field(default_factory=set)

    @property
    def call(self) -> str:
        """The line that starts the other end."""
        place = tuple(self._place) if self._place else None
        return f"receive({self.target!a}, {place!a}, preserve={self.wish.preserve})"

    def go_on(self, channel: WorkerChannel) -> None:
        """Send what is not there. Raises `LostError`, and `RefusedError` where the worker cannot keep it."""
        entries = [entry for _, entry in self.listing.files]
        self.tally.size = sum(entry.size for entry in entries)
        self.tally.restart(sum(entries[number].size for number in self._done))
        # Folders are sent again with each link: the worker gives them their modes at the end.
        done = {number for number in self._done if not entries[number].is_folder}
        sender = Sender(channel, self.listing, digest_of=self.prefixes.digest_of, tell=self.tally.add)
        channel.frames = FromReceiver(self.listing, sender)
        answers: SimpleQueue[tuple[bytes, Any]] = SimpleQueue()
        listener = threading.Thread(target=self._listen, args=(channel, answers), name="copy", daemon=True)
        listener.start()
        try:
            sender.send(lambda kind: self._answer(answers, kind), done, self._refused)
            self._answer(answers, b"Z")
        except LostError:
            # The worker may have said why before it hung up. One that takes no more, and stays, is not waited for.
            listener.join(_FAREWELL_SECONDS)
            if listener.is_alive():
                channel.cut()
            self._answer(answers, b"")
        except BaseException:
            channel.cut()
            raise
        finally:
            listener.join()

    def _listen(self, channel: WorkerChannel, answers: SimpleQueue[tuple[bytes, Any]]) -> None:
        kind = b""
        try:
            while kind != b"Z":
                kind, value = channel.receive()
                if kind == b"R":
                    number, problem = value
                    self._done[number] = problem
                    if problem is not None:
                        self._refused.add(number)
                else:
                    answers.put((kind, value))
        except UnexpectedAnswerError as error:
            answers.put((b"", error))
            channel.cut()  # the one who sends may be waiting for a worker that takes no more
        except (LostError, RefusedError) as error:
            answers.put((b"", error))

    def _answer(self, answers: SimpleQueue[tuple[bytes, Any]], wanted: bytes) -> Any:  # JSON
        while True:
            kind, value = answers.get()
            if kind == b"P":
                self._place = value
            if kind == b"":
                answers.put((kind, value))  # whoever asks next is to hear it too
                raise value
            if kind == wanted:
                return value
            if wanted:
                raise LostError

    def result(self) -> tuple[int, int, list[str], list[str]]:
        """Return what the worker has told."""
        entries = [entry for _, entry in self.listing.files]
        whole = [entries[number] for number, problem in self._done.items() if problem is None]
        files = [entry for entry in whole if not entry.is_folder]
        return len(files), sum(entry.size for entry in files), [text for text in self._done.values() if text], []


@dataclass
class Download:
    """Keeps what a worker sends, under `target` on this machine."""

    asked: Asked
    target: bytes
    wish: Wish
    umask: int
    tally: Tally
    _keeper: Keeper | None = None
    _said: tuple[list[str], list[str]] = ([], [])
    _unmet: tuple[str, ...] = ()

    @property
    def call(self) -> str:
        """The line that starts the other end."""
        asked = self.asked
        return f"fetch({asked.patterns!a}, recurse={asked.recurse}, names={asked.homes!a}, hidden={asked.hidden})"

    def go_on(self, channel: WorkerChannel) -> None:
        """Fetch what is not here. Raises `LostError`, and `RefusedError` where either end cannot go on."""
        place = self._keeper.place if self._keeper else None
        self.tally.restart()
        channel.frames = frames = FromSender(self.asked)
        self._keeper = Keeper(
            self.target,
            umask=self.umask,
            preserve=self.wish.preserve,
            place=place,
            is_confined=True,
            tell=self.tally.add,
        )
        try:
            keep(channel, self._keeper, hear=self._hear)
            self._unmet = frames.unmet
        finally:
            self._keeper.close()

    def _hear(self, beginning: list[Any]) -> None:
        _, _, _, size, notes, failed = beginning
        self.tally.size = size
        self._said = (failed, notes)

    def result(self) -> tuple[int, int, list[str], list[str]]:
        """Return what was kept."""
        kept = self._keeper
        problems = [text for _, text in kept.reports if text] if kept else []
        failed, notes = self._said
        # What the worker says to have failed on may be what has not come.
        failed = failed or [f"`{pattern}` has not come" for pattern in self._unmet]
        return (kept.files if kept else 0), (kept.size if kept else 0), [*failed, *problems], notes
