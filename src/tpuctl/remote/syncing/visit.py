"""Sync one worker: the worker compares, this machine decides and sends."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.remote.answers import (
    UnexpectedAnswerError,
    array,
    boolean,
    file_name,
    integer,
    member_of,
    record,
    shown,
    string,
)
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.syncing import rsync
from tpuctl.remote.syncing.sessions import NotSyncedError, Session, frame
from tpuctl.remote.syncing.values import Brought, Order, Via

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tpuctl.remote.ssh import Connection
    from tpuctl.remote.syncing.contents import Contents
    from tpuctl.remote.syncing.sessions import Sessions
    from tpuctl.remote.syncing.tree import Tree

# rsync needs its own connection, and a second handshake costs more than sending a megabyte.
_MIN_RSYNC_SIZE = 1024 * 1024
# The parts of an answer: names of files that are not in the tree, and a number and a digest for each entry of the tree.
_MAX_NAMES, _MAX_ENTRY = 8 << 20, 128
_NUMBER, _DIGEST = re.compile("0|[1-9][0-9]{0,9}"), re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Cargo:
    """What is the same for all workers. `first_message` is sent to the program on each worker."""

    tree: Tree
    request: Order
    contents: Contents
    first_message: bytes

    @classmethod
    def of(cls, tree: Tree, request: Order, contents: Contents) -> Cargo:
        """Build it. Its token lets a retry stop the program that an earlier attempt left on the worker."""
        first_message = frame({
            "folder": request.folder, "delete": request.delete, "look": request.dry_run, "token": secrets.token_hex(8),
            "entries": tree.entries,
        })  # fmt: skip
        return cls(tree, request, contents, first_message)


@dataclass(frozen=True, slots=True)
class Plan:
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
    def parse(cls, value: dict[str, Any], payload: Cargo) -> Plan:
        """Parse the answer of a worker to the list of entries. Raises `UnexpectedAnswerError`."""
        entries = payload.tree.entries
        files = frozenset(number for number, entry in enumerate(entries) if entry.target is None)
        links = frozenset(range(len(entries))) - files
        send, link = _numbers(value, "send", files), _numbers(value, "link", links)
        touch = _numbers(value, "touch", files - send)
        digests: dict[int, str] = {}
        for number, known in record(member_of(value, "digests", "plan"), "plan.digests").items():
            if not _NUMBER.fullmatch(number) or int(number) not in files - send - touch:
                raise UnexpectedAnswerError(f"plan.digests: {shown(number)} is not a number of an allowed entry")
            if not _DIGEST.fullmatch(string(known, "plan.digests", longest=64)):
                raise UnexpectedAnswerError(f"plan.digests: {shown(known)} is not a digest")
            digests[int(number)] = known
        foreign = _numbers(value, "foreign", send | link | frozenset(digests))
        folder = file_name(member_of(value, "folder", "plan"), "plan.folder")
        if not folder.startswith("/"):
            raise UnexpectedAnswerError(f"plan.folder: {shown(folder)} is not an absolute path")
        others = None if payload.request.delete else ()
        return cls(
            send, link, touch, foreign, digests, folder,
            delete=_names(value, "delete", others), kept=_names(value, "kept", others),
            has_rsync=boolean(member_of(value, "rsync", "plan"), "plan.rsync"),
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
            integer(member_of(value, "bytes", "report"), "report.bytes"),
            _names(value, "deleted", planned.deleted),
            _names(value, "replaced", planned.replaced),
        )


def visit(
    connection: Connection,
    payload: Cargo,
    sessions: Sessions,
    *,
    options: tuple[str, ...],
    report: Callable[[int, int], None],
) -> Brought:
    """Sync one worker. `options` are for ssh; `report` is called with the bytes sent so far and the total.

    Raises `NotSyncedError` and `UnexpectedAnswerError`. Complete files stay on the worker, so the next attempt resumes.
    """
    line, source = bootstrap("tree", "main()")
    longest = _MAX_NAMES + _MAX_ENTRY * len(payload.tree.entries)
    with Session(sessions, connection, line, options=options) as session:
        session.send([source, payload.first_message])
        plan = Plan.parse(session.receive(longest=longest), payload)
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
        session.send_message({**work, "rsync": via is Via.RSYNC})
        rest, total = work["send"], _size(payload.tree, work["send"])
        notes: tuple[str, ...] = ()
        if via is Via.RSYNC:
            boolean(member_of(session.receive(longest=longest), "ready", "answer"), "ready")
            problem = rsync.carry(
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
    numbers = array(member_of(value, name, "answer"), name, most=len(known))
    found = frozenset(integer(number, name, high=highest) for number in numbers)
    if len(found) < len(numbers) or not found <= known:
        raise UnexpectedAnswerError(f"{name}: numbers of entries that are not allowed")
    return found


def _names(value: dict[str, Any], name: str, known: Sequence[str] | None) -> tuple[str, ...]:
    """Return the file names of a field. Each must be one of `known`, unless that is None."""
    most = _MAX_NAMES if known is None else len(known)
    names = tuple(file_name(one, name) for one in array(member_of(value, name, "answer"), name, most=most))
    if known is not None and not set(names) <= set(known):
        raise UnexpectedAnswerError(f"{name}: names that were not planned")
    return names


def _choose_transport(payload: Cargo, plan: Plan, numbers: Sequence[int]) -> Via | None:
    """Choose how to send the contents. None if there are none."""
    via = payload.request.via
    if via is Via.RSYNC and not plan.has_rsync:
        raise NotSyncedError("the worker has no `rsync`; use `--via auto`")
    if not numbers:
        return None
    is_possible = via is not Via.SSH and plan.has_rsync and rsync.is_here()
    is_worth_it = via is Via.RSYNC or _size(payload.tree, numbers) >= _MIN_RSYNC_SIZE
    return Via.RSYNC if is_possible and is_worth_it else Via.SSH


def _size(tree: Tree, numbers: Sequence[int]) -> int:
    return sum(tree.entries[number].size for number in numbers)


def _counted(pieces: Iterator[bytes], report: Callable[[int], None]) -> Iterator[bytes]:
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece)
        report(done)


def _result(
    payload: Cargo,
    plan: Plan,
    work: dict[str, list[int]],
    done: _SyncReport,
    *,
    via: Via | None,
    notes: tuple[str, ...] = (),
) -> Brought:
    names = [payload.tree.entries[number].path for number in sorted(work["send"] + work["link"])]
    return Brought(
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
