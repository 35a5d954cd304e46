"""The body of `tpuctl run`: what the options ask for, and on which nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.config.settings import SETTINGS
from tpuctl.errors import ExitCode, InvalidInputError, worst_exit_code
from tpuctl.files import expand_user_path, output_path, read_user_bytes, read_user_text
from tpuctl.models.events import EventKind
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.bring_up import note_changed_setups, run_setup
from tpuctl.nodes.commands.policy_options import build_hooks
from tpuctl.nodes.commands.time_options import time_limit
from tpuctl.nodes.policies import idle_change
from tpuctl.nodes.usage import find_node_uses, require_idle
from tpuctl.workers.commands.node_selection import find_selected_nodes
from tpuctl.workers.environment import EnvironmentOptions, logging_variables, parse_env_file, parse_variable
from tpuctl.workers.execution import check_no_stdin, run_and_show, shell_line
from tpuctl.workers.run_tree import find_run_tree, sync_before_run
from tpuctl.workers.runner import RunRequest
from tpuctl.workers.targets import await_key, find_targets
from tpuctl.workers.worker_jobs import check_job_name, parse_signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.app.spec_options import SpecOptions
    from tpuctl.check.commands.preflight_options import CheckOptions
    from tpuctl.nodes.commands.idle_options import IdleOptions
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.nodes.commands.time_options import TimeLimitOptions
    from tpuctl.workers.commands.run import EnvironmentFlags, KeepFlags, OneOffFlags, RunFlags
    from tpuctl.workers.keep_start import KeepRequest
    from tpuctl.workers.one_off import OneOffRequest
    from tpuctl.workers.run_tree import RunTree


def run_run(
    app: App,
    *,
    selection: GivenSelection,
    worker: str,
    remote_command: tuple[str, ...],
    flags: RunFlags,
    fanout: int,
    environment: EnvironmentFlags,
    one_off: OneOffFlags,
    keeping: KeepFlags,
    limits: TimeLimitOptions,
    idling: IdleOptions,
    checks: CheckOptions,
    described: SpecOptions,
) -> int:
    """Run a command on all workers of nodes; exit with 0 only if it exits with 0 on all."""
    workers = WorkerSet.parse(worker)
    if flags.image is not None and (volume := next((name for name in selection.names if ":/" in name), None)):
        # `-v` is tpuctl's own.
        raise InvalidInputError(
            f"`{volume}` is not a node name", hint=f"mount a directory of the workers with `--mount {volume}`"
        )
    if (one_off.up is not None or keeping.keep) and (types := selection.options.types):
        # With `--up` it is the type of the node to create.
        described = replace(described, type=types[-1])
    if (one_off.up is not None or keeping.keep) and flags.setup_command is not None:
        described = replace(described, values={**described.values, "setup": flags.setup_command})
    if keeping.keep:
        keep = parse_keep(
            app,
            keeping,
            one_off,
            selection,
            limits=limits,
            idling=idling,
            checks=checks,
            described=described,
            run=flags,
            workers=workers,
        )
        app.require_trust()
        request = _parse_request(
            app, flags, remote_command, parse_environment(app, environment), fanout=fanout, tree=keep.sync
        )
        from tpuctl.workers.keep_start import keep_job  # noqa: PLC0415  # only for kept jobs

        hooks = build_hooks(app, {EventKind.JOB_STALLED: keeping.on_job_stall, EventKind.JOB_ENDED: keeping.on_job_end})
        return keep_job(app, _kept_nodes(app, selection, flags, request, workers=workers), keep, request, hooks)
    for name in keeping.given:
        raise InvalidInputError(f"`{_flag(name)}` needs `--keep`", hint="add `--keep`, or leave it out")
    tree = find_run_tree(app, sync=flags.sync, no_sync=flags.no_sync, workdir=flags.workdir)
    job = parse_one_off(
        app,
        one_off,
        limits=limits,
        idling=idling,
        checks=checks,
        described=described,
        run=flags,
        workers=workers,
        sync=tree,
    )
    request = _parse_request(
        app,
        flags,
        remote_command,
        parse_environment(app, environment),
        fanout=fanout,
        tree=tree,
        may_be_empty=flags.run_setup is not None and job is None,
    )
    if job is None or not job.names_file:
        app.require_trust()
    if job is not None:
        from tpuctl.workers.one_off import run_one_off  # noqa: PLC0415  # only for whole jobs

        names = selection.names
        if len(names) > 1 or set(selection.options.given) - {"types"}:
            raise InvalidInputError("`--up` takes one node", hint="name one, or none to generate a name")
        if flags.if_idle:
            hint = "`--exclusive` fails if the node already exists"
            raise InvalidInputError("`--if-idle` is for nodes that exist, not for `--up`", hint=hint)
        if flags.multislice:
            hint = "bring the slices up first: `tpuctl up NODE… --type TYPE`"
            raise InvalidInputError("`--multislice` is for nodes that exist, not for `--up`", hint=hint)
        return run_one_off(app, names[0] if names else None, job, request)
    return _run_on_nodes(app, selection, flags, request, workers=workers, tree=tree)


def _kept_nodes(
    app: App, selection: GivenSelection, flags: RunFlags, request: RunRequest, *, workers: WorkerSet
) -> Sequence[str]:
    """Return the names of the nodes of a kept job, which need not exist yet."""
    if not flags.multislice:
        return selection.names
    from tpuctl.workers.commands.multislice_run import check_multislice, find_slice_names  # noqa: PLC0415  # few runs need it

    check_multislice(flags, workers, request, selection.names)
    return find_slice_names(app, selection)


def _run_on_nodes(
    app: App,
    selection: GivenSelection,
    flags: RunFlags,
    request: RunRequest,
    *,
    workers: WorkerSet,
    tree: RunTree | None,
) -> int:
    """Run a command on the workers of nodes that exist: as one job, or on each node by itself."""
    plan = None
    if flags.multislice:
        from tpuctl.workers.commands.multislice_run import as_one_job, check_multislice, plan_job  # noqa: PLC0415  # few runs need it

        check_multislice(flags, workers, request, selection.names)
        plan = plan_job(app, flags, selection)
        nodes, codes = list(plan.nodes), []
    else:
        for name in ("megascale_port", "skip_validation"):
            if getattr(flags, name):
                raise InvalidInputError(f"`{_flag(name)}` needs `--multislice`", hint="add it, or leave the option out")
        nodes, errors = find_selected_nodes(app, selection)
        for error in errors:
            app.show_error(error)
        codes = [error.exit_code for error in errors]
    if not nodes:
        return worst_exit_code(codes)
    found = find_targets(app, nodes, workers, names_nodes=plan is not None or selection.is_pattern)
    await_key(app, found)
    if flags.if_idle:
        require_idle(nodes, find_node_uses(app, nodes, counts_leases=False))
    if flags.run_setup is None:
        note_changed_setups(app, nodes)
    else:
        run_setup(app, nodes, flags.setup_command, app.progress)
        if not request.line:
            return worst_exit_code(codes)
    request = replace(request, by_node=plan is None and selection.is_pattern)
    if tree is not None:
        found, request, code = sync_before_run(app, found, tree, request)
        codes.append(code)
    if plan is not None:
        request = as_one_job(app, plan, request, found)
    codes.append(ExitCode(run_and_show(app, found, request)))
    return worst_exit_code(codes)


def _parse_request(
    app: App,
    flags: RunFlags,
    words: tuple[str, ...],
    environment: EnvironmentOptions,
    *,
    fanout: int,
    tree: RunTree | None,
    may_be_empty: bool = False,
) -> RunRequest:
    """Return the request that the options describe. Raises `InvalidInputError`."""
    if flags.script is not None and flags.line is not None:
        raise InvalidInputError("`--script` and `--command` exclude each other", hint="leave one of them out")
    if flags.line is not None and words:
        raise InvalidInputError("two commands given", hint="give `--command LINE` or `-- COMMAND…`, not both")
    if not (may_be_empty or words) and (flags.line, flags.script, flags.image) == (None, None, None):
        raise InvalidInputError("no command given", hint="put it after `--`: `tpuctl run NODE -- hostname`")
    if flags.detach:
        for name in ("batch", "fail_fast", "log_dir"):
            if getattr(flags, name):
                raise InvalidInputError(
                    f"`{_flag(name)}` needs a followed command, and `--detach` leaves it running",
                    hint="leave one of them out; `tpuctl logs NODE JOB` shows the output, `tpuctl kill NODE JOB` ends the job",
                )
        if not flags.no_stdin:
            check_no_stdin(app)
    request = RunRequest(
        line=flags.line if flags.line is not None else shell_line(words),
        environment=environment,
        job=check_job_name(flags.job) if flags.job is not None else None,
        folder=flags.workdir,
        log_folder=output_path(Path(flags.log_dir), app.invocation.folder) if flags.log_dir else None,
        detach=flags.detach,
        takes_stdin=not flags.no_stdin,
        fanout=fanout,
        batch=flags.batch,
        allow_unreachable=flags.allow_unreachable,
        fail_fast=flags.fail_fast,
        timeout=_time_limit(flags.timeout),
        connect_within=_time_limit(flags.connect_timeout) or RunRequest().connect_within,
    )
    if flags.script is not None:
        from tpuctl.workers.local_script import LONGEST_SCRIPT, script_line  # noqa: PLC0415  # only for scripts

        path = app.invocation.folder / expand_user_path(Path(flags.script))
        content = read_user_bytes(path, limit=LONGEST_SCRIPT, what=f"`--script {flags.script}`")
        line, shown = script_line(content, flags.script, words)
        request, words = replace(request, line=line, shown=shown), ()
    if flags.image is None:
        if flags.mount:
            raise InvalidInputError("`--mount` needs a container", hint="add `--image IMAGE`, or leave it out")
        return request
    from tpuctl.workers.container_image import in_container  # noqa: PLC0415  # only for containers

    return in_container(
        request, flags.image, words, mounts=flags.mount, tree=tree.worker_folder if tree is not None else None
    )


def parse_environment(app: App, flags: EnvironmentFlags) -> EnvironmentOptions:
    """Return the environment that the options describe: `--env` overrides `--env-file`, a later one an earlier one.

    Raises `InvalidInputError`.
    """
    local = app.invocation.environ
    given = logging_variables(
        directory=flags.tpu_log_dir,
        least=flags.tpu_min_log_level,
        least_on_stderr=flags.tpu_stderr_log_level,
        megabytes=flags.tpu_max_log_size_mb,
    )
    for path in flags.env_file:
        text = read_user_text(app.invocation.folder / expand_user_path(Path(path)), what=f"`--env-file {path}`")
        given |= parse_env_file(text, path, local)
    for number, text in enumerate(flags.env, start=1):
        try:
            name, value = parse_variable(text, local)
        except InvalidInputError as error:
            raise InvalidInputError(f"`--env` number {number}: {error.message}", hint=error.hint) from None
        given[name] = value
    return EnvironmentOptions(given, tpu=flags.tpu_env)


def parse_one_off(
    app: App,
    flags: OneOffFlags,
    *,
    limits: TimeLimitOptions,
    idling: IdleOptions,
    checks: CheckOptions,
    described: SpecOptions,
    run: RunFlags,
    workers: WorkerSet,
    sync: RunTree | None,
) -> OneOffRequest | None:
    """Return the whole job that the options describe, None without `--up`. Raises `InvalidInputError`."""
    if flags.up is None:
        for name in flags.given:
            raise InvalidInputError(f"`{_flag(name)}` needs `--up`", hint="add `--up TYPE`, or leave it out")
        for name, value in (described.given_with_tier | checks.given | limits.given | idling.given).items():
            of_setting = SETTINGS[name].flag if hasattr(checks, name) else None
            flag = f"--{value}" if name == "tier" else of_setting or _flag(name)
            raise InvalidInputError(f"`{flag}` describes a node, and needs `--up`", hint="add `--up TYPE`")
        return None
    for name, why in (("rm", "would delete the node under it"), ("collect", "would copy before the command has ended")):
        if run.detach and getattr(flags, name):
            text = f"`--detach` leaves the command running, and `{_flag(name)}` {why}"
            raise InvalidInputError(text, hint="leave one of them out")
    from tpuctl.workers.one_off import OneOffRequest  # noqa: PLC0415  # only for whole jobs

    return OneOffRequest(
        up=flags.up,
        described=described,
        checks=checks,
        remove=flags.rm,
        exclusive=flags.exclusive,
        limit=time_limit(app, limits),
        idle=idle_change(app, idling.idle, idling.on_idle),
        sync=sync,
        collect=flags.collect,
        workers=workers,
    )


def parse_keep(
    app: App,
    flags: KeepFlags,
    one_off: OneOffFlags,
    selection: GivenSelection,
    *,
    limits: TimeLimitOptions,
    idling: IdleOptions,
    checks: CheckOptions,
    described: SpecOptions,
    run: RunFlags,
    workers: WorkerSet,
) -> KeepRequest:
    """Return the kept job that the options describe. Raises `InvalidInputError`."""
    from tpuctl.workers.keep_policy import KeepPolicy, parse_codes  # noqa: PLC0415  # only for kept jobs
    from tpuctl.workers.keep_start import KeepRequest  # noqa: PLC0415  # as above
    from tpuctl.workers.kept_files import NodeAtEnd  # noqa: PLC0415  # as above
    from tpuctl.workers.multislice import DEFAULT_PORT  # noqa: PLC0415  # as above

    if not run.multislice and (len(selection.names) != 1 or set(selection.options.given) - {"types"}):
        raise InvalidInputError(
            "`--keep` takes one node",
            hint="name it: `tpuctl run NODE --keep -- COMMAND`; several are slices of one job with `--multislice`",
        )
    if run.megascale_port and not run.multislice:
        raise InvalidInputError("`--megascale-port` needs `--multislice`", hint="add it, or leave the option out")
    refused = {
        **{name: getattr(run, name) for name in ("batch", "fail_fast", "if_idle", "allow_unreachable")},
        **{name: getattr(run, name) for name in ("connect_timeout", "no_stdin", "skip_validation")},
        "worker": workers != WorkerSet.parse("all"),
        **{name: getattr(one_off, name) for name in ("up", "exclusive")},
    }
    for name in (name for name, value in refused.items() if value):
        hint = (
            "describe the node with `--type` and the other options of `tpuctl up`"
            if name == "up"
            else "leave one of them out"
        )
        raise InvalidInputError(f"cannot combine `--keep` and `{_flag(name)}`", hint=hint)
    settings = app.settings
    if sum((one_off.rm, flags.rm_on_success, flags.stop)) > 1:
        raise InvalidInputError("`--rm`, `--rm-on-success` and `--stop` exclude one another", hint="keep one of them")
    for name in ("on_job_stall", "on_job_end"):
        if run.detach and getattr(flags, name) is not None:
            text = f"`--detach` leaves the job to a supervisor, and `{_flag(name)}` is a command of the supervisor"
            raise InvalidInputError(text, hint="pass it there: `tpuctl watch NODE --job JOB`")
    end = NodeAtEnd.DELETE if one_off.rm else NodeAtEnd.DELETE_ON_SUCCESS if flags.rm_on_success else NodeAtEnd.KEEP

    def duration(name: str) -> timedelta:
        value = getattr(flags, name)
        return value if isinstance(value, timedelta) else settings.duration(name)

    return KeepRequest(
        described=described,
        checks=checks,
        limit=time_limit(app, limits),
        idle=idle_change(app, idling.idle, idling.on_idle),
        sync=find_run_tree(app, sync=run.sync, no_sync=run.no_sync, workdir=run.workdir),
        resync=flags.resync,
        collect=one_off.collect,
        policy=KeepPolicy(
            max_failures=settings.number("max_failures") if flags.max_failures is None else flags.max_failures,
            healthy_after=duration("healthy_after"),
            hang_after=duration("hang_after"),
            start_grace=duration("start_grace"),
            restart_on=parse_codes(
                (settings.text("restart_on") or "") if flags.restart_on is None else flags.restart_on
            ),
            stop_on=parse_codes((settings.text("stop_on") or "") if flags.stop_on is None else flags.stop_on),
            budget=flags.max_cost,
        ),
        end=NodeAtEnd.STOP if flags.stop else end,
        preempt_signal=0 if flags.preempt_signal == "none" else parse_signal(flags.preempt_signal or "TERM"),
        slice_port=(run.megascale_port or DEFAULT_PORT) if run.multislice else None,
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _time_limit(value: timedelta | str | None) -> timedelta | None:
    return value if isinstance(value, timedelta) else None
