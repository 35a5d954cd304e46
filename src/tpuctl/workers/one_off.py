"""`tpuctl run --up SPEC`: bring a node up, sync, run, collect files, delete the node: a whole CI job.

With `--rm` the node is deleted in any case, but only if this run created it: `OneOffNode` knows.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.app.signals import TerminatedError, sighup_terminates, signals_ignored
from tpuctl.app.spec_options import build_spec
from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.check.preflight import preflight_check
from tpuctl.clock import SystemClock
from tpuctl.durations import format_timestamp
from tpuctl.errors import ConflictError, ExitCode, InvalidInputError, NotFoundError, TpuctlError, worst_exit_code
from tpuctl.files import create_unlinked_file
from tpuctl.models.events import EventKind, broadcast
from tpuctl.models.node import NodeState, Tier
from tpuctl.models.spec import REMOVAL_LABEL
from tpuctl.names import NodeReference
from tpuctl.nodes.actions import bring_up_nodes
from tpuctl.nodes.as_it_was import as_it_was
from tpuctl.nodes.bring_up import find_in_zones
from tpuctl.nodes.commands.results import summarize_nodes
from tpuctl.nodes.conditions import Condition, Policy
from tpuctl.nodes.expiry import DEFAULT_GRACE, NodeEnd, is_expired, later_end, move_expiry
from tpuctl.nodes.goal import Goal, NodeLimits
from tpuctl.nodes.group_lookup import find_group
from tpuctl.nodes.lookup import SearchPlace, locate_for_create
from tpuctl.nodes.policies import deadline, repair_policy
from tpuctl.nodes.tear_down import tear_down
from tpuctl.nodes.time_limits import TimeLimit, note_clock_difference
from tpuctl.nodes.zone_choice import check_zone_options, choice_for, one_zone, order_offers, zone_choice
from tpuctl.nodes.zone_search import bring_up_somewhere, spec_of_attempt
from tpuctl.prices import hourly_price
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.workers.copying import CopyOptions, download
from tpuctl.workers.execution import run_command, show_result
from tpuctl.workers.run_tree import approved, sync_before_run
from tpuctl.workers.runner import job_name
from tpuctl.workers.targets import await_key, find_targets
from tpuctl.workers.worker_jobs import JobScope, list_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from tpuctl.app.app import App
    from tpuctl.app.spec_options import SpecOptions
    from tpuctl.check.commands.preflight_options import CheckOptions
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.node import Node, WorkerSet
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.idle_limit import IdleChange
    from tpuctl.nodes.zone_order import Offer
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.copying import CopyResult
    from tpuctl.workers.run_tree import RunTree
    from tpuctl.workers.runner import RunRequest

_FILES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOffRequest:
    """What to do around a command. `checks` precede the creation of the node.

    `sync` is the tree to sync to the workers.
    """

    up: str
    described: SpecOptions
    checks: CheckOptions
    remove: bool
    exclusive: bool
    limit: TimeLimit
    idle: IdleChange
    sync: RunTree | None
    collect: tuple[str, ...]
    workers: WorkerSet

    @property
    def names_file(self) -> bool:
        """Whether a file, in place of `tpuctl.yaml`, says what to bring up."""
        return self.up.endswith(_FILES)


def run_one_off(app: App, node: str | None, job: OneOffRequest, request: RunRequest) -> int:
    """Do the whole job and return its exit code; with `--rm` the node that this run created is deleted in any case."""
    one_off = _plan_node(app, node, job, request.timeout)
    name = one_off.name
    if one_off.was_taken_over:
        app.terminal.note(
            f"using `{name.node_id}`, which an earlier run of this spec with `--rm` left behind; it is deleted at the end"
        )
    if job.sync is not None:
        job = replace(job, sync=approved(app, job.sync))
    if request.log_folder is None and (job.remove or job.collect):
        request = replace(request, log_folder=default_log_folder(app, name.node_id))
    if request.log_folder is not None:
        make_log_folder(request.log_folder)
    if not job.remove:
        return _bring_up_and_run(app, one_off, job, request)
    with sighup_terminates():
        try:
            return _run_and_delete_node(app, one_off, job, replace(request, passes_signals=False))
        except (KeyboardInterrupt, TerminatedError):
            # Also during a deletion: its request may not have been sent, and sending it twice does no harm.
            with signals_ignored():
                _delete_node(app, one_off, wait=False)
            name = one_off.name
            where, resume = f"{name.zone}/{name.node_id}", app.command_line()
            if one_off.was_deleted:
                state, resume = "is being deleted", f"tpuctl wait {where} --for gone"
            elif one_off.is_removed:
                state = "does not exist"
            elif one_off.was_made:
                state, resume = "could not be deleted and is still billed", f"tpuctl down {where}"
            else:
                state = "existed before this run and is not deleted" if one_off.was_there else "was not created"
            with app.in_flight(f"`{where}` {state}", resume=resume):
                raise


def _run_and_delete_node(app: App, one_off: OneOffNode, job: OneOffRequest, request: RunRequest) -> int:
    """Do the work, then delete the node that this run created, also if the work has failed."""

    def show_log_folder() -> None:
        if request.log_folder is not None and request.log_folder.is_dir() and any(request.log_folder.iterdir()):
            app.terminal.note(f"logs: `{request.log_folder}`")

    try:
        code = _bring_up_and_run(app, one_off, job, request)
    except Exception as error:
        _delete_node(app, one_off, wait=True)
        show_log_folder()
        if isinstance(error, TpuctlError) and one_off.was_deleted:
            # Its hint was about a node that still exists.
            error.hint = f"the node that this run created, `{one_off.name.node_id}`, is deleted"
        raise
    left = _delete_node(app, one_off, wait=True)
    show_log_folder()
    return left or code


_END_CHECK_SECONDS = 1.0
# How long the command of a node that is deleted at the end may run without `--timeout`, as far as its time limit goes.
_LONGEST_RUN = timedelta(days=1)


def _plan_node(app: App, node: str | None, job: OneOffRequest, timeout: timedelta | None) -> OneOffNode:
    """Return the node to bring up. Raises `ConflictError` if it exists now, and `--exclusive` forbids that."""
    described = job.described
    if job.names_file:
        path = app.invocation.folder / job.up
        if not path.is_file():
            raise InvalidInputError(f"there is no file `{job.up}`", hint="`--up` takes an accelerator type, or a file")
        app.use_project_file(path)
    else:
        described = replace(described, type=job.up)
    spec = build_spec(app, described)
    if spec is None:
        raise InvalidInputError(f"`{job.up}` names no accelerator type", hint="add a line like `type: v4-8`")
    text = node or f"run-{job_name(SystemClock().now())}"
    tiers = described.tiers
    choice = choice_for(app, text, zone_choice(app)) or (one_zone(app, text) if len(tiers) > 1 else None)
    check_zone_options(choice, [text], tiers=tiers, wait=True, race=False)
    offers: tuple[Offer, ...] = ()
    if choice is not None:
        if there := find_in_zones(app, text, choice):
            app.choose_zone(there.zone)
        else:
            gate = preflight_check(app, job.checks.given)
            offers = order_offers(app, gate, choice, spec, tiers=tiers)
            app.choose_zone(offers[0].zone)
    name, found = locate_for_create(app, text, spec)
    spec = spec_of_attempt(app.services.client, name, spec, node=found, tiers=() if offers else tiers)
    if found is not None and job.exclusive:
        raise ConflictError(
            f"`{name.node_id}` already exists, and `--exclusive` needs a new node",
            hint="leave NODE out to use a generated name",
        )
    policy = replace(repair_policy(app, {}, timeout=deadline(app, None)), accepts_healthy=False)
    now = app.now()
    if not job.remove:  # the label of a node that is removed identifies the spec of this run
        spec = as_it_was(app, name, found, spec, price=hourly_price)
    spec = job.limit.applied(spec, now)
    moves_end: timedelta | None = None
    if job.limit != TimeLimit():
        note_clock_difference(app)
    elif job.remove and spec.ttl is None:
        # If this process is killed, the node is left to the clean-up of others.
        waits = policy.timeout or _LONGEST_RUN if spec.is_queued else timedelta()
        moves_end = (timeout or _LONGEST_RUN) + DEFAULT_GRACE
        spec = replace(spec, ttl=waits + moves_end, expires=None)
    task = Goal(
        name=name,
        policy=policy,
        spec=spec,
        setup=spec.flagged.get("setup"),
        purpose="run",
        limits=NodeLimits(
            end=job.limit.end(now),
            moves_end=moves_end,
            idle=job.idle,
        ),
    )
    return OneOffNode(task, found, removes=job.remove, now=now, offers=offers, choose_zone=app.choose_zone)


def _bring_up_and_run(app: App, one_off: OneOffNode, job: OneOffRequest, request: RunRequest) -> int:
    """Bring the node up, sync, run the command, and collect its files. Return the exit code of the run."""

    def origin() -> str:
        name = one_off.name
        made = "was created by this run" if one_off.was_made else "existed before this run"
        if one_off.was_taken_over:
            made = "was left behind by an earlier run with `--rm`"
        return f"`{name.node_id}` in {name.zone} {made}"

    name = one_off.name
    place = name.node_id if one_off.is_searched else f"{name.zone}/{name.node_id}"
    undo = None if job.remove else f"tpuctl down {place}"
    with app.in_flight(origin, resume=app.command_line(), undo=undo), ExitStack() as until_collected:
        if app.summary and one_off.spec and not one_off.is_searched:
            app.summary.expect(name, one_off.spec.accelerator_type, str(one_off.spec.tier or Tier.ON_DEMAND))
        with app.terminal.group(f"bring up {name.node_id}"), app.progress() as progress:
            ready = one_off.bring_up(
                partial(app.services.context, preflight=preflight_check(app, job.checks.given)), progress
            )
        until_collected.enter_context(_end_moved_on(app, ready, one_off))
        if job.exclusive and not one_off.was_made:
            raise ConflictError(f"another client has just created `{name.node_id}`, and `--exclusive` needs a new node")
        summarize_nodes(app, [ready])
        found = find_targets(app, [ready], job.workers)
        await_key(app, found)
        if one_off.was_taken_over:
            jobs = list_jobs(JobScope(found, shared_connection_options(app)))
            # It is in use if a detached or followed job runs on any of the workers; it may be if a worker does not answer.
            if jobs.silent or any(one.is_running and (one.is_followed or one.is_detached) for one in jobs.jobs):
                one_off.leave()
                app.terminal.warn(f"another run uses `{name.node_id}`: it is not deleted at the end of this one")
        synced = ExitCode.OK
        if job.sync is not None:
            with app.terminal.group("sync"):
                found, request, synced = sync_before_run(app, found, job.sync, request)
        result = run_command(app, found, request)
        code = show_result(app, result, detached=request.detach, again=app.command_line())
        # Of a worker without a result there is nothing to collect, or no connection: trying would cost money.
        ended = [one.target for one in result.results if one.code is not None]
        if request.log_folder is not None and ended:
            with app.terminal.group("collect logs and files"):
                collect_files(app, ended, job.collect, request.log_folder)
    return worst_exit_code([synced, ExitCode(code)])


@contextmanager
def _end_moved_on(app: App, node: Node, one_off: OneOffNode) -> Iterator[None]:
    """Move the end of the node's time on while the block runs: only a run that was killed leaves a node that ends.

    Not for a node whose end the user has chosen, or that is another run's.
    """
    over = threading.Event()

    def move() -> None:
        end, warned = node.expires, False
        while end is not None and not over.wait(_END_CHECK_SECONDS):
            ttl = one_off.moves_end
            later = None if ttl is None else later_end(end, ttl, app.now())
            if later is None:
                continue
            try:
                changed = app.services.client.change_node(
                    node.name, partial(move_expiry, end=later), expected_id=node.id
                )
                end, warned = changed.expires, False
            except TpuctlError as error:
                if not warned:
                    app.terminal.warn(f"cannot move the end of the time of `{node.name.node_id}`: {error.message}")
                warned = True

    threading.Thread(target=move, name="expiry", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _delete_node(app: App, one_off: OneOffNode, *, wait: bool) -> int:
    """Delete the node if this run created it; return 0, or the exit code of the error that prevented the deletion."""
    name = one_off.name
    if not one_off.was_made:
        if one_off.was_there and wait:
            if one_off.is_left(app.services.client) is False:
                why = "another client has deleted it meanwhile"
                if (end := one_off.past_end(app.now())) is not None:
                    why = f"its time ended {format_timestamp(end)}: the guard, `tpuctl gc` or `tpuctl watch` deleted it"
                app.terminal.warn(f"`{name.node_id}` existed before this run, and {why}")
            else:
                app.terminal.note(f"`{name.node_id}` existed before this run and is not deleted")
        return ExitCode.OK
    policy = Policy(goal=Condition.GONE, timeout=deadline(app, None))
    try:
        with app.terminal.group(f"delete {name.node_id}"), app.progress() as progress:
            one_off.remove(
                app.services.context(progress), SearchPlace(name.project, name.zone), policy=policy, wait=wait
            )
    except TpuctlError as error:
        app.show_error(error)
        app.terminal.warn(
            f"`{name.node_id}` in {name.zone} may still be billed",
            f"  delete it: tpuctl down {name.zone}/{name.node_id}",
        )
        return error.exit_code
    return ExitCode.OK


class OneOffNode:
    """The node of one run. It records whether this run created the node: only then may the run delete it.

    `was_taken_over`: an earlier run of the same spec with `--rm` created it and did not delete it; this run counts as its
    creator. `is_removed`: the node does not exist, or soon will not; `was_deleted`: because this run deleted it.
    With `offers` it is created in the first of them that has capacity, and `choose_zone` gets each zone that is tried.
    """

    def __init__(
        self,
        task: Goal,
        found: Node | None,
        *,
        removes: bool,
        now: datetime,
        offers: Sequence[Offer] = (),
        choose_zone: Callable[[str], None] = lambda _: None,
    ) -> None:
        spec = task.spec.with_removal_label() if task.spec and removes else task.spec
        limits = replace(task.limits, apply_to=lambda _: self.was_made)
        self._node: Node | None = None
        self.was_there = found is not None
        mark = spec.labels.get(REMOVAL_LABEL) if spec else None
        self.was_taken_over = found is not None and mark is not None and found.labels.get(REMOVAL_LABEL) == mark
        if self.was_taken_over and spec and spec.ttl and found and found.expires:
            # The earlier run chose its end, which may be near. A later one stays.
            end = limits.end and limits.end.at
            end = max(found.expires, end or (now + spec.ttl).replace(microsecond=0))
            limits = replace(limits, end=NodeEnd(end))
        self._task, self._offers, self._choose_zone = replace(task, spec=spec, limits=limits), offers, choose_zone
        self.was_made: bool = self.was_taken_over
        self.is_removed = False
        self.was_deleted = False

    @property
    def spec(self) -> NodeSpec | None:
        """What the node is created as."""
        return self._task.spec

    @property
    def is_searched(self) -> bool:
        """Whether its zone is known only when it is there."""
        return bool(self._offers)

    @property
    def name(self) -> NodeName:
        """The node's full name, in the zone that was tried last."""
        return self._task.name

    @property
    def moves_end(self) -> timedelta | None:
        """How far ahead the end of the node is while this run lives; None for one whose end is not moved on."""
        return self._task.limits.moves_end if self.was_made else None

    def note(self, event: NodeEvent) -> None:
        """Record a creation by this run, or that another client created the node first; a listener for the run's events."""
        if event.kind is EventKind.ACTION and event.data.get("verb") == "create":
            self.was_made = True
        elif event.data.get("exists"):
            self.leave()

    def leave(self) -> None:
        """Leave the node to another run, which created it or uses it."""
        self.was_made = self.was_taken_over = False

    def _try_in(self, zone: str) -> None:
        """Go on in another zone: what is there is not known to be of this run."""
        self._task, self.was_made = replace(self._task, name=replace(self._task.name, zone=zone)), False
        self._choose_zone(zone)

    def bring_up(
        self, context: Callable[[Callable[[NodeEvent], None]], ActionContext], listener: Callable[[NodeEvent], None]
    ) -> Node:
        """Bring the node up and return it. Raises why it is not usable."""
        context_of_run, spec = context(broadcast(self.note, listener)), self._task.spec
        result: NodeResult | TpuctlError
        if self._offers and spec is not None:
            (result,) = bring_up_somewhere(
                context_of_run, lambda: self._offers, [self._task], spec, announce=self._try_in
            )
        else:
            (result,) = bring_up_nodes(context_of_run, [self._task])
        if isinstance(result, TpuctlError):
            raise result
        if result.node is None:
            raise ConflictError(f"`{self._task.name.node_id}` no longer exists")
        self._node = result.node
        return result.node

    def remove(self, context: ActionContext, place: SearchPlace, *, policy: Policy, wait: bool) -> None:
        """Delete the node that this run created, and set `is_removed`.

        With `wait`, return only when the deletion is complete. Raises why the node is not deleted: then it is still billed.
        """
        name = self._task.name
        group = find_group(context, place, NodeReference(name.node_id, name.zone, name.project))
        if group is None:
            self.is_removed = True
            return
        if self._node is not None and any(one.name == name and one.id != self._node.id for one in group.nodes):
            raise ConflictError(
                f"another client recreated `{name.node_id}`; leaving the new node untouched",
                hint=f"see `tpuctl status {name.node_id}`",
            )
        (result,) = tear_down(context, [group], by="run", timeout=policy.timeout, wait=wait)
        if isinstance(result, TpuctlError):
            raise result
        self.is_removed = self.was_deleted = True

    def past_end(self, now: datetime) -> datetime | None:
        """Return the end of the node's time, as this run saw it last, if it has passed; else None."""
        return self._node.expires if self._node is not None and is_expired(self._node, now) else None

    def is_left(self, cloud: TpuClient) -> bool | None:
        """Return whether the node of this run still exists and is not being deleted; None if the API does not answer."""
        try:
            node = cloud.find_node(self._task.name)
        except TpuctlError:
            return None
        return (
            node is not None
            and node.state is not NodeState.DELETING
            and (self._node is None or node.id == self._node.id)
        )


# The default folder of libtpu's logs (Cloud TPU's troubleshooting guide).
_LIBTPU_LOGS = ("/tmp/tpu_logs",)  # noqa: S108  # on the worker


def make_log_folder(log_folder: Path) -> None:
    """Create the folder for logs, before the node. Raises `InvalidInputError` if it is not writable."""
    try:
        log_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _log_folder_error(log_folder, (error.strerror or str(error)).lower()) from error
    if not os.access(log_folder, os.W_OK | os.X_OK):
        raise _log_folder_error(log_folder, "permission denied")


def default_log_folder(app: App, node: str) -> Path:
    """Return the default log folder of a node; git and sync ignore it. Raises `InvalidInputError`."""
    parent = app.invocation.folder / "tpuctl-logs"
    for path in (parent, parent / node):
        # In a cloned repository the link may lead anywhere, and the user did not choose its target.
        if path.is_symlink():
            raise _log_folder_error(path, "it is a symlink")
    try:
        parent.mkdir(exist_ok=True)
        with create_unlinked_file(parent / ".gitignore") as file:
            file.write(b"*\n")
    except OSError as error:
        raise _log_folder_error(parent, (error.strerror or str(error)).lower()) from error
    return parent / node


def collect_files(app: App, targets: Sequence[Target], paths: Sequence[str], folder: Path) -> None:
    """Copy libtpu's logs and these paths from every worker. A failure is only a warning."""
    for path in (*_LIBTPU_LOGS, *paths):
        try:
            copied = download(
                targets,
                (path,),
                app.invocation.folder,
                str(folder),
                options=CopyOptions(recurse=True, preserve=True),
                clock=SystemClock(),
            )
        except TpuctlError as error:
            app.terminal.warn(f"`{path}` was not collected: {error.message}")
            continue
        if any(one.files for one in copied):
            app.terminal.note(f"collected `{path}` into `{folder}`")
        is_unexpected = any(isinstance(one.error, UnexpectedAnswerError) for one in copied)
        if (path in paths or is_unexpected) and (why := _why_incomplete(copied)):
            app.terminal.warn(f"`{path}` was not collected: {why}")


def _why_incomplete(copied: Sequence[CopyResult]) -> str | None:
    """Return why a path was not copied completely; a path that only some workers have is no reason."""
    wrong = [one for one in copied if one.error and not isinstance(one.error, NotFoundError)]
    if wrong:
        labels = ", ".join(one.target.label for one in wrong)
        return f"{wrong[0].error.message if wrong[0].error else ''} (worker {labels})"
    if any(one.files for one in copied):
        return None
    return "no worker has it" if any(one.error for one in copied) else "it has no files"


def _log_folder_error(folder: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"no logs can be written to `{folder}`: {why}", hint="name another folder with `--log-dir`"
    )
