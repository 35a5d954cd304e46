"""`tpuctl run`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import (
    DurationType,
    cli_command,
    fanout_option,
    option,
    takes_options,
    worker_option,
)
from tpuctl.app.route_options import route_options
from tpuctl.app.spec_options import GivenOptions, SpecOptions, takes_spec
from tpuctl.app.value_completion import complete_type_or_file, complete_values
from tpuctl.check.commands.preflight_options import CheckOptions
from tpuctl.config.settings import SETTINGS
from tpuctl.errors import ExitCode, InvalidInputError, worst_exit_code
from tpuctl.files import expand_user_path, output_path, read_user_bytes, read_user_text
from tpuctl.models.events import EventKind
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.commands.idle_options import IdleOptions
from tpuctl.nodes.commands.policy_options import build_hooks, setting_option
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.commands.time_options import TimeLimitOptions, time_limit
from tpuctl.nodes.policies import idle_change

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.workers.environment import EnvironmentOptions
    from tpuctl.workers.keep_start import KeepRequest
    from tpuctl.workers.one_off import OneOffRequest
    from tpuctl.workers.run_tree import RunTree
    from tpuctl.workers.runner import RunRequest


def _log_levels(_ctx: click.Context) -> tuple[str, ...]:
    from tpuctl.workers.environment import LOG_LEVELS  # noqa: PLC0415  # only for completion

    return LOG_LEVELS


# The value of `--setup` without one; no command is that.
_SETUP_OF_SETTINGS = "-"


@dataclass(frozen=True, slots=True)
class RunFlags:
    """The options of the command itself."""

    line: str | None = option("--command", metavar="LINE", help="Command to run, as one shell line.")
    script: str | None = option(
        "--script",
        metavar="FILE",
        help="Local script to run on all workers, with the words after -- as its arguments; at most 64 KiB. "
        "[default: the command after --]",
    )
    workdir: str | None = option(
        "--workdir",
        "-w",
        metavar="PATH",
        help="Working directory on the workers. [default: the synced folder, else the home directory]",
    )
    sync: str | None = option(
        "--sync",
        metavar="DIR",
        help="Local folder to sync to the workers first; the command runs there unless --workdir is given. "
        "[default: this git tree, or the folder of tpuctl.yaml, if there is no --workdir]",
    )
    no_sync: bool = option("--no-sync", is_flag=True, help="Sync no folder to the workers.")
    run_setup: str | None = option(
        "--setup",
        is_flag=False,
        flag_value=_SETUP_OF_SETTINGS,
        metavar="[CMD]",
        help="Run the set-up of tpuctl.yaml, or CMD, on the workers first, and record it; not if it is the one that ran last. "
        "Needs no command. With --up or --keep: set-up of the new node.",
    )
    image: str | None = option(
        "--image",
        metavar="IMAGE",
        help="Docker image to run the command in, with the TPU and the working directory. [default: no container]",
    )
    mount: tuple[str, ...] = option(
        "--mount",
        metavar="DIR[:PATH][:ro]",
        multiple=True,
        help="Directory of the worker, such as that of a data disk, to mount in the container of --image, at the same path "
        "or at PATH; ro: read-only. Repeatable.",
    )
    detach: bool = option(
        "--detach", "-d", is_flag=True, help="Start the command, print the job's name, and leave it running."
    )
    job: str | None = option("--name", metavar="JOB", help="Name of the job. [default: from the time]")
    log_dir: str | None = option(
        "--log-dir",
        group=OptionGroup.OUTPUT,
        metavar="DIR",
        help="Local directory for a file with each worker's output.",
    )
    allow_unreachable: bool = option(
        "--allow-unreachable",
        group=OptionGroup.WORKERS,
        is_flag=True,
        help="Run on the reachable workers if some cannot be reached. [default: run on none]",
    )
    if_idle: bool = option(
        "--if-idle",
        group=OptionGroup.SAFETY,
        is_flag=True,
        help="Fail if a job, a TPU process or an ssh session uses a node, or if a worker does not answer within 5 s.",
    )
    fail_fast: bool = option(
        "--fail-fast", is_flag=True, help="Terminate the command everywhere when it fails on one worker."
    )
    timeout: timedelta | str | None = option(
        "--timeout", type=DurationType(), metavar="TIME", help="Time limit of the command: 90s, 30m. [default: none]"
    )
    batch: int | None = option(
        "--batch",
        "--batch-size",
        group=OptionGroup.WORKERS,
        type=click.IntRange(1),
        metavar="N",
        help="Number of workers on which the command runs at the same time. [default: all]",
    )
    connect_timeout: timedelta | str | None = option(
        "--connect-timeout",
        group=OptionGroup.WORKERS,
        type=DurationType(),
        metavar="TIME",
        help="Time limit for connecting to a worker. [default: 45s]",
    )
    no_stdin: bool = option(
        "--no-stdin", "-n", is_flag=True, help="Do not pass stdin to the command on a single worker."
    )


@dataclass(frozen=True, slots=True)
class EnvironmentFlags:
    """The options for the environment of a remote command."""

    env: tuple[str, ...] = option(
        "--env",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="Environment variable of the command; NAME alone takes the local value. Repeatable.",
    )
    env_file: tuple[str, ...] = option(
        "--env-file",
        metavar="FILE",
        multiple=True,
        help="File of environment variables, NAME=VALUE lines as in docker --env-file. Repeatable.",
    )
    tpu_env: bool = option(
        "--tpu-env",
        is_flag=True,
        help="Set the variables that TensorFlow, JAX and Ray read, such as TPU_NAME and TPU_WORKER_HOSTNAMES.",
    )
    tpu_log_dir: str | None = option(
        "--tpu-log-dir",
        metavar="DIR|disabled",
        help="Directory of libtpu's log on the workers (its parent must exist), or disabled.",
    )
    tpu_min_log_level: str | None = option(
        "--tpu-min-log-level",
        metavar="LEVEL",
        shell_complete=complete_values(_log_levels),
        help="Lowest severity in libtpu's log: 0 to 3, or INFO to FATAL.",
    )
    tpu_stderr_log_level: str | None = option(
        "--tpu-stderr-log-level",
        metavar="LEVEL",
        shell_complete=complete_values(_log_levels),
        help="Lowest severity that libtpu also prints on stderr: 0 to 3, or INFO to FATAL.",
    )
    tpu_max_log_size_mb: int | None = option(
        "--tpu-max-log-size-mb",
        type=click.IntRange(min=1),
        metavar="N",
        help="Size in MB at which libtpu starts a new log file. [default: libtpu's]",
    )


@dataclass(frozen=True, slots=True)
class OneOffFlags(GivenOptions):
    """The options of a whole job: a node, files, the command."""

    up: str | None = option(
        "--up",
        metavar="SPEC",
        shell_complete=complete_type_or_file,
        help="Node to bring up first: an accelerator type, or a file like tpuctl.yaml.",
    )
    rm: bool = option(
        "--rm",
        is_flag=True,
        help="Delete the node of --up at the end, also after a failure, if this run created it. If this process is "
        "killed, its time ends an hour after the --timeout of the command (default: a day).",
    )
    exclusive: bool = option("--exclusive", is_flag=True, help="Fail if the node of --up already exists.")
    collect: tuple[str, ...] = option(
        "--collect",
        metavar="PATH",
        multiple=True,
        help="Path on the workers to copy back at the end, with --up or --keep. Repeatable.",
    )


@dataclass(frozen=True, slots=True)
class KeepFlags(GivenOptions):
    """The options of a kept job. Each number is a setting too."""

    keep: bool = option(
        "--keep",
        is_flag=True,
        help="Start the command again until it has ended with 0 on all workers, on a new node where one is needed: after a "
        "preemption, a bad machine, a failure. Takes the options of `tpuctl up`.",
    )
    resync: bool = option(
        "--resync",
        is_flag=True,
        help="Use the present files from the next start on, for a job that was begun with others.",
    )
    max_failures: int | None = setting_option("max_failures", click.IntRange(min=0))
    healthy_after: timedelta | str | None = setting_option("healthy_after", DurationType(), "TIME")
    restart_on: str | None = setting_option("restart_on", None, "CODES")
    stop_on: str | None = setting_option("stop_on", None, "CODES")
    max_cost: float | None = option(
        "--max-cost",
        type=click.FloatRange(min=0, min_open=True),
        metavar="USD",
        help="Cost of all attempts, by list prices, after which the job is not started again. [default: none]",
    )
    hang_after: timedelta | str | None = setting_option("hang_after", DurationType(), "TIME")
    start_grace: timedelta | str | None = setting_option("start_grace", DurationType(), "TIME")
    preempt_signal: str | None = option(
        "--preempt-signal",
        metavar="NAME",
        help="Signal for the job at the notice of a preemption, 10 to 30 s before its end; none: none. [default: TERM]",
    )
    rm_on_success: bool = option(
        "--rm-on-success", is_flag=True, help="Delete the node when the job has ended with 0, not when it is given up."
    )
    stop: bool = option("--stop", is_flag=True, help="Stop the node when the job is over; its boot disk stays.")
    on_job_stall: str | None = option(
        "--on-job-stall",
        group=OptionGroup.HOOKS,
        metavar="CMD",
        help="Local command to run when the job prints nothing, or its chips are idle, for --hang-after; gets the event as "
        "JSON on stdin.",
    )
    on_job_end: str | None = option(
        "--on-job-end",
        group=OptionGroup.HOOKS,
        metavar="CMD",
        help="Local command to run when the job is over; gets the event as JSON on stdin.",
    )


@cli_command("run", takes_command=True, asks_trust=False)
@selection_options()
@worker_option
@takes_options(RunFlags, "flags", group=OptionGroup.PROGRAM)
@fanout_option("commands")
@takes_options(EnvironmentFlags, "environment", group=OptionGroup.ENVIRONMENT)
@takes_options(OneOffFlags, "one_off", group=OptionGroup.ONE_OFF)
@takes_options(KeepFlags, "keeping", group=OptionGroup.KEEP)
# Those of `tpuctl up`, for `--up`.
@takes_options(TimeLimitOptions, "limits", hidden=True)
@takes_options(IdleOptions, "idling", hidden=True)
@takes_options(CheckOptions, "checks", hidden=True)
@takes_spec("described", without=("type", "setup"), hidden=True)
@route_options
def command(
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
    """Run a command on all workers of nodes; exit with 0 only if it exits with 0 on all.

    In a git tree, or below a tpuctl.yaml, the files of that tree are synced to the workers first, and the command runs in the
    same folder there. Only what has changed is sent, and nothing that .gitignore names. Elsewhere nothing is sent.
    The command starts on all workers or, if one cannot be reached, on none; and at most once on each. Of nodes that a pattern
    or condition selects, one that cannot be reached does not keep the others from starting. When a connection
    breaks, the command continues and tpuctl reconnects to its output. Ctrl-C sends INT to it, a second time QUIT, a third time
    KILL. The command is also terminated when its output is no longer read, as with | head.
    One word after -- is a line for the remote shell; several are an argument vector, passed unchanged.

    \b
    Examples:
      tpuctl run trainer -- python3 train.py --steps 1000
      tpuctl run trainer --no-sync --worker 0 -- 'ls -l $HOME'
      tpuctl run trainer --detach --tpu-log-dir /tmp/logs -- ./job.sh
      tpuctl run -l team=vision --fail-fast -- nproc
      tpuctl run trainer --image us-docker.pkg.dev/acme/train/jax:v3 -- python3 train.py
      tpuctl run --up v5litepod-16 --spot --rm -- ./train.sh
      tpuctl run trainer --keep --name train --type v5litepod-16 --spot -- ./train.sh
    """
    from tpuctl.workers.run_tree import find_run_tree  # noqa: PLC0415  # not needed by --help

    workers = WorkerSet.parse(worker)
    if flags.image is not None and (volume := next((name for name in selection.names if ":/" in name), None)):
        # `-v` is tpuctl's own.
        raise InvalidInputError(
            f"`{volume}` is not a node name", hint=f"mount a directory of the workers with `--mount {volume}`"
        )
    if (one_off.up is not None or keeping.keep) and (types := selection.options.types):
        # With `--up` it is the type of the node to create.
        described = replace(described, type=types[-1])
    if (one_off.up is not None or keeping.keep) and flags.run_setup not in {None, _SETUP_OF_SETTINGS}:
        described = replace(described, values={**described.values, "setup": flags.run_setup})
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
        from tpuctl.workers.keep_start import keep_job  # noqa: PLC0415  # as above

        hooks = build_hooks(app, {EventKind.JOB_STALLED: keeping.on_job_stall, EventKind.JOB_ENDED: keeping.on_job_end})
        return keep_job(app, selection.names[0], keep, request, hooks)
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
        from tpuctl.workers.one_off import run_one_off  # noqa: PLC0415  # as above

        names = selection.names
        if len(names) > 1 or set(selection.options.given) - {"types"}:
            raise InvalidInputError("`--up` takes one node", hint="name one, or none to generate a name")
        if flags.if_idle:
            hint = "`--exclusive` fails if the node already exists"
            raise InvalidInputError("`--if-idle` is for nodes that exist, not for `--up`", hint=hint)
        return run_one_off(app, names[0] if names else None, job, request)
    return _run_on_nodes(app, selection, workers, flags, request=request, tree=tree)


def _run_on_nodes(
    app: App,
    selection: GivenSelection,
    workers: WorkerSet,
    flags: RunFlags,
    *,
    request: RunRequest,
    tree: RunTree | None,
) -> int:
    """Run a command on nodes that exist: after their set-up, if that is asked for, and the sync of the tree."""
    from tpuctl.nodes.bring_up import note_changed_setups, run_setup  # noqa: PLC0415  # not needed by --help
    from tpuctl.workers.commands.node_selection import find_selected_nodes  # noqa: PLC0415  # as above
    from tpuctl.workers.execution import run_and_show  # noqa: PLC0415  # as above
    from tpuctl.workers.run_tree import sync_before_run  # noqa: PLC0415  # as above
    from tpuctl.workers.targets import await_key, find_targets  # noqa: PLC0415  # as above

    nodes, errors = find_selected_nodes(app, selection)
    for error in errors:
        app.show_error(error)
    codes = [error.exit_code for error in errors]
    if not nodes:
        return worst_exit_code(codes)
    found = find_targets(app, nodes, workers, names_nodes=selection.is_pattern)
    await_key(app, found)
    if flags.if_idle:
        from tpuctl.nodes.usage import find_node_uses, require_idle  # noqa: PLC0415  # few runs need it

        require_idle(nodes, find_node_uses(app, nodes, counts_leases=False))
    if flags.run_setup is None:
        note_changed_setups(app, nodes)
    else:
        run_setup(app, nodes, None if flags.run_setup == _SETUP_OF_SETTINGS else flags.run_setup, app.progress)
        if not request.line:
            return worst_exit_code(codes)
    request = replace(request, by_node=selection.is_pattern)
    if tree is not None:
        found, request, code = sync_before_run(app, found, tree, request)
        codes.append(code)
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
    from tpuctl.workers.execution import check_no_stdin, shell_line  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.workers.runner import RunRequest  # noqa: PLC0415  # as above
    from tpuctl.workers.worker_jobs import check_job_name  # noqa: PLC0415  # as above

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
    from tpuctl.workers.environment import EnvironmentOptions, logging_variables, parse_env_file, parse_variable  # noqa: PLC0415  # not needed by --help

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
    from tpuctl.workers.run_tree import find_run_tree  # noqa: PLC0415  # as above
    from tpuctl.workers.worker_jobs import parse_signal  # noqa: PLC0415  # as above

    if len(selection.names) != 1 or set(selection.options.given) - {"types"}:
        raise InvalidInputError("`--keep` takes one node", hint="name it: `tpuctl run NODE --keep -- COMMAND`")
    refused = {
        **{name: getattr(run, name) for name in ("batch", "fail_fast", "if_idle", "allow_unreachable")},
        **{name: getattr(run, name) for name in ("connect_timeout", "no_stdin")},
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
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _time_limit(value: timedelta | str | None) -> timedelta | None:
    return value if isinstance(value, timedelta) else None
