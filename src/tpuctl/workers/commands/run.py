"""`tpuctl run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tpuctl.app.lazy_import import body_in, constant_in
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
from tpuctl.app.spec_options import GivenOptions, takes_spec
from tpuctl.app.value_completion import complete_type_or_file, complete_values
from tpuctl.check.commands.preflight_options import CheckOptions
from tpuctl.nodes.commands.idle_options import IdleOptions
from tpuctl.nodes.commands.policy_options import setting_option
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.commands.time_options import TimeLimitOptions

if TYPE_CHECKING:
    from datetime import timedelta

_log_levels = constant_in("tpuctl.workers.environment:LOG_LEVELS")


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
    multislice: bool = option(
        "--multislice",
        is_flag=True,
        help="Run the command as one job over several slices: on all workers of all nodes or on none, with the variables "
        "MEGASCALE_*; a failure of one ends all, and with --keep restarts all. [default: each node on its own]",
    )
    megascale_port: int | None = option(
        "--megascale-port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="Port at which slices reach one another, with --multislice. [default: 8081]",
    )
    skip_validation: bool = option(
        "--skip-validation",
        group=OptionGroup.SAFETY,
        is_flag=True,
        help="With --multislice, run although the slices differ or are not usable.",
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

    @property
    def setup_command(self) -> str | None:
        """The command of `--setup`, None for the set-up of the settings."""
        return None if self.run_setup == _SETUP_OF_SETTINGS else self.run_setup


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
        help="Cost of all attempts, by list prices as far as they are known, after which the job is not started again. "
        "[default: none]",
    )
    hang_after: timedelta | str | None = setting_option("hang_after", DurationType(), "TIME")
    start_grace: timedelta | str | None = setting_option("start_grace", DurationType(), "TIME")
    preempt_signal: str | None = option(
        "--preempt-signal",
        metavar="NAME",
        help="Signal for the job at the notice of a preemption, 10 to 30 s before its end; none: none. [default: TERM]",
    )
    rm_on_success: bool = option(
        "--rm-on-success",
        is_flag=True,
        help="Delete the node when the job has ended with 0, not when it is given up; the same as --rm=success.",
    )
    stop: bool = option(
        "--stop", is_flag=True, help="Stop the single-worker node when the job is over; its boot disk stays."
    )
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


@cli_command("run", takes_command=True, asks_trust=False, spellings={"--rm=success": "--rm-on-success"})
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
@body_in("tpuctl.workers.commands.run_run:run_run")
def command() -> None:
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
      tpuctl run 'train-*' --multislice -- python3 train.py
      tpuctl run --up v5litepod-16 --spot --rm -- ./train.sh
      tpuctl run trainer --keep --name train --type v5litepod-16 --spot -- ./train.sh
      tpuctl run s-0 s-1 --multislice --keep --name train --type v4-16 --spot -- ./train.sh
    """
