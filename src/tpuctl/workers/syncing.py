"""Sync a tree of files to many workers in parallel, once or continuously.

The worker compares a list with what it has (`ssh/agent/sync_tree.py`), this machine decides and sends: through the same ssh, or
with rsync, which transfers only the changed parts of a file. What rsync fails to send goes through ssh.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.answers import (
    UnexpectedAnswerError,
    parse_array,
    parse_boolean,
    parse_integer,
    parse_object,
    parse_path,
    parse_string,
    preview,
    require_field,
)
from tpuctl.ssh.connection import NEW_CONNECTION, StderrPipe, ssh_argv
from tpuctl.ssh.transfer_channels import NotSyncedError, SyncProcesses, SyncSession, encode_frame
from tpuctl.workers.file_tree import TreeContents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.ssh.connection import Connection, Target
    from tpuctl.workers.file_tree import FileTree

if TYPE_CHECKING:
    SshOptions = Callable[[Connection], tuple[str, ...]]

# Workers synced in parallel: each has an ssh and reads the same files.
_MAX_AT_ONCE = 32
_PAUSES = (timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4))
# How often the tree is listed.
_INTERVAL = timedelta(seconds=1)
# How long the tree may keep changing before it is sent anyway.
_MAX_CHANGING = timedelta(seconds=10)
# How often an unreachable worker is retried.
_RETRY_INTERVAL = timedelta(seconds=10)


def sync_workers(
    targets: Sequence[Target],
    tree: FileTree,
    order: SyncRequest,
    *,
    clock: Clock,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
    patient: bool = True,
    ssh_options: SshOptions = lambda _: (),
) -> SyncResult:
    """Sync a tree to workers, at most 32 at a time. A failure does not affect the other workers.

    `on_progress` is called from several threads with a worker's label, its bytes sent so far and the total. A broken connection
    is retried three times, or once without `patient`. `ssh_options` returns additional ssh options for a connection.

    Raises `InvalidInputError` if rsync is required and missing on this machine, `SshProgramMissingError` without ssh.
    """
    if order.via is SyncTransport.RSYNC and not has_rsync():
        raise InvalidInputError("`rsync` is not on PATH", hint="install it, or use `--via auto`")
    started = clock.monotonic()
    contents, sessions = TreeContents(tree), SyncProcesses()
    payload = SyncPayload.of(tree, order, contents)
    pauses = _PAUSES if patient else _PAUSES[:1]

    def sync_one(target: Target) -> WorkerSyncResult:
        attempt = partial(
            sync_one_worker, target.connection, payload, sessions, report=partial(on_progress, target.label)
        )
        try:
            return WorkerSyncResult(
                target, _sync_with_retries(attempt, ssh_options(target.connection), clock=clock, pauses=pauses)
            )
        except UnexpectedAnswerError as error:
            return WorkerSyncResult(target, NotSyncedError(error.of(target.label).message))

    with ThreadPoolExecutor(min(_MAX_AT_ONCE, len(targets)) or 1) as pool:
        try:
            results = tuple(pool.map(sync_one, targets))
        except BaseException:
            sessions.terminate_all()
            raise
    return SyncResult(tree, results, contents.unreadable, clock.monotonic() - started)


def watch_and_sync(
    find: Callable[[], Sequence[Target]],
    read: Callable[[], FileTree],
    order: SyncRequest,
    *,
    clock: Clock,
    ssh_options: SshOptions = lambda _: (),
) -> Iterator[SyncResult | TpuctlError]:
    """Sync, and again whenever the tree has changed and then been stable for a second. Yields the result of each round forever.

    An unreachable worker is retried every ten seconds. `find` is called again for that, because the node may have been
    recreated; its error is yielded. Raises what `read` and the first `find` raise.
    """
    targets, tree = find(), read()
    done = sync_workers(targets, tree, order, clock=clock, ssh_options=ssh_options)
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
        done = sync_workers(due, tree, order, clock=clock, patient=False, ssh_options=ssh_options)


def _sync_with_retries(
    attempt: Callable[..., SyncChanges], options: tuple[str, ...], *, clock: Clock, pauses: Sequence[timedelta]
) -> SyncChanges | NotSyncedError:
    for pause in (*pauses, None):
        try:
            return attempt(options=options)
        except NotSyncedError as error:
            if not error.may_retry or pause is None:
                return error
            clock.sleep(pause)
            # The shared connection may be the reason.
            options = NEW_CONNECTION
    raise AssertionError("the last attempt returns")


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


# rsync needs its own connection, and a second handshake costs more than sending a megabyte.
_MIN_RSYNC_SIZE = 1024 * 1024
# The parts of an answer: names of files that are not in the tree, and a number and a digest for each entry of the tree.
_MAX_NAMES, _MAX_ENTRY = 8 << 20, 128
_NUMBER, _DIGEST = re.compile("0|[1-9][0-9]{0,9}"), re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class SyncPayload:
    """What is the same for all workers. `first_message` is sent to the program on each worker."""

    tree: FileTree
    request: SyncRequest
    contents: TreeContents
    first_message: bytes

    @classmethod
    def of(cls, tree: FileTree, request: SyncRequest, contents: TreeContents) -> SyncPayload:
        """Build it. Its token lets a retry stop the program that an earlier attempt left on the worker."""
        first_message = encode_frame({
            "folder": request.folder, "delete": request.delete, "dry_run": request.dry_run, "token": secrets.token_hex(8),
            "entries": tree.entries,
        })  # fmt: skip
        return cls(tree, request, contents, first_message)


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What differs on a worker. Numbers are those of the tree's entries."""

    # Files to send, and symlinks to create.
    send: frozenset[int]
    link: frozenset[int]
    # Files of which only time or mode differ.
    touch: frozenset[int]
    # Those of the above that no sync put there.
    foreign: frozenset[int]
    # Digests of files with another time, whose contents may differ.
    digests: Mapping[int, str]
    # The absolute path on the worker.
    folder: str
    # Names that the tree does not have: to delete, and not deleted because they were changed.
    delete: tuple[str, ...]
    kept: tuple[str, ...]
    has_rsync: bool

    @classmethod
    def parse(cls, value: dict[str, Any], payload: SyncPayload) -> SyncPlan:
        """Parse the answer of a worker to the list of entries. Raises `UnexpectedAnswerError`."""
        entries = payload.tree.entries
        files = frozenset(number for number, entry in enumerate(entries) if entry.target is None)
        links = frozenset(range(len(entries))) - files
        send, link = _numbers(value, "send", files), _numbers(value, "link", links)
        touch = _numbers(value, "touch", files - send)
        digests: dict[int, str] = {}
        for number, known in parse_object(require_field(value, "digests", "plan"), "plan.digests").items():
            if not _NUMBER.fullmatch(number) or int(number) not in files - send - touch:
                raise UnexpectedAnswerError(f"plan.digests: {preview(number)} is not a number of an allowed entry")
            if not _DIGEST.fullmatch(parse_string(known, "plan.digests", longest=64)):
                raise UnexpectedAnswerError(f"plan.digests: {preview(known)} is not a digest")
            digests[int(number)] = known
        foreign = _numbers(value, "foreign", send | link | frozenset(digests))
        folder = parse_path(require_field(value, "folder", "plan"), "plan.folder")
        if not folder.startswith("/"):
            raise UnexpectedAnswerError(f"plan.folder: {preview(folder)} is not an absolute path")
        others = None if payload.request.delete else ()
        return cls(
            send, link, touch, foreign, digests, folder,
            delete=_names(value, "delete", others), kept=_names(value, "kept", others),
            has_rsync=parse_boolean(require_field(value, "rsync", "plan"), "plan.rsync"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _SyncReport:
    """What was done: bytes that were written, names that were deleted or replaced."""

    size: int
    deleted: tuple[str, ...]
    replaced: tuple[str, ...]

    @classmethod
    def parse(cls, value: dict[str, Any], planned: _SyncReport) -> _SyncReport:
        """Parse the last message of a worker, which may contain only planned changes. Raises `UnexpectedAnswerError`."""
        return cls(
            parse_integer(require_field(value, "bytes", "report"), "report.bytes"),
            _names(value, "deleted", planned.deleted),
            _names(value, "replaced", planned.replaced),
        )


def sync_one_worker(
    connection: Connection,
    payload: SyncPayload,
    sessions: SyncProcesses,
    *,
    options: tuple[str, ...],
    report: Callable[[int, int], None],
) -> SyncChanges:
    """Sync one worker. `options` are for ssh; `report` is called with the bytes sent so far and the total.

    Raises `NotSyncedError` and `UnexpectedAnswerError`. Complete files stay on the worker, so the next attempt resumes.
    """
    line, source = bootstrap("sync_tree", "main()")
    longest = _MAX_NAMES + _MAX_ENTRY * len(payload.tree.entries)
    with SyncSession(sessions, connection, line, options=options) as session:
        session.send([source, payload.first_message])
        plan = SyncPlan.parse(session.receive(longest=longest), payload)
        # Files with another time but the same contents are not sent.
        same = {number for number, digest in plan.digests.items() if payload.contents.digest(number) == digest}
        work = {
            "send": sorted(plan.send | (plan.digests.keys() - same)),
            "link": sorted(plan.link),
            "touch": sorted(plan.touch | same),
            "foreign": sorted(plan.foreign),
        }
        via = _choose_transport(payload, plan, work["send"])
        written = sorted(work["send"] + work["link"])
        replaced = tuple(payload.tree.entries[number].path for number in written if number in plan.foreign)
        planned = _SyncReport(_size(payload.tree, written), plan.delete, replaced)
        if payload.request.dry_run:
            return _result(payload, plan, work, planned, via=via)
        session.send_message({**work, "rsync": via is SyncTransport.RSYNC})
        rest, total = work["send"], _size(payload.tree, work["send"])
        notes: tuple[str, ...] = ()
        if via is SyncTransport.RSYNC:
            parse_boolean(require_field(session.receive(longest=longest), "ready", "answer"), "ready")
            problem = send_with_rsync(
                connection,
                payload.tree,
                rest,
                plan.folder,
                sessions=sessions,
                options=options,
                report=lambda done: report(min(done, total), total),
            )
            session.send_message({})
            rest = sorted(_numbers(session.receive(longest=longest), "missing", frozenset(rest)))
            notes = (f"{problem}; the other files were sent through ssh",) if problem and rest else ()
        before = total - _size(payload.tree, rest)
        pieces = payload.contents.stream(rest)
        session.send(_counted(pieces, lambda done: report(min(before + done, total), total)))
        done = _SyncReport.parse(session.receive(longest=longest), planned)
        return _result(payload, plan, work, done, via=via, notes=notes)


def _numbers(value: dict[str, Any], name: str, known: frozenset[int]) -> frozenset[int]:
    """Return the entry numbers of a field. Each must be one of `known`, and occur once."""
    highest = max(known, default=0)
    numbers = parse_array(require_field(value, name, "answer"), name, most=len(known))
    found = frozenset(parse_integer(number, name, high=highest) for number in numbers)
    if len(found) < len(numbers) or not found <= known:
        raise UnexpectedAnswerError(f"{name}: numbers of entries that are not allowed")
    return found


def _names(value: dict[str, Any], name: str, known: Sequence[str] | None) -> tuple[str, ...]:
    """Return the file names of a field. Each must be one of `known`, unless that is None."""
    most = _MAX_NAMES if known is None else len(known)
    names = tuple(parse_path(one, name) for one in parse_array(require_field(value, name, "answer"), name, most=most))
    if known is not None and not set(names) <= set(known):
        raise UnexpectedAnswerError(f"{name}: names that were not planned")
    return names


def _choose_transport(payload: SyncPayload, plan: SyncPlan, numbers: Sequence[int]) -> SyncTransport | None:
    """Choose how to send the contents. None if there are none."""
    via = payload.request.via
    if via is SyncTransport.RSYNC and not plan.has_rsync:
        raise NotSyncedError("the worker has no `rsync`; use `--via auto`")
    if not numbers:
        return None
    is_possible = via is not SyncTransport.SSH and plan.has_rsync and has_rsync()
    is_worth_it = via is SyncTransport.RSYNC or _size(payload.tree, numbers) >= _MIN_RSYNC_SIZE
    return SyncTransport.RSYNC if is_possible and is_worth_it else SyncTransport.SSH


def _size(tree: FileTree, numbers: Sequence[int]) -> int:
    return sum(tree.entries[number].size for number in numbers)


def _counted(pieces: Iterator[bytes], report: Callable[[int], None]) -> Iterator[bytes]:
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece)
        report(done)


def _result(
    payload: SyncPayload,
    plan: SyncPlan,
    work: dict[str, list[int]],
    done: _SyncReport,
    *,
    via: SyncTransport | None,
    notes: tuple[str, ...] = (),
) -> SyncChanges:
    names = [payload.tree.entries[number].path for number in sorted(work["send"] + work["link"])]
    return SyncChanges(
        folder=plan.folder,
        sent=tuple(name for name in names if name not in payload.contents.unreadable),
        size=done.size,
        adjusted=len(work["touch"]),
        deleted=done.deleted,
        kept=plan.kept,
        replaced=done.replaced,
        via=via,
        notes=notes,
    )


# Some files vanished during the transfer [rsync's manual].
_VANISHED_EXIT = 24
# `  1,048,576  12%   10.00MB/s    0:00:01`, each followed by a carriage return [rsync's manual, `--info=progress2`].
_PROGRESS = re.compile(rb"(?:^|\r) {0,20}([0-9,]{1,30}) {1,20}[0-9]{1,3}%")


def has_rsync() -> bool:
    """Tell whether this machine has rsync."""
    return shutil.which("rsync") is not None


def send_with_rsync(
    connection: Connection,
    tree: FileTree,
    numbers: Sequence[int],
    folder: str,
    *,
    sessions: SyncProcesses,
    options: tuple[str, ...],
    report: Callable[[int], None],
) -> str | None:
    """Send files of a tree to a folder on the worker; their folders exist already. Return rsync's error, None without.

    `report` is called with the number of bytes sent so far.
    """
    with TemporaryFile() as names, StderrPipe() as errors:
        for number in numbers:
            names.write(b"./" + tree.entries[number].path.encode("utf-8", "surrogateescape") + b"\0")
        names.seek(0)
        process = sessions.start(rsync_argv(connection, tree, folder, options=options), stdin=names, stderr=errors)
        with process:
            if process.stdout is None:
                raise AssertionError("rsync was started with a pipe")
            while output := os.read(process.stdout.fileno(), 64 * 1024):
                # Output of the remote side appears here, too.
                if (found := _PROGRESS.findall(output)) and (digits := found[-1].replace(b",", b"")):
                    report(int(digits))
        if process.returncode in {0, _VANISHED_EXIT}:
            return None
        lines = errors.text().strip().splitlines()
        return f"rsync exited with {process.returncode}" + (f": {lines[0]}" if lines else "")


def rsync_argv(connection: Connection, tree: FileTree, folder: str, *, options: tuple[str, ...]) -> list[str]:
    """Return the argv of rsync, which reads NUL-terminated names from stdin.

    The remote shell is one argument, in which a quote is escaped by doubling it [rsync's manual, `--rsh`].
    """
    shell = ssh_argv(connection, options=("-o", "BatchMode=yes", *options))
    destination = shell.pop()
    login, _, address = destination.rpartition("@")
    target = f"{login}@[{address}]" if ":" in address else f"{login}@{address}"
    quoted = " ".join("'" + word.replace("'", "''") + "'" for word in shell)
    return [
        "rsync", "--links", "--perms", "--times", "--compress", "--from0", "--files-from=-", "--no-implied-dirs",
        "--protect-args", "--info=progress2", "-e", quoted, f"{tree.folder}/", f"{target}:{folder}/",
    ]  # fmt: skip


class SyncTransport(StrEnum):
    """How file contents are sent. `auto` uses rsync if both sides have it and there is enough to send."""

    AUTO = "auto"
    RSYNC = "rsync"
    SSH = "ssh"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """What a sync does."""

    # The folder on the worker: absolute, or relative to the home (`~/x` too).
    folder: str
    # Delete files that an earlier sync put there and the tree no longer has.
    delete: bool = False
    # Change nothing.
    dry_run: bool = False
    via: SyncTransport = SyncTransport.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncChanges:
    """What a sync changed on one worker, or would change in a dry run. Names are those of the tree."""

    # The absolute path on the worker.
    folder: str
    sent: tuple[str, ...] = ()
    # Bytes of the files that were sent.
    size: int = 0
    # The number of files of which only time or mode were set.
    adjusted: int = 0
    deleted: tuple[str, ...] = ()
    # Not deleted, because they were changed on the worker.
    kept: tuple[str, ...] = ()
    # Replaced, though no sync had put them there or they were changed: copies stay below `~/.tpuctl/sync` on the worker.
    replaced: tuple[str, ...] = ()
    # None if no contents were sent.
    via: SyncTransport | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """Tell whether the worker was already up to date."""
        return not (self.sent or self.adjusted or self.deleted)


@dataclass(frozen=True, slots=True)
class WorkerSyncResult:
    """The result on one worker: its changes, or the error."""

    target: Target
    outcome: SyncChanges | NotSyncedError


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The results on all workers, in their order. `unreadable` are files that could not be read, with the reasons."""

    tree: FileTree
    results: tuple[WorkerSyncResult, ...]
    unreadable: Mapping[str, str]
    duration: timedelta

    @property
    def failed(self) -> tuple[tuple[Target, NotSyncedError], ...]:
        """The workers that could not be synced, and the errors."""
        return tuple((one.target, one.outcome) for one in self.results if isinstance(one.outcome, NotSyncedError))

    @property
    def succeeded(self) -> tuple[SyncChanges, ...]:
        """The changes on the other workers."""
        return tuple(one.outcome for one in self.results if isinstance(one.outcome, SyncChanges))
