"""The training jobs of the examples for CI systems, run in the sandbox until each of their possible ends.

`run_job` is one job with one end. `tests/ci/test_ci_jobs.py` has some of them, `python -m benchmarks.ci_jobs` all.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.ci.ci_files import ROOT, CiScript, cloud_build_scripts, expand, github_scripts, gitlab_script
from tpuctl.platforms import find_processes_with_variable
from tpuctl.sandbox import administration
from tpuctl.sandbox.sshd.worker_home import WORKER_MARK
from tpuctl.sandbox.state import SandboxState

# Real seconds until a job must have begun to train, or have ended, also on a busy machine.
_PATIENCE = 90.0
_SPEED = 1500.0
_ZONE = "us-central2-b"


class End(StrEnum):
    """How a training job ends."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    LOST = "lost"
    NOT_STARTED = "not started"


@dataclass(frozen=True, slots=True)
class CiJob:
    """A training job: scripts that run one after the other until one fails, then `after` and `down` as its system does.

    `after` also runs if the job is cancelled, `down` also if its machine is lost.
    """

    name: str
    train: tuple[CiScript, ...]
    down: tuple[CiScript, ...]
    after: tuple[CiScript, ...] = ()
    # What the system sends to the shell of a cancelled job and to no other process. SIGKILL: to all of its processes.
    cancel_signal: signal.Signals = signal.SIGKILL
    # Whether the system runs `down` after a cancelled job, too.
    goes_on: bool = False
    # Whether the training deletes the node itself, unless it is killed.
    is_one_command: bool = True
    # Whether `down` ends with the exit code of the training.
    passes_code_on: bool = False


def _of_github(name: str, **fields: Any) -> CiJob:
    path = ROOT / "examples/github-actions" / name
    train, down = (tuple(github_scripts(path, job)) for job in ("train", "down"))
    return CiJob(name, train, down, goes_on=True, **fields)


_BUILD = {script.name: script for script in cloud_build_scripts(ROOT / "examples/cloud-build/cloudbuild.yaml")}
JOBS = (
    _of_github("one-command.yml", cancel_signal=signal.SIGINT),
    # Ten seconds after it has sent SIGINT and SIGTERM to a shell that does not end, GitHub kills.
    _of_github("train-on-tpu.yml", is_one_command=False),
    CiJob(
        ".gitlab-ci.yml",
        (gitlab_script("train"),),
        (gitlab_script("down"),),
        (gitlab_script("train", "after_script"),),
    ),
    CiJob("cloudbuild.yaml", (_BUILD["train"],), (_BUILD["down"],), cancel_signal=signal.SIGTERM, passes_code_on=True),
)

_TRAINING = {
    End.SUCCESS: "print('trained')",
    End.FAILURE: "raise SystemExit(3)",
}
# It marks its start for us, on the worker, whose home is a folder of this machine.
_ENDLESS = "import pathlib, time; (pathlib.Path.home() / 'started').touch(); time.sleep(600)"


@dataclass(frozen=True, slots=True)
class CiResult:
    """How a job ended: the exit codes of the training and of `down`."""

    train: int
    down: int
    # Whether before `down` the node was there, and not being deleted.
    is_left: bool
    # Nodes that are left after everything, or that should be.
    faults: tuple[str, ...] = ()
    log: str = field(default="", compare=False, repr=False)


def expected_result(job: CiJob, end: End) -> CiResult:
    """Return how a job must end."""
    if end is End.NOT_STARTED:
        return CiResult(0, 1 if job.passes_code_on else 0, is_left=False)
    is_killed = end is End.LOST or (end is End.CANCELLED and job.cancel_signal is signal.SIGKILL)
    train = {End.SUCCESS: 0, End.FAILURE: 11, End.TIMED_OUT: 5}.get(end, -signal.SIGKILL if is_killed else 143)
    down = 0
    if job.passes_code_on and end is not End.CANCELLED:
        down = 1 if is_killed else train
    return CiResult(train, down, is_left=end is End.LOST or not job.is_one_command)


def run_job(folder: Path, job: CiJob, end: End) -> CiResult:
    """Run a job in a fresh sandbox until this end, and let its system clean up."""
    with _machine(folder) as machine:
        (machine.checkout / "train.py").write_text(_TRAINING.get(end, _ENDLESS))
        code = 0
        for script in job.train if end is not End.NOT_STARTED else ():
            code = machine.run(script, until=end, cancel=job.cancel_signal)
            if code != 0:
                break
        if end is not End.LOST:
            for script in job.after:
                machine.run(script)
        is_left = machine.has_node()
        down = 0
        for script in job.down if end is not End.CANCELLED or job.goes_on else ():
            down = machine.run(script)
        return CiResult(code, down, is_left, tuple(machine.faults()), machine.log())


@dataclass
class _Machine:
    """A machine of a CI system, whose cloud is the sandbox."""

    folder: Path
    state: SandboxState

    @property
    def checkout(self) -> Path:
        """The folder of the checkout."""
        return self.folder / "checkout"

    def run(self, script: CiScript, *, until: End | None = None, cancel: int = 0) -> int:
        """Run a script as its system does, and cancel or kill it once the training has begun. Return its exit code."""
        path = self.folder / "script"
        path.write_text(_adapted(script.text, until))
        path.chmod(0o700)
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*script.shell, str(path)],
                cwd=self.checkout,
                env=self._environ(script),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ends_it = until in {End.CANCELLED, End.LOST}
        if ends_it and self._wait_for_the_training(process):
            if until is End.LOST or cancel == signal.SIGKILL:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.send_signal(cancel)
        return process.wait(_PATIENCE)

    def _wait_for_the_training(self, process: subprocess.Popen[bytes]) -> bool:
        end = time.monotonic() + _PATIENCE
        while process.poll() is None and time.monotonic() < end:
            if any(self.state.path.parent.glob("workers/*/*/*/0/started")):
                return True
            time.sleep(0.02)
        return False

    def has_node(self) -> bool:
        """Return whether the job has a node that is not being deleted."""
        with self.state.read() as session:
            phases = [node.phase(session.now) for node in session.nodes() if node.node_id != "stranger"]
            return any(phase and phase.state != "DELETING" for phase in phases)

    def log(self) -> str:
        """Return what the scripts printed."""
        return (self.folder / "log").read_text("utf-8")

    def faults(self) -> Iterator[str]:
        """Yield each node that should not be left, or be gone, after the deletions have ended."""
        self.state.advance(timedelta(hours=1))
        with self.state.read() as session:
            names = {node.node_id for node in session.nodes() if node.phase(session.now)}
        yield from (f"left: {name}" for name in names - {"stranger"})
        if "stranger" not in names:
            yield "the node of a stranger is gone"

    def _environ(self, script: CiScript) -> dict[str, str]:
        here = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "CI": "true",
            "GITHUB_RUN_ID": _VARIABLES["github.run_id"],
            "GITHUB_RUN_ATTEMPT": _VARIABLES["github.run_attempt"],
            "TPUCTL_SANDBOX": "1",
            "TPUCTL_STATE_DIR": str(self.state.path.parents[1]),
            "TPUCTL_ZONE": _ZONE,
            "TPUCTL_PROJECT": "sandbox",
            "TPUCTL_JOURNAL": "gs://ci-bucket/journal",
            "TPUCTL_LEASE": "gs://ci-bucket/leases",
            "TPUCTL_TIMEOUT": "900h",
            # A connection that is kept would outlive the job.
            "TPUCTL_SSH_KEEP": "0",
            "CI_PROJECT_DIR": str(self.checkout),
            "GOOGLE_TOKEN": "a.b.c",
            "SHARED": str(self.folder),
        }
        given = {
            name: expand(value, {**_VARIABLES, "CI_PROJECT_DIR": str(self.checkout)})
            for name, value in script.environ.items()
        }
        return {**given, **here}


_VARIABLES = {
    "github.run_id": "17",
    "github.run_attempt": "2",
    "CI_PIPELINE_ID": "17",
    "BUILD_ID": "0b2c7d9e-6c7e-4d29-9e9c-0f4b6ea1a7a5",
    "PROJECT_ID": "sandbox",
}


def _adapted(text: str, end: End | None) -> str:
    """Lengthen each limit of a script, which a busy machine could reach at the sandbox's speed, or shorten that of the run.

    The workers of the sandbox have the programs of this machine, and no pip that may install.
    """
    text = text.replace("pip install -r requirements.txt", "test -f requirements.txt")
    longer = re.sub(r"(--(?:timeout|ttl|ssh-key-expire-after)) \d+[mh]", r"\1 900h", text)
    if end is not End.TIMED_OUT:
        return longer
    # The workers count this limit in real time. Of `run --up` it is also the limit of the node, an hour later.
    return re.sub(
        r"(tpuctl run .*?--timeout) 900h", r"\1 2s" + (" --ttl 900h" if "--up" in text else ""), longer, flags=re.DOTALL
    )


@contextmanager
def _machine(folder: Path) -> Iterator[_Machine]:
    path = folder / "state/sandbox/world.sqlite3"
    path.parent.mkdir(parents=True)
    (folder / "home").mkdir()
    (folder / "checkout").mkdir()
    (folder / "environment").symlink_to(Path(sys.executable).parents[1])
    (folder / "checkout/requirements.txt").write_text("")
    _git(folder / "checkout", "init", "--quiet")
    with SandboxState.open(path, speed=_SPEED) as state:
        administration.add_bucket(state, "ci-bucket")
        administration.add_node(state, "stranger", zone=_ZONE)
        try:
            yield _Machine(folder, state)
        finally:
            for control in folder.glob("state/sandbox/workers/*/*/*/*.sshd"):
                for process in find_processes_with_variable(WORKER_MARK, str(control)):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)
