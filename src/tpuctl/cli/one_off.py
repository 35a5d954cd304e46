"""`tpuctl run --up SPEC`: bring a node up, sync, run, collect files, delete the node: a whole CI job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuctl.actions.locate import Place
from tpuctl.actions.observation import Task
from tpuctl.actions.one_off import OneOff
from tpuctl.actions.running import job_name
from tpuctl.cli.check_options import gate
from tpuctl.cli.policy import deadline, repair_policy
from tpuctl.cli.signals import TerminatedError, hang_up_terminates, undisturbed
from tpuctl.cli.spec import build_spec
from tpuctl.cli.target import where_to_create
from tpuctl.clock import SystemClock
from tpuctl.errors import ConflictError, ExitCode, InvalidInputError, TpuctlError
from tpuctl.readiness import Goal, Policy

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.cli.app import App
    from tpuctl.cli.running import Wish
    from tpuctl.model import Node
    from tpuctl.model.worker_set import WorkerSet
    from tpuctl.names import NodeName
    from tpuctl.remote.member import Member

_FILES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to do around a command. `given` are the options of the spec, `checks` those of the checks before the creation.

    `sync` is the folder to sync to the workers.
    """

    up: str
    given: dict[str, Any]
    checks: dict[str, Any]
    remove: bool
    exclusive: bool
    sync: Path | None
    collect: tuple[str, ...]
    workers: WorkerSet

    @property
    def names_file(self) -> bool:
        """Whether a file, in place of `tpuctl.yaml`, says what to bring up."""
        return self.up.endswith(_FILES)


def run_job(app: App, node: str | None, job: Job, wish: Wish) -> int:
    """Do the whole job and return its exit code; with `--rm` the node that this run created is deleted in any case."""
    from tpuctl.cli.job_files import check_source, log_folder, make_log_folder  # noqa: PLC0415  # completion and --help need not wait for it

    one_off = OneOff(*_task(app, node, job), removes=job.remove)
    name = one_off.name
    if one_off.was_taken_over:
        app.terminal.note(
            f"using `{name.node_id}`, which an earlier run of this spec with `--rm` left behind; it is deleted at the end"
        )
    if job.sync is not None:
        check_source(app, job.sync)
    if wish.log_folder is None and (job.remove or job.collect):
        wish = replace(wish, log_folder=log_folder(app, name.node_id))
    if wish.log_folder is not None:
        make_log_folder(wish.log_folder)
    if not job.remove:
        return _work(app, one_off, name, job, wish)
    with hang_up_terminates():
        try:
            return _work_and_take_down(app, one_off, name, job, replace(wish, passes_signals=False))
        except (KeyboardInterrupt, TerminatedError):
            # Also during a deletion: its request may not have been sent, and sending it twice does no harm.
            with undisturbed():
                _take_down(app, one_off, name, wait=False)
            where, resume = f"{name.zone}/{name.node_id}", app.command_line()
            if one_off.was_deleted:
                state, resume = "is being deleted", f"tpuctl wait {where} --for gone"
            elif one_off.is_removed:
                state = "does not exist"
            elif one_off.was_made:
                state, resume = "could not be deleted and is still billed", f"tpuctl down {where}"
            else:
                state = "existed before this run and is not deleted" if one_off.was_there else "was not created"
            with app.going_on(f"`{where}` {state}", resume=resume):
                raise


def _work_and_take_down(app: App, one_off: OneOff, name: NodeName, job: Job, wish: Wish) -> int:
    """Do the work, then delete the node that this run created, also if the work has failed."""

    def show_log_folder() -> None:
        if wish.log_folder is not None and wish.log_folder.is_dir() and any(wish.log_folder.iterdir()):
            app.terminal.note(f"logs: `{wish.log_folder}`")

    try:
        code = _work(app, one_off, name, job, wish)
    except Exception as error:
        _take_down(app, one_off, name, wait=True)
        show_log_folder()
        if isinstance(error, TpuctlError) and one_off.was_deleted:
            # Its hint was about a node that still exists.
            error.hint = f"the node that this run created, `{name.node_id}`, is deleted"
        raise
    left = _take_down(app, one_off, name, wait=True)
    show_log_folder()
    return left or code


def _task(app: App, node: str | None, job: Job) -> tuple[Task, Node | None]:
    """Return what to bring up, and the node that exists now. Raises `ConflictError` if `--exclusive` forbids that node."""
    given = job.given
    if job.names_file:
        path = app.invocation.folder / job.up
        if not path.is_file():
            raise InvalidInputError(f"there is no file `{job.up}`", hint="`--up` takes an accelerator type, or a file")
        app.use_project_file(path)
    else:
        given = {**given, "type": job.up}
    spec = build_spec(app, given)
    if spec is None:
        raise InvalidInputError(f"`{job.up}` names no accelerator type", hint="add a line like `type: v4-8`")
    text = node or f"run-{job_name(SystemClock().now())}"
    name, found = where_to_create(app, text, spec)
    if found is not None and job.exclusive:
        raise ConflictError(
            f"`{name.node_id}` already exists, and `--exclusive` needs a new node",
            hint="leave NODE out to use a generated name",
        )
    options: dict[str, Any] = {"goal": None, "probe": None, "yes": False}
    policy = repair_policy(app, options, timeout=deadline(app, None))
    return Task(name=name, policy=policy, spec=spec, purpose="run"), found


def _work(app: App, one_off: OneOff, name: NodeName, job: Job, wish: Wish) -> int:
    """Bring the node up, sync, run the command, and collect its files. Return the exit code of the run."""
    from tpuctl.cli.job_files import bring, collect  # noqa: PLC0415  # not before the node exists
    from tpuctl.cli.members import await_key, members  # noqa: PLC0415  # as above
    from tpuctl.cli.running import carry_out, show_result  # noqa: PLC0415  # as above

    def origin() -> str:
        made = "was created by this run" if one_off.was_made else "existed before this run"
        if one_off.was_taken_over:
            made = "was left behind by an earlier run with `--rm`"
        return f"`{name.node_id}` in {name.zone} {made}"

    undo = None if job.remove else f"tpuctl down {name.zone}/{name.node_id}"
    with app.going_on(origin, resume=app.command_line(), undo=undo):
        with app.progress() as progress:
            ready = one_off.bring_up(partial(app.context, preflight=gate(app, job.checks)), progress)
        if job.exclusive and not one_off.was_made:
            raise ConflictError(f"another client has just created `{name.node_id}`, and `--exclusive` needs a new node")
        found = members(app, [ready], job.workers)
        await_key(app, found)
        if one_off.was_taken_over and _is_in_use(app, found):
            one_off.leave()
            app.terminal.warn(f"another run uses `{name.node_id}`: it is not deleted at the end of this one")
        if job.sync is not None and not wish.folder:
            there = bring(app, found, job.sync)
            # The folder on the workers that corresponds to the current directory.
            here = app.invocation.folder
            below = here.relative_to(job.sync).as_posix() if here.is_relative_to(job.sync) else "."
            wish = replace(wish, folder=there if below == "." else f"{there}/{below}")
        result = carry_out(app, found, wish)
        code = show_result(app, result, detached=wish.detach)
        # Of a worker without a result there is nothing to collect, or no connection: trying would cost money.
        ended = [ending.member for ending in result.endings if ending.code is not None]
        if wish.log_folder is not None and ended:
            collect(app, ended, job.collect, wish.log_folder)
    return code


def _is_in_use(app: App, members: list[Member]) -> bool:
    """Return whether a detached or followed job runs on any of the workers, or a worker does not answer."""
    from tpuctl.cli.keeping import keeping  # noqa: PLC0415  # not before the node exists
    from tpuctl.remote.jobs.asking import Listed, Workers  # noqa: PLC0415  # as above
    from tpuctl.remote.jobs.values import State  # noqa: PLC0415  # as above

    answers = Workers(members, keeping(app), SystemClock()).jobs(limit=20)
    shares = [share for answer in answers if isinstance(answer, Listed) for share in answer.shares]
    is_silent = any(not isinstance(answer, Listed) for answer in answers)
    return is_silent or any(
        share.state is State.RUNNING and (share.is_followed or share.is_detached) for share in shares
    )


def _take_down(app: App, one_off: OneOff, name: NodeName, *, wait: bool) -> int:
    """Delete the node if this run created it; return 0, or the exit code of the error that prevented the deletion."""
    if not one_off.was_made:
        if one_off.was_there and wait:
            if one_off.is_left(app.client) is False:
                app.terminal.warn(
                    f"`{name.node_id}` existed before this run, and another client has deleted it meanwhile"
                )
            else:
                app.terminal.note(f"`{name.node_id}` existed before this run and is not deleted")
        return ExitCode.OK
    policy = Policy(goal=Goal.GONE, timeout=deadline(app, None))
    try:
        with app.progress() as progress:
            one_off.remove(app.context(progress), Place(name.project, name.zone), policy=policy, wait=wait)
    except TpuctlError as error:
        app.show_error(error)
        app.terminal.warn(
            f"`{name.node_id}` in {name.zone} may still be billed",
            f"  delete it: tpuctl down {name.zone}/{name.node_id}",
        )
        return error.exit_code
    return ExitCode.OK
