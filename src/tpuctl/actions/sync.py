"""Bring a tree of files to many workers, all at once, and keep doing so while it changes."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.remote.answers import UnexpectedAnswerError
from tpuctl.remote.ssh import FRESH
from tpuctl.remote.syncing import rsync
from tpuctl.remote.syncing.contents import Contents
from tpuctl.remote.syncing.sessions import Sessions
from tpuctl.remote.syncing.values import Brought, Ending, NotSyncedError, Order, Synced, Tree, Via
from tpuctl.remote.syncing.visit import Cargo, visit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member
    from tpuctl.remote.ssh import Connection

    SshOptions = Callable[[Connection], tuple[str, ...]]

# Workers served at once: each has an ssh and reads the same files.
_AT_ONCE = 32
_PAUSES = (timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4))
# How often the tree is looked at, for how long it may keep changing before it is sent as it is, and how often a worker that is
# away is tried.
_INTERVAL = timedelta(seconds=1)
_RESTLESS = timedelta(seconds=10)
_AWAY = timedelta(seconds=10)


def sync(
    members: Sequence[Member],
    tree: Tree,
    order: Order,
    *,
    clock: Clock,
    tell: Callable[[str, int, int], None] = lambda *_: None,
    patient: bool = True,
    ssh_options: SshOptions = lambda _: (),
) -> Synced:
    """Bring a tree to workers, at most 32 at a time. A worker that fails does not keep the others from getting theirs.

    `tell` gets a worker's label, how many bytes it was sent and of how many, from several threads. A link that breaks is
    tried anew: three times, or once without `patient`; `ssh_options` gives further options of ssh for a connection.

    Raises `InvalidInputError` where rsync is demanded and is not here, `SshProgramMissingError` without ssh.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms

    if order.via is Via.RSYNC and not rsync.is_here():
        raise InvalidInputError("there is no `rsync` on PATH", hint="install it, or use `--via auto`")
    started = clock.monotonic()
    contents, sessions = Contents(tree), Sessions()
    cargo = Cargo.of(tree, order, contents)
    pauses = _PAUSES if patient else _PAUSES[:1]

    def serve(member: Member) -> Ending:
        attempt = partial(visit, member.way, cargo, sessions, tell=partial(tell, member.label))
        try:
            return Ending(member, _bring(attempt, ssh_options(member.way), clock=clock, pauses=pauses))
        except UnexpectedAnswerError as error:
            return Ending(member, NotSyncedError(error.of(member.label).message))

    with ThreadPoolExecutor(min(_AT_ONCE, len(members)) or 1) as pool:
        try:
            endings = tuple(pool.map(serve, members))
        except BaseException:
            sessions.end()
            raise
    return Synced(tree, endings, contents.left_out, clock.monotonic() - started)


def keep_synced(
    find: Callable[[], Sequence[Member]],
    read: Callable[[], Tree],
    order: Order,
    *,
    clock: Clock,
    ssh_options: SshOptions = lambda _: (),
) -> Iterator[Synced | TpuctlError]:
    """Sync, and again whenever the tree has changed and then stood still for a second. Yields how each round ended; no end.

    A worker that cannot be reached is tried again every ten seconds. The workers are found anew then, for the node may have
    been recreated; an error of that is yielded. Raises what `read` and the first `find` raise.
    """
    members, tree = find(), read()
    done = sync(members, tree, order, clock=clock, ssh_options=ssh_options)
    while True:
        yield done
        away = {member.label for member, _ in done.failed}
        until = clock.monotonic() + _AWAY if away else None
        latest = _next(read, tree, clock=clock, until=until)
        if away:
            try:
                members = find()
            except TpuctlError as error:
                yield error
        has_changed = latest.entries != tree.entries
        tree = latest
        due = [member for member in members if has_changed or member.label in away]
        done = sync(due, tree, order, clock=clock, patient=False, ssh_options=ssh_options)


def _bring(
    attempt: Callable[..., Brought], options: tuple[str, ...], *, clock: Clock, pauses: Sequence[timedelta]
) -> Brought | NotSyncedError:
    for pause in (*pauses, None):
        try:
            return attempt(options=options)
        except NotSyncedError as error:
            if not error.may_pass or pause is None:
                return error
            clock.sleep(pause)
            # A connection that is kept may be what broke.
            options = FRESH
    raise AssertionError("the last try returns")


def _next(read: Callable[[], Tree], before: Tree, *, clock: Clock, until: timedelta | None) -> Tree:
    """Return the tree once it differs and has stood still, or at the latest `until`, as it is then."""
    seen, changing = before, timedelta()
    while True:
        clock.sleep(_INTERVAL)
        tree = read()
        is_still = tree.entries == seen.entries
        changing = timedelta() if is_still else changing + _INTERVAL
        if tree.entries != before.entries and (is_still or changing >= _RESTLESS):
            return tree
        if until is not None and is_still and clock.monotonic() >= until:
            return tree
        seen = tree
