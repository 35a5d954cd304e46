"""`tpuctl kill`: signals to all processes of a job, and to no others."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE
from tests.workers.jobs import Slice, until
from tpuctl.models.node import Node
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.ssh.channel import MAX_CHANNELS
from tpuctl.ssh.connection import Connection, Target
from tpuctl.workers.worker_jobs import JobScope, job_state, signal_job


def test_kill_one_of_several_jobs_needs_confirmation(tpuctl: Console, demo: Slice) -> None:
    demo.run("old", "trap '' TERM; echo; while :; do sleep 0.1; done", "--worker", "1")
    demo.until_printed("old", "\n", 1)
    line = "trap 'exit 7' INT; echo; while :; do sleep 0.05; done"
    demo.run("new", line, "--worker", "0")
    demo.until_printed("new", "\n", 0)
    question = f"2 jobs run on `demo`; send INT to the newest, `new` ({line})?"

    assert tpuctl("kill", "demo", "-s", "sigint", stdin="n\n") == (
        "",
        f"{question} [y/N] cancelled\n  hint: name the job; list them: `tpuctl jobs demo`\n",
        1,
    )
    assert tpuctl("kill", "demo", "--signal", "2", "--wait", stdin="y\n") == (
        "new\texited 7\n",
        f"{question} [y/N] INT sent to job `new` on worker 0\n",
        0,
    )
    assert tpuctl("kill", "demo", "--wait", "--timeout", "0.3s") == (
        "old\trunning\n",
        (
            "TERM sent to job `old` on worker 1\nerror: job `old` still runs after 0.3 s\n"
            "  hint: kill it: `tpuctl kill demo old --signal KILL`\n"
        ),
        5,
    )
    assert tpuctl("kill", "demo", "--signal", "KILL", "-o", "name")[::2] == ("old\n", 0)
    assert tpuctl("jobs", "demo", "-o", "name") == ("new\nold\n", "", 0)


def test_kill_with_reused_pid_signals_nothing(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "sleep 600", "--worker", "0")
    pid = demo.jobs(0) / "a.0" / "pid"
    until(lambda: pid.exists() and " " in pid.read_text())
    true = pid.read_text()
    innocent = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pid.write_text(f"{innocent.pid} {true.split()[1]}")

    assert tpuctl("kill", "demo", "a") == ("", "error: worker 0: its processes are not on this machine\n", 11)
    assert innocent.poll() is None

    innocent.kill()
    innocent.wait()
    pid.write_text(true)


def test_kill_terminates_processes_that_outlive_the_shell(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "sh -c 'trap \"sleep 0.3; echo saved; exit\" TERM; echo; while :; do sleep 0.02; done' & wait")
    demo.until_printed("a", "\n", 0, 1)

    assert tpuctl("kill", "demo", "a", "--wait")[::2] == ("a\tended by TERM\n", 0)
    assert tpuctl("logs", "demo", "a", "--tail", "1") == ("[0] saved\n[1] saved\n", "", 0)


def test_kill_on_a_node_of_another_account_asks(tpuctl: Console, demo: Slice, sandbox: Sandbox) -> None:
    line = "echo; while :; do sleep 0.05; done"
    demo.run("a", line, "--worker", "0")
    demo.until_printed("a", "\n", 0)
    url = f"https://tpu.googleapis.com/v2/projects/sandbox/locations/{ZONE}/nodes/demo?updateMask=labels"
    body = json.dumps({"labels": {"tpuctl-owner": "ann"}}).encode()
    assert SandboxHttp(sandbox.state).request(url, method="PATCH", body=body)[0].status == 200

    whose = "`demo` was created by ann\nsend INT to job `a`"
    assert tpuctl("kill", "demo", "a", "-s", "INT", stdin="n\n")[1] == f"{whose}? [y/N] cancelled\n"
    assert tpuctl("kill", "demo", "-s", "INT", stdin="n\n")[1].startswith(
        f"{whose.replace(chr(10), '; ')} ({line})? [y/N] "  # the command may have a semicolon
    )
    assert tpuctl("kill", "demo", "a")[2] == 2
    assert tpuctl("jobs", "demo")[0].split("\t")[2] == "running"
    assert tpuctl("kill", "demo", "a", "--signal", "KILL", "--wait", "--yes")[::2] == ("a\tended by KILL\n", 0)


class CheckpointingJob(JobScope):
    """A job on workers whose handlers of TERM end only after all workers have the signal, as a collective checkpoint does."""

    has_signal: ClassVar[set[int]] = set()

    def ask(self, target: Target, request: Mapping[str, Any], parse: Callable[[Any], Any], **_: Any) -> Any:
        if request["number"]:
            self.has_signal.add(target.worker)
        ends = time.monotonic() + request["wait"]
        while is_running := len(self.has_signal) < len(self.targets):
            if time.monotonic() >= ends:
                break
            time.sleep(0.01)
        about = {"name": request["name"], "began": 0, "age": 1, "about": "", "followed": False}
        end = {"state": "running", "end": ""} if is_running else {"state": "ended", "end": "exit 0 1.0"}
        return parse({"job": {**about, **end, "sizes": [0, 0], "starts": [0, 0]}, "sent": True})


def test_kill_signals_all_workers_before_it_waits_for_one() -> None:
    connection = Connection(
        login="a", address="h", host_alias="x", known_hosts=(Path("/a"), Path("/b")), identity=Path("/key")
    )
    node = Node.from_api({"name": "projects/p/locations/z/nodes/demo"})
    targets = [Target(node, worker, connection, str(worker)) for worker in range(2 * MAX_CHANNELS)]

    done = signal_job(CheckpointingJob(targets, lambda _: ()), "a", 15, wait=timedelta(seconds=0.3))

    assert (list(done.sent), done.errors, job_state(done.job.shares)) == (targets, [], "exited 0")
