"""Sync a tree of files to many workers in parallel, once or continuously.

The worker compares a list with what it has (`ssh/agent/sync_tree.py`), this machine decides, reads each file once, and sends.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Semaphore
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.decoding import Most, Text
from tpuctl.errors import RemoteCommandError, TpuctlError
from tpuctl.escaping import preview
from tpuctl.ssh.agent.tar_stream import RefusedError, encode
from tpuctl.ssh.answers import UnexpectedAnswerError, WorkerPath, decode_answer
from tpuctl.ssh.channel import MAX_CHANNELS, on_each_worker
from tpuctl.ssh.transfer import (
    MAX_AT_ONCE,
    MAX_FILES,
    LocalDigests,
    SharedOptions,
    Tee,
    WorkerStream,
    open_transfer,
    with_retries,
)
from tpuctl.workers.copying import CopyProgress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

    from tpuctl.clock import Clock
    from tpuctl.ssh.connection import Connection, Target
    from tpuctl.workers.file_tree import FileTree

# Returns additional ssh options for a connection.
SshOptions = Callable[["Connection"], tuple[str, ...]]
# How often the tree is listed.
_INTERVAL = timedelta(seconds=1)
# How long the tree may keep changing before it is sent anyway.
_MAX_CHANGING = timedelta(seconds=10)
# How often an unreachable worker is retried.
_RETRY_INTERVAL = timedelta(seconds=10)
_PAUSES = (timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """What a sync does."""

    folder: str  # on the worker: absolute, or relative to the home (`~/x` too)
    delete: bool = False  # files that an earlier sync put there and the tree no longer has
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncChanges:
    """What a sync changed on one worker, or would change in a dry run. Names are those of the tree."""

    folder: str  # the absolute path on the worker
    sent: tuple[str, ...]
    size: int  # of the files that were sent, in bytes
    adjusted: int  # the number of files of which only time or mode were set
    deleted: tuple[str, ...]
    kept: tuple[str, ...]  # not deleted, because they were changed on the worker
    # Replaced, though no sync had put them there or they were changed: copies stay below `~/.tpuctl/sync` on the worker.
    replaced: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Return whether the worker was already up to date."""
        return not (self.sent or self.adjusted or self.deleted)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result on each worker, in their order: its changes, or the error."""

    tree: FileTree
    results: Sequence[tuple[Target, SyncChanges | TpuctlError]]
    unreadable: Mapping[str, str]  # files that could not be read, with the reasons
    duration: timedelta

    @property
    def succeeded(self) -> list[tuple[Target, SyncChanges]]:
        """The workers that were synced."""
        return [(target, result) for target, result in self.results if isinstance(result, SyncChanges)]

    @property
    def failed(self) -> list[tuple[Target, TpuctlError]]:
        """The workers that could not be synced."""
        return [(target, result) for target, result in self.results if isinstance(result, TpuctlError)]


def sync_workers(
    targets: Sequence[Target],
    tree: FileTree,
    request: SyncRequest,
    *,
    clock: Clock,
    on_progress: Callable[[Sequence[CopyProgress]], None] = lambda _: None,
    patient: bool = True,
    ssh_options: SshOptions = lambda _: (),
    on_plan: Callable[[SyncPlan], None] = lambda _: None,
) -> SyncResult:
    """Sync a tree to workers, at most 64 at a time. A failure does not affect the other workers.

    `on_plan` gets what differs on a worker, before anything is sent; it and `on_progress` are called from several threads. A
    broken connection is retried three times, or once without `patient`.

    Raises `SshProgramMissingError`.
    """
    started = clock.monotonic()
    files = [(tree.path(number), entry) for number, entry in enumerate(tree.entries)]

    with Tee(files, workers=len(targets), follow=False, attempts=_MAX_ATTEMPTS) as tee:
        run, shares = SyncRun(tree, request, tee, on_plan), [CopyProgress() for _ in targets]

        def sync_one(number: int) -> SyncChanges:
            target, progress = targets[number], shares[number]
            shared, pauses = ssh_options(target.connection), _PAUSES if patient else _PAUSES[:1]
            attempt = partial(run.attempt, target, progress, lambda: on_progress(shares))
            try:
                return with_retries(attempt, shared=shared, clock=clock, pauses=pauses)
            except RefusedError as error:
                raise RemoteCommandError(error.args[1]) from error
            finally:
                progress.has_ended = True
                tee.leave()

        outcomes = on_each_worker(sync_one, range(len(targets)), limit=MAX_AT_ONCE)
    results = [(targets[one.item], one.error or one.get()) for one in outcomes]
    return SyncResult(tree, results, run.unreadable, clock.monotonic() - started)


def watch_and_sync(
    find: Callable[[], Sequence[Target]],
    read: Callable[[], FileTree],
    request: SyncRequest,
    *,
    clock: Clock,
    ssh_options: SshOptions = lambda _: (),
) -> Iterator[SyncResult | TpuctlError]:
    """Sync, and again whenever the tree has changed and then been stable for a second. Yields the result of each round forever.

    An unreachable worker is retried every ten seconds. `find` is called again for that, because the node may have been
    recreated; its error is yielded. Raises what `read` and the first `find` raise.
    """
    targets, tree = find(), read()
    done = sync_workers(targets, tree, request, clock=clock, ssh_options=ssh_options)
    while True:
        yield done
        failed = {target.label for target, _ in done.failed}
        until = clock.monotonic() + _RETRY_INTERVAL if failed else None
        latest = _wait_for_change(read, tree, clock=clock, until=until)
        if failed:
            try:
                targets = find()
            except TpuctlError as error:
                yield error
        has_changed = latest.entries != tree.entries
        tree = latest
        due = [target for target in targets if has_changed or target.label in failed]
        done = sync_workers(due, tree, request, clock=clock, patient=False, ssh_options=ssh_options)


def _wait_for_change(
    read: Callable[[], FileTree], before: FileTree, *, clock: Clock, until: timedelta | None
) -> FileTree:
    """Return the tree after it changed and became stable, at the latest at `until`."""
    latest, changing = before, timedelta()
    while True:
        clock.sleep(_INTERVAL)
        tree = read()
        is_stable = tree.entries == latest.entries
        changing = timedelta() if is_stable else changing + _INTERVAL
        if tree.entries != before.entries and (is_stable or changing >= _MAX_CHANGING):
            return tree
        if until is not None and is_stable and clock.monotonic() >= until:
            return tree
        latest = tree


# The parts of an answer, in bytes: names of files that are not in the tree, and numbers and a digest for each entry.
_MAX_NAMES, _MAX_ENTRY = 8 << 20, 128
# How often a file is sent that changes meanwhile.
_MAX_ATTEMPTS = 3


_Numbers = Annotated[tuple[int, ...], Most(MAX_FILES)]
_Digest = Annotated[str, Text(32, "[0-9a-f]{32}", "a digest")]
_Names = Annotated[tuple[WorkerPath, ...], Most(_MAX_NAMES)]


@dataclass(frozen=True, slots=True)
class _PlanAnswer:
    """A worker's answer to the list of entries; see `SyncPlan`."""

    send: _Numbers
    link: _Numbers
    touch: _Numbers
    foreign: _Numbers
    digests: Annotated[tuple[tuple[int, _Digest], ...], Most(MAX_FILES)]
    folder: WorkerPath
    delete: _Names
    kept: _Names
    first: bool


@dataclass(frozen=True, slots=True)
class _Report:
    """What a worker has done: the number of bytes received, and the names deleted and replaced."""

    bytes: int
    deleted: _Names
    replaced: _Names


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What differs on a worker. Numbers are those of the tree's entries."""

    send: frozenset[int]  # files
    link: frozenset[int]  # symlinks to create
    touch: frozenset[int]  # files of which only the mode differs
    foreign: frozenset[int]  # those to replace that no sync put there
    digests: Mapping[int, str]  # of files with another time, whose contents may differ
    folder: str  # the absolute path on the worker
    # Names that the tree does not have: to delete, and not deleted because they were changed.
    delete: tuple[str, ...]
    kept: tuple[str, ...]
    is_first: bool  # no sync has put anything there yet

    @property
    def is_empty(self) -> bool:
        """Return whether nothing differs: then the worker sends its report unasked."""
        return not (self.send or self.link or self.touch or self.digests or self.delete)

    @classmethod
    def parse(cls, value: Any, tree: FileTree, *, delete: bool) -> SyncPlan:  # JSON
        """Parse the answer of a worker to the list of entries. Raises `UnexpectedAnswerError`."""
        answer = decode_answer(_PlanAnswer, value, "plan")
        files = frozenset(number for number, entry in enumerate(tree.entries) if entry.target is None)
        links = frozenset(range(len(tree.entries))) - files
        send = _check_numbers(answer.send, "send", files)
        link = _check_numbers(answer.link, "link", links)
        touch = _check_numbers(answer.touch, "touch", files - send)
        different = _check_numbers([number for number, _ in answer.digests], "digests", files - send - touch)
        foreign = _check_numbers(answer.foreign, "foreign", send | link | different)
        if not answer.folder.startswith("/"):
            raise UnexpectedAnswerError(f"plan.folder: {preview(answer.folder)} is not an absolute path")
        if not delete and (answer.delete or answer.kept):
            raise UnexpectedAnswerError("plan: names to delete, which was not requested")
        return cls(
            send,
            link,
            touch,
            foreign,
            dict(answer.digests),
            answer.folder,
            delete=answer.delete,
            kept=answer.kept,
            is_first=answer.first,
        )


def _check_numbers(numbers: Sequence[int], name: str, allowed: Set[int]) -> frozenset[int]:
    """Return the numbers of entries, each of which must be allowed and occur once."""
    unique = frozenset(numbers)
    if len(unique) < len(numbers) or not unique <= allowed:
        raise UnexpectedAnswerError(f"plan.{name}: numbers of entries that are not allowed")
    return unique


class SyncRun:
    """One sync of a tree to workers."""

    def __init__(
        self, tree: FileTree, request: SyncRequest, tee: Tee, on_plan: Callable[[SyncPlan], None] = lambda _: None
    ) -> None:
        self._tree, self._request, self._tee, self._on_plan = tree, request, tee, on_plan
        self._digests, self._logins = LocalDigests(), Semaphore(MAX_CHANNELS)
        self._entries = encode(tree.entries, WorkerStream.letter)
        # Lets a retry stop the program that an earlier attempt left on the worker.
        self._token = secrets.token_hex(8)
        # Files that could not be sent, with the reasons. Files that were deleted meanwhile are not among them.
        self.unreadable: dict[str, str] = {}

    def attempt(
        self, target: Target, progress: CopyProgress, on_progress: Callable[[], None], shared: SharedOptions
    ) -> SyncChanges:
        """Sync one worker over one connection. Raises `AgentError`, `RefusedError` and `UnexpectedAnswerError`."""
        tree, request = self._tree, self._request

        def count(size: int) -> None:
            progress.moved += size
            progress.total_moved += size
            on_progress()

        worker_request = {
            "folder": request.folder,
            "delete": request.delete,
            "dry_run": request.dry_run,
            # For each worker: their homes may be the same, but their processes are not.
            "token": f"{self._token}-{target.connection.host_alias}",
        }
        with open_transfer(
            target, "sync_tree", worker_request, shared=shared, logins=self._logins, on_bytes=count,
            longest=_MAX_NAMES + _MAX_ENTRY * len(tree.entries),
        ) as stream:  # fmt: skip
            stream.write(self._entries)
            plan = SyncPlan.parse(stream.receive(), tree, delete=request.delete)
            # Files with another time but the same contents are not sent.
            same = {number for number, known in plan.digests.items() if self._digests.get(tree.path(number)) == known}
            send = sorted(plan.send | (plan.digests.keys() - same))
            written = sorted({*send, *plan.link})
            progress.size, progress.moved = tree.size(send), 0
            changes = partial(SyncChanges, folder=plan.folder, kept=plan.kept, adjusted=len(plan.touch) + len(same))
            names = tuple(tree.entries[number].path for number in written)
            replaced = tuple(tree.entries[number].path for number in written if number in plan.foreign)
            if request.dry_run:
                return changes(sent=names, size=tree.size(send), deleted=plan.delete, replaced=replaced)
            self._on_plan(plan)
            if plan.is_empty:
                decode_answer(_Report, stream.receive(), "report")
                return changes(sent=(), size=0, deleted=(), replaced=())
            stream.send(sorted(same))
            broken = self._tee.send(stream, send)
            left = {number for number in send if os.path.lexists(tree.path(number))}
            self.unreadable |= {name: broken[name] for number in left if (name := tree.entries[number].path) in broken}
            done = decode_answer(_Report, stream.receive(), "report")
            if not (set(done.deleted) <= set(plan.delete) and set(done.replaced) <= set(names)):
                raise UnexpectedAnswerError("report: names that were not planned")
            return changes(
                sent=tuple(name for name in names if name not in broken),
                size=done.bytes,
                deleted=done.deleted,
                replaced=done.replaced,
            )
