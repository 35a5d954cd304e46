"""The copy to or from one worker, which opens a new link after a failure."""

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

_EXIT_SECONDS = 5
_HINTS = {
    "folder": "add `-r` to copy folders",
    "target": "use an existing folder, or one new name in an existing folder",
    "new folder": "add `/` at the end to create it",
    "full": "the received part is kept: free some space, and repeat the command to resume",
    "read-only": "use a writable folder",
    "disk": "the disk reports errors: use a folder on another disk",
}


class Transfer(Protocol):
    """A copy of one worker that can resume over a new link."""

    @property
    def call(self) -> str:
        """The Python line that starts the other end."""

    def resume(self, channel: WorkerChannel) -> None:
        """Copy what is missing. Raises `LostError`, `UnexpectedAnswerError`, and `RefusedError` if it is impossible."""

    def result(self) -> tuple[int, int, list[str], list[str]]:
        """Return the number of complete files, their bytes, the problems, and the notes about skipped files."""


def copy(member: Member, transfer: Callable[[Tally], Transfer], tally: Tally, *, links: Links, clock: Clock) -> Copied:
    """Copy until everything is copied or a retry is useless.

    After a link that made progress, open another one. Without progress, try four more times.
    """
    started, one, error = clock.monotonic(), transfer(tally), None
    links_made, failures, kept, ssh_stderr = 0, 0, 0, ""
    while True:
        links_made += 1
        try:
            with links.open(member.way, one.call) as channel:
                one.resume(channel)
            break
        except RefusedError as refused:
            error = _refusal_error(*refused.args)
            break
        except DroppedError as dropped:
            # Only confirmed bytes count: bytes that were sent may be lost each time.
            failures = 1 if tally.kept > kept else failures + 1
            kept = max(kept, tally.kept)
            pause = pause_after(failures, links_made)
            if dropped.is_final or pause is None:
                ssh_stderr = dropped.ssh_stderr
                error = RemoteCommandError(dropped.detail, hint="repeat the command to resume the copy")
                break
            clock.sleep(pause)
        except SshProgramMissingError:
            raise  # all workers need it
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
        member=member, files=files, size=size, moved=tally.total_moved, duration=duration,
        problems=tuple(problems), notes=tuple(notes), error=error, ssh_stderr=ssh_stderr,
    )  # fmt: skip


def _refusal_error(kind: str, message: str) -> TpuctlError:
    if kind == "missing":
        return NotFoundError(
            message, hint="paths on a worker are relative to the login's home; the worker expands `~` and wildcards"
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
        """The Python line that starts the other end."""
        place = tuple(self._place) if self._place else None
        return f"receive({self.target!a}, {place!a}, preserve={self.wish.preserve})"

    def resume(self, channel: WorkerChannel) -> None:
        """Send what is missing. Raises `LostError`, and `RefusedError` if the worker cannot store it."""
        entries = [entry for _, entry in self.listing.files]
        self.tally.size = sum(entry.size for entry in entries)
        self.tally.restart(sum(entries[number].size for number in self._done))
        # Folders are sent again with each link, because the worker sets their modes at the end.
        done = {number for number in self._done if not entries[number].is_folder}
        sender = Sender(channel, self.listing, digest_of=self.prefixes.digest_of, tell=self.tally.add)
        channel.frames = FromReceiver(self.listing, sender)
        answers: SimpleQueue[tuple[bytes, Any]] = SimpleQueue()
        listener = threading.Thread(target=self._listen, args=(channel, answers), name="copy", daemon=True)
        listener.start()
        try:
            sender.send(lambda kind: self._wait_for(answers, kind), done, self._refused)
            self._wait_for(answers, b"Z")
        except LostError:
            # The worker may have sent the reason before it hung up. Do not wait for one that stays and reads nothing.
            listener.join(_EXIT_SECONDS)
            if listener.is_alive():
                channel.terminate()
            self._wait_for(answers, b"")
        except BaseException:
            channel.terminate()
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
            channel.terminate()  # the sender may be blocked by a worker that reads nothing
        except (LostError, RefusedError) as error:
            answers.put((b"", error))

    def _wait_for(self, answers: SimpleQueue[tuple[bytes, Any]], wanted: bytes) -> Any:  # JSON
        while True:
            kind, value = answers.get()
            if kind == b"P":
                self._place = value
            if kind == b"":
                answers.put((kind, value))  # the next call raises it too
                raise value
            if kind == wanted:
                return value
            if wanted:
                raise LostError

    def result(self) -> tuple[int, int, list[str], list[str]]:
        """Return the result from the reports of the worker."""
        entries = [entry for _, entry in self.listing.files]
        whole = [entries[number] for number, problem in self._done.items() if problem is None]
        files = [entry for entry in whole if not entry.is_folder]
        return len(files), sum(entry.size for entry in files), [text for text in self._done.values() if text], []


@dataclass
class Download:
    """Stores what a worker sends, below `target` on this machine."""

    asked: Asked
    target: bytes
    wish: Wish
    umask: int
    tally: Tally
    _keeper: Keeper | None = None
    _failed_and_notes: tuple[list[str], list[str]] = ([], [])
    _missing: tuple[str, ...] = ()

    @property
    def call(self) -> str:
        """The Python line that starts the other end."""
        asked = self.asked
        return f"fetch({asked.patterns!a}, recurse={asked.recurse}, names={asked.homes!a}, hidden={asked.hidden})"

    def resume(self, channel: WorkerChannel) -> None:
        """Fetch what is missing. Raises `LostError`, and `RefusedError` if one side cannot continue."""
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

        def start(beginning: list[Any]) -> None:
            _, _, _, size, notes, failed = beginning
            self.tally.size = size
            self._failed_and_notes = (failed, notes)

        try:
            keep(channel, self._keeper, hear=start)
            self._missing = frames.missing
        finally:
            self._keeper.close()

    def result(self) -> tuple[int, int, list[str], list[str]]:
        """Return the result of what was stored."""
        kept = self._keeper
        problems = [text for _, text in kept.reports if text] if kept else []
        failed, notes = self._failed_and_notes
        # The failures that the worker reports may explain what is missing.
        failed = failed or [f"`{pattern}` was not received" for pattern in self._missing]
        return (kept.files if kept else 0), (kept.size if kept else 0), [*failed, *problems], notes
