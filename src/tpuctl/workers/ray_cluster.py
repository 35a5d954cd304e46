"""`tpuctl ray`: start the jobs of a Ray cluster, ask Ray what it has, end the jobs.

The head and the workers are detached jobs, one on each worker, with names of their own: `jobs`, `logs` and `kill` know them,
and only they are ended.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.errors import ConflictError, NotFoundError, RemoteCommandError, TimedOutError
from tpuctl.models.worker_ports import describe_closed
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_answer
from tpuctl.ssh.channel import AgentError
from tpuctl.ssh.port_probe import probe_ports
from tpuctl.workers.captured_run import run_captured
from tpuctl.workers.environment import EnvironmentOptions
from tpuctl.workers.ray_plan import (
    HEAD_JOB,
    WORKER_JOB,
    RayHost,
    RayPlan,
    check_installed,
    describe_problems,
    install_line,
    parse_installed,
)
from tpuctl.workers.runner import RunRequest
from tpuctl.workers.worker_jobs import LINUX_SIGNALS, Job, JobScope, list_jobs, set_aside, signal_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.captured_run import CommandResult
    from tpuctl.workers.ray_plan import InstalledRay, RayMember

_JOBS = (HEAD_JOB, WORKER_JOB)
_PATIENCE = timedelta(seconds=60)
_INSTALL_LIMIT = timedelta(minutes=15)
# As `ray stop` waits before KILL; Ray would drain for 30 s [observed: Ray 2.60].
_DRAIN = timedelta(seconds=10)
_PROBE = timedelta(seconds=10)
# The first of Ray's ports for its own workers stands for all.
_FIRST_WORKER_PORT = 10002
_ENVIRONMENT = EnvironmentOptions({"RAY_USAGE_STATS_ENABLED": "0"}, tpu=True)
_CLUSTER = re.compile(r"^tpuctl-cluster (\[.{0,200000}\])\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RayStatus:
    """A cluster as Ray reports it. `problems`: by the label of the worker."""

    plan: RayPlan
    hosts: tuple[RayHost, ...]
    problems: dict[str, str]


class RayCluster:
    """The Ray cluster of a plan. `scope` has all its workers."""

    def __init__(self, app: App, plan: RayPlan, nodes: str) -> None:
        self._app, self._plan = app, plan
        self._scope = JobScope([one.target for one in plan.members], shared_connection_options(app), nodes)

    def start(self, *, install: str | None, timeout: timedelta) -> RayStatus:
        """Start what does not run, and wait until Ray has all of it.

        Raises `ConflictError` if the head's port belongs to another program, or workers do not reach it; `TimedOutError` if Ray
        does not have all workers in time. Then what was started is ended.
        """
        plan = self._plan
        if install is not None:
            line = install_line(install)
            self._app.terminal.note(f"installing {install} on {len(plan.members)} workers")
            self._ask(self._scope.targets, line, _INSTALL_LIMIT).check()
        running = self._running()
        has_head = plan.head.target.label in running.get(HEAD_JOB, ())
        installed = self._installed(has_head=has_head)
        self._app.terminal.note(f"{installed} on {len(plan.members)} workers")
        if not has_head:
            self._check_ports()
            # Workers of a head that is gone.
            self._end([name for name in _JOBS if running.get(name)])
            running = {}
        missing = [one for one in plan.members[1:] if one.target.label not in running.get(WORKER_JOB, ())]
        started: list[tuple[str, list[RayMember]]] = []
        try:
            for job, members in ((HEAD_JOB, [] if has_head else [plan.head]), (WORKER_JOB, missing)):
                if members:
                    started.append((job, members))
                    self._launch(job, members)
            return self._complete(timeout)
        except BaseException:
            self._app.terminal.note("ending what this command started of the cluster")
            for job, members in reversed(started):
                self._end([job], [one.target for one in members])
            raise

    def _complete(self, timeout: timedelta) -> RayStatus:
        """Wait until Ray has all workers. Raises `TimedOutError` if it does not in time."""
        status = self.status(timeout)
        if status.problems:
            texts = [f"worker {label} {text}" for label, text in status.problems.items()]
            raise TimedOutError(
                f"Ray does not have all workers: {'; '.join(texts[:4])}",
                hint=f"show why: `tpuctl logs {self._scope.nodes} ray-worker`",
            )
        return status

    def status(self, timeout: timedelta = timedelta()) -> RayStatus:
        """Ask Ray, through its own client on the head, what it has; wait up to `timeout` until it has all workers."""
        result = self._ask(
            [self._plan.head.target], self._plan.watch_line(timeout.total_seconds()), timeout + _PATIENCE
        )
        found = _CLUSTER.search(result.workers[0].stdout)
        if found is None:
            last = result.workers[0].stderr.strip().rpartition("\n")[2]
            raise RemoteCommandError(
                f"Ray on worker {self._plan.head.target.label} does not answer: {last[:300] or result.error or 'no report'}",
                hint=f"show its log: `tpuctl logs {self._plan.head.target.node.name.node_id} ray-head`",
            )
        hosts = decode_answer(tuple[RayHost, ...], parse_answer(found[1]), "the hosts")
        return RayStatus(self._plan, hosts, describe_problems(self._plan, hosts))

    def require_started(self) -> None:
        """Raise `NotFoundError` if no head of tpuctl runs here."""
        if self._plan.head.target.label not in self._running().get(HEAD_JOB, ()):
            raise NotFoundError(
                f"no Ray head of tpuctl runs on worker {self._plan.head.target.label}",
                hint=f"start one: `tpuctl ray up {self._scope.nodes}`",
            )

    def stop(self) -> Sequence[str]:
        """End the jobs of the cluster; return the labels of their workers.

        Raises `ConflictError` if a Ray runs there that tpuctl did not start, and `NotFoundError` if none runs.
        """
        running = self._running()
        labels = list(dict.fromkeys(label for name in _JOBS for label in running.get(name, ())))
        if not labels:
            installed = self._asked([self._plan.head])
            if installed and installed[0][1] is not None and installed[0][1].listens:
                raise ConflictError(
                    f"the program at {self._plan.address} was not started by `tpuctl ray up`: it is left alone",
                    hint=f"end it where it was started; a Ray of yours: `tpuctl run {self._scope.nodes} -- ray stop`",
                )
            raise NotFoundError(
                f"no Ray of tpuctl runs on `{self._scope.nodes}`",
                hint=f"list its jobs: `tpuctl jobs {self._scope.nodes}`",
            )
        self._end([name for name in (WORKER_JOB, HEAD_JOB) if running.get(name)])
        return labels

    def _ask(self, targets: Sequence[Target], line: str, timeout: timedelta) -> CommandResult:
        request = RunRequest(
            line=line,
            shown="tpuctl ray",
            environment=_ENVIRONMENT,
            takes_stdin=False,
            timeout=timeout,
            notes_uses=False,
        )
        return run_captured(self._app, targets, request)

    def _running(self) -> dict[str, list[str]]:
        """Return the labels of the workers on which each job runs. Raises the error of a worker that does not answer."""
        listing = list_jobs(self._scope)
        if listing.failures:
            raise listing.errors[0]
        return {job.name: _running_on(job) for job in listing.jobs if job.name in _JOBS}

    def _asked(self, members: Sequence[RayMember]) -> list[tuple[RayMember, InstalledRay | None]]:
        result = self._ask([one.target for one in members], self._plan.ask_line(), _PATIENCE)
        output = {(run.node, run.worker): run.stdout for run in result.workers}
        return [(one, parse_installed(output[one.target.node.name, one.target.worker])) for one in members]

    def _installed(self, *, has_head: bool) -> InstalledRay:
        """Return the Ray that all workers have. Raises `ConflictError` if another program listens at the head's port."""
        found = self._asked(self._plan.members)
        head = found[0][1]
        if head is not None and head.listens and not has_head:
            raise ConflictError(
                f"a program that is not of tpuctl listens at {self._plan.address}",
                hint="use another port: `--port 6380`; or end that program",
            )
        return check_installed(found)

    def _check_ports(self) -> None:
        """Raise `ConflictError` if workers do not reach the head."""
        if len(self._plan.members) < 2:
            return
        ports = (self._plan.port, _FIRST_WORKER_PORT)
        targets = [one.target for one in self._plan.members]
        try:
            probe = probe_ports(
                targets,
                self._plan.head.address,
                ports,
                timeout=_PROBE,
                ssh_options=shared_connection_options(self._app),
            )
        except (AgentError, UnexpectedAnswerError):
            return  # Ray says why
        if closed := probe.closed():
            raise ConflictError(
                describe_closed(probe.listener, closed),
                hint=f"`tpuctl doctor {' '.join(self._plan.slices)}` names the rule that opens them",
            )

    def _launch(self, job: str, members: Sequence[RayMember]) -> None:
        targets = [one.target for one in members]
        scope = replace(self._scope, targets=targets)
        _, errors = set_aside(scope, job, f"{job}.{int(self._app.now().timestamp())}")
        if errors:
            raise errors[0]
        for line in dict.fromkeys(self._plan.line(one) for one in members):
            same = [one.target for one in members if self._plan.line(one) == line]
            request = RunRequest(
                line=line,
                shown=f"tpuctl ray up ({job})",
                environment=_ENVIRONMENT,
                job=job,
                detach=True,
                takes_stdin=False,
                notes_uses=False,
            )
            run_captured(self._app, same, request).check()

    def _end(self, names: Sequence[str], targets: Sequence[Target] | None = None) -> None:
        """Send TERM to the jobs, on these workers or on all, and KILL to what is left.

        Raises the error of a worker that does not answer.
        """
        scope = self._scope if targets is None else replace(self._scope, targets=targets)
        for name in names:
            try:
                done = signal_job(scope, name, LINUX_SIGNALS["TERM"], wait=_DRAIN)
                if done.job.is_running:
                    done = signal_job(scope, name, LINUX_SIGNALS["KILL"], wait=_PROBE)
            except NotFoundError:
                continue
            if done.errors:
                raise done.errors[0]
            if done.job.is_running:
                raise TimedOutError(f"job `{name}` still runs on worker {', '.join(_running_on(done.job))}")


def _running_on(job: Job) -> list[str]:
    return [share.target.label for share in job.shares if share.result is None]
