"""Begin a kept job, or go on with one: `tpuctl run NODE --keep` and `tpuctl watch NODE --job JOB`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.app.spec_options import build_spec
from tpuctl.check.preflight import preflight_check
from tpuctl.durations import format_duration
from tpuctl.errors import ConflictError, ExitCode, InvalidInputError, NotFoundError
from tpuctl.models.node import Tier
from tpuctl.names import natural_key
from tpuctl.nodes.bring_up import UpRequest, plan_bring_up
from tpuctl.nodes.conditions import Repair
from tpuctl.nodes.expiry import DEFAULT_GRACE
from tpuctl.nodes.idle_limit import IdleAction, IdleChange
from tpuctl.nodes.policies import idle_change, queue_policy, repair_policy
from tpuctl.nodes.queueing import UNATTENDED_WAIT
from tpuctl.nodes.zone_choice import zone_choice
from tpuctl.workers.file_tree import read_tree
from tpuctl.workers.keep import Supervisor, bring_up_planned, supervising
from tpuctl.workers.kept_files import KeptFiles, KeptOrder, NodeAtEnd
from tpuctl.workers.multislice import DEFAULT_PORT, check_alike, check_generation
from tpuctl.workers.one_off import make_log_folder
from tpuctl.workers.run_tree import describe_tree
from tpuctl.workers.runner import job_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.app.app import App
    from tpuctl.app.spec_options import SpecOptions
    from tpuctl.check.commands.preflight_options import CheckOptions
    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.nodes.bring_up import PlannedWork
    from tpuctl.nodes.hooks import Hooks
    from tpuctl.nodes.kept_jobs import JobPlace
    from tpuctl.nodes.time_limits import TimeLimit
    from tpuctl.workers.file_tree import FileTree
    from tpuctl.workers.keep_policy import KeepPolicy
    from tpuctl.workers.run_tree import RunTree
    from tpuctl.workers.runner import RunRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRequest:
    """What `run --keep` was asked for, besides the command itself. `sync` is the tree to keep and to sync."""

    described: SpecOptions
    checks: CheckOptions
    limit: TimeLimit
    idle: IdleChange
    sync: RunTree | None
    policy: KeepPolicy
    resync: bool = False
    collect: tuple[str, ...] = ()
    end: NodeAtEnd = NodeAtEnd.KEEP
    preempt_signal: int = 0
    slice_port: int | None = None  # of a job over several slices; None for a job on one node


def keep_job(app: App, nodes: Sequence[str], keep: KeepRequest, request: RunRequest, hooks: Hooks) -> int:
    """Begin a kept job, or go on with an unfinished one of this name, and supervise it. Return its exit code.

    A job of this name that has ended with 0 is not started again. Of several nodes, which are slices of the job, the first by
    its name has its record. Raises `ConflictError` if a node has another job, or if the job has other slices.
    """
    nodes = sorted(nodes, key=lambda text: natural_key(app.reference(text).node_id))
    reference = app.reference(nodes[0])
    node_ids = tuple(app.reference(text).node_id for text in nodes)
    project, name = reference.project or app.project, request.job or job_name(app.now())
    with supervising(app, project, *node_ids):
        app.services.journal.check()  # a job that cannot be read is not one that does not exist
        known = app.services.journal.kept_jobs(project, reference.node_id)
        same = next((place for place in reversed(known) if place.job.name == name), None)
        files = KeptFiles(app, project, reference.node_id, name)
        if same is not None and same.job.stopped is None and same.job.exit_code in {None, 0}:
            if same.job.outcome is None:
                _check_slices(files, name, node_ids)
            if keep.resync and same.job.outcome is None:
                _keep_present_files(app, files, keep.sync)
            return _go_on(app, same, files, hooks, detach=request.detach)
        for text in nodes:
            places = app.services.journal.kept_jobs(project, app.reference(text).node_id)
            running = next((place.job for place in places if not place.job.is_over), None)
            if running is not None:
                raise ConflictError(
                    f"`{text}` has the unfinished job `{running.name}`",
                    hint=f"go on with it: `tpuctl watch {text} --job {running.name}`, or end it: "
                    f"`tpuctl kill {text} {running.name}`",
                )
        return _begin(app, nodes, keep, request, files=files, hooks=hooks)


def _check_slices(files: KeptFiles, name: str, node_ids: tuple[str, ...]) -> None:
    """Raise `ConflictError` if an unfinished job was begun with other nodes than these."""
    begun = files.read_order().slices or node_ids[:1]
    if begun != node_ids:
        raise ConflictError(
            f"the unfinished job `{name}` was begun on {', '.join(begun)}",
            hint=f"go on with it: `tpuctl watch {begun[0]} --job {name}`, or end it: `tpuctl kill {' '.join(begun)} {name}`",
        )


def watch_job(app: App, node: str, name: str, hooks: Hooks, *, force_lease: bool = False) -> int:
    """Supervise the kept job of a node until it is over. Return its exit code. Raises `NotFoundError` if there is none."""
    reference = app.reference(node)
    project = reference.project or app.project
    with supervising(app, project, reference.node_id, force_lease=force_lease):
        app.services.journal.check()
        known = app.services.journal.kept_jobs(project, reference.node_id)
        place = next((place for place in reversed(known) if place.job.name == name), None)
        if place is None:
            raise NotFoundError(
                f"the journal has no job `{name}` of `{node}` to supervise",
                hint=f"`tpuctl run {node} --keep --name JOB -- COMMAND` starts one; a job of another machine needs a "
                "journal in a bucket: `TPUCTL_JOURNAL=gs://BUCKET/PREFIX`",
            )
        files = KeptFiles(app, project, reference.node_id, name)
        others = files.read_order().slices[1:] if place.job.outcome is None else ()
        with supervising(app, project, *others, force_lease=force_lease):
            return _go_on(app, place, files, hooks)


def _begin(
    app: App, nodes: Sequence[str], keep: KeepRequest, request: RunRequest, *, files: KeptFiles, hooks: Hooks
) -> int:
    name = files.job
    spec = build_spec(app, keep.described)
    if spec is not None:
        spec = keep.limit.applied(spec, app.clock.now())
    up = UpRequest(
        spec=spec,
        policy=repair_policy(app, {}, **queue_policy(app, spec, timeout=None, is_awaited=True)),
        preflight=preflight_check(app, keep.checks.given),
        tiers=keep.described.tiers,
        limit=keep.limit,
        idle=keep.idle if keep.idle.is_named else idle_of(app, keep.end) or keep.idle,
    )
    zones = app.zone_flags
    work = plan_bring_up(app, nodes, up)
    home, found, wanted = work.located[0]
    if wanted is None and found is not None:
        # A node that exists is created again as it is now.
        wanted = app.services.journal.past(home).spec_as_it_is(found)
    if keep.end is NodeAtEnd.STOP:
        _require_stoppable(home.node_id, found, wanted)
    if keep.slice_port is not None:
        _check_alike(work)
    if request.log_folder is not None:
        make_log_folder(request.log_folder)
    synced_to, folder = None, request.folder
    if keep.sync is not None:
        synced_to, tree = keep.sync.worker_folder, _keep_files(app, files, keep.sync)
        folder = folder or keep.sync.run_folder(tree)
    policy = replace(keep.policy, timeout=request.timeout)
    files.write_order(
        KeptOrder(
            line=request.line,
            shown=request.shown,
            environment=dict(request.environment.given),
            tpu=request.environment.tpu,
            container_program=request.environment.container_program,
            fanout=request.fanout,
            folder=folder,
            synced_to=synced_to,
            slices=tuple(name.node_id for name, _, _ in work.located) if keep.slice_port is not None else (),
            slice_port=keep.slice_port or DEFAULT_PORT,
            zones=zones,
            tiers=tuple(map(str, up.tiers)),
            spec=wanted.to_json() if wanted else None,
            max_failures=policy.max_failures,
            healthy_after=policy.healthy_after.total_seconds(),
            restart_on=tuple(sorted(policy.restart_on)),
            stop_on=tuple(sorted(policy.stop_on)),
            pauses=tuple(pause.total_seconds() for pause in policy.pauses),
            timeout=policy.timeout.total_seconds() if policy.timeout else None,
            budget=policy.budget,
            hang_after=policy.hang_after.total_seconds(),
            start_grace=policy.start_grace.total_seconds(),
            log_folder=str(request.log_folder.absolute()) if request.log_folder else None,
            collect=keep.collect,
            preempt_signal=keep.preempt_signal,
            end=keep.end,
            max_price=keep.checks.max_price,
            max_project_price=keep.checks.budget,
            allow_unknown_price=keep.checks.allow_unknown_price,
        )
    )
    shown = request.line if request.shown is None else request.shown
    app.services.journal.append(home, "job", app.now(), job=name, text=shown)
    place = next(
        place for place in app.services.journal.kept_jobs(home.project, home.node_id) if place.job.name == name
    )

    def first() -> tuple[Node, ...]:
        return bring_up_planned(app, work, up)

    supervisor = Supervisor(
        app,
        place,
        files.read_order(),
        files,
        request=_restart_request(app, up, files.read_order()),
        hooks=hooks,
        first=first,
        detach=request.detach,
    )
    return supervisor.run()


def _check_alike(work: PlannedWork) -> None:
    """Raise `ConflictError` if the nodes of a plan will not be slices of one job."""
    for name, _, spec in work.located:
        if spec is not None:
            check_generation(name, spec.accelerator_type)
    check_alike([node for _, node, _ in work.located if node is not None])
    zones = {name.zone: name.node_id for name, _, _ in work.located}
    if len(zones) > 1:
        others = ", ".join(f"`{node_id}` is in {zone}" for zone, node_id in zones.items())
        raise ConflictError(f"the slices of one job have the same zone: {others}", hint="name the zone with `--zone`")


def _require_stoppable(name: str, node: Node | None, spec: NodeSpec | None) -> None:
    """Raise `InvalidInputError` if the service will refuse to stop a node when its job is over."""
    why_not = node.why_not_stoppable() if node else None
    if why_not is None and spec is not None and spec.workers > 1:
        why_not = (
            f"a {spec.accelerator_type} has {spec.workers} workers, and the service stops single-worker nodes only"
        )
    if why_not is not None:
        text = f"`--stop`: `{name}` cannot be stopped: {why_not}"
        raise InvalidInputError(text, hint="delete it at the end with `--rm`, or leave `--stop` out")


def _go_on(app: App, place: JobPlace, files: KeptFiles, hooks: Hooks, *, detach: bool = False) -> int:
    if place.job.outcome is not None:
        app.terminal.note(f"{place.job.name}: {place.job.outcome}")
        return place.job.exit_code or ExitCode.OK
    order = files.read_order()
    if order.zones and not app.zone_flags:
        app.set_options({"zone": order.zones})
    base = UpRequest(
        spec=None,
        policy=repair_policy(app, {}),
        preflight=preflight_check(app, order.price_limits, only_limits=True),
        tiers=tuple(map(Tier, order.tiers)),
        idle=idle_of(app, order.end) or IdleChange(),
    )
    if place.job.is_over:
        pass  # what is left is said at the end
    elif not place.job.attempts:
        app.terminal.note(f"{place.job.name}: going on with its first start")
    else:
        age = format_duration(max(app.now() - place.job.began, timedelta()))
        app.terminal.note(f"{place.job.name}: going on with attempt {place.job.attempts[-1].number}, begun {age} ago")
    return Supervisor(
        app, place, order, files, request=_restart_request(app, base, order), hooks=hooks, detach=detach
    ).run()


def idle_of(app: App, end: NodeAtEnd) -> IdleChange | None:
    """Return the limit of a node that is deleted at the end: its guard deletes it if no supervisor is left to do so."""
    if end not in {NodeAtEnd.DELETE, NodeAtEnd.DELETE_ON_SUCCESS}:
        return None
    return idle_change(app, DEFAULT_GRACE, str(IdleAction.DELETE))


def _restart_request(app: App, first: UpRequest, order: KeptOrder) -> Callable[[NodeSpec | None], UpRequest]:
    """Return how to bring the node up for a restart: as before, for as long as it takes."""

    def request(spec: NodeSpec | None) -> UpRequest:
        # With several zones or tiers the search retries, not the attempt in one of them.
        is_one_place = zone_choice(app) is None and len(first.tiers) < 2
        policy = repair_policy(
            app,
            # As after a preemption: the job brings its files and its checkpoint with it.
            {"repair": str(Repair.RECREATE)},
            timeout=None,
            retries_without_capacity=is_one_place,
            queue_for=UNATTENDED_WAIT,
            # What ran there is over.
            yes=True,
        )
        return replace(
            first,
            spec=spec,
            policy=policy,
            preflight=preflight_check(app, order.price_limits, only_limits=True),
            yes=True,
        )

    return request


def _keep_present_files(app: App, files: KeptFiles, source: RunTree | None) -> None:
    """Keep the present files for the next starts. Raises `InvalidInputError` if the job was begun with another folder."""
    synced_to = files.read_order().synced_to
    if source is None or synced_to != source.worker_folder:
        raise InvalidInputError(
            f"`--resync`: the job was begun with {f'the files of `{synced_to}`' if synced_to else 'no files'}",
            hint="name the same folder with `--sync DIR`",
        )
    _keep_files(app, files, source)


def _keep_files(app: App, files: KeptFiles, source: RunTree) -> FileTree:
    """Keep the files of a tree for all starts, and return them."""
    tree = read_tree(source.folder, app.invocation.environ)
    app.terminal.note(*describe_tree(source, tree, to=f"`{source.worker_folder}`, at each start of the job"))
    files.write_archive(tree)
    return tree
