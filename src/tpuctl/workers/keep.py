"""`run --keep` and `watch --job`: bring its nodes up, run a job on it, find out why it ended, start it again until it is done.

`Supervisor` is the loop of both: read the journal, decide (`keep_policy`), act. It keeps nothing in memory that the next
process would miss. Before a start its token is written to the journal, and a worker starts one token at most once; the job has
the same name in all attempts, and a worker has at most one job of a name. So a supervisor may be killed at any moment.

A job over several slices stands in the journal of its first node, its home; its order names all of them. If one is lost, all
processes are restarted, with the addresses and numbers of the slices as they are then.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.clock import SystemClock
from tpuctl.durations import format_duration
from tpuctl.errors import (
    ConflictError,
    ExitCode,
    NotFoundError,
    RemoteCommandError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.files import make_private_folder
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import Health, NodeState, WorkerSet
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName, NodeReference
from tpuctl.nodes.actions import stop_node
from tpuctl.nodes.bring_up import plan_bring_up, run_planned
from tpuctl.nodes.group_lookup import find_group
from tpuctl.nodes.kept_jobs import JobAttempt, KeptJob, Verdict, kept_jobs_of
from tpuctl.nodes.lease_guard import LeaseGuard, TakenOverError
from tpuctl.nodes.lookup import SearchPlace
from tpuctl.nodes.policies import retry_until_answered
from tpuctl.nodes.rendering import count_words
from tpuctl.nodes.tear_down import tear_down
from tpuctl.prices import hourly_price
from tpuctl.ssh.channel import AgentError
from tpuctl.workers.environment import EnvironmentOptions, session_variables
from tpuctl.workers.execution import WorkerOutputStreams, diagnose_output, log_name, why_gone
from tpuctl.workers.hang_watch import HangWatch
from tpuctl.workers.job_ends import EndFacts, Judgement, NodeFate, WorkerEnd, judge_end
from tpuctl.workers.keep_policy import ContinueAttempt, EndJob, StartAttempt, decide_next
from tpuctl.workers.kept_files import NodeAtEnd
from tpuctl.workers.multislice import plan_slices
from tpuctl.workers.node_test import node_test_errors, run_node_test
from tpuctl.workers.one_off import collect_files
from tpuctl.workers.runner import RunRequest, StopReason, follow_on_workers, run_on_workers
from tpuctl.workers.syncing import SyncRequest, sync_workers
from tpuctl.workers.targets import await_key, find_targets
from tpuctl.workers.worker_jobs import LINUX_SIGNALS, Job, JobScope, list_jobs, remove_jobs, set_aside, signal_job
from tpuctl.workers.worker_session import WorkerOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.bring_up import PlannedWork, UpRequest
    from tpuctl.nodes.hooks import Hooks
    from tpuctl.nodes.kept_jobs import JobPlace
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.kept_files import KeptFiles, KeptOrder
    from tpuctl.workers.runner import RunResult
    from tpuctl.workers.worker_session import WorkerResult

# Not a zone: a job may move to another one, and has one supervisor in all of them.
_LEASE_ZONE = "jobs"
_LEASE_POLL = timedelta(seconds=10)
# The other workers may report their own exit code for so long; then they are stopped, with so much time between TERM and KILL.
_OWN_END_WITHIN = timedelta(seconds=5)
_STOP_GRACE = timedelta(seconds=30)
_TEST_TIMEOUT = timedelta(minutes=10)
# So many earlier attempts stay on a worker, with their whole output.
_ATTEMPTS_THERE = 3
# Workers have notice of a preemption for so long before the API shows it, and much longer.
_NOTICE_LASTS = timedelta(minutes=2)
_NOTICE_POLL = timedelta(seconds=5)
_OURS = (LINUX_SIGNALS["TERM"], LINUX_SIGNALS["KILL"])
_STOPPED = frozenset({NodeState.STOPPED, NodeState.STOPPING, NodeState.DELETING})
# Of several slices the first of these counts.
_BY_WEIGHT = (NodeFate.DELETED, NodeFate.PREEMPTED, NodeFate.BROKEN, NodeFate.ALIVE)


def job_lease(project: str, node_id: str) -> NodeName:
    """Return the name of the lease of a node's kept job, which is no node's."""
    return NodeName(project, _LEASE_ZONE, f"{node_id}.job")


@contextmanager
def supervising(app: App, project: str, *node_ids: str, force_lease: bool = False) -> Iterator[None]:
    """Hold the lease of the kept job of each node; wait while another process has it."""
    with ExitStack() as held:
        for node_id in node_ids:
            name, noted = job_lease(project, node_id), ""
            while (other := app.services.leases.acquire(name, "run", force_lease=force_lease)) is not None:
                if other.record.who != noted:
                    noted = other.record.who
                    app.terminal.note(f"`{noted}` supervises the job of `{node_id}`: waiting until it ends")
                app.clock.sleep(_LEASE_POLL)
            held.callback(app.services.leases.release, name)
        yield


class Supervisor:
    """Supervises one kept job. `first` is how to bring its nodes up for the first attempt of this process, None as before."""

    def __init__(
        self,
        app: App,
        place: JobPlace,
        order: KeptOrder,
        files: KeptFiles,
        *,
        request: Callable[[NodeSpec | None], UpRequest],
        hooks: Hooks,
        first: Callable[[], tuple[Node, ...]] | None = None,
        detach: bool = False,
    ) -> None:
        self._app, self._home, self.name = app, place.home, place.job.name
        self._order, self._files, self._policy = order, files, order.policy
        self._request, self._first, self._detach, self._hooks = request, first, detach, hooks
        self._lease = job_lease(place.home.project, place.home.node_id)
        # What its output is read from: the attempt that is followed.
        self._has_followed = False

    @property
    def node_id(self) -> str:
        """The name of the node; of several slices that of the first."""
        return self._home.node_id

    @property
    def _node_words(self) -> str:
        """The names of all its nodes."""
        return " ".join(self._order.slices or (self.node_id,))

    def run(self) -> int:
        """Supervise until the job is over. Return its exit code."""
        watch = f"tpuctl watch {self.node_id} --job {self.name}"
        undo = f"tpuctl kill {self._node_words} {self.name}"
        with self._app.in_flight(f"job `{self.name}` goes on without a supervisor", resume=watch, undo=undo):
            while True:
                job = self._read()
                if job.outcome is not None:
                    self._app.terminal.note(f"{self.name}: {job.outcome}")
                    return job.exit_code or ExitCode.OK
                match decide_next(self._policy, job, self._app.now()):
                    case EndJob() as end:
                        return self._finish(job, end)
                    case ContinueAttempt(attempt):
                        self._continue(attempt)
                    case StartAttempt() as step:
                        self._start(job, step)
                if self._detach and self._has_followed:
                    return ExitCode.OK

    def _read(self) -> KeptJob:
        jobs = kept_jobs_of(self._app.services.journal.entries(self._home))
        if self.name not in jobs:
            self._app.services.journal.check(self._home)
            raise NotFoundError(f"the journal has no job `{self.name}` of `{self.node_id}`")
        return jobs[self.name]

    def _write(self, event: str, **data: Any) -> None:  # JSON
        """Write an entry of the job, if it is still ours. Raises `TakenOverError` and `JournalError`."""
        self._require_lease()
        self._app.services.journal.append(self._home, event, self._app.now(), job=self.name, **data)

    def _require_lease(self) -> None:
        if not self._app.services.leases.holds(self._lease):
            raise TakenOverError(
                f"another process supervises job `{self.name}` of `{self.node_id}` now",
                hint=f"the job goes on; its record: `tpuctl history {self.node_id}`",
            )

    def _start(self, job: KeptJob, step: StartAttempt) -> None:
        """Start the next attempt on all workers, and follow it."""
        if step.number > 1:
            pause = f" in {format_duration(step.pause)}" if step.pause else ""
            where = " on a new node" if step.new_node else ""
            verdict = step.reason.partition(":")[0]
            self._app.terminal.note(f"{self.name}: attempt {step.number}{pause}{where} ({verdict})")
        self._app.clock.sleep(step.pause)
        if self._read().stopped is not None:  # meanwhile
            return
        if step.new_node or (step.tests_node and not self._is_sound(job.attempts[-1])):
            last = job.attempts[-1]
            self._delete_nodes(last, [self._suspect(last)], leaves_others=True)
        if job.attempts and job.attempts[-1].verdict is Verdict.PREEMPTED:
            self._await_preemption(job.attempts[-1])
        nodes = self._bring_up()
        node = nodes[0]
        attempt = JobAttempt(
            number=step.number,
            began=self._app.now(),
            node_id=node.id,
            others=tuple((other.name.node_id, other.id) for other in nodes[1:]),
            zone=node.name.zone,
            tier=str(node.tier),
            token=secrets.token_hex(16),
            reason=step.reason,
        )
        price = hourly_price(node.accelerator_type, node.name.zone, str(node.tier)).per_hour
        if price is None and self._policy.budget is not None:
            self._app.terminal.warn(
                f"the price of `{self.node_id}` is unknown: `--max-cost` does not count this attempt"
            )
        entry = {
            "node": attempt.node_id,
            "zone": attempt.zone,
            "tier": attempt.tier,
            "token": attempt.token,
            "reason": attempt.reason,
            **({"others": dict(attempt.others)} if attempt.others else {}),
            **({} if price is None else {"price": float(price) * len(nodes)}),
        }
        with self._node_leases(nodes):
            targets: Sequence[Target] = ()
            try:
                targets = self._targets(nodes)
                ends = self._prepare(targets, step.number - 1)
            except TakenOverError:
                raise
            except (RemoteCommandError, ConflictError, TimedOutError) as error:
                ends = [WorkerEnd("", None, why=error.message)]
            if self._read().stopped is not None:
                return
            if ends:
                # One entry: the attempt has begun and ended, and nothing of it may be started later.
                judgement = self._judge(attempt, ends, targets)
                self._write("job-start", attempt=attempt.number, **entry, **_entry_of(judgement))
                self._note_end(attempt, judgement)
                return
            self._write("job-start", attempt=attempt.number, **entry)
            self._launch_and_follow(attempt, nodes, targets)

    def _prepare(self, targets: Sequence[Target], number: int) -> list[WorkerEnd]:
        """Put the files on the workers, and end what is left of the former attempt. Return why workers cannot start.

        Raises `TpuctlError` if what is left does not end, or may not have ended.
        """
        ends = self._sync(targets) if self._order.synced_to is not None else []
        if not ends:
            self._clear(targets, number)
        return ends

    def _is_sound(self, attempt: JobAttempt) -> bool:
        """Test the node that may have failed an attempt. Return whether all its chips work, as far as they can be tested."""
        nodes, suspect = self._found_nodes(attempt), self._suspect(attempt)
        if not nodes:
            return True  # there is no such node to replace
        node = next(node for node in nodes if node.name == suspect)
        self._app.terminal.note(f"{self.name}: testing `{suspect.node_id}` after {attempt.number} attempts")
        try:
            every = self._targets(nodes)
            self._stop(every)
            targets = [target for target in every if target.node.name == suspect]
            limit = min(_TEST_TIMEOUT, self._policy.hang_after)
            fanout = self._order.fanout
            test = run_node_test(self._app, node, targets, python="python3", timeout=limit, fanout=fanout)
            errors = node_test_errors(test)
        except (RemoteCommandError, ConflictError, TimedOutError) as error:
            errors = [error]
        text = f"not sound: {errors[0].message}" if errors else "sound"
        self._app.terminal.note(f"{self.name}: `{suspect.node_id}` is {text}")
        return not errors

    def _await_preemption(self, attempt: JobAttempt) -> None:
        """Wait until the API shows a preemption of which the workers had notice."""
        until = self._app.now() + _NOTICE_LASTS
        while self._found_nodes(attempt) and self._app.now() < until:
            self._app.clock.sleep(_NOTICE_POLL)

    def _found_nodes(self, attempt: JobAttempt) -> tuple[Node, ...]:
        """Return the nodes of an attempt; none if one is gone, recreated or does not run, however long the API takes."""
        ids = self._ids(attempt)
        nodes = [node for node in map(self._find_node, ids) if node is not None and _may_run(node)]
        return tuple(nodes) if {node.name: node.id for node in nodes} == ids else ()

    def _find_node(self, name: NodeName) -> Node | None:
        app = self._app
        return retry_until_answered(app, lambda: app.services.client.find_node(name), timeout=None)

    def _continue(self, attempt: JobAttempt) -> None:
        """Go on with an attempt that another process started, or began to start."""
        nodes = self._found_nodes(attempt)
        if not nodes:
            self._record_end(attempt, (), ())
            return
        with self._node_leases(nodes):
            try:
                targets = self._targets(nodes)
            except (RemoteCommandError, ConflictError, TimedOutError) as error:
                if self._found_nodes(attempt):
                    raise
                self._record_end(attempt, [WorkerEnd("", None, why=error.message)], ())
                return
            if attempt.has_started:
                self._follow(attempt, targets)
            else:
                self._launch_and_follow(attempt, nodes, targets)

    def _launch_and_follow(self, attempt: JobAttempt, nodes: Sequence[Node], targets: Sequence[Target]) -> None:
        """Start an attempt on the workers that do not have it; then follow it."""
        have = self._workers_with_job(targets)
        missing = [target for target in targets if target.label not in have]
        if missing:
            self._require_lease()
            results = self._launch(attempt, nodes, missing)
            if not all(one.outcome is WorkerOutcome.DETACHED for one in results):
                self._record_end(attempt, [_end_of(one) for one in results], targets)
                return
        self._write("job-running", attempt=attempt.number)
        where = f"{nodes[0].name.zone}/{nodes[0].name.node_id}"
        workers = count_words(len(targets), "worker")
        if self._order.slices:
            where += f" and {count_words(len(nodes) - 1, 'other slice')}"
        self._app.terminal.note(f"{self.name}: attempt {attempt.number} runs on {where}, {workers}")
        if self._detach:
            self._has_followed = True
            return
        self._follow(replace(attempt, has_started=True), targets)

    def _workers_with_job(self, targets: Sequence[Target]) -> set[str]:
        return {target.label for job in list_jobs(self._scope(targets)).jobs for target in job.targets}

    def _launch(
        self, attempt: JobAttempt, nodes: Sequence[Node], targets: Sequence[Target]
    ) -> tuple[WorkerResult, ...]:
        order, reason = self._order, attempt.reason if attempt.number > 1 else ""
        variables = {
            "TPUCTL_JOB": self.name,
            "TPUCTL_ATTEMPT": str(attempt.number),
            "TPUCTL_RESTART_REASON": reason.partition(":")[0],
        }
        request = RunRequest(
            line=order.line,
            shown=order.shown,
            environment=EnvironmentOptions(
                variables | order.environment,
                order.tpu,
                order.container_program,
                # Of these nodes: a slice that was made again may have another address.
                plan_slices(nodes, port=order.slice_port, checks_types=False) if order.slices else None,
            ),
            job=self.name,
            folder=order.folder,
            detach=True,
            takes_stdin=False,
            passes_signals=False,
            token=attempt.token,
            notice_signal=order.preempt_signal,
            fanout=order.fanout,
        )
        with WorkerOutputStreams(self._app.terminal, targets) as streams:
            return run_on_workers(
                targets,
                request,
                streams,
                environment=lambda one: session_variables(request.environment, one.node, one.worker),
                why_gone=lambda target: why_gone(self._app, target),
                ssh_options=shared_connection_options(self._app),
            ).results

    def _follow(self, attempt: JobAttempt, targets: Sequence[Target]) -> None:
        """Pass on the output of an attempt until it has ended everywhere, and write why."""
        listing = list_jobs(self._scope(targets))
        silent = {target.label for target in listing.silent}
        job = listing.jobs[0] if listing.jobs else None
        have = {target.label for target in job.targets} if job else set()
        ends = [
            WorkerEnd(target.label, None, why="its job is gone: its disk was lost")
            for target in targets
            if target.label not in have | silent
        ]
        if job is None and not silent:
            self._record_end(attempt, ends, targets)
            return
        if ends:
            self._app.terminal.note(f"{self.name}: the others wait for worker {ends[0].worker}: stopping them")
            self._stop(targets)
        order = self._order
        folder = (Path(order.log_folder) if order.log_folder else self._files.log_folder) / str(attempt.number)
        job, followed = job or Job(self.name, ()), SystemClock().monotonic()
        with (
            _AttemptOutput(self._app, targets, folder) as output,
            self._hang_watch(attempt, job, targets, output) as watch,
        ):
            result = self._follow_to_end(output.resumed(job), listing.silent, output)
        # The age is that of the worker's clock, and what follows is measured here.
        ran = job.age + SystemClock().monotonic() - followed
        delays = job.delays
        ends += [
            _end_of(one, stopped=result.stopped, delay=delays.get(one.target.label, timedelta()))
            for one in result.results
        ]
        diagnosis = diagnose_output(result.results, output.streams.tail)
        answering = [one.target for one in result.results if one.code is not None]
        if answering and (order.log_folder or order.collect):
            with self._app.terminal.group("collect logs and files"):
                collect_files(self._app, answering, order.collect, folder)
        self._record_end(
            attempt,
            ends,
            targets,
            has_timed_out=result.stopped is StopReason.TIMED_OUT,
            hung=watch.text or attempt.hung,
            late_worker=watch.worker or attempt.late_worker,
            **(
                {
                    "message": diagnosis.id,
                    "message_worker": diagnosis.worker,
                    "blames_machine": diagnosis.blames_machine,
                    "blames_peer": diagnosis.blames_peer,
                }
                if diagnosis
                else {}
            ),
            ran=ran,
        )

    def _follow_to_end(self, job: Job, silent: Sequence[Target], output: _AttemptOutput) -> RunResult:
        left = None
        if self._policy.timeout is not None:
            # Another machine's clock may have written the beginning.
            passed = max(self._app.now() - self._read().began, timedelta())
            left = max(self._policy.timeout - passed, timedelta())
        request = RunRequest(
            fail_fast=True,
            fail_fast_after=_OWN_END_WITHIN,
            stop_grace=_STOP_GRACE,
            timeout=left,
            fanout=self._order.fanout,
        )
        return follow_on_workers(
            job,
            silent,
            output,
            why_gone=lambda target: why_gone(self._app, target),
            ssh_options=shared_connection_options(self._app),
            request=request,
        )

    def _hang_watch(
        self, attempt: JobAttempt, job: Job, targets: Sequence[Target], output: _AttemptOutput
    ) -> HangWatch:
        def warn(why: str) -> None:
            where = f"`tpuctl stacks {self.node_id}` shows where it is"
            text = f"job `{self.name}` may hang: {why}"
            self._app.terminal.warn(f"{text}; {where}")
            data = {"job": self.name, "attempt": attempt.number}
            self._hooks(NodeEvent(EventKind.JOB_STALLED, self._app.now(), self._home, text, data))

        def end(text: str, worker: str) -> None:
            # First: the next supervisor must not take 0 after our TERM for the end of its work.
            self._write("job-hang", attempt=attempt.number, text=text, worker=worker)
            self._app.terminal.note(f"{self.name}: attempt {attempt.number} hangs: stopping the remote processes")
            self._stop(targets)

        return HangWatch(
            self._policy,
            self._scope(targets),
            output.folder,
            ran=job.age,
            last_output=lambda: output.last_output,
            warn=warn,
            end=end,
        )

    def _record_end(
        self,
        attempt: JobAttempt,
        ends: Sequence[WorkerEnd],
        targets: Sequence[Target],
        *,
        ran: timedelta | None = None,
        **seen: Any,
    ) -> None:  # the other fields of `EndFacts`
        """Judge the end of an attempt, and write it. `ran` is how long it ran if no worker reports that."""
        judgement = self._judge(attempt, ends, targets, **seen)
        if judgement.ran is None:
            judgement = replace(judgement, ran=ran)
        self._write("job-end", attempt=attempt.number, **_entry_of(judgement))
        self._note_end(attempt, judgement)

    def _note_end(self, attempt: JobAttempt, judgement: Judgement) -> None:
        text = f"{judgement.verdict}: {judgement.evidence}"
        self._app.terminal.note(f"{self.name}: attempt {attempt.number} ended: {text}")
        if self._app.summary:
            self._app.summary.note(f"job {self.name}, attempt {attempt.number} in {attempt.zone}: {text}")

    def _judge(
        self, attempt: JobAttempt, ends: Sequence[WorkerEnd], targets: Sequence[Target], **seen: Any
    ) -> Judgement:  # as above
        """Ask the API about the nodes, and return why an attempt ended."""
        reported = {end.worker for end in ends}
        ends = [*ends, *(WorkerEnd(one.label, None) for one in targets if one.label not in reported)]
        fate, text = self._fate(attempt)
        if fate in {NodeFate.ALIVE, NodeFate.BROKEN} and any(end.code is None for end in ends):
            self._stop(targets)
        judgement = judge_end(EndFacts(node=fate, node_text=text, workers=tuple(ends), **seen))
        stopped = self._read().stopped
        if stopped is not None and judgement.verdict is not Verdict.SUCCEEDED:
            judgement = replace(judgement, verdict=Verdict.STOPPED, evidence=stopped)
        return judgement

    def _fate(self, attempt: JobAttempt) -> tuple[NodeFate, str]:
        """Return what the API says about the nodes of an attempt, however long that takes: of several what counts most.

        What a user deleted counts more than a preemption: the job does not start again.
        """
        fates = [(*self._node_fate(name, node_id), name) for name, node_id in self._ids(attempt).items()]
        fate, text, name = min(fates, key=lambda one: _BY_WEIGHT.index(one[0]))
        return fate, f"`{name.node_id}`: {text}" if text and self._order.slices else text

    def _node_fate(self, name: NodeName, node_id: str) -> tuple[NodeFate, str]:
        app, node = self._app, self._find_node(name)
        if node is not None and node.id == node_id and node.is_preempted:
            return NodeFate.PREEMPTED, f"its node is {node.state}"
        spec = NodeSpec.from_json(self._order.spec) if self._order.spec else None
        requested = spec.request_name(name) if spec else name
        request = retry_until_answered(app, lambda: app.services.client.find_queued_resource(requested), timeout=None)
        if request is not None and request.was_suspended_by_service:
            return NodeFate.PREEMPTED, f"its queued resource is {request.state}"
        lease = app.services.leases.holder(name)
        if lease is not None and lease.record.ended:
            return NodeFate.DELETED, f"`{lease.record.purpose}` ended its node ({lease.record.who})"
        if node is None:
            return NodeFate.DELETED, "another client deleted its node"
        if node.id != node_id:
            return NodeFate.BROKEN, "another client recreated its node"
        if node.state in _STOPPED:
            return NodeFate.DELETED, f"its node is {node.state}"
        is_well = node.state is NodeState.READY and node.health in {Health.HEALTHY, Health.HEALTH_UNSPECIFIED}
        return (NodeFate.ALIVE, "") if is_well else (NodeFate.BROKEN, f"its node is {node.state} and {node.health}")

    def _bring_up(self) -> tuple[Node, ...]:
        if self._first is not None:
            first, self._first = self._first, None
            return first()
        spec = NodeSpec.from_json(self._order.spec) if self._order.spec else None
        request, names = self._request(spec), [self.node_id]
        if self._order.slices:
            names = [str(replace(self._home, node_id=node_id)) for node_id in self._order.slices]
        if self._order.slices and spec is not None and spec.queued_slices(self._home):
            # One queued resource requests all of them.
            names, request = [str(spec.request_name(self._home))], replace(request, slices=spec.slices)
        return bring_up_planned(self._app, plan_bring_up(self._app, names, request), request)

    def _targets(self, nodes: Sequence[Node]) -> list[Target]:
        found = find_targets(self._app, nodes, WorkerSet.parse("all"), names_nodes=bool(self._order.slices))
        await_key(self._app, found)
        return found

    def _scope(self, targets: Sequence[Target]) -> JobScope:
        return JobScope(targets, shared_connection_options(self._app), self.node_id, self.name)

    def _clear(self, targets: Sequence[Target], number: int) -> None:
        """Make sure that the job does not run on any worker, and give the former attempt another name there.

        Raises `TpuctlError` if a worker does not answer, and `ConflictError` if its processes do not end.
        """
        self._stop(targets)
        running, errors = set_aside(self._scope(targets), self.name, f"{self.name}.{number}")
        if errors:
            raise errors[0]
        if running:
            labels = ", ".join(target.label for target in running)
            raise ConflictError(f"job `{self.name}` still runs on worker {labels} of `{self.node_id}`")
        if number > _ATTEMPTS_THERE:
            # Their output must not fill the disk of a worker.
            with suppress(TpuctlError):
                remove_jobs(self._scope(targets), [f"{self.name}.{number - _ATTEMPTS_THERE}"], older=timedelta())

    def _stop(self, targets: Sequence[Target]) -> None:
        """End what still runs of the job, on the workers that answer."""
        with suppress(TpuctlError):
            listing = list_jobs(self._scope(targets))
            if any(job.is_running for job in listing.jobs):
                scope = self._scope(targets)
                done = signal_job(scope, self.name, LINUX_SIGNALS["TERM"], wait=_STOP_GRACE)
                if done.job.is_running:
                    signal_job(scope, self.name, LINUX_SIGNALS["KILL"], wait=_STOP_GRACE)

    def _sync(self, targets: Sequence[Target]) -> list[WorkerEnd]:
        """Put the files of the first start on the workers. Return why that failed on some."""
        folder = self._order.synced_to or ""
        with self._files.archived_tree() as tree:
            synced = sync_workers(
                targets,
                tree,
                SyncRequest(folder=folder, delete=True),
                clock=SystemClock(),
                on_progress=lambda *_: None,
                ssh_options=shared_connection_options(self._app),
            )
        return [
            WorkerEnd(
                target.label,
                None,
                why=f"syncing failed: {error.message}",
                was_refused=not (isinstance(error, AgentError) and error.is_retriable),
            )
            for target, error in synced.failed
        ]

    @contextmanager
    def _node_leases(self, nodes: Sequence[Node]) -> Iterator[None]:
        """Hold the lease of each node, if it is free: another command must not repair it under the job."""
        with ExitStack() as held:
            for node in nodes:
                guard = LeaseGuard(self._context(), node.name, "run", force_lease=False)
                with suppress(TpuctlError):
                    guard.take()
                held.callback(guard.release)
            yield

    def _context(self) -> ActionContext:
        return self._app.services.context(lambda _: None)

    def _ids(self, attempt: JobAttempt) -> dict[NodeName, str]:
        """Return the nodes of an attempt, with their ids."""
        ids = {self.node_id: attempt.node_id, **dict(attempt.others)}
        return {replace(self._home, zone=attempt.zone, node_id=name): value for name, value in ids.items()}

    def _suspect(self, attempt: JobAttempt) -> NodeName:
        """Return the node of the worker that ended an attempt; the first if that is not known."""
        names, slice_id = [*self._ids(attempt)], attempt.worker.rpartition("-")[0]
        return next((name for name in names if self._order.slices and name.node_id == slice_id), names[0])

    def _delete_nodes(self, attempt: JobAttempt, names: Sequence[NodeName], *, leaves_others: bool = False) -> None:
        """Delete nodes of an attempt, as far as they still exist. Raises why one is not deleted.

        Another node of its name is an error, unless it `leaves_others`: a killed supervisor may have replaced the node already.
        """
        ids = self._ids(attempt)
        for name in names:
            self._require_lease()
            with self._app.progress() as progress:
                context = self._app.services.context(progress)
                place = SearchPlace(name.project, name.zone)
                group = find_group(context, place, NodeReference(name.node_id, name.zone, name.project))
                if group is None:
                    continue
                foreign = next((node.name.node_id for node in group.nodes if node.name not in ids), None)
                if foreign is not None:
                    raise ConflictError(f"`{name.node_id}` is requested with `{foreign}`, which is not of this job")
                if other := next((node.name for node in group.nodes if node.id != ids[node.name]), None):
                    if leaves_others:
                        continue
                    raise ConflictError(f"another client recreated `{other.node_id}`; leaving the new node untouched")
                (result,) = tear_down(context, [group], by="run", timeout=None)
            if isinstance(result, TpuctlError):
                raise result

    def _finish(self, job: KeptJob, end: EndJob) -> int:
        """End the node if the user wants that, write that the job is over, and run the hook. Return the exit code.

        The node comes first: a supervisor that is killed in between leaves the rest to the next one.
        """
        self._app.terminal.note(f"{self.name}: {end.outcome}")
        if self._app.summary:
            self._app.summary.note(f"job {self.name}: {end.outcome}")
        code = end.exit_code
        try:
            self._end_node(job, end)
        except TpuctlError as error:
            self._app.show_error(error)
            self._app.terminal.warn(f"`{self._node_words}` may still be billed: `tpuctl down {self._node_words}`")
            return error.exit_code
        self._write("job-over", code=int(code), text=end.outcome)
        data = {"job": self.name, "exit_code": int(code), "attempts": len(job.attempts), "cost": round(job.cost, 2)}
        self._hooks(NodeEvent(EventKind.JOB_ENDED, self._app.now(), self._home, end.outcome, data))
        with self._app.progress() as progress:
            failures = self._hooks.wait(progress)
        return code or (ExitCode.FAILURE if failures else ExitCode.OK)

    def _end_node(self, job: KeptJob, end: EndJob) -> None:
        """Delete or stop the nodes of the last attempt. Raises why that failed."""
        chosen = self._order.end
        if not job.attempts or job.attempts[-1].verdict is Verdict.DELETED or chosen is NodeAtEnd.KEEP:
            return
        if chosen is NodeAtEnd.DELETE_ON_SUCCESS and end.exit_code is not ExitCode.OK:
            self._app.terminal.note(f"`{self._node_words}` is not deleted: the job has failed")
            return
        attempt = job.attempts[-1]
        ids = self._ids(attempt)
        if chosen is not NodeAtEnd.STOP:
            self._delete_nodes(attempt, [*ids])
            return
        for name, node_id in ids.items():
            node = self._app.services.client.find_node(name)
            if node is None or node.id != node_id or not _may_run(node):
                continue
            if why_not := node.why_not_stoppable():
                # The next supervisor could not stop it either.
                text = f"`{name.node_id}` is not stopped and still billed: {why_not}"
                self._app.terminal.warn(f"{text}; delete it: `tpuctl down {name.node_id}`")
                continue
            with self._app.progress() as progress:
                stop_node(self._app.services.context(progress), node)


class _AttemptOutput:
    """The output of an attempt: on the terminal, and in files here, which a later supervisor continues.

    A file that cannot be written, because the disk is full, never ends the job. Each file is bounded: the worker has it all.
    """

    failure = None

    def __init__(self, app: App, targets: Sequence[Target], folder: Path) -> None:
        self._app, self.folder = app, folder
        self._longest = app.settings.number("kept_log_mib") << 20
        self.streams = WorkerOutputStreams(app.terminal, targets)
        self._files: dict[str, IO[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self.last_output: timedelta | None = None  # by the monotonic clock
        try:
            make_private_folder(folder)
            for target in targets:
                file = (folder / log_name(target)).open("ab", buffering=0)
                self._files[target.label], self._sizes[target.label] = file, file.tell()
        except OSError as error:
            self._give_up(error)

    def __enter__(self) -> _AttemptOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self.streams.__exit__()
        self._close()

    def resumed(self, job: Job) -> Job:
        """Return the job with the positions from which its output is not here yet."""
        shares = []
        for share in job.shares:
            here = self._sizes.get(share.target.label, 0)
            # Of a file that is full nothing more is kept, and nothing is shown again.
            start = share.sizes[0] if here >= self._longest else min(here, share.sizes[0])
            shares.append(replace(share, starts=(start, 0)))
        return replace(job, shares=tuple(shares))

    def output(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Take a piece of a worker's output."""
        self.last_output = SystemClock().monotonic()
        if file := self._files.get(target.label):
            room = self._longest - self._sizes[target.label]
            try:
                file.write(data[:room])
            except OSError as error:
                self._give_up(error)
            self._sizes[target.label] += len(data)
            if len(data) >= room:
                self._files.pop(target.label, file).close()
                text = f"only the first {self._longest >> 20} MiB of its output are kept here"
                self._app.terminal.warn(f"worker {target.label}: {text}; all is on the worker")
        self.streams.output(target, data, is_error=is_error)

    def ended(self, target: Target) -> None:
        """Take the end of a worker's output."""
        self.streams.ended(target)

    def connected(self, count: int, total: int) -> None:
        """Show how many workers answer so far."""
        self.streams.connected(count, total)

    def interrupted(self) -> None:
        """Start a new line after `^C`."""
        self.streams.interrupted()

    def note(self, target: Target | None, text: str) -> None:
        """Show something about a worker."""
        self.streams.note(target, text)

    def _close(self) -> None:
        for file in self._files.values():
            with suppress(OSError):
                file.close()
        self._files = {}

    def _give_up(self, error: OSError) -> None:
        self._close()
        text = f"no more output is kept in `{self.folder}`: {(error.strerror or str(error)).lower()}"
        self._app.terminal.warn(text)


def bring_up_planned(app: App, work: PlannedWork, request: UpRequest) -> tuple[Node, ...]:
    """Bring the nodes of a plan up and return them in its order. Raises why one is not usable."""

    @contextmanager
    def listen() -> Iterator[Callable[[NodeEvent], None]]:
        with app.progress() as progress:
            yield progress

    nodes = []
    for (name, _, _), result in zip(work.located, run_planned(app, work, request, listen), strict=True):
        if isinstance(result, TpuctlError):
            raise result
        if result.node is None:
            raise ConflictError(f"`{name.node_id}` no longer exists")
        nodes.append(result.node)
    return tuple(nodes)


def _may_run(node: Node) -> bool:
    return not (node.is_preempted or node.state.is_dead or node.state in _STOPPED)


def _end_of(result: WorkerResult, *, stopped: StopReason | None = None, delay: timedelta = timedelta()) -> WorkerEnd:
    """Return how an attempt ended on a worker, which started it with a `delay` after the first."""
    was_stopped = stopped in {StopReason.FAILED, StopReason.TIMED_OUT} and result.signal in _OURS
    why = result.why or ("it could not be started" if result.outcome is WorkerOutcome.NOT_STARTED else "")
    was_refused = result.outcome is WorkerOutcome.REFUSED
    return WorkerEnd(
        result.target.label,
        result.code,
        None if result.duration is None else result.duration + delay,
        why,
        was_stopped=was_stopped,
        was_refused=was_refused,
        has_notice=result.has_notice,
    )


def _entry_of(judgement: Judgement) -> dict[str, Any]:  # JSON
    """Return the fields of an entry of the journal."""
    code = {} if judgement.code is None else {"code": judgement.code}
    took = {} if judgement.ran is None else {"took": judgement.ran.total_seconds()}
    text = judgement.evidence
    if judgement.consequences:
        text += f"; a consequence on worker {', '.join(judgement.consequences[:8])}"
    return {
        "verdict": str(judgement.verdict),
        "text": text,
        "worker": judgement.worker,
        "same": judgement.is_same_code,
        **code,
        **took,
    }
