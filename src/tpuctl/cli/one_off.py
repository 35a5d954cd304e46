"""`tpuctl run --up SPEC`: bring a node up, sync, run, collect what it left, take it down: the whole of a CI job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tpuctl.actions.locate import Place
from tpuctl.actions.observation import Task
from tpuctl.actions.one_off import OneOff
from tpuctl.actions.running import job_name
from tpuctl.cli.main import TerminatedError
from tpuctl.cli.policy import deadline, repair_policy
from tpuctl.cli.signals import hang_up_terminates, undisturbed
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

_FILES = (".yaml", ".yml")
# Where libtpu writes its logs unless it is told otherwise (Cloud TPU's troubleshooting guide).
_COLLECTED = ("/tmp/tpu_logs",)  # noqa: S108  # on the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be done around a command. `given` are the options of the spec; `sync` is the folder to bring along."""

    up: str
    given: dict[str, Any]
    remove: bool
    exclusive: bool
    sync: Path | None
    collect: tuple[str, ...]
    workers: WorkerSet


def run_job(app: App, node: str | None, job: Job, wish: Wish) -> int:
    """Do the whole job and return its exit code; what this run made is removed in any case where that was asked for."""
    one_off = OneOff(*_task(app, node, job))
    name = one_off.name
    if not job.remove:
        return _work(app, one_off, name, job, wish)
    if wish.log_folder is None:
        wish = replace(wish, log_folder=_log_folder(app, name))
    with hang_up_terminates():
        try:
            code = _work(app, one_off, name, job, replace(wish, passes_signals=False))
        except (KeyboardInterrupt, TerminatedError):
            with undisturbed():
                _take_down(app, one_off, name, wait=False)
            where = f"{name.zone}/{name.node_id}"
            with app.going_on(f"`{where}` {_how_left(one_off)}", resume=f"tpuctl wait {where} --for gone"):
                raise
        except BaseException as error:
            _take_down(app, one_off, name, wait=True)
            if isinstance(error, TpuctlError) and one_off.is_removed:
                # What it advised was for a node that is there.
                error.hint = f"the node that this run made, `{name.node_id}`, is deleted"
            raise
        return _take_down(app, one_off, name, wait=True) or code


def _task(app: App, node: str | None, job: Job) -> tuple[Task, Node | None]:
    """Return what is to be brought up, and what is there now. Raises `ConflictError` where it is there, and must not be."""
    given = job.given
    if job.up.endswith(_FILES):
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
            ready = one_off.bring_up(app.context, progress)
        if job.exclusive and not one_off.was_made:
            raise ConflictError(
                f"somebody else has just created `{name.node_id}`, and `--exclusive` wants one of its own"
            )
        found = members(app, [ready], job.workers)
        await_key(app, found)
        if job.sync is not None:
            wish = replace(wish, folder=wish.folder or _same_place(app, job.sync, bring(app, found, job.sync)))
        result = carry_out(app, found, wish)
        code = show_result(app, result, detached=wish.detach)
        # Where the command has not ended there is nothing, or no way to it: the node would bill on while that is tried.
        ended = [ending.member for ending in result.endings if ending.code is not None]
        if wish.log_folder is not None and ended:
            collect(app, ended, (*_COLLECTED, *job.collect), wish.log_folder)
    return code


def _take_down(app: App, one_off: OneOff, name: NodeName, *, wait: bool) -> int:
    """Delete the node where this run made it; return 0, or the exit code of what kept it from being deleted."""
    if not one_off.was_made:
        if one_off.was_there and wait:
            app.terminal.note(f"`{name.node_id}` was there before and is left as it is")
        return ExitCode.OK
    policy = Policy(goal=Goal.GONE, timeout=deadline(app, None))
    try:
        with app.progress() as progress:
            one_off.remove(app.context(progress), Place(name.project, name.zone), policy=policy, wait=wait)
    except TpuctlError as error:
        app.show_error(error)
        app.terminal.warn(
            f"`{name.node_id}` in {name.zone} may still bill\n  end it: tpuctl down {name.zone}/{name.node_id}"
        )
        return error.exit_code
    return ExitCode.OK


def _same_place(app: App, source: Path, there: str) -> str:
    """Return the folder on the workers that stands for the one that we are in."""
    here = app.invocation.folder
    below = here.relative_to(source).as_posix() if here.is_relative_to(source) else "."
    return there if below == "." else f"{there}/{below}"


def _log_folder(app: App, name: NodeName) -> Path:
    """Return the folder for what would go with the node; git does not see it, nor does a sync."""
    parent = app.invocation.folder / "tpuctl-logs"
    parent.mkdir(exist_ok=True)
    (parent / ".gitignore").write_text("*\n", "utf-8")
    return parent / name.node_id


def _how_left(one_off: OneOff) -> str:
    if one_off.is_removed:
        return "is being deleted"
    return "could not be deleted and bills on" if one_off.was_made else "was there before and is left as it is"


def _going_on(name: NodeName, one_off: OneOff) -> str:
    made = "was made by this run" if one_off.was_made else "was there before this run"
    return f"`{name.node_id}` in {name.zone} {made}"
