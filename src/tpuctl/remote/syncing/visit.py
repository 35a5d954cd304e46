"""One worker brought to what the tree holds: compare there, decide here, send."""

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
from tpuctl.remote.syncing.sessions import Session, frame
from tpuctl.remote.syncing.values import Brought, NotSyncedError, Order, Via

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tpuctl.remote.ssh import Connection
    from tpuctl.remote.syncing.contents import Contents
    from tpuctl.remote.syncing.sessions import Sessions
    from tpuctl.remote.syncing.values import Tree

# rsync needs a connection of its own, and two handshakes cost more than a megabyte does.
_MUCH = 1024 * 1024
# Of an answer: names of files that are there and not in the tree, and for each entry of the tree its number and a digest.
_LONGEST_NAMES, _LONGEST_NUMBER = 8 << 20, 128
_NUMBER, _DIGEST = re.compile("0|[1-9][0-9]{0,9}"), re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Cargo:
    """What is the same for all workers. `request` is what the program on a worker hears first."""

    tree: Tree
    order: Order
    contents: Contents
    request: bytes

    @classmethod
    def of(cls, tree: Tree, order: Order, contents: Contents) -> Cargo:
        """Put it together. It has a token, so that another try for the same worker ends what an earlier one left behind."""
        request = frame({
            "folder": order.folder, "delete": order.delete, "look": order.look, "token": secrets.token_hex(8),
            "entries": tree.entries,
        })  # fmt: skip
        return cls(tree, order, contents, request)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker lacks, by the number of the tree's entries: it can ask for nothing else.

    `send` are files, `link` symlinks; of those in `touch` only time or mode differ, of those in `digests` the time, and perhaps
    the content. `foreign` are those of them that no sync put there. `delete` and `kept` are names that the tree does not have.
    """

    send: frozenset[int]
    link: frozenset[int]
    touch: frozenset[int]
    foreign: frozenset[int]
    digests: Mapping[int, str]
    folder: str
    delete: tuple[str, ...]
    kept: tuple[str, ...]
    has_rsync: bool

    @classmethod
    def parse(cls, value: dict[str, Any], cargo: Cargo) -> Plan:
        """Read a worker's answer to the listing of the tree. Raises `UnexpectedAnswerError`."""
        entries = cargo.tree.entries
        files = frozenset(number for number, entry in enumerate(entries) if entry.target is None)
        links = frozenset(range(len(entries))) - files
        send, link = _numbers(value, "send", files), _numbers(value, "link", links)
        touch = _numbers(value, "touch", files - send)
        digests = {
            int(number): _digest(known)
            for number, known in record(member_of(value, "digests", "plan"), "plan.digests").items()
            if _is_one_of(number, files - send - touch)
        }
        foreign = _numbers(value, "foreign", send | link | frozenset(digests))
        folder = file_name(member_of(value, "folder", "plan"), "plan.folder")
        if not folder.startswith("/"):
            raise UnexpectedAnswerError(f"plan.folder: {shown(folder)} is no absolute path")
        others = None if cargo.order.delete else ()
        return cls(
            send, link, touch, foreign, digests, folder,
            delete=_names(value, "delete", others), kept=_names(value, "kept", others),
            has_rsync=boolean(member_of(value, "rsync", "plan"), "plan.rsync"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Report:
    """What was done: bytes that were put there, names that were deleted or replaced."""

    size: int
    deleted: tuple[str, ...]
    replaced: tuple[str, ...]

    @classmethod
    def parse(cls, value: dict[str, Any], would: _Report) -> _Report:
        """Read what a worker says at the end, which is no more than what was planned. Raises `UnexpectedAnswerError`."""
        return cls(
            integer(member_of(value, "bytes", "report"), "report.bytes"),
            _names(value, "deleted", would.deleted),
            _names(value, "replaced", would.replaced),
        )


def visit(
    way: Connection, cargo: Cargo, sessions: Sessions, *, options: tuple[str, ...], tell: Callable[[int, int], None]
) -> Brought:
    """Bring one worker what it lacks; `options` are ssh's; `tell` gets how many bytes are sent, of how many.

    Raises `NotSyncedError`, and `UnexpectedAnswerError`. What had arrived by then stays, and the next try goes on from there.
    """
    line, source = bootstrap("tree", "main()")
    longest = _LONGEST_NAMES + _LONGEST_NUMBER * len(cargo.tree.entries)
    with Session(sessions, way, line, options=options) as session:
        session.send([source, cargo.request])
        plan = Plan.parse(session.hear(longest=longest), cargo)
        work = _work(plan, cargo.contents)
        via = _choose(cargo, plan, work["send"])
        would = _would(cargo, plan, work)
        if cargo.order.look:
            return _brought(cargo, plan, work, would, via=via)
        session.say({**work, "rsync": via is Via.RSYNC})
        rest, total = work["send"], _size(cargo.tree, work["send"])
        notes: tuple[str, ...] = ()
        if via is Via.RSYNC:
            boolean(member_of(session.hear(longest=longest), "ready", "answer"), "ready")
            complaint = rsync.carry(
                way,
                cargo.tree,
                rest,
                plan.folder,
                sessions=sessions,
                options=options,
                tell=lambda done: tell(min(done, total), total),
            )
            session.say({})
            rest = sorted(_numbers(session.hear(longest=longest), "missing", frozenset(rest)))
            notes = (f"{complaint}; the rest went through ssh",) if complaint and rest else ()
        before = total - _size(cargo.tree, rest)
        session.send(_told(cargo.contents.stream(rest), lambda done: tell(min(before + done, total), total)))
        report = _Report.parse(session.hear(longest=longest), would)
        return _brought(cargo, plan, work, report, via=via, notes=notes)


def _numbers(value: dict[str, Any], name: str, known: frozenset[int]) -> frozenset[int]:
    """Return the numbers of entries under a name, each one of those that are known there, and there once."""
    highest = max(known, default=0)
    numbers = array(member_of(value, name, "answer"), name, most=len(known))
    found = frozenset(integer(number, name, high=highest) for number in numbers)
    if len(found) < len(numbers) or not found <= known:
        raise UnexpectedAnswerError(f"{name}: not the numbers of entries that it can have")
    return found


def _is_one_of(text: str, known: frozenset[int]) -> bool:
    if not _NUMBER.fullmatch(text) or int(text) not in known:
        raise UnexpectedAnswerError(f"plan.digests: {shown(text)} is not the number of an entry that it can have")
    return True


def _digest(value: Any) -> str:  # JSON
    text = string(value, "plan.digests", longest=64)
    if not _DIGEST.fullmatch(text):
        raise UnexpectedAnswerError(f"plan.digests: {shown(text)} is no digest")
    return text


def _names(value: dict[str, Any], name: str, known: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of files under a name, each of which is one of those that are known, if any are."""
    most = _LONGEST_NAMES if known is None else len(known)
    names = tuple(file_name(one, name) for one in array(member_of(value, name, "answer"), name, most=most))
    if known is not None and not set(names) <= set(known):
        raise UnexpectedAnswerError(f"{name}: names that were not planned")
    return names


def _work(plan: Plan, contents: Contents) -> dict[str, list[int]]:
    """Return what is to be done, by number. What differs in time alone and has the same content is not sent."""
    same = {number for number, digest in plan.digests.items() if contents.digest(number) == digest}
    return {
        "send": sorted(plan.send | (plan.digests.keys() - same)),
        "link": sorted(plan.link),
        "touch": sorted(plan.touch | same),
        "foreign": sorted(plan.foreign),
    }


def _choose(cargo: Cargo, plan: Plan, numbers: Sequence[int]) -> Via | None:
    """Return how the contents are to travel; nothing where there are none."""
    via = cargo.order.via
    if via is Via.RSYNC and not plan.has_rsync:
        raise NotSyncedError("there is no `rsync` on the worker; `--via auto` does without")
    if not numbers:
        return None
    is_possible = via is not Via.SSH and plan.has_rsync and rsync.is_here()
    is_worth_it = via is Via.RSYNC or _size(cargo.tree, numbers) >= _MUCH
    return Via.RSYNC if is_possible and is_worth_it else Via.SSH


def _size(tree: Tree, numbers: Sequence[int]) -> int:
    return sum(tree.entries[number].size for number in numbers)


def _told(pieces: Iterator[bytes], tell: Callable[[int], None]) -> Iterator[bytes]:
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece)
        tell(done)


def _would(cargo: Cargo, plan: Plan, work: dict[str, list[int]]) -> _Report:
    entries = cargo.tree.entries
    numbers = sorted(work["send"] + work["link"])
    replaced = tuple(entries[number].path for number in numbers if number in plan.foreign)
    return _Report(_size(cargo.tree, numbers), plan.delete, replaced)


def _brought(
    cargo: Cargo,
    plan: Plan,
    work: dict[str, list[int]],
    done: _Report,
    *,
    via: Via | None,
    notes: tuple[str, ...] = (),
) -> Brought:
    names = [cargo.tree.entries[number].path for number in sorted(work["send"] + work["link"])]
    return Brought(
        folder=plan.folder,
        sent=tuple(name for name in names if name not in cargo.contents.left_out),
        size=done.size,
        adjusted=len(work["touch"]),
        deleted=done.deleted,
        kept=plan.kept,
        replaced=done.replaced,
        via=via,
        notes=notes,
    )
