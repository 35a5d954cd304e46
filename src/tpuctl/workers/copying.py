"""Copy files between this machine and workers. Local files are checked before any worker is contacted.

All workers are served in parallel; a broken connection is replaced, and what has arrived is not sent again. Each local file is
read once for all workers. The frames of a worker are checked by `copy_protocol`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from tpuctl.errors import InvalidInputError, NotFoundError, RemoteCommandError, TpuctlError
from tpuctl.ssh.agent.copy_files import (
    STEP,
    CopyRefusedError,
    CopyTarget,
    FileReceiver,
    FileSender,
    PeerLostError,
    digest_of_beginning,
    list_files,
    path_text,
    receive_files,
)
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.keys import SshProgramMissingError
from tpuctl.ssh.transfer_channels import CopyLinkLostError, CopyLinks
from tpuctl.workers.copy_protocol import FetchRequest, ReceiverFrames, SenderFrames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.clock import Clock
    from tpuctl.ssh.agent.copy_files import FileListing
    from tpuctl.ssh.connection import Target
    from tpuctl.ssh.transfer_channels import CopyChannel


def list_local_files(sources: Sequence[str], folder: Path, options: CopyOptions) -> FileListing:
    """List the local files to send. Relative paths start in `folder`.

    Raises `InvalidInputError` for a missing or unreadable file, before anything is sent.
    """
    # Messages show paths as the user typed them.
    below = b"" if folder == Path.cwd() else os.fsencode(folder)
    paths = [os.path.join(below, os.fsencode(source)) for source in sources]  # noqa: PTH118  # pathlib knows no bytes
    try:
        listing = list_files(paths, recurse=options.recurse)
    except CopyRefusedError as error:
        kind, message = error.args
        hint = "add `-r` to copy folders" if kind == "folder" else None
        raise InvalidInputError(f"nothing was copied: {message}", hint=hint) from error
    if listing.failed:
        more = f", and {len(listing.failed) - 1} more" if len(listing.failed) > 1 else ""
        raise InvalidInputError(f"nothing was copied: {listing.failed[0]}{more}")
    names: dict[str, bytes] = {}
    for path, entry in listing.files:
        if names.setdefault(entry.path, path) != path:
            hint = "copy them to different folders"
            raise InvalidInputError(
                f"`{path_text(path)}` and `{path_text(names[entry.path])}` have the same name", hint=hint
            )
    return listing


def upload(
    targets: Sequence[Target],
    listing: FileListing,
    destination: str,
    *,
    options: CopyOptions,
    tallies: Sequence[CopyProgress],
    clock: Clock,
) -> list[CopyResult]:
    """Copy to `destination` on every worker, and return the results."""
    prefixes = PrefixDigests()
    text = os.fsencode(destination).decode("utf-8", "surrogateescape")
    one = partial(Upload, listing, text, options, prefixes)
    return copy_all_workers(targets, [one] * len(targets), tallies, fanout=options.fanout, clock=clock)


def download(
    targets: Sequence[Target],
    patterns: Sequence[str],
    folder: Path,
    destination: str,
    *,
    options: CopyOptions,
    tallies: Sequence[CopyProgress],
    clock: Clock,
) -> list[CopyResult]:
    """Copy from every worker to `destination`; with several workers into a folder for each, named by its label.

    Raises `InvalidInputError` if such a folder cannot be created, or if a pattern does not determine the local name.
    """
    for pattern in patterns:
        if pattern.rstrip("/").rpartition("/")[2] == "..":
            hint = f"name the folder, or use `{pattern.rstrip('/')}/.` for its contents"
            raise InvalidInputError(f"`{pattern}` does not determine a local name", hint=hint)
    umask = os.umask(0o077)
    os.umask(umask)
    texts = tuple(os.fsencode(pattern).decode("utf-8", "surrogateescape") or "." for pattern in patterns)
    below = [target.label if len(targets) > 1 else "" for target in targets]
    # `DST/` means a folder; pathlib would remove the slash.
    folders = [os.path.join(folder, destination, one) if one else os.path.join(folder, destination) for one in below]  # noqa: PTH118  # as above
    if len(targets) > 1:
        try:
            for path in map(Path, folders):
                if path.is_symlink():
                    hint = "use another folder: each worker gets its own folder in it"
                    raise InvalidInputError(f"`{path}` is a symlink", hint=hint)
                path.mkdir(parents=path.parent.parent.is_dir(), exist_ok=True)
        except OSError as error:
            raise InvalidInputError(f"cannot create `{error.filename}`: {(error.strerror or '').lower()}") from error
    transfers = []
    for target, place in zip(targets, folders, strict=True):
        # Hidden files (`.git`, `.envrc`) could affect other files in a folder, so they are copied only to an empty or new one.
        is_empty = True
        with suppress(OSError), os.scandir(place) as found:
            is_empty = next(found, None) is None
        wanted = FetchRequest(texts, target.connection.login, recurse=options.recurse, hidden=is_empty)
        transfers.append(partial(Download, wanted, os.fsencode(place), options, umask))
    return copy_all_workers(targets, transfers, tallies, fanout=options.fanout, clock=clock)


# Parallel copies; the next starts when one of them ends.
_MAX_AT_ONCE = 64


def copy_all_workers(
    targets: Sequence[Target],
    transfers: Sequence[Callable[[CopyProgress], Transfer]],
    tallies: Sequence[CopyProgress],
    *,
    fanout: int,
    clock: Clock,
) -> list[CopyResult]:
    """Copy to or from each worker, and return the results in their order. A failure does not affect the other copies.

    At most `fanout` handshakes and 64 copies run in parallel. An exception terminates all links. Raises
    `SshProgramMissingError`.
    """
    links = CopyLinks(fanout)
    pool = ThreadPoolExecutor(min(_MAX_AT_ONCE, len(targets)), thread_name_prefix="copy")
    try:
        pending = [
            pool.submit(copy_one_worker, target, transfer, tally, links=links, clock=clock)
            for target, transfer, tally in zip(targets, transfers, tallies, strict=True)
        ]
        return [one.result() for one in pending]
    except BaseException:
        links.terminate_all()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


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

    def resume(self, channel: CopyChannel) -> None:
        """Copy what is missing. Raises `PeerLostError`, `UnexpectedAnswerError`, and `CopyRefusedError` if it is impossible."""

    def result(self) -> tuple[int, int, list[str], list[str]]:
        """Return the number of complete files, their bytes, the problems, and the notes about skipped files."""


def copy_one_worker(
    target: Target, transfer: Callable[[CopyProgress], Transfer], tally: CopyProgress, *, links: CopyLinks, clock: Clock
) -> CopyResult:
    """Copy until everything is copied or a retry is useless.

    After a link that made progress, open another one. Without progress, try four more times.
    """
    started, one = clock.monotonic(), transfer(tally)
    error: TpuctlError | None = None
    links_made, failures, kept, ssh_stderr = 0, 0, 0, ""
    while True:
        links_made += 1
        try:
            with links.open(target.connection, one.call) as channel:
                one.resume(channel)
            break
        except CopyRefusedError as refused:
            kind, message = refused.args
            if kind == "missing":
                hint = "paths on a worker are relative to the login's home; the worker expands `~` and wildcards"
                error = NotFoundError(message, hint=hint)
            elif kind in {"folder", "target", "new folder"}:
                error = InvalidInputError(message, hint=_HINTS[kind])
            else:
                error = RemoteCommandError(message, hint=_HINTS.get(kind))
            break
        except CopyLinkLostError as dropped:
            # Only confirmed bytes count: bytes that were sent may be lost each time.
            failures = 1 if tally.kept > kept else failures + 1
            kept = max(kept, tally.kept)
            pause = copy_retry_pause(failures, links_made)
            if dropped.is_final or pause is None:
                ssh_stderr = dropped.ssh_stderr
                error = RemoteCommandError(dropped.detail, hint="repeat the command to resume the copy")
                break
            clock.sleep(pause)
        except SshProgramMissingError:
            raise  # all workers need it
        except UnexpectedAnswerError as unexpected:
            error = unexpected.of(target.label)
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
    return CopyResult(
        target=target, files=files, size=size, moved=tally.total_moved, duration=duration,
        problems=tuple(problems), notes=tuple(notes), error=error, ssh_stderr=ssh_stderr,
    )  # fmt: skip


@dataclass
class Upload:
    """Sends a listing to a worker."""

    listing: FileListing
    destination: str
    options: CopyOptions
    prefixes: PrefixDigests
    tally: CopyProgress
    _place: CopyTarget | None = None
    _done: dict[int, str | None] = field(default_factory=dict)
    _refused: set[int] = field(default_factory=set)

    @property
    def call(self) -> str:
        """The Python line that starts the other end."""
        place = tuple(self._place) if self._place else None
        return f"receive({self.destination!a}, {place!a}, preserve={self.options.preserve})"

    def resume(self, channel: CopyChannel) -> None:
        """Send what is missing. Raises `PeerLostError`, and `CopyRefusedError` if the worker cannot store it."""
        entries = [entry for _, entry in self.listing.files]
        self.tally.size = sum(entry.size for entry in entries)
        self.tally.restart(sum(entries[number].size for number in self._done))
        # Folders are sent again with each link, because the worker sets their modes at the end.
        done = {number for number in self._done if not entries[number].is_folder}
        sender = FileSender(channel, self.listing, digest_of=self.prefixes.digest_of, on_bytes=self.tally.add)
        channel.frames = ReceiverFrames(self.listing, sender)
        answers: SimpleQueue[tuple[bytes, Any]] = SimpleQueue()
        listener = threading.Thread(target=self._listen, args=(channel, answers), name="copy", daemon=True)
        listener.start()
        try:
            sender.send(lambda kind: self._wait_for(answers, kind), done, self._refused)
            self._wait_for(answers, b"Z")
        except PeerLostError:
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

    def _listen(self, channel: CopyChannel, answers: SimpleQueue[tuple[bytes, Any]]) -> None:
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
        except (PeerLostError, CopyRefusedError) as error:
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
                raise PeerLostError

    def result(self) -> tuple[int, int, list[str], list[str]]:
        """Return the result from the reports of the worker."""
        entries = [entry for _, entry in self.listing.files]
        whole = [entries[number] for number, problem in self._done.items() if problem is None]
        files = [entry for entry in whole if not entry.is_folder]
        return len(files), sum(entry.size for entry in files), [text for text in self._done.values() if text], []


@dataclass
class Download:
    """Stores what a worker sends, below `destination` on this machine."""

    asked: FetchRequest
    destination: bytes
    options: CopyOptions
    umask: int
    tally: CopyProgress
    _keeper: FileReceiver | None = None
    _failed_and_notes: tuple[list[str], list[str]] = ([], [])
    _missing: tuple[str, ...] = ()

    @property
    def call(self) -> str:
        """The Python line that starts the other end."""
        asked = self.asked
        return f"fetch({asked.patterns!a}, recurse={asked.recurse}, names={asked.homes!a}, hidden={asked.hidden})"

    def resume(self, channel: CopyChannel) -> None:
        """Fetch what is missing. Raises `PeerLostError`, and `CopyRefusedError` if one side cannot continue."""
        place = self._keeper.place if self._keeper else None
        self.tally.restart()
        channel.frames = frames = SenderFrames(self.asked)
        self._keeper = FileReceiver(
            self.destination,
            umask=self.umask,
            preserve=self.options.preserve,
            place=place,
            is_confined=True,
            on_bytes=self.tally.add,
        )

        def start(beginning: list[Any]) -> None:
            _, _, _, size, notes, failed = beginning
            self.tally.size = size
            self._failed_and_notes = (failed, notes)

        try:
            receive_files(channel, self._keeper, on_overview=start)
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


_PAUSES = (1, 2, 4, 8)
# A worker that takes a little more each time and hangs up would never finish.
_MAX_LINKS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How to copy."""

    # Copy folders too.
    recurse: bool = False
    # Keep times and modes.
    preserve: bool = False
    # The maximum number of parallel ssh handshakes.
    fanout: int = 64


@dataclass(slots=True)
class CopyProgress:
    """The progress of one worker's copy, in bytes. One thread writes, any thread may read."""

    # The bytes to copy; None until known.
    size: int | None = None
    # In files that were complete before the current link.
    complete: int = 0
    # Found at the other end, so not sent over the current link.
    present: int = 0
    # Sent over the current link, and over all links.
    moved: int = 0
    total_moved: int = 0
    has_ended: bool = False

    def restart(self, complete: int = 0) -> None:
        """Start with a new link, with `complete` bytes in complete files."""
        self.complete, self.present, self.moved = complete, 0, 0

    def add(self, present: int, moved: int) -> None:
        """Count bytes that the other end already has, and bytes that were sent."""
        self.present += present
        self.moved += moved
        self.total_moved += moved

    @property
    def kept(self) -> int:
        """The bytes that the other end had before the current link."""
        return self.complete + self.present

    @property
    def arrived(self) -> int:
        """The bytes at the other end, or on their way."""
        return self.complete + self.present + self.moved


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """The result of the copy of one worker."""

    target: Target
    # The number of complete files, and their bytes.
    files: int
    size: int
    # Bytes sent over ssh.
    moved: int
    duration: timedelta
    # Files that could not be copied, with reasons.
    problems: tuple[str, ...] = ()
    # What was skipped on purpose.
    notes: tuple[str, ...] = ()
    # Why the copy stopped, or the summary of the problems; None if all files are complete.
    error: TpuctlError | None = None
    # The stderr of an ssh that could not log in.
    ssh_stderr: str = ""


def copy_retry_pause(failures: int, links: int) -> timedelta | None:
    """Return the pause after `failures` links in a row without progress, of `links` in all. None to give up."""
    return timedelta(seconds=_PAUSES[failures - 1]) if 0 < failures <= len(_PAUSES) and links < _MAX_LINKS else None


class PrefixDigests:
    """Digests of the first bytes of all files of a run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, _Prefix] = {}

    def digest_of(self, path: bytes, length: int) -> str:
        """Return the digest of the first `length` bytes, as `digest` does. Raises `OSError`."""
        with self._lock:
            prefix = self._known.setdefault(path, _Prefix(path))
        return prefix.digest(length)


class _Prefix:
    """One file, read as far as needed so far. The digest at every step is kept."""

    def __init__(self, path: bytes) -> None:
        self._path, self._lock = path, threading.Lock()
        self._hash, self._read = hashlib.blake2b(digest_size=20), 0
        self._known: dict[int, str] = {}

    def digest(self, length: int) -> str:
        with self._lock:
            if length > self._read:
                with Path(os.fsdecode(self._path)).open("rb", buffering=0) as file:
                    file.seek(self._read)
                    while self._read < length:
                        block = file.read(min(STEP - self._read % STEP, length - self._read))
                        if not block:
                            break
                        self._hash.update(block)
                        self._read += len(block)
                        self._known[self._read] = self._hash.hexdigest()
            known = self._known.get(length)
        return digest_of_beginning(self._path, length) if known is None else known


# scp treats `a/b:c` as local; here the first part must look like a zone. A drive letter is not a node.
_REMOTE = re.compile(
    r"(?P<node>(?:[\w.-]+@)?(?:(?:[^:]*/)?projects/[^:]+/nodes/|[a-z]+(?:-[a-z0-9]+)+/)?[^/:@\s.][^/:@\s]*)?:(?P<path>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class CopyAddress:
    """A local path (`nodes` is None), or a path on the workers of nodes; `nodes` is empty if labels choose them."""

    text: str
    nodes: tuple[str, ...] | None
    path: str

    @classmethod
    def parse(cls, text: str) -> CopyAddress:
        """Parse `PATH`, `NODE:PATH`, `USER@NODE:PATH`, `ZONE/NODE:PATH`, `NODE,NODE:PATH` or `:PATH`."""
        if match := _REMOTE.fullmatch(text):
            return cls(text, tuple(filter(None, (match["node"] or "").split(","))), match["path"])
        return cls(text, None, text)


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """Sources, target, and the nodes of the remote side; `nodes` is empty if labels choose them."""

    sources: tuple[str, ...]
    destination: str
    nodes: tuple[str, ...]
    is_upload: bool


def parse_copy_request(texts: tuple[str, ...], *, has_labels: bool) -> CopyRequest:
    """Parse `SRC... DST`. Raises `InvalidInputError` unless exactly one side is remote."""
    if len(texts) < 2:
        raise InvalidInputError(
            "the destination is missing", hint="use `tpuctl scp FILE NODE:PATH` or `tpuctl scp NODE:PATH FOLDER`"
        )
    *sources, destination = map(CopyAddress.parse, texts)
    remote = [source for source in sources if source.nodes is not None]
    if destination.nodes is not None and remote:
        name = remote[0].path.rstrip("/").rpartition("/")[2] or "."
        steps = (("tpuctl", "scp", remote[0].text, f"./{name}"), ("tpuctl", "scp", f"./{name}", destination.text))
        hint = "\n".join(map(shlex.join, steps))
        raise InvalidInputError("both sides are on nodes", hint=f"copy to this machine first:\n{hint}")
    if destination.nodes is None and not remote:
        raise InvalidInputError(
            "no path is on a node",
            hint=f"write the node before a colon: `NODE:{destination.path}`; write a local name as `./NAME`",
        )
    if remote and len(remote) < len(sources):
        local = next(source for source in sources if source.nodes is None)
        raise InvalidInputError(
            f"`{local.text}` is already on this machine", hint="all sources must be on the same node, or all local"
        )
    nodes = (destination.nodes if destination.nodes is not None else remote[0].nodes) or ()
    if any(source.nodes != remote[0].nodes for source in remote):
        hint = "\n".join(shlex.join(("tpuctl", "scp", source.text, destination.text)) for source in remote)
        raise InvalidInputError("the sources are on several nodes", hint=f"copy from one node at a time:\n{hint}")
    address = destination if destination.nodes is not None else remote[0]
    if has_labels and nodes:
        raise InvalidInputError(
            "cannot combine node names with `-l`",
            hint=f"use `:{address.path}` with `-l`, or `{address.text}` without it",
        )
    if not has_labels and not nodes:
        raise InvalidInputError(
            f"`{address.text}` names no node", hint=f"use `NODE:{address.path}`, or choose nodes with `-l KEY=VALUE`"
        )
    return CopyRequest(tuple(source.path for source in sources), destination.path, nodes, destination.nodes is not None)
