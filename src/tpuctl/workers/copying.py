"""Copy files between this machine and workers. Local files are checked before any worker is contacted.

All workers are served in parallel; a broken connection is replaced, and what has arrived is not sent again. A worker is not
trusted: `FetchedFiles` accepts only files that were requested.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from threading import Semaphore
from typing import TYPE_CHECKING, Any

from tpuctl.command_text import join_command
from tpuctl.errors import InvalidInputError, NotFoundError, RemoteCommandError, TpuctlError
from tpuctl.escaping import preview
from tpuctl.fan_out import fan_out
from tpuctl.ssh.agent.copy_files import PARTS, CopyPlace, FileReceiver, digests_of_part, list_files
from tpuctl.ssh.agent.file_stream import (
    FileEntry,
    RefusedError,
    encode,
    path_text,
    reason,
    resume_offset,
    to_bytes,
    to_text,
)
from tpuctl.ssh.answers import (
    UnexpectedAnswerError,
    parse_array,
    parse_boolean,
    parse_integer,
    parse_path,
    parse_string,
)
from tpuctl.ssh.channel import LONGEST_ANSWER, AgentError, OpenChannels
from tpuctl.ssh.keys import SshProgramMissingError
from tpuctl.ssh.transfer import (
    LocalDigests,
    SharedOptions,
    WorkerStream,
    open_transfer,
    parse_digest,
    parse_numbers,
    parse_pairs,
    parse_parts,
    parse_row,
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
    kept: int = 0  # what the other end had before the current connection
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
    place: CopyPlace | None = None  # of the first connection


def _identify(*texts: str) -> str:
    """Return a short text that stands for these."""
    return hashlib.blake2b(ascii(texts).encode(), digest_size=12).hexdigest()


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
    size, digests = sum(entry.size for entry in entries), LocalDigests()
    announcement = encode([listing.named, listing.is_tree, entries])

    def send(stream: WorkerStream, progress: CopyProgress, copied: _Copied) -> None:
        stream.send_encoded(announcement)
        copied.place, stored, known, refused = _parse_plan(stream.receive(), entries)
        # A part may belong to another file of the same name, size and time.
        parts = {
            number: length
            for number, (length, beginning) in stored.items()
            if digests.get(listing.files[number][0], length) == beginning
        }
        same = [number for number, one in known.items() if digests.get(listing.files[number][0]) == one]
        progress.size, progress.moved = size, 0
        progress.kept = sum(parts.values()) + sum(entries[number].size for number in same)
        stream.send(same)
        skipped = {*same, *refused}
        for number, (path, entry) in enumerate(listing.files):
            if not entry.is_folder and number not in skipped:
                stream.send_file(path, entry, parts.get(number, 0))
        stream.send(None)
        problems = _parse_problems(stream.receive(), {entry.path for entry in entries})
        whole = [entry for entry in entries if entry.path not in problems and not entry.is_folder]
        copied.files, copied.size = len(whole), sum(entry.size for entry in whole)
        copied.problems = tuple(problems.values())

    first = os.fsdecode(listing.files[0][0]) if listing.files else ""
    request = {
        "target": _as_text(destination),
        "preserve": options.preserve,
        "source": _identify(os.uname().nodename, str(Path(first).absolute())),
    }
    longest = LONGEST_ANSWER + 2 * _MAX_ENTRY * len(entries)
    # A token for each worker: on a file system that they share, the holder of a lock may be a process of another one.
    jobs = [_Job(target, {**request, "token": secrets.token_hex(8)}, send, longest) for target in targets]
    return _copy_all(jobs, fanout=options.fanout, clock=clock, on_progress=on_progress)


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
    jobs = []
    for target in targets:
        place = _folder_for(target, Path(below)) if len(targets) > 1 else below
        # Hidden files (`.git`, `.envrc`) could affect other files in a folder, so they are copied only to an empty or new one.
        is_empty = True
        with suppress(OSError):
            is_empty = all(os.fsencode(name).startswith(PARTS) for name in os.listdir(place))  # noqa: PTH208  # text
        texts = tuple(_as_text(pattern) or "." for pattern in patterns)
        request = FetchRequest(texts, target.connection.login, recurse=options.recurse, hidden=is_empty)
        alias = target.connection.host_alias
        new_receiver = partial(
            FileReceiver, os.fsencode(place), preserve=options.preserve, is_confined=True, suffix=f"-{alias}".encode(),
            source=_identify(alias, target.connection.login, *texts),
        )  # fmt: skip
        jobs.append(_Job(target, request.for_worker, partial(_fetch, request, new_receiver)))
    return _copy_all(jobs, fanout=options.fanout, clock=clock, on_progress=on_progress)


def _folder_for(target: Target, parent: Path) -> Path:
    path = parent / target.label
    if path.is_symlink():
        raise InvalidInputError(
            f"`{path}` is a symlink", hint="use another folder: each worker gets its own folder in it"
        )
    try:
        path.mkdir(parents=parent.parent.is_dir(), exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"cannot create `{error.filename}`: {reason(error)}") from error
    return path


# The names of parts, of which a worker gets to know.
_PART = re.compile(rb"[0-9a-f]{24}")


def _fetch(
    request: FetchRequest,
    new_receiver: Callable[..., FileReceiver],
    stream: WorkerStream,
    progress: CopyProgress,
    copied: _Copied,
) -> None:
    """Store what a worker sends. What it gets to know of this machine: which parts of its own files are here."""
    with closing(new_receiver(place=copied.place)) as receiver:
        folder, parts = receiver.parts, {}
        if os.path.lexists(folder):
            receiver.lock()
            parts = {
                to_text(one.name): digests_of_part(one.path, one.stat(follow_symlinks=False).st_size)
                for one in os.scandir(folder)
                if _PART.fullmatch(one.name) and one.is_file(follow_symlinks=False)
            }
        stream.send(parts)
        files = FetchedFiles(request, stream.receive())
        progress.size, progress.kept, progress.moved = files.size, 0, 0
        copied.notes, copied.problems = files.notes, files.failed
        copied.place = receiver.settle(files.named, is_tree=files.is_tree)
        if parts and receiver.parts != folder:
            raise stream.lost("the parts belong to another folder")
        for _ in range(files.count):
            entry, offset, problem = files.parse_entry(stream.receive())
            if offset not in {0, resume_offset(parts.get(entry.part.decode(), [0])[0], entry.size)}:
                raise UnexpectedAnswerError(f"entry.offset: {offset} of a part that is not here")
            progress.kept += offset
            if entry.is_folder:
                receiver.add(entry)
            else:
                receiver.receive(stream, entry, offset, problem)
        try:
            receiver.finish()
        except OSError as error:
            raise RefusedError("target", f"`{os.fsdecode(error.filename)}`: {reason(error)}") from error
        # The failures that the worker reports may explain what is missing.
        missing = files.failed or [f"`{pattern}` was not received" for pattern in files.missing]
        more = [f"{receiver.more_problems} more are not listed"] if receiver.more_problems else []
        copied.files, copied.size = receiver.files, receiver.size
        copied.problems = (*missing, *receiver.problems.values(), *more)


@dataclass(frozen=True, slots=True)
class _Job:
    """The copy of one worker: the request to it, what to do over each connection, and the longest answer in bytes."""

    target: Target
    request: Mapping[str, Any]
    transfer: Callable[[WorkerStream, CopyProgress, _Copied], None]
    longest: int = LONGEST_ANSWER


# Parallel copies; the next starts when one of them ends.
_MAX_AT_ONCE = 64
_HINTS = {
    "missing": "paths on a worker are relative to the login's home; the worker expands `~` and wildcards",
    "folder": "add `-r` to copy folders",
    "target": "use an existing folder, or one new name in an existing folder",
    "new folder": "add `/` at the end to create it",
    "busy": "wait until it has ended, then repeat the command",
    "full": "the received part is kept: free some space, and repeat the command to resume",
    "read-only": "use a writable folder",
    "disk": "the disk reports errors: use a folder on another disk",
}
_ERRORS = {"missing": NotFoundError} | dict.fromkeys(("folder", "target", "new folder"), InvalidInputError)


def _copy_all(
    jobs: Sequence[_Job], *, fanout: int, clock: Clock, on_progress: Callable[[Sequence[CopyProgress]], None]
) -> list[CopyResult]:
    """Copy to or from each worker, and return the results in their order. A failure does not affect the other copies.

    Raises `SshProgramMissingError`.
    """
    shares = [CopyProgress() for _ in jobs]
    logins, channels = Semaphore(fanout), OpenChannels()

    def copy(number: int) -> CopyResult:
        report = partial(on_progress, shares)
        return _copy_one(jobs[number], shares[number], logins, channels, clock=clock, on_progress=report)

    try:
        return [one.get() for one in fan_out(copy, range(len(jobs)), limit=_MAX_AT_ONCE)]
    except BaseException:
        channels.kill()
        raise


def _copy_one(
    job: _Job,
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
        request = {**job.request, "place": copied.place and list(copied.place)}
        with open_transfer(
            job.target, "copy_files", request, shared=shared, longest=job.longest, logins=logins, on_bytes=count,
            channels=channels,
        ) as stream:  # fmt: skip
            job.transfer(stream, progress, copied)

    on_progress()
    try:
        with_retries(attempt, lambda: progress.kept, clock=clock)
    except RefusedError as refused:
        kind, message = refused.args
        error = _ERRORS.get(kind, RemoteCommandError)(message, hint=_HINTS.get(kind))
    except AgentError as broken:
        broken.hint = "repeat the command to resume the copy"
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
        target=job.target, files=copied.files, size=copied.size, moved=progress.total_moved,
        duration=clock.monotonic() - started, problems=tuple(copied.problems), notes=tuple(copied.notes), error=error,
    )  # fmt: skip


def _first_of(problems: Sequence[str]) -> str:
    return problems[0] + (f", and {len(problems) - 1} more" if len(problems) > 1 else "")


def _as_text(path: str) -> str:
    """Return a path of the command line as workers get it, independent of the locale."""
    return to_text(os.fsencode(path))


# The longest answer about an entry, in bytes.
_MAX_ENTRY = 128
_MAX_TEXT = 16 << 10
_MAX_FILES = 5_000_000
# Bytes for the folder names of one source, which are kept because their files come later.
_MAX_FOLDER_BYTES = 64 << 20
# Bytes for the names of all files of a copy.
_MAX_NAME_BYTES = 1 << 28
_WILDCARD = re.compile(r"[*?[]")
_MAX_MODE = 0o177777
_MAX_TIME = 2**63 - 1


def _parse_plan(
    value: Any,  # JSON
    entries: Sequence[FileEntry],
) -> tuple[CopyPlace, dict[int, tuple[int, str]], dict[int, str], list[int]]:
    """Return where a worker puts the files, what it has: parts, digests of files of the same size; and what it refuses."""
    place, parts, digests, refused = parse_row(value, "plan", 4)
    sizes = {number: entry.size for number, entry in enumerate(entries) if not entry.is_folder}
    files, stored = sizes.keys(), parse_parts(parts, "plan.parts", sizes)
    known = parse_pairs(digests, "plan.digests", files - stored.keys())
    for one in known.values():
        parse_digest(one, "plan.digests")
    # The place only goes back to the worker that chose it.
    root, is_into, names, tree = parse_row(place, "plan.place", 4)
    numbers = (
        None if tree is None else [parse_integer(number, "place.tree") for number in parse_row(tree, "place.tree", 2)]
    )
    chosen = CopyPlace(
        parse_path(root, "place.root"), parse_boolean(is_into, "place.into"), parse_path(names, "place.parts"),
        (numbers[0], numbers[1]) if numbers else None,
    )  # fmt: skip
    return (
        chosen,
        stored,
        known,
        parse_numbers(refused, "plan.refused", files - stored.keys() - known.keys()),
    )


def _parse_problems(value: Any, names: set[str]) -> dict[str, str]:  # JSON
    """Return why files were not stored, by name."""
    found: dict[str, str] = {}
    for row in parse_array(value, "problems", most=len(names)):
        name, problem = parse_row(row, "problem", 2)
        if parse_path(name, "problem") not in names:
            raise UnexpectedAnswerError(f"problem: {preview(name)} was not sent")
        found[name] = parse_string(problem, "problem", longest=_MAX_TEXT)
    return found


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
        """Tell whether a file or folder of that name may come from a pattern."""
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
        named, is_tree, count, size, notes, failed = parse_row(overview, "overview", 6)
        self._request = request
        # A name may match several patterns: those without wildcards are tried first.
        self.missing = sorted(request.patterns, key=_has_wildcard)
        # The worker expands wildcards.
        most = _MAX_FILES if _has_wildcard(self.missing[-1]) else len(request.patterns)
        self.named = parse_integer(named, "overview.named", high=most)
        self.is_tree = parse_boolean(is_tree, "overview.tree")
        self.count = parse_integer(count, "overview.count", high=_MAX_FILES)
        self.size = parse_integer(size, "overview.size")
        self.notes, self.failed = (
            [parse_string(text, "note", longest=_MAX_TEXT) for text in parse_array(texts, "notes", most=_MAX_FILES)]
            for texts in (notes, failed)
        )
        if self.is_tree and (self.named != 1 or not request.recurse or not self.count):
            raise UnexpectedAnswerError("overview.tree: a folder, which was not requested")
        self._top_level = 0
        self._folders: set[str] = set()
        self._folder_room = _MAX_FOLDER_BYTES
        self._name_room = _MAX_NAME_BYTES

    def parse_entry(self, value: Any) -> tuple[FileEntry, int, str | None]:  # JSON
        """Return an entry, how many of its bytes do not follow, and why it does not follow at all."""
        path, mode, size, mtime, target, offset, problem = parse_row(value, "entry", 7)
        entry = FileEntry(
            parse_path(path, "entry.path"),
            parse_integer(mode, "entry.mode", high=_MAX_MODE),
            parse_integer(size, "entry.size"),
            parse_integer(mtime, "entry.mtime", low=-_MAX_TIME, high=_MAX_TIME),
        )
        parse_integer(offset, "entry.offset", high=entry.size)
        if problem is not None:
            parse_string(problem, "entry.problem", longest=_MAX_TEXT)
        if target is not None or (entry.is_folder and entry.size):
            raise UnexpectedAnswerError(f"{preview(path)} is neither a file nor a folder")
        self._check_name(entry)
        return entry, offset, problem

    def _check_name(self, entry: FileEntry) -> None:
        shown = preview(entry.path)
        parent, slash, name = entry.path.rpartition("/")
        self._name_room -= len(entry.path)
        if self._name_room < 0:
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
            self._folders, self._folder_room = set(), _MAX_FOLDER_BYTES
        elif parent not in self._folders:
            raise UnexpectedAnswerError(f"{shown} is in a folder that was not listed")
        elif parent == "." and name.startswith(".") and not self._request.hidden:
            raise UnexpectedAnswerError(f"{shown} is hidden, and was not requested")
        if entry.is_folder:
            self._folder_room -= len(entry.path)
            if self._folder_room < 0:
                raise UnexpectedAnswerError("more folders than one copy may have")
            self._folders.add(entry.path)

    def _match_pattern(self, name: str) -> bool:
        """Tell whether a name matches a pattern without a file so far, or a pattern with wildcards."""
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
