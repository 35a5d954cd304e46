"""`tpuctl run --up SPEC`: bring a node up, sync, run, collect what it left, take it down: the whole of a CI job."""

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
    """What is to be done around a command. `given` are the options of the spec, `checks` those of the checks before it.

    `sync` is the folder to bring along.
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
        """Whether a file says what to bring up, in place of `tpuctl.yaml`."""
        return self.up.endswith(_FILES)


def run_job(app: App, node: str | None, job: Job, wish: Wish) -> int:
    """Do the whole job and return its exit code; what this run made is removed in any case where that was asked for."""
    from tpuctl.cli.job_files import check_source, log_folder, make_log_folder  # noqa: PLC0415  # completion and --help need not wait for it

    one_off = OneOff(*_task(app, node, job), removes=job.remove)
    name = one_off.name
    if one_off.was_taken_over:
        app.terminal.note(
            f"`{name.node_id}` was left by an earlier run with `--rm` of the same spec: it is used, and deleted at the end"
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
            # Also in the midst of a deletion: it may not have been sent yet, and sent twice it does no harm.
            with undisturbed():
                _take_down(app, one_off, name, wait=False)
            with app.going_on(
                f"`{name.zone}/{name.node_id}` {_how_left(one_off)}", resume=_next_step(app, one_off, name)
            ):
                raise


def _work_and_take_down(app: App, one_off: OneOff, name: NodeName, job: Job, wish: Wish) -> int:
    """Do the work, then remove what this run made, also where the work has failed."""
    try:
        code = _work(app, one_off, name, job, wish)
    except Exception as error:
        _take_down(app, one_off, name, wait=True)
        _tell_logs(app, wish)
        if isinstance(error, TpuctlError) and one_off.was_deleted:
            # What it advised was for a node that is there.
            error.hint = f"the node that this run made, `{name.node_id}`, is deleted"
        raise
    left = _take_down(app, one_off, name, wait=True)
    _tell_logs(app, wish)
    return left or code


def _task(app: App, node: str | None, job: Job) -> tuple[Task, Node | None]:
    """Return what is to be brought up, and what is there now. Raises `ConflictError` where it is there, and must not be."""
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
            f"`{name.node_id}` is there already, and `--exclusive` wants one of its own",
            hint="leave NODE out: then the node gets a name that no other has",
        )
    options: dict[str, Any] = {"goal": None, "probe": None, "yes": False}
    policy = repair_policy(app, options, timeout=deadline(app, None))
    return Task(name=name, policy=policy, spec=spec, purpose="run"), found


def _work(app: App, one_off: OneOff, name: NodeName, job: Job, wish: Wish) -> int:
    from tpuctl.cli.job_files import bring, collect  # noqa: PLC0415  # not before the node is there
    from tpuctl.cli.members import await_key, members  # noqa: PLC0415  # not before the node is there
    from tpuctl.cli.running import carry_out, show_result  # noqa: PLC0415  # as above

    where = f"{name.zone}/{name.node_id}"
    undo = None if job.remove else f"tpuctl down {where}"
    with app.going_on(lambda: _going_on(name, one_off), resume=app.command_line(), undo=undo):
        with app.progress() as progress:
            ready = one_off.bring_up(partial(app.context, preflight=gate(app, job.checks)), progress)
        if job.exclusive and not one_off.was_made:
            raise ConflictError(
                f"somebody else has just created `{name.node_id}`, and `--exclusive` wants one of its own"
            )
        found = members(app, [ready], job.workers)
        await_key(app, found)
        if one_off.was_taken_over and _is_in_use(app, found):
            one_off.leave()
            app.terminal.warn(f"another run works on `{name.node_id}`: it is not deleted at the end of this one")
        if job.sync is not None:
            wish = replace(wish, folder=wish.folder or _same_place(app, job.sync, bring(app, found, job.sync)))
        result = carry_out(app, found, wish)
        code = show_result(app, result, detached=wish.detach)
        # Where the command has not ended there is nothing, or no way to it: the node would bill on while that is tried.
        ended = [ending.member for ending in result.endings if ending.code is not None]
        if wish.log_folder is not None and ended:
            collect(app, ended, job.collect, wish.log_folder)
    return code


def _is_in_use(app: App, members: list[Member]) -> bool:
    """Tell whether a job runs there that a tpuctl follows or that was left running, or a worker does not tell."""
    from tpuctl.cli.keeping import keeping  # noqa: PLC0415  # not before the node is there
    from tpuctl.remote.jobs.asking import Listed, Workers  # noqa: PLC0415  # as above
    from tpuctl.remote.jobs.values import State  # noqa: PLC0415  # as above

    answers = Workers(members, keeping(app), SystemClock()).jobs(limit=20)
    shares = [share for answer in answers if isinstance(answer, Listed) for share in answer.shares]
    is_silent = any(not isinstance(answer, Listed) for answer in answers)
    return is_silent or any(
        share.state is State.RUNNING and (share.is_followed or share.is_detached) for share in shares
    )


def _take_down(app: App, one_off: OneOff, name: NodeName, *, wait: bool) -> int:
    """Delete the node where this run made it; return 0, or the exit code of what kept it from being deleted."""
    if not one_off.was_made:
        if one_off.was_there and wait:
            if one_off.is_left(app.client) is False:
                app.terminal.warn(f"`{name.node_id}` was there before, and somebody else has deleted it meanwhile")
            else:
                app.terminal.note(f"`{name.node_id}` was there before and is left as it is")
        return ExitCode.OK
    policy = Policy(goal=Goal.GONE, timeout=deadline(app, None))
    try:
        with app.progress() as progress:
            one_off.remove(app.context(progress), Place(name.project, name.zone), policy=policy, wait=wait)
    except TpuctlError as error:
        app.show_error(error)
        app.terminal.warn(
            f"`{name.node_id}` in {name.zone} may still bill", f"  end it: tpuctl down {name.zone}/{name.node_id}"
        )
        return error.exit_code
    return ExitCode.OK


def _same_place(app: App, source: Path, there: str) -> str:
    """Return the folder on the workers that stands for the one that we are in."""
    here = app.invocation.folder
    below = here.relative_to(source).as_posix() if here.is_relative_to(source) else "."
    return there if below == "." else f"{there}/{below}"


def _tell_logs(app: App, wish: Wish) -> None:
    if wish.log_folder is not None and wish.log_folder.is_dir() and any(wish.log_folder.iterdir()):
        app.terminal.note(f"the logs are in `{wish.log_folder}`")


def _how_left(one_off: OneOff) -> str:
    if one_off.is_removed:
        return "is being deleted" if one_off.was_deleted else "is not there"
    if one_off.was_made:
        return "could not be deleted and bills on"
    return "was there before and is left as it is" if one_off.was_there else "was not made"


def _next_step(app: App, one_off: OneOff, name: NodeName) -> str:
    where = f"{name.zone}/{name.node_id}"
    if one_off.was_deleted:
        return f"tpuctl wait {where} --for gone"
    return f"tpuctl down {where}" if one_off.was_made and not one_off.is_removed else app.command_line()


def _going_on(name: NodeName, one_off: OneOff) -> str:
    made = "was made by this run" if one_off.was_made else "was there before this run"
    if one_off.was_taken_over:
        made = "was left by an earlier run with `--rm`"
    return f"`{name.node_id}` in {name.zone} {made}"
