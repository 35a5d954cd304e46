"""Sync a tree of files to many workers in parallel, once or continuously."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.remote.answers import UnexpectedAnswerError
from tpuctl.remote.ssh import FRESH
from tpuctl.remote.syncing import rsync
from tpuctl.remote.syncing.contents import Contents
from tpuctl.remote.syncing.sessions import NotSyncedError, Sessions
from tpuctl.remote.syncing.values import Brought, Ending, Order, Synced, Via
from tpuctl.remote.syncing.visit import Cargo, visit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member
    from tpuctl.remote.ssh import Connection
    from tpuctl.remote.syncing.tree import Tree

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
    """Sync a tree to workers, at most 32 at a time. A failure does not affect the other workers.

    `tell` is called from several threads with a worker's label, its bytes sent so far and the total. A broken connection is
    retried three times, or once without `patient`. `ssh_options` returns additional ssh options for a connection.

    Raises `InvalidInputError` if rsync is required and missing on this machine, `SshProgramMissingError` without ssh.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms

    if order.via is Via.RSYNC and not rsync.is_here():
        raise InvalidInputError("`rsync` is not on PATH", hint="install it, or use `--via auto`")
    started = clock.monotonic()
    contents, sessions = Contents(tree), Sessions()
    payload = Cargo.of(tree, order, contents)
    pauses = _PAUSES if patient else _PAUSES[:1]

    def sync_one(member: Member) -> Ending:
        attempt = partial(visit, member.way, payload, sessions, report=partial(tell, member.label))
        try:
            return Ending(member, _sync_with_retries(attempt, ssh_options(member.way), clock=clock, pauses=pauses))
        except UnexpectedAnswerError as error:
            return Ending(member, NotSyncedError(error.of(member.label).message))

    with ThreadPoolExecutor(min(_MAX_AT_ONCE, len(members)) or 1) as pool:
        try:
            results = tuple(pool.map(sync_one, members))
        except BaseException:
            sessions.terminate_all()
            raise
    return Synced(tree, results, contents.unreadable, clock.monotonic() - started)


def keep_synced(
    find: Callable[[], Sequence[Member]],
    read: Callable[[], Tree],
    order: Order,
    *,
    clock: Clock,
    ssh_options: SshOptions = lambda _: (),
) -> Iterator[Synced | TpuctlError]:
    """Sync, and again whenever the tree has changed and then been stable for a second. Yields the result of each round forever.

    An unreachable worker is retried every ten seconds. `find` is called again for that, because the node may have been
    recreated; its error is yielded. Raises what `read` and the first `find` raise.
    """
    members, tree = find(), read()
    done = sync(members, tree, order, clock=clock, ssh_options=ssh_options)
    while True:
        yield done
        failed = {member.label for member, _ in done.failed}
        until = clock.monotonic() + _RETRY_INTERVAL if failed else None
        latest = _wait_for_change(read, tree, clock=clock, until=until)
        if failed:
            try:
                members = find()
            except TpuctlError as error:
                yield error
        has_changed = latest.entries != tree.entries
        tree = latest
        due = [member for member in members if has_changed or member.label in failed]
        done = sync(due, tree, order, clock=clock, patient=False, ssh_options=ssh_options)


def _sync_with_retries(
    attempt: Callable[..., Brought], options: tuple[str, ...], *, clock: Clock, pauses: Sequence[timedelta]
) -> Brought | NotSyncedError:
    for pause in (*pauses, None):
        try:
            return attempt(options=options)
        except NotSyncedError as error:
            if not error.may_retry or pause is None:
                return error
            clock.sleep(pause)
            # The shared connection may be the reason.
            options = FRESH
    raise AssertionError("the last attempt returns")


def _wait_for_change(read: Callable[[], Tree], before: Tree, *, clock: Clock, until: timedelta | None) -> Tree:
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
