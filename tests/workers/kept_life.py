"""The life of a kept job, drawn at random: `live_kept(seed)` returns what went wrong; `python -m` of this module shows it.

The supervisor, its journal, its policy and the nodes are real, in a sandbox on a clock that moves by itself. The workers are a
model: a command on each, which works, saves its progress every ten minutes, crashes, hangs or loses its machine. The node is
preempted, the API fails, and the supervisor is killed at any of its steps, between two of its requests to workers, too.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.instant_exit import write_instant_exit
from tests.lifecycle import ZONE
from tpuctl.app.app import App, Invocation
from tpuctl.check.preflight import preflight_check
from tpuctl.clock import ManualClock
from tpuctl.errors import RemoteCommandError, TpuctlError
from tpuctl.models.node import Node
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.bring_up import UpRequest
from tpuctl.nodes.commands.policy_options import build_hooks
from tpuctl.nodes.kept_jobs import JobAttempt, JobPlace, Verdict, kept_jobs_of
from tpuctl.nodes.policies import repair_policy
from tpuctl.output.terminal import StandardStreams
from tpuctl.sandbox import faults
from tpuctl.sandbox.faults import Fault, FaultKind
from tpuctl.sandbox.state import SandboxState
from tpuctl.workers.job_ends import WorkerEnd
from tpuctl.workers.keep import Supervisor, supervising
from tpuctl.workers.kept_files import KeptFiles, KeptOrder, NodeAtEnd
from tpuctl.workers.worker_session import WorkerOutcome

WORKERS = ("0", "1")
MINUTE, STEP = timedelta(minutes=1), timedelta(minutes=5)
MOST_RUNS = 200
HOME = NodeName("sandbox", ZONE, "pod")


class Killed(BaseException):
    """The supervisor got SIGKILL."""


@dataclass(slots=True)
class WorkerJob:
    """The job on one worker, in one attempt."""

    token: str
    began: datetime
    code: int | None = None
    ended: datetime | None = None


class World:
    """The workers of all nodes, the user, and the service: what they do, and what must never happen."""

    def __init__(self, seed: int, state: SandboxState, clock: ManualClock) -> None:
        self.random, self.state, self.clock = Random(seed), state, clock  # noqa: S311  # keeps no secret
        self.jobs: dict[tuple[str, str], WorkerJob] = {}
        self.faults: list[str] = []
        self.work = timedelta(minutes=self.random.choice((5, 60, 120, 400)))
        self.worked = self.saved = timedelta()  # of all attempts; it is saved every ten minutes
        self.has_bug = self.random.random() < 0.1
        self.kill_chance = self.random.choice((0.0, 0.02, 0.1))
        self.trouble = self.random.choice((0.0, 0.5, 2.0))
        self.is_done = self.is_recorded = False

    def maybe_die(self) -> None:
        """Kill the supervisor now and then."""
        if self.random.random() < self.kill_chance:
            raise Killed

    def runs(self, node_id: str) -> bool:
        """Return whether the machines of a node of the service run."""
        with self.state.read() as session:
            node = session.node(HOME.project, HOME.zone, HOME.node_id)
            phase = node.phase(session.now) if node else None
        is_same = node is not None and str(node.number) == node_id
        return is_same and phase is not None and phase.state in {"READY", "DELETING"}

    def launch(self, node_id: str, label: str, token: str) -> WorkerOutcome:
        """Start the job on a worker, at most once for a token."""
        if not self.runs(node_id):
            return WorkerOutcome.UNREACHABLE
        known = self.jobs.get((node_id, label))
        if known is not None and known.token == token:
            return WorkerOutcome.DETACHED
        for (other, where), job in self.jobs.items():
            if job.ended is None and job.token != token and self.runs(other):
                self.faults.append(f"two jobs at once: on worker {where} of {other}, and on {label} of {node_id}")
        if self.is_recorded:
            self.faults.append("started again after it had ended with 0")
        self.jobs[node_id, label] = WorkerJob(token, self.clock.now())
        return WorkerOutcome.DETACHED

    def end(self, node_id: str, code: int | None, label: str | None = None) -> None:
        """End what runs on a node, or on one of its workers."""
        for (place, where), job in self.jobs.items():
            if place == node_id and job.ended is None and label in {None, where}:
                job.code, job.ended = code, self.clock.now()

    def trouble_now(self) -> str:
        """Return what happens in these five minutes; empty for nothing."""
        share = self.trouble / 12
        kinds = ("preempt", "crash", "abort", "restart", "hang", "lose", "api")
        return self.random.choice(kinds) if self.random.random() < share else ""

    def fault(self, kind: str, **fields: Any) -> None:
        with self.state.write() as session:
            faults.add_fault(session, Fault(FaultKind(kind), **fields))


class SimulatedSupervisor(Supervisor):
    """The supervisor, with the workers of a model, and with sudden deaths."""

    world: World

    def _write(self, event: str, **data: Any) -> None:
        self.world.maybe_die()
        super()._write(event, **data)
        if data.get("verdict") == Verdict.SUCCEEDED:
            self.world.is_recorded = True
        self.world.maybe_die()

    def _targets(self, nodes: Sequence[Node]) -> list[Any]:
        self.world.maybe_die()
        (node,) = nodes
        if not self.world.runs(node.id):
            raise RemoteCommandError("worker 0: connection refused")
        return [SimpleNamespace(label=label, node=node) for label in WORKERS]

    def _prepare(self, targets: Sequence[Any], number: int) -> list[WorkerEnd]:  # noqa: ARG002  # its own name there
        world, node_id = self.world, targets[0].node.id
        world.maybe_die()
        if not world.runs(node_id) or world.random.random() < world.trouble / 20:
            return [WorkerEnd("1", None, why="syncing failed: connection lost")]
        self._stop(targets)
        for label in WORKERS:
            world.jobs.pop((node_id, label), None)
            world.maybe_die()
        return []

    def _workers_with_job(self, targets: Sequence[Any]) -> set[str]:
        return {target.label for target in targets if (target.node.id, target.label) in self.world.jobs}

    def _launch(self, attempt: JobAttempt, nodes: Sequence[Node], targets: Sequence[Any]) -> Any:  # noqa: ARG002  # as above
        results = []
        for target in targets:
            self.world.maybe_die()
            outcome = self.world.launch(target.node.id, target.label, attempt.token)
            results.append(
                SimpleNamespace(
                    target=target, outcome=outcome, code=None, signal=None, duration=None, why="", has_notice=False
                )
            )
        return results

    def _stop(self, targets: Sequence[Any]) -> None:
        for target in targets[:1]:
            self.world.end(target.node.id, 143)

    def _is_sound(self, attempt: JobAttempt) -> bool:
        self.world.maybe_die()
        return self.world.random.random() < 0.5 and bool(attempt)

    @contextmanager
    def _node_leases(self, nodes: Sequence[Node]) -> Iterator[None]:  # noqa: ARG002  # its own name there
        yield

    def _follow(self, attempt: JobAttempt, targets: Sequence[Any]) -> None:
        world, node_id = self.world, attempt.node_id
        hung = attempt.hung
        while world.runs(node_id) and any(world.jobs[node_id, one].ended is None for one in WORKERS):
            world.maybe_die()
            hung = self._live_a_while(attempt, hung)
        if not world.runs(node_id):
            self._record_end(attempt, [WorkerEnd(label, None, why="its node is gone") for label in WORKERS], targets)
            return
        jobs = {label: world.jobs[node_id, label] for label in WORKERS}
        ends = [WorkerEnd(one, job.code, (job.ended or job.began) - job.began) for one, job in jobs.items()]
        self._record_end(attempt, ends, targets, hung=hung)

    def _live_a_while(self, attempt: JobAttempt, hung: str) -> str:
        world, node_id = self.world, attempt.node_id
        trouble = "crash" if world.has_bug else world.trouble_now()
        if trouble not in {"", "api"}:
            world.worked = world.saved
        match trouble:
            case "preempt":
                world.fault("preempt", node=HOME.node_id, zone=HOME.zone)
            case "crash":
                world.end(node_id, 3 if world.has_bug else 1)
            case "abort":
                world.end(node_id, 134, "1")
                world.end(node_id, 143)
            case "restart":
                world.end(node_id, 42)
            case "hang":
                world.clock.sleep(timedelta(minutes=30))
                text = "no output for 30m and no work on any chip for 30m"
                self._write("job-hang", attempt=attempt.number, text=text)
                # It saves its state when it is stopped.
                world.end(node_id, 0)
                return text
            case "lose":
                world.end(node_id, None, "1")
                world.end(node_id, 143)
            case "api":
                world.fault("http-error", method="*.nodes.get", status=503, count=world.random.randint(1, 20))
            case _:
                world.clock.sleep(STEP)
                world.worked += STEP
                world.saved = 10 * MINUTE * (world.worked // (10 * MINUTE))
                if world.worked >= world.work:
                    world.is_done = True
                    world.end(node_id, 0)
        return hung


def live_kept(seed: int, *, shows: bool = False) -> list[str]:
    """Live one life. Return what went wrong."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tpuctl-kept-", dir=memory) as name:
        folder, clock = Path(name), ManualClock()
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").symlink_to(write_instant_exit(folder))
        (folder / "bin" / "sshd").write_text("#!/bin/sh\nexit 1\n")
        (folder / "bin" / "sshd").chmod(0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{folder}/bin:{before}"
        try:
            with SandboxState.open(folder / "state" / "sandbox" / "world.sqlite3", clock=clock) as state:
                return _live(World(seed, state, clock), folder, shows=shows)
        finally:
            os.environ["PATH"] = before


def _live(world: World, folder: Path, *, shows: bool) -> list[str]:
    code = None
    end = world.random.choice((NodeAtEnd.DELETE, NodeAtEnd.DELETE_ON_SUCCESS, NodeAtEnd.KEEP))
    for run in range(MOST_RUNS):
        if run == MOST_RUNS // 2:
            world.trouble = world.kill_chance = 0.0
        try:
            code = _supervise(world, folder, end, shows=shows)
            break
        except Killed:
            world.clock.sleep(MINUTE)
        except TpuctlError as error:
            if shows:
                print(f"run {run}: {error.message}")  # noqa: T201  # for people
            world.clock.sleep(10 * MINUTE)
    wrong = world.faults
    if code is None:
        wrong.append(f"not over after {MOST_RUNS} supervisors")
    if code == 0 and not world.is_done:
        wrong.append("ended with 0 before it was done")
    with world.state.read() as session:
        left = session.node(HOME.project, HOME.zone, HOME.node_id)
        phase = left.phase(session.now) if left else None
    is_removed = end is NodeAtEnd.DELETE or (end is NodeAtEnd.DELETE_ON_SUCCESS and code == 0)
    if is_removed and phase is not None:
        wrong.append(f"its node is left: {phase.state}")
    return wrong


def _supervise(world: World, folder: Path, end: NodeAtEnd, *, shows: bool) -> int:
    err = sys.stderr if shows else io.StringIO()
    environ = {"HOME": str(folder), "TPUCTL_STATE_DIR": str(folder / "state"), "TPUCTL_SANDBOX": "1", "LOGNAME": "ada"}
    streams = StandardStreams(io.StringIO(), io.StringIO(), err)
    app = App(Invocation(("watch", "pod", "--job", "train"), environ, streams, folder, world.clock, world.random))
    app.set_options({"zone": (ZONE,)})
    with supervising(app, HOME.project, HOME.node_id):
        files = KeptFiles(app, HOME.project, HOME.node_id, "train")
        jobs = kept_jobs_of(app.services.journal.entries(HOME))
        if "train" not in jobs:
            spec = NodeSpec(
                accelerator_type="v4-16", runtime_version="tpu-ubuntu2204-base", named=frozenset({"accelerator_type"})
            )
            files.write_order(
                KeptOrder(line="true", spec=spec.to_json(), restart_on=(42, 134), pauses=(30, 120, 600), end=end)
            )
            app.services.journal.append(HOME, "job", app.now(), job="train", text="true")
            jobs = kept_jobs_of(app.services.journal.entries(HOME))
        place = JobPlace(HOME, jobs["train"])

        def request(spec: NodeSpec | None) -> UpRequest:
            policy = repair_policy(app, {}, timeout=None, retries_without_capacity=True)
            return UpRequest(spec=spec, policy=policy, preflight=preflight_check(app, {}, only_limits=True), yes=True)

        supervisor = SimulatedSupervisor(
            app, place, files.read_order(), files, request=request, hooks=build_hooks(app, {})
        )
        supervisor.world = world
        return supervisor.run()


if __name__ == "__main__":
    print(live_kept(int(sys.argv[1]), shows=True))  # noqa: T201  # for people
