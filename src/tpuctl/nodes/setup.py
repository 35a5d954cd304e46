"""Run the set-up of a node that tpuctl created: commands for its workers, once, when it is usable."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import ConflictError, RemoteCommandError, TimedOutError
from tpuctl.models.events import EventKind
from tpuctl.nodes.conditions import Requeue, Verb
from tpuctl.nodes.polling import WATCH_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.models.node import Node
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.conditions import ObservedState
    from tpuctl.nodes.journal import NodeHistory
    from tpuctl.nodes.lease_guard import LeaseGuard
    from tpuctl.nodes.past import Past
    from tpuctl.nodes.ssh_workers import SetupResult

# A set-up installs packages. The limit ends one that hangs.
_TIMEOUT = timedelta(hours=1)
# How long a look at a set-up waits for its end.
_GLANCE = timedelta(seconds=0.05)


class NodeSetup:
    """The set-up of one node. It runs beside the loop; its time does not count against the timeout of the run."""

    def __init__(
        self,
        context: ActionContext,
        seen: ObservedState,
        history: NodeHistory,
        lease: LeaseGuard,
        named: str | None = None,
    ) -> None:
        self._context, self._seen, self._history, self._lease = context, seen, history, lease
        self._named = named  # the set-up that the user named
        self._running: _RunningSetup | None = None
        # The id of a node whose set-up failed in this run, and how.
        self._failed: tuple[str, RemoteCommandError] | None = None

    @property
    def is_running(self) -> bool:
        """Return whether a set-up runs, or has ended and its results are not read yet."""
        return self._running is not None

    def has_ended(self) -> bool:
        """Return whether a set-up has ended and its results are not read yet. Waits a moment for one that runs."""
        return self._running is not None and self._running.has_ended()

    def require_done(self) -> None:
        """Raise `TimedOutError` if the node has a set-up that has not succeeded yet."""
        node = self._seen.node
        if node is not None and self._script(node) is not None:
            node_id = self._seen.name.node_id
            raise TimedOutError(
                f"`{node_id}` is READY, but its set-up has not succeeded yet", hint=f"`tpuctl up {node_id}` runs it"
            )

    def _script(self, node: Node) -> str | None:
        """Return the set-up that has not succeeded yet on the node; None if there is none. Raises `ConflictError`."""
        return script_to_run(self._history.past, node, self._named)

    def advance(self, left: timedelta | None, *, blocks: bool) -> Requeue | None:
        """Start the set-up of a usable node, once. Return how to wait for it, None if there is none to run.

        With `blocks` it has ended on return, unless another run is about it. Raises `RemoteCommandError` if it failed,
        `ConflictError` if it cannot run on this node, and `TimedOutError` if another run has not ended it in the time `left`.
        """
        node = self._seen.node
        if node is None:
            return None
        if self._running is None:
            if self._script(node) is None:
                return None
            if not self._lease.take():
                return self._wait_for_holder(left, blocks=blocks)
            self._history.read_setups()
            script = self._script(node)
            if script is None:
                return None
            if self._failed is not None and self._failed[0] == node.id:
                raise self._failed[1]  # a watch does not repeat it without end
            self._start(node, script)
        if not (blocks or self.has_ended()):
            return Requeue(WATCH_INTERVAL, "its set-up runs")
        self._finish(node)
        return None

    def forget_lost(self) -> None:
        """Forget the set-up of a node that is gone or dead: the next one has its own."""
        node, running = self._seen.node, self._running
        if running is not None and (node is None or node.id != running.node.id or node.state.is_dead):
            self._stop_counting()

    def _wait_for_holder(self, left: timedelta | None, *, blocks: bool) -> Requeue | None:
        who, node_id = self._lease.held_by, self._seen.name.node_id
        if left is not None and left <= timedelta():
            hint = f"run `tpuctl up {node_id}` when it has ended"
            raise TimedOutError(f"{who} has not ended, and may be setting `{node_id}` up", hint=hint)
        return None if blocks else Requeue(WATCH_INTERVAL, f"{who} may be setting it up")

    def _start(self, node: Node, script: str) -> None:
        text = f"running its set-up on {node.workers} worker{'s' * (node.workers > 1)}"
        self._context.report(EventKind.ACTION, node.name, text, verb=str(Verb.UPDATE), setup="running")
        workers = self._context.workers
        self._seen.set_up_since = self._context.clock.monotonic()
        self._running = _RunningSetup(node, script, lambda: workers.set_up(node, script, timeout=_TIMEOUT))

    def _finish(self, node: Node) -> None:
        """Record the result of the set-up that has ended. Raises `RemoteCommandError` if it failed."""
        if self._running is None:
            raise AssertionError("only a set-up that was started ends")
        is_done, ran = False, self._running.script
        try:
            if failed := [result for result in self._running.results() if result.code != 0]:
                error = _setup_error(node.name.node_id, failed)
                self._failed = (node.id, error)
                raise error
            is_done = True
        finally:
            self._stop_counting()
            self._history.record_setup(node, ok=is_done, script=ran)

    def _stop_counting(self) -> None:
        """Leave the time of the set-up out of that of the run."""
        seen = self._seen
        if seen.set_up_since is not None:
            seen.started += self._context.clock.monotonic() - seen.set_up_since
        self._running = seen.set_up_since = None


def script_to_run(past: Past, node: Node, named: str | None) -> str | None:
    """Return the set-up to run on a node: the one that has not succeeded there yet, or another one that the user named.

    None if the node needs none. Raises `ConflictError` for a named set-up if tpuctl did not create the node.
    """
    due, last = past.setup_to_do(node), past.created
    if named is None or due is not None:
        return named or due
    made = None if last is None or last.is_of_another(node) else last.spec
    if made is None or past.made_as(node) is None:
        name = node.name
        raise ConflictError(
            f"the set-up is not run on `{name.node_id}`: the journal does not say that tpuctl created it",
            hint=f"run commands on its workers with `tpuctl run {name.node_id} -- COMMAND`, or leave `--setup` out",
        )
    return None if node.id in past.setups and made.setup == named else named


def has_other_setup(past: Past, node: Node, present: str) -> bool:
    """Return whether tpuctl created a node, and with another set-up than the present one, which has succeeded."""
    made = past.made_as(node)
    is_done = made is not None and past.setup_to_do(node) is None
    return is_done and past.created is not None and past.created.spec is not None and past.created.spec.setup != present


class _RunningSetup:
    """A set-up that runs on the workers of a node, in a thread."""

    def __init__(self, node: Node, script: str, run: Callable[[], Sequence[SetupResult]]) -> None:
        self.node, self.script = node, script
        self._run = run
        self._results: Sequence[SetupResult] = ()
        self._error: BaseException | None = None
        # A daemon thread does not keep an interrupted process alive.
        self._thread = threading.Thread(target=self._work, name="set-up", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._results = self._run()
        except BaseException as error:  # noqa: BLE001  # raised by `results`
            self._error = error

    def has_ended(self) -> bool:
        """Return whether it has ended on all workers, or cannot run; wait a moment for that."""
        self._thread.join(_GLANCE.total_seconds())
        return not self._thread.is_alive()

    def results(self) -> Sequence[SetupResult]:
        """Return the result of each worker; wait for them. Raises what prevented it from running."""
        while not self.has_ended():
            pass
        if self._error is not None:
            raise self._error
        return self._results


def _setup_error(node_id: str, failed: Sequence[SetupResult]) -> RemoteCommandError:
    named = ", ".join(f"{result.worker} (exit {result.code})" for result in failed[:8])
    more = f" and {len(failed) - 8} more" if len(failed) > 8 else ""
    return RemoteCommandError(
        f"the set-up of `{node_id}` failed on worker {named}{more}",
        details=[f"  {line}" for line in failed[0].tail.splitlines()[-5:]],
        hint=f"the node is usable; `tpuctl up {node_id} --setup-script FILE` runs another set-up, and `tpuctl up {node_id}` "
        "this one again",
    )
