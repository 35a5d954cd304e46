"""Copy files between this machine and workers. Local files are checked before any worker is contacted.

All workers are served in parallel, and an upload reads each file once. After a broken connection the copy begins again. A
worker is not trusted: `FetchedFiles` accepts only files that were requested.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from threading import Semaphore
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.command_text import join_command
from tpuctl.decoding import Most, Range, Text
from tpuctl.errors import InvalidInputError, NotFoundError, RemoteCommandError, TpuctlError
from tpuctl.escaping import preview
from tpuctl.fan_out import fan_out
from tpuctl.ssh.agent.copy_files import MAX_PROBLEMS, FileReceiver, list_files
from tpuctl.ssh.agent.tar_stream import FileEntry, RefusedError, path_text, reason, to_bytes, to_text
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer
from tpuctl.ssh.channel import LONGEST_ANSWER, AgentError, OpenChannels
from tpuctl.ssh.keys import SshProgramMissingError
from tpuctl.ssh.transfer import (
    MAX_AT_ONCE,
    MAX_FILES,
    MAX_TEXT,
    SharedOptions,
    Tee,
    WorkerStream,
    open_transfer,
    with_retries,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.clock import Clock
    from tpuctl.ssh.agent.copy_files import FileListing
    from tpuctl.ssh.connection import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How to copy."""

    recurse: bool = False  # folders too
    preserve: bool = False  # times and modes
    fanout: int = 64  # the maximum number of parallel ssh handshakes


@dataclass(slots=True)
class CopyProgress:
    """The progress of one worker's copy, in bytes. One thread writes, any thread may read."""

    size: int | None = None  # to copy; None until known
    moved: int = 0  # over the current connection
    total_moved: int = 0
    has_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """The result of the copy of one worker."""

    target: Target
    files: int  # that are complete
    size: int  # of these, in bytes
    moved: int  # bytes sent over ssh
    duration: timedelta
    problems: tuple[str, ...]  # files that could not be copied, with reasons
    notes: tuple[str, ...]  # what was skipped on purpose
    error: TpuctlError | None  # why the copy stopped, or the summary of the problems


@dataclass(slots=True)
class _Copied:
    """What one worker has got or sent so far."""

    files: int = 0
    size: int = 0
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    trees: list[list[int]] = field(
        default_factory=list
    )  # that became the target, if a connection broke at the very end


def list_local_files(sources: Sequence[str], folder: Path, *, recurse: bool) -> FileListing:
    """List the local files to send. Relative paths start in `folder`.

    Raises `InvalidInputError` for a missing or unreadable file, before anything is sent.
    """
    # Messages show paths as the user typed them.
    below = b"" if folder == Path.cwd() else os.fsencode(folder)
    paths = [os.path.join(below, os.fsencode(source)) for source in sources]  # noqa: PTH118  # pathlib knows no bytes
    try:
        listing = list_files(paths, recurse=recurse)
    except RefusedError as error:
        kind, message = error.args
        hint = _HINTS["folder"] if kind == "folder" else None
        raise InvalidInputError(f"nothing was copied: {message}", hint=hint) from error
    except OSError as error:
        raise InvalidInputError(f"nothing was copied: `{path_text(error.filename)}`: {reason(error)}") from error
    if listing.failed:
        raise InvalidInputError(f"nothing was copied: {_first_of(listing.failed)}")
    names: dict[str, bytes] = {}
    for path, entry in listing.files:
        if names.setdefault(entry.path, path) != path:
            message = f"`{path_text(path)}` and `{path_text(names[entry.path])}` have the same name"
            raise InvalidInputError(message, hint="copy them to different folders")
    return listing


def upload(
    targets: Sequence[Target],
    listing: FileListing,
    destination: str,
    *,
    options: CopyOptions,
    clock: Clock,
    on_progress: Callable[[Sequence[CopyProgress]], None] = lambda _: None,
) -> list[CopyResult]:
    """Copy to `destination` on every worker, and return the results."""
    entries = [entry for _, entry in listing.files]
    size, names = sum(entry.size for entry in entries), {entry.path for entry in entries}
    request = {
        "target": _as_text(destination),
        "preserve": options.preserve,
        "named": listing.named,
        "tree": listing.is_tree,
    }

    with Tee(listing.files, workers=len(targets), exact=options.preserve) as tee:

        def send(stream: WorkerStream, progress: CopyProgress, copied: _Copied) -> None:
            tree = stream.receive()
            if tree is not None:
                copied.trees.append(list(decode_answer(_Tree, tree, "tree")))
            progress.size, progress.moved = size, 0
            tee.send(stream, range(len(entries)))
            problems = stream.receive_problems(most=len(names))
            if not problems.keys() <= names:
                raise UnexpectedAnswerError("problems: a file that was not sent")
            whole = [entry for entry in entries if entry.path not in problems and not entry.is_folder]
            copied.files, copied.size = len(whole), sum(entry.size for entry in whole)
            copied.problems = tuple(problems.values())

        longest = LONGEST_ANSWER + _MAX_ENTRY * len(entries)
        copies = [WorkerCopy(target, request, send, longest, tee.leave) for target in targets]
        return _copy_all(copies, fanout=options.fanout, clock=clock, on_progress=on_progress)


def download(
    targets: Sequence[Target],
    patterns: Sequence[str],
    folder: Path,
    destination: str,
    *,
    options: CopyOptions,
    clock: Clock,
    on_progress: Callable[[Sequence[CopyProgress]], None] = lambda _: None,
) -> list[CopyResult]:
    """Copy from every worker to `destination`; with several workers into a folder for each, named by its label.

    Raises `InvalidInputError` if such a folder cannot be created, or if a pattern does not determine the local name.
    """
    for pattern in patterns:
        if pattern.rstrip("/").rpartition("/")[2] == "..":
            hint = f"name the folder, or use `{pattern.rstrip('/')}/.` for its contents"
            raise InvalidInputError(f"`{pattern}` does not determine a local name", hint=hint)
    # `DST/` means a folder; pathlib would remove the slash.
    below = os.path.join(folder, destination)  # noqa: PTH118  # as above
    copies, receivers, created = [], list[FileReceiver](), list[Path]()

    def new_receiver(place: str | Path) -> FileReceiver:
        receivers.append(FileReceiver(os.fsencode(place), preserve=options.preserve, is_confined=True))
        return receivers[-1]

    for target in targets:
        place = _folder_for(target, Path(below), created) if len(targets) > 1 else below
        # Hidden files (`.git`, `.envrc`) could affect other files in a folder, so they are copied only to an empty or new one.
        is_empty = True
        with suppress(OSError):
            is_empty = not os.listdir(place)  # noqa: PTH208  # text
        texts = tuple(_as_text(pattern) or "." for pattern in patterns)
        request = FetchRequest(texts, target.connection.login, recurse=options.recurse, hidden=is_empty)
        transfer = partial(_fetch, request, partial(new_receiver, place))
        copies.append(WorkerCopy(target, request.for_worker, transfer))
    try:
        return _copy_all(copies, fanout=options.fanout, clock=clock, on_progress=on_progress)
    finally:
        # After an interrupt the threads end with this process, and may leave unfinished files.
        for receiver in receivers:
            receiver.close()
        # Those that got no file.
        for path in reversed(created):
            with suppress(OSError):
                path.rmdir()


def _folder_for(target: Target, parent: Path, created: list[Path]) -> Path:
    """Return the folder for a worker; add those that had to be created."""
    path = parent / target.label
    if path.is_symlink():
        raise InvalidInputError(
            f"`{path}` is a symlink", hint="use another folder: each worker gets its own folder in it"
        )
    missing = [folder for folder in (parent, path) if not folder.exists()]
    try:
        path.mkdir(parents=parent.parent.is_dir(), exist_ok=True)
        created += missing
    except OSError as error:
        raise InvalidInputError(f"cannot create `{error.filename}`: {reason(error)}") from error
    return path


def _fetch(
    request: FetchRequest,
    new_receiver: Callable[[], FileReceiver],
    stream: WorkerStream,
    progress: CopyProgress,
    copied: _Copied,
) -> None:
    """Store what a worker sends, which gets to know nothing of this machine."""
    with closing(new_receiver()) as receiver:
        files = FetchedFiles(request, stream.receive())
        progress.size, progress.moved = files.size, 0
        copied.notes, copied.problems = files.notes, files.failed
        receiver.settle(files.named, is_tree=files.is_tree)
        while (entry := stream.next_member()) is not None:
            files.check(entry)
            receiver.receive(stream, entry)
        broken = files.check_end(stream.receive_problems(most=MAX_PROBLEMS))
        try:
            receiver.finish(broken.items())
        except OSError as error:
            raise RefusedError("target", f"`{os.fsdecode(error.filename)}`: {reason(error)}") from error
        # The failures that the worker reports may explain what is missing.
        missing = [] if broken else [f"`{pattern}` was not received" for pattern in files.missing]
        more = [f"{receiver.more_problems} more are not listed"] if receiver.more_problems else []
        copied.files, copied.size = receiver.files, receiver.size
        copied.problems = (*(files.failed or missing), *receiver.problems.values(), *more)


@dataclass(frozen=True, slots=True)
class WorkerCopy:
    """The copy of one worker: the request to it, what to do over each connection, and the longest answer in bytes."""

    target: Target
    request: Mapping[str, Any]
    transfer: Callable[[WorkerStream, CopyProgress, _Copied], None]
    longest: int = LONGEST_ANSWER
    on_end: Callable[[], None] = lambda: None


_HINTS = {
    "missing": "paths on a worker are relative to the login's home; the worker expands `~` and wildcards",
    "folder": "add `-r` to copy folders",
    "target": "use an existing folder, or one new name in an existing folder",
    "new folder": "add `/` at the end to create it",
    "full": "free some space, and repeat the command",
    "read-only": "use a writable folder",
    "disk": "the disk reports errors: use a folder on another disk",
}
_ERRORS = {"missing": NotFoundError} | dict.fromkeys(("folder", "target", "new folder"), InvalidInputError)


def _copy_all(
    copies: Sequence[WorkerCopy], *, fanout: int, clock: Clock, on_progress: Callable[[Sequence[CopyProgress]], None]
) -> list[CopyResult]:
    """Copy to or from each worker, and return the results in their order. A failure does not affect the other copies.

    Raises `SshProgramMissingError`.
    """
    shares = [CopyProgress() for _ in copies]
    logins, channels = Semaphore(fanout), OpenChannels()

    def copy(number: int) -> CopyResult:
        report = partial(on_progress, shares)
        try:
            return _copy_one(copies[number], shares[number], logins, channels, clock=clock, on_progress=report)
        finally:
            copies[number].on_end()

    try:
        return [one.get() for one in fan_out(copy, range(len(copies)), limit=MAX_AT_ONCE)]
    except BaseException:
        channels.kill()
        raise


def _copy_one(
    copy: WorkerCopy,
    progress: CopyProgress,
    logins: Semaphore,
    channels: OpenChannels,
    *,
    clock: Clock,
    on_progress: Callable[[], None],
) -> CopyResult:
    """Copy until everything is copied or a retry is useless."""
    started, copied = clock.monotonic(), _Copied()
    error: TpuctlError | None = None

    def count(size: int) -> None:
        progress.moved += size
        progress.total_moved += size
        on_progress()

    def attempt(shared: SharedOptions) -> None:
        request = {**copy.request, "trees": copied.trees}
        with open_transfer(
            copy.target, "copy_files", request, shared=shared, longest=copy.longest, logins=logins, on_bytes=count,
            channels=channels,
        ) as stream:  # fmt: skip
            copy.transfer(stream, progress, copied)

    on_progress()
    try:
        with_retries(attempt, clock=clock)
    except RefusedError as refused:
        kind, message = refused.args
        error = _ERRORS.get(kind, RemoteCommandError)(message, hint=_HINTS.get(kind))
    except AgentError as broken:
        broken.hint = "repeat the command"
        error = broken
    except SshProgramMissingError:
        raise  # all workers need it
    except TpuctlError as other:
        error = other
    if copied.problems and error is None:
        error = RemoteCommandError(_first_of(copied.problems))
    progress.has_ended = True
    on_progress()
    return CopyResult(
        target=copy.target, files=copied.files, size=copied.size, moved=progress.total_moved,
        duration=clock.monotonic() - started, problems=tuple(copied.problems), notes=tuple(copied.notes), error=error,
    )  # fmt: skip


def _first_of(problems: Sequence[str]) -> str:
    return problems[0] + (f", and {len(problems) - 1} more" if len(problems) > 1 else "")


def _as_text(path: str) -> str:
    """Return a path of the command line as workers get it, independent of the locale."""
    return to_text(os.fsencode(path))


# The longest answer about an entry, in bytes.
_MAX_ENTRY = 256
_Tree: Any = tuple[int, int]  # types
_Notes = Annotated[tuple[Annotated[str, Text(MAX_TEXT)], ...], Most(MAX_FILES)]
_Overview: Any = tuple[int, bool, Annotated[int, Range(0, MAX_FILES)], int, _Notes, _Notes]
# Bytes for the folder names of one source, which are kept because their files come later.
_MAX_FOLDER_BYTES = 64 << 20
# Bytes for the names of all files of a copy.
_MAX_NAME_BYTES = 1 << 28
_WILDCARD = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What to fetch from a worker."""

    patterns: tuple[str, ...]
    login: str  # the name for the copy of a home folder
    recurse: bool
    hidden: bool  # whether a source `.` includes hidden files

    @property
    def for_worker(self) -> dict[str, Any]:
        """The request to the program on the worker."""
        homes = {pattern: _last(pattern)[1:] or self.login for pattern in self.patterns if _is_home(pattern)}
        return {"patterns": self.patterns, "recurse": self.recurse, "names": homes, "hidden": self.hidden}

    def matches(self, name: str, pattern: str) -> bool:
        """Return whether a file or folder of that name may come from a pattern."""
        last = _last(pattern)
        if name == last or (_is_home(pattern) and name == (last[1:] or self.login)):
            return True
        # As in `glob`, a wildcard at the start does not match hidden names.
        may_match = not name.startswith(".") or last.startswith(".")
        is_pattern = _has_wildcard(last) and name not in {".", ".."}
        return is_pattern and may_match and fnmatchcase(to_bytes(name), to_bytes(last))


def _last(pattern: str) -> str:
    return pattern.rstrip("/").rpartition("/")[2] or "."


def _is_home(pattern: str) -> bool:
    return pattern.startswith("~") and "/" not in pattern.rstrip("/")


def _has_wildcard(pattern: str) -> bool:
    return bool(_WILDCARD.search(pattern))


class FetchedFiles:
    """Parses what a worker says about the files that it sends, and accepts only those that were requested.

    `missing`: the patterns for which no file has come so far.
    """

    def __init__(self, request: FetchRequest, overview: Any) -> None:  # JSON
        self.is_tree: bool
        self.count: int
        self.size: int
        named, self.is_tree, self.count, self.size, notes, failed = decode_answer(_Overview, overview, "overview")
        self._request = request
        # A name may match several patterns: those without wildcards are tried first.
        self.missing = sorted(request.patterns, key=_has_wildcard)
        # The worker expands wildcards.
        most = MAX_FILES if _has_wildcard(self.missing[-1]) else len(request.patterns)
        if named > most:
            raise UnexpectedAnswerError(f"overview: {named} names where at most {most} are expected")
        self.named, self.notes, self.failed = named, list(notes), list(failed)
        if self.is_tree and (self.named != 1 or not request.recurse or not self.count):
            raise UnexpectedAnswerError("overview.tree: a folder, which was not requested")
        self._top_level = self._received = 0
        self._folders: set[str] = set()
        self._folder_budget = _MAX_FOLDER_BYTES
        self._name_budget = _MAX_NAME_BYTES

    def check(self, entry: FileEntry) -> None:
        """Accept the next file or folder. Raises `UnexpectedAnswerError` if it was not requested."""
        shown = preview(entry.path)
        parent, slash, name = entry.path.rpartition("/")
        self._received += 1
        if self._received > self.count:
            raise UnexpectedAnswerError(f"more than the {self.count} files and folders of the overview")
        self._name_budget -= len(entry.path)
        if self._name_budget < 0:
            raise UnexpectedAnswerError("longer names than one copy may have")
        if name in {"", ".."} or (name == "." and (slash or not entry.is_folder)):
            raise UnexpectedAnswerError(f"entry.path: {shown} is not a valid path for a copy")
        if entry.is_folder and not self._request.recurse:
            raise UnexpectedAnswerError(f"a folder {shown}, but only files were requested")
        if not slash:
            if not any(self._request.matches(name, pattern) for pattern in self._request.patterns):
                raise UnexpectedAnswerError(f"{shown} was not requested")
            is_expected = self._match_pattern(name) and self._top_level < self.named
            if not is_expected or (self.named == 1 and entry.is_folder is not self.is_tree):
                raise UnexpectedAnswerError(f"{shown} does not match the listing")
            self._top_level += 1
            self._folders, self._folder_budget = set(), _MAX_FOLDER_BYTES
        elif parent not in self._folders:
            raise UnexpectedAnswerError(f"{shown} is in a folder that was not listed")
        elif parent == "." and name.startswith(".") and not self._request.hidden:
            raise UnexpectedAnswerError(f"{shown} is hidden, and was not requested")
        if entry.is_folder:
            self._folder_budget -= len(entry.path)
            if self._folder_budget < 0:
                raise UnexpectedAnswerError("more folders than one copy may have")
            self._folders.add(entry.path)

    def check_end(self, broken: dict[str, str]) -> dict[str, str]:
        """Return which files are not whole. Raises `UnexpectedAnswerError` if files are missing without a reason."""
        if self._received < self.count and not broken:
            raise UnexpectedAnswerError(f"{self._received} files and folders where the overview has {self.count}")
        return broken

    def _match_pattern(self, name: str) -> bool:
        """Return whether a name matches a pattern without a file so far, or a pattern with wildcards."""
        for at, pattern in enumerate(self.missing):
            if self._request.matches(name, pattern):
                del self.missing[at]
                return True
        return any(_has_wildcard(one) and self._request.matches(name, one) for one in self._request.patterns)


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
        hint = "\n".join(map(join_command, steps))
        raise InvalidInputError("both sides are on nodes", hint=f"copy to this machine first:\n{hint}")
    if destination.nodes is None and not remote:
        raise InvalidInputError(
            "no path is on a node",
            hint=f"a node ends with a colon: `{destination.path}:` is the home folder of a node of that name, "
            f"`NODE:{destination.path}` a path on a node; write a local name as `./NAME`",
        )
    if remote and len(remote) < len(sources):
        local = next(source for source in sources if source.nodes is None)
        raise InvalidInputError(
            f"`{local.text}` is already on this machine", hint="all sources must be on the same node, or all local"
        )
    nodes = (destination.nodes if destination.nodes is not None else remote[0].nodes) or ()
    if any(source.nodes != remote[0].nodes for source in remote):
        hint = "\n".join(join_command(("tpuctl", "scp", source.text, destination.text)) for source in remote)
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
