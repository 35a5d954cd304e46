"""Sync a tree of files to many workers in parallel, once or continuously.

The worker compares a list with what it has (`ssh/agent/sync_tree.py`), this machine decides and sends: through the same ssh, or
with rsync, which transfers only the changed parts of a file. What rsync fails to send goes through ssh.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from tpuctl.errors import InvalidInputError, RemoteCommandError, TpuctlError
from tpuctl.escaping import preview
from tpuctl.ssh.agent.file_stream import RefusedError, to_bytes
from tpuctl.ssh.agent.sync_tree import RSYNC
from tpuctl.ssh.answers import JsonFields, UnexpectedAnswerError, parse_boolean, parse_integer, parse_path
from tpuctl.ssh.channel import on_each_worker
from tpuctl.ssh.connection import NEW_CONNECTION, WITH_STDOUT, BoundedBuffer, Connection, ssh_argv, start_ssh
from tpuctl.ssh.transfer import (
    LocalDigests,
    SharedOptions,
    open_transfer,
    parse_digest,
    parse_numbers,
    parse_pairs,
    parse_parts,
    with_retries,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.ssh.connection import Target
    from tpuctl.ssh.transfer import WorkerStream
    from tpuctl.workers.file_tree import FileTree

# Returns additional ssh options for a connection.
SshOptions = Callable[[Connection], tuple[str, ...]]
# How often the tree is listed.
_INTERVAL = timedelta(seconds=1)
# How long the tree may keep changing before it is sent anyway.
_MAX_CHANGING = timedelta(seconds=10)
# How often an unreachable worker is retried.
_RETRY_INTERVAL = timedelta(seconds=10)
_PAUSES = (timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4))


class SyncTransport(StrEnum):
    """How file contents are sent. `auto` uses rsync if both sides have it and there is enough to send."""

    AUTO = "auto"
    RSYNC = "rsync"
    SSH = "ssh"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """What a sync does."""

    folder: str  # on the worker: absolute, or relative to the home (`~/x` too)
    delete: bool = False  # files that an earlier sync put there and the tree no longer has
    dry_run: bool = False
    via: SyncTransport = SyncTransport.AUTO


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
    via: SyncTransport | None  # None if no contents were sent
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Tell whether the worker was already up to date."""
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
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
    patient: bool = True,
    ssh_options: SshOptions = lambda _: (),
) -> SyncResult:
    """Sync a tree to workers, at most 32 at a time. A failure does not affect the other workers.

    `on_progress` is called from several threads with a worker's label, its bytes sent so far and the total. A broken connection
    is retried three times, or once without `patient`.

    Raises `InvalidInputError` if rsync is required and missing on this machine, `SshProgramMissingError` without ssh.
    """
    if request.via is SyncTransport.RSYNC and not has_rsync():
        raise InvalidInputError("`rsync` is not on PATH", hint="install it, or use `--via auto`")
    started, run = clock.monotonic(), SyncRun()

    def sync_one(target: Target) -> SyncChanges:
        sync = WorkerSync(target, tree, request, run, partial(on_progress, target.label))
        shared, pauses = ssh_options(target.connection), _PAUSES if patient else _PAUSES[:1]
        try:
            return with_retries(sync.attempt, lambda: 0, shared=shared, clock=clock, pauses=pauses)
        except RefusedError as error:
            raise RemoteCommandError(error.args[1]) from error

    outcomes = on_each_worker(sync_one, targets)
    results = [(one.item, one.error or one.get()) for one in outcomes]
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


@dataclass(slots=True)
class SyncRun:
    """What all workers of a sync share."""

    digests: LocalDigests = field(default_factory=LocalDigests)
    # Files that could not be sent, with the reasons. Files that were deleted meanwhile are not among them.
    unreadable: dict[str, str] = field(default_factory=dict)
    # Lets a retry stop the program that an earlier attempt left on the worker.
    token: str = field(default_factory=lambda: secrets.token_hex(8))


# rsync needs its own connection, and a second handshake costs more than sending a megabyte.
_MIN_RSYNC_SIZE = 1024 * 1024
# The parts of an answer, in bytes: names of files that are not in the tree, and numbers and a digest for each entry.
_MAX_NAMES, _MAX_ENTRY = 8 << 20, 128
# How often a file is sent that changes meanwhile.
_MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What differs on a worker. Numbers are those of the tree's entries."""

    send: frozenset[int]  # files
    link: frozenset[int]  # symlinks to create
    touch: frozenset[int]  # files of which only the mode differs
    foreign: frozenset[int]  # those to replace that no sync put there
    digests: Mapping[int, str]  # of files with another time, whose contents may differ
    parts: Mapping[int, tuple[int, str]]  # lengths and digests of what the worker has from an earlier connection
    folder: str  # the absolute path on the worker
    # Names that the tree does not have: to delete, and not deleted because they were changed.
    delete: tuple[str, ...]
    kept: tuple[str, ...]
    has_rsync: bool

    @classmethod
    def parse(cls, value: Any, tree: FileTree, *, delete: bool) -> SyncPlan:  # JSON
        """Parse the answer of a worker to the list of entries. Raises `UnexpectedAnswerError`."""
        fields = JsonFields(value, "plan")
        files = frozenset(number for number, entry in enumerate(tree.entries) if entry.target is None)
        links = frozenset(range(len(tree.entries))) - files
        send = frozenset(fields.get("send", parse_numbers, allowed=files))
        link = frozenset(fields.get("link", parse_numbers, allowed=links))
        touch = frozenset(fields.get("touch", parse_numbers, allowed=files - send))
        digests = fields.get("digests", parse_pairs, allowed=files - send - touch)
        for known in digests.values():
            parse_digest(known, "plan.digests")
        parts = fields.get("parts", parse_parts, sizes={number: tree.entries[number].size for number in send})
        foreign = frozenset(fields.get("foreign", parse_numbers, allowed=send | link | digests.keys()))
        folder = fields.get("folder", parse_path)
        if not folder.startswith("/"):
            raise UnexpectedAnswerError(f"plan.folder: {preview(folder)} is not an absolute path")
        most = _MAX_NAMES if delete else 0
        return cls(
            send, link, touch, foreign, digests, parts, folder,
            delete=fields.each("delete", parse_path, most=most), kept=fields.each("kept", parse_path, most=most),
            has_rsync=fields.get("rsync", parse_boolean),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkerSync:
    """The sync of one worker. Complete files stay on it, so the next attempt resumes."""

    target: Target
    tree: FileTree
    request: SyncRequest
    run: SyncRun
    report: Callable[[int, int], None]  # called with the bytes sent so far and the total

    def attempt(self, shared: SharedOptions) -> SyncChanges:
        """Sync over one connection. Raises `AgentError`, `RefusedError` and `UnexpectedAnswerError`."""
        tree, request = self.tree, self.request
        sent = total = 0

        def count(size: int) -> None:
            nonlocal sent
            sent += size
            self.report(min(sent, total), total)

        asked = {
            "folder": request.folder,
            "delete": request.delete,
            "dry_run": request.dry_run,
            # For each worker: their homes may be the same, but their processes are not.
            "token": f"{self.run.token}-{self.target.connection.host_alias}",
        }
        with open_transfer(
            self.target, "sync_tree", asked, shared=shared, options=("-o", "Compression=yes"), on_bytes=count,
            longest=_MAX_NAMES + _MAX_ENTRY * len(tree.entries),
        ) as stream:  # fmt: skip
            stream.send(tree.entries)
            plan = SyncPlan.parse(stream.receive(), tree, delete=request.delete)
            # Files with another time but the same contents are not sent.
            same = {
                number for number, known in plan.digests.items() if self.run.digests.get(tree.path(number)) == known
            }
            send = sorted(plan.send | (plan.digests.keys() - same))
            written = sorted({*send, *plan.link})
            via, total = self._transport(plan, send), tree.size(send)
            changes = partial(
                SyncChanges, folder=plan.folder, kept=plan.kept, via=via, adjusted=len(plan.touch) + len(same)
            )
            names = tuple(tree.entries[number].path for number in written)
            replaced = tuple(tree.entries[number].path for number in written if number in plan.foreign)
            if request.dry_run:
                return changes(sent=names, size=total, deleted=plan.delete, replaced=replaced)
            rest, notes = send, []
            if via is SyncTransport.RSYNC:
                problem = self._send_with_rsync(
                    plan.folder, send, shared, lambda done: self.report(min(done, total), total)
                )
                stream.send([sorted(same), send])
                rest = sorted(parse_numbers(stream.receive(), "missing", set(send)))
                notes = [f"{problem}; the other files were sent through ssh"] if problem and rest else []
                sent = total - tree.size(rest)
            else:
                stream.send([sorted(same), []])
            for number in rest:
                length, beginning = plan.parts.get(number, (0, ""))
                is_same = length > 0 and self.run.digests.get(tree.path(number), length) == beginning
                self._send_file(stream, number, length if is_same else 0)
            stream.send(None)
            report = JsonFields(stream.receive(), "report")
            return changes(
                sent=tuple(name for name in names if name not in self.run.unreadable),
                size=report.get("bytes", parse_integer),
                deleted=_some_of(report, "deleted", plan.delete),
                replaced=_some_of(report, "replaced", names),
                notes=tuple(notes),
            )

    def _transport(self, plan: SyncPlan, numbers: Sequence[int]) -> SyncTransport | None:
        """Choose how to send the contents. None if there are none."""
        via = self.request.via
        if via is SyncTransport.RSYNC and not plan.has_rsync:
            raise RemoteCommandError("the worker has no `rsync`; use `--via auto`")
        if not numbers:
            return None
        is_possible = via is not SyncTransport.SSH and plan.has_rsync and has_rsync()
        is_worth_it = via is SyncTransport.RSYNC or self.tree.size(numbers) >= _MIN_RSYNC_SIZE
        return SyncTransport.RSYNC if is_possible and is_worth_it else SyncTransport.SSH

    def _send_file(self, stream: WorkerStream, number: int, offset: int) -> None:
        entry, path = self.tree.entries[number], self.tree.path(number)
        for _ in range(_MAX_TRIES):
            problem = stream.send_file(path, entry, offset, follow=False)
            if problem is None or not os.path.lexists(path):
                return
            offset = 0
        self.run.unreadable[entry.path] = problem or ""

    def _send_with_rsync(
        self, folder: str, numbers: Sequence[int], shared: SharedOptions, report: Callable[[int], None]
    ) -> str | None:
        """Send files to the stage in the folder on the worker. Return rsync's error, None without."""
        output = BoundedBuffer(head=_KEPT_OUTPUT, tail=0)
        with TemporaryFile() as names:
            for number in numbers:
                names.write(b"./" + to_bytes(self.tree.entries[number].path) + b"\0")
            names.seek(0)
            options = NEW_CONNECTION if shared is None else shared
            words = rsync_argv(self.target.connection, self.tree, folder, options=options)
            with start_ssh(words, stdin=names, stderr=WITH_STDOUT) as process:
                if process.stdout is None:
                    raise AssertionError("rsync was started with a pipe")
                while data := os.read(process.stdout.fileno(), _KEPT_OUTPUT):
                    output.add(data)
                    # Output of the remote side appears here, too.
                    if (found := _PROGRESS.findall(data)) and (digits := found[-1].replace(b",", b"")):
                        report(int(digits))
        if process.returncode in {0, _VANISHED_EXIT}:
            return None
        said = _PROGRESS_LINE.sub(b"", bytes(output)).decode(errors="replace").strip().splitlines()
        return f"rsync exited with {process.returncode}" + (f": {said[0]}" if said else "")


def _some_of(report: JsonFields, name: str, planned: Sequence[str]) -> tuple[str, ...]:
    """Return the file names of a field. Each must have been planned."""
    names = report.each(name, parse_path, most=len(planned))
    if not set(names) <= set(planned):
        raise UnexpectedAnswerError(f"{name}: names that were not planned")
    return names


# Some files vanished during the transfer [rsync's manual].
_VANISHED_EXIT = 24
# `  1,048,576  12%   10.00MB/s    0:00:01`, each followed by a carriage return [rsync's manual, `--info=progress2`].
_PROGRESS = re.compile(rb"(?:^|\r) {0,20}([0-9,]{1,30}) {1,20}[0-9]{1,3}%")
_PROGRESS_LINE = re.compile(rb"\r[^\r\n]{0,200}%[^\r\n]{0,200}")
_KEPT_OUTPUT = 64 * 1024


def has_rsync() -> bool:
    """Tell whether this machine has rsync."""
    return shutil.which("rsync") is not None


def rsync_argv(connection: Connection, tree: FileTree, folder: str, *, options: tuple[str, ...]) -> list[str]:
    """Return the argv of rsync, which reads NUL-terminated names from stdin.

    A file that was sent in part stays, and an older version in the folder is a basis for the new one. The remote shell is one
    argument, in which a quote is escaped by doubling it [rsync's manual, `--rsh`].
    """
    shell = ssh_argv(connection, options=("-o", "BatchMode=yes", *options))
    destination = shell.pop()
    login, _, address = destination.rpartition("@")
    target = f"{login}@[{address}]" if ":" in address else f"{login}@{address}"
    quoted = " ".join("'" + word.replace("'", "''") + "'" for word in shell)
    return [
        "rsync", "--perms", "--times", "--compress", "--partial", f"--compare-dest={folder}", "--from0", "--files-from=-",
        "--protect-args", "--info=progress2", "-e", quoted, f"{tree.folder}/", f"{target}:{folder}/{RSYNC}/",
    ]  # fmt: skip
