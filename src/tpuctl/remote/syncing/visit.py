"""One worker brought to what the tree holds: compare there, decide here, send."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.syncing import rsync
from tpuctl.remote.syncing.sessions import Session, frame
from tpuctl.remote.syncing.values import Brought, NotSyncedError, Order, Via

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.remote.ssh import Connection
    from tpuctl.remote.syncing.contents import Contents
    from tpuctl.remote.syncing.sessions import Sessions
    from tpuctl.remote.syncing.values import Tree

# rsync needs a connection of its own, and two handshakes cost more than a megabyte does.
_MUCH = 1024 * 1024


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


def visit(
    way: Connection, cargo: Cargo, sessions: Sessions, *, options: tuple[str, ...], tell: Callable[[int, int], None]
) -> Brought:
    """Bring one worker what it lacks; `options` are ssh's; `tell` gets how many bytes are sent, of how many.

    Raises `NotSyncedError`. What had arrived by then stays, and the next try goes on from there.
    """
    line, source = bootstrap("tree", "main()")
    with Session(sessions, way, line, options=options) as session:
        session.send([source, cargo.request])
        plan = session.hear()
        work = _work(plan, cargo.contents)
        via = _choose(cargo, plan, work["send"])
        if cargo.order.look:
            return _brought(cargo, plan, work, via=via)
        session.say({**work, "rsync": via is Via.RSYNC})
        rest, total = work["send"], _size(cargo.tree, work["send"])
        notes: tuple[str, ...] = ()
        if via is Via.RSYNC:
            session.hear()
            complaint = rsync.carry(
                way,
                cargo.tree,
                rest,
                plan["folder"],
                sessions=sessions,
                options=options,
                tell=lambda done: tell(done, total),
            )
            session.say({})
            rest = session.hear()["missing"]
            notes = (f"{complaint}; the rest went through ssh",) if complaint and rest else ()
        before = total - _size(cargo.tree, rest)
        session.send(_told(cargo.contents.stream(rest), lambda done: tell(min(before + done, total), total)))
        return _brought(cargo, plan, work, via=via, report=session.hear(), notes=notes)


def _work(plan: dict[str, Any], contents: Contents) -> dict[str, list[int]]:
    """Return what is to be done, by number. What differs in time alone and has the same content is not sent."""
    same = {int(number) for number, digest in plan["digests"].items() if contents.digest(int(number)) == digest}
    differing = {int(number) for number in plan["digests"]} - same
    return {
        "send": sorted({*plan["send"], *differing}),
        "link": plan["link"],
        "touch": sorted({*plan["touch"], *same}),
        "foreign": plan["foreign"],
    }


def _choose(cargo: Cargo, plan: dict[str, Any], numbers: Sequence[int]) -> Via | None:
    """Return how the contents are to travel; nothing where there are none."""
    via = cargo.order.via
    if via is Via.RSYNC and not plan["rsync"]:
        raise NotSyncedError("there is no `rsync` on the worker; `--via auto` does without")
    if not numbers:
        return None
    is_possible = via is not Via.SSH and plan["rsync"] and rsync.is_here()
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


def _brought(
    cargo: Cargo,
    plan: dict[str, Any],
    work: dict[str, list[int]],
    *,
    via: Via | None,
    report: dict[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> Brought:
    entries = cargo.tree.entries
    numbers = sorted(work["send"] + work["link"])
    foreign = set(plan["foreign"])
    would = {
        "bytes": _size(cargo.tree, numbers),
        "deleted": plan["delete"],
        "replaced": [entries[number].path for number in numbers if number in foreign],
    }
    done = report or would
    return Brought(
        folder=plan["folder"],
        sent=tuple(entries[number].path for number in numbers if entries[number].path not in cargo.contents.left_out),
        size=done["bytes"],
        adjusted=len(work["touch"]),
        deleted=tuple(done["deleted"]),
        kept=tuple(plan["kept"]),
        replaced=tuple(done["replaced"]),
        via=via,
        notes=notes,
    )
