"""`tpuctl jobs`, `logs`, `attach`, `kill`: jobs that go on without us, what they printed, how they ended, who may end them."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, put, said
from tpuctl.output import jobs as shown
from tpuctl.remote.jobs.values import Share, State
from tpuctl.remote.onboard import bootstrap
from tpuctl.sandbox import admin
from tpuctl.sandbox.world import World

if TYPE_CHECKING:
    from tpuctl.remote.member import Member

_ADDRESS = "198.18.0."
_SSH = """
for word; do case $word in *@{address}*) host=${{word##*@}};; esac; done
home='{homes}'/$host; mkdir -p "$home"
{before}
exec env HOME="$home" SHELL=/bin/sh sh -c "$word"
"""


@pytest.fixture
def face() -> dict[str, str]:
    """How the API is reached does not matter here."""
    return {"TPUCTL_SANDBOX": "1"}


class Slice:
    """A slice of two workers: folders, into which a fake ssh logs in."""

    def __init__(self, tpuctl: Console, fake_ssh: Callable[[str], None], homes: Path) -> None:
        self._tpuctl, self._fake_ssh, self._homes = tpuctl, fake_ssh, homes
        self.ssh()

    def ssh(self, before: str = "") -> None:
        """Let ssh do these shell lines first; `$host` is the worker's address."""
        self._fake_ssh(_SSH.format(address=_ADDRESS, homes=self._homes, before=before))

    def jobs(self, worker: int) -> Path:
        """Return the folder of a worker's jobs."""
        return self._homes / f"{_ADDRESS}{worker + 1}" / ".tpuctl" / "jobs"

    def run(self, job: str, line: str, *options: str) -> None:
        """Start a detached job."""
        assert self._tpuctl("run", "demo", "--detach", "--name", job, *options, "--", line) == (f"{job}\n", "", 0)

    def until_ended(self, job: str, *workers: int) -> None:
        """Wait until a job has ended."""
        end = time.monotonic() + 10
        while not all((self.jobs(worker) / f"{job}.{worker}" / "exit").exists() for worker in workers or (0, 1)):
            assert time.monotonic() < end, job
            time.sleep(0.01)


@pytest.fixture
def demo(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> Iterator[Slice]:
    """A slice of two workers that knows our key."""
    put(sandbox, acceleratorType="v4-16")
    found = Slice(tpuctl, fake_ssh, tmp_path / "homes")
    tpuctl("ssh", "demo", "--worker", "0", "--", "true")
    yield found
    for pid in (tmp_path / "homes").glob("*/.tpuctl/jobs/*/pid"):
        if not (pid.parent / "exit").exists() and (pid.parent / "lock").exists():
            os.killpg(int(pid.read_text().split()[0]), signal.SIGKILL)


def timeless(text: str) -> Any:
    """Return the JSON that was printed, without what differs each time."""
    steady = re.sub(r'"(started|seconds)": (?!null)("[^"]+"|[\d.]+)', r'"\1": "…"', text)
    return json.loads(steady)


def on(worker: int, state: str, code: int | None, number: int | None, out: int) -> dict[str, Any]:
    return {
        "nodeId": "demo", "zone": ZONE, "worker": worker, "state": state, "started": "…", "exitCode": code,
        "signal": number, "seconds": "…", "followed": False, "stdoutBytes": out, "stderrBytes": 0,
    }  # fmt: skip


def test_a_detached_job_is_listed_read_signaled_and_removed(tpuctl: Console, demo: Slice) -> None:
    line = 'echo "on $TPUCTL_WORKER_ID"; echo oops >&2; [ $TPUCTL_WORKER_ID = 1 ] && exit 3; sleep 60'
    demo.run("nightly", line)
    demo.until_ended("nightly", 1)
    listed, _, _ = tpuctl("jobs", "demo", "-o", "json")
    (job,) = timeless(listed)
    assert job == {
        "job": "nightly",
        "command": line,
        "started": "…",
        "state": "running on worker 0, exited 3 on worker 1",
        "seconds": "…",
        "detached": True,
        "workers": [on(0, "running", None, None, 10), on(1, "exited", 3, None, 10)],
        "sandbox": True,
    }
    # A detached job's stdout and stderr are one.
    assert tpuctl("logs", "demo") == (said("[0] on 0", "[0] oops", "[1] on 1", "[1] oops"), "", 0)
    assert tpuctl("logs", "demo", "nightly", "--tail", "1", "--worker", "1") == ("oops\n", "", 0)
    assert tpuctl("jobs", "demo", "--remove", "nightly") == (
        "nightly\n",
        "error: job `nightly` runs on worker 0, and is left there\n  hint: `tpuctl kill demo nightly` ends it\n",
        8,
    )

    assert tpuctl("kill", "demo", "--wait") == (
        "nightly\tended by TERM\n",
        "TERM sent to job `nightly` on worker 0\n",
        0,
    )
    assert tpuctl("kill", "demo", "nightly") == (
        "nightly\tended by TERM\n",
        "job `nightly` does not run any more: nothing was sent\n",
        0,
    )
    assert tpuctl("jobs", "demo", "--remove", "nightly") == ("nightly\n", "", 0)
    assert tpuctl("jobs", "demo", terminal=True)[:2] == ("", "no jobs on `demo`\n")


def test_a_person_sees_how_long_ago_and_as_much_of_the_command_as_there_is_room(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "true\n" + "x" * 100 + "=1")
    demo.until_ended("a")

    out, err, code = tpuctl("jobs", "demo", terminal=True, width=70, NO_COLOR="1")

    header, row = out.splitlines()
    assert (header.split(), err, code) == (["JOB", "STARTED", "STATE", "DURATION", "KIND", "COMMAND"], "", 0)
    assert re.fullmatch(r"a    \d+s ago +exited 0  \d\.\ds +detached  true x+…", row)
    assert len(row) == 70


def test_a_job_is_followed_to_its_end_from_its_last_lines_on(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "seq 5; sleep 0.4; printf 6; exit $TPUCTL_WORKER_ID")

    out, err, code = tpuctl("logs", "demo", "-f", "-n", "2")
    lines = [f"[{worker}] {number}" for worker in (0, 1) for number in (4, 5, 6)]
    assert (sorted(out.splitlines()), err, code) == (lines, "", 0)

    # What has ended is still there for the next.
    out, err, code = tpuctl("attach", "demo", "a", "--tail", "0")
    assert (out, err, code) == ("", "error: the command failed on 1 of 2 workers: 1 (exit 1)\n", 11)
    report = timeless(tpuctl("attach", "demo", "a", "--worker", "1", "-o", "json")[0])
    assert [(one["worker"], one["exitCode"], one["stdoutBytes"]) for one in report["workers"]] == [(1, 1, 11)]


def test_of_a_job_that_is_not_detached_stderr_comes_after_stdout(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "true", "--worker", "0")
    demo.until_ended("a", 0)
    folder = demo.jobs(0) / "a.0"
    (folder / "out").write_bytes(b"out\xff\n")
    (folder / "err").write_bytes(b"err")

    assert tpuctl("logs", "demo") == ("out\ufffd\n", "err", 0)


def test_what_a_broken_connection_has_not_brought_is_asked_for_again(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "seq 3000", "--worker", "0")
    demo.until_ended("a", 0)
    # The first answer, of which job it is, is short; what comes then is cut off twice.
    demo.ssh(
        'case $(ls "$home" | grep -c cut) in 2) ;; *) : > "$home/cut$$"; env HOME="$home" sh -c "$word" | head -c 7000;'
        " exit 255;; esac"
    )

    assert tpuctl("logs", "demo", "a", "--worker", "0") == (said(*map(str, range(1, 3001))), "", 0)


def test_what_a_worker_knows_no_more_is_said_and_what_is_no_job_is_left_out(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "true", "--worker", "0")
    demo.until_ended("a", 0)
    jobs = demo.jobs(0)
    (jobs / "a.0" / "exit").write_text("exit 0 1.5")
    for name, about, end in (("lost", '{"command": "x", "detached": true}', None), ("full", "{", "")):
        shutil.copytree(jobs / "a.0", jobs / f"{name}.0")
        (jobs / f"{name}.0" / "about").write_text(about)
        (jobs / f"{name}.0" / "exit").unlink()
        if end is not None:
            (jobs / f"{name}.0" / "exit").write_text(end)
    # A shared home has the jobs of other workers, too.
    shutil.copytree(jobs / "a.0", jobs / "a.1")
    (jobs / "stray.0").write_text("")
    (jobs / "empty.0").mkdir()
    for age, name in enumerate(("a", "lost", "full")):
        os.utime(jobs / f"{name}.0" / "token", times=(1000 - age, 1000 - age))

    rows = [line.split("\t") for line in tpuctl("jobs", "demo", "--worker", "0")[0].splitlines()]
    assert rows == [
        ["a", "1970-01-01T00:16:40Z", "exited 0", "1.500", "detached", "true"],
        ["lost", "1970-01-01T00:16:39Z", "lost", "", "detached", "x"],
        ["full", "1970-01-01T00:16:38Z", "lost", "", "followed", ""],
    ]
    assert tpuctl("jobs", "demo", "-n", "1", "-o", "name") == (
        "a\n",
        "2 older jobs are not shown: `--last N` shows more, `--prune` removes old ones\n",
        0,
    )
    assert tpuctl("attach", "demo", "lost") == (
        "",
        "error: the command failed on its worker: 0 (lost)\n"
        "  hint: worker 0: nothing there knows how it ended: the worker was rebooted, or out of memory\n",
        11,
    )
    assert tpuctl("kill", "demo", "lost")[1] == "job `lost` does not run any more: nothing was sent\n"
    for name in ("lost", "full"):
        os.utime(jobs / f"{name}.0" / "out", times=(1000, 1000))
        (jobs / f"{name}.0" / "exit").unlink(missing_ok=True)
    assert tpuctl("jobs", "demo", "--prune") == ("full\nlost\n", "", 0)
    assert tpuctl("jobs", "demo", "--prune", "-o", "json") == ("[]\n", "no job ended so long ago\n", 0)
    assert sorted(path.name for path in jobs.iterdir()) == ["a.0", "a.1", "empty.0", "stray.0"]


def test_a_worker_that_does_not_tell_is_named(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "true")
    demo.until_ended("a")
    demo.ssh(f'case $host in {_ADDRESS}2) echo "Permission denied (publickey)." >&2; exit 255;; esac')

    out, err, code = tpuctl("jobs", "demo")
    assert (out.split("\t")[2], code) == ("exited 0", 11)
    assert err.startswith("error: worker 1 of `demo`: ")

    # Whether there is a job of that name is not known.
    out, err, code = tpuctl("kill", "demo", "b")
    assert (out, code) == ("", 11)
    assert err.startswith("error: worker 1 of `demo`: ")

    shutil.rmtree(demo.jobs(0))
    demo.jobs(0).write_text("")
    assert tpuctl("jobs", "demo", "--worker", "0") == (
        "",
        f"error: worker 0: {demo.jobs(0)}: Not a directory\n",
        11,
    )
    demo.ssh("exit 127")
    assert tpuctl("jobs", "demo", "--worker", "0")[1] == "error: worker 0: there is no `python3` on it\n"
    demo.ssh("echo welcome; exit 0")
    assert tpuctl("jobs", "demo", "--worker", "0")[1] == "error: worker 0: the session ended with 0\n"


def test_one_of_several_jobs_is_signaled_after_a_question(tpuctl: Console, demo: Slice) -> None:
    demo.run("old", "trap '' TERM; while :; do sleep 0.1; done", "--worker", "1")
    demo.run("new", "trap 'exit 7' INT; while :; do sleep 0.05; done", "--worker", "0")
    question = "2 jobs run on `demo`; send INT to the newest, `new` (trap 'exit 7' INT; while :; do sleep 0.05; done)?"

    assert tpuctl("kill", "demo", "-s", "sigint", stdin="n\n") == (
        "",
        f"{question} [y/N] error: nothing was done\n  hint: name the job: `tpuctl jobs demo` shows them\n",
        2,
    )
    assert tpuctl("kill", "demo", "--signal", "2", stdin="y\n") == (
        "new\texited 7\n",
        f"{question} [y/N] INT sent to job `new` on worker 0\n",
        0,
    )
    assert tpuctl("kill", "demo", "--wait", "--timeout", "0.3s") == (
        "old\trunning\n",
        "TERM sent to job `old` on worker 1\nerror: job `old` still runs after 0.3 s\n"
        "  hint: `tpuctl kill demo old --signal KILL` ends what does not obey\n",
        5,
    )
    assert tpuctl("kill", "demo", "--signal", "KILL", "-o", "name")[::2] == ("old\n", 0)
    assert tpuctl("jobs", "demo", "-o", "name") == ("new\nold\n", "", 0)


def test_a_number_that_has_come_to_mean_another_process_is_left_alone(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "sleep 60", "--worker", "0")
    pid = demo.jobs(0) / "a.0" / "pid"
    end = time.monotonic() + 5
    while not pid.exists() or " " not in pid.read_text():
        assert time.monotonic() < end
    true = pid.read_text()
    innocent = subprocess.Popen(["sleep", "60"], start_new_session=True)
    pid.write_text(f"{innocent.pid} {true.split()[1]}")

    assert tpuctl("kill", "demo", "a") == ("", "error: worker 0: its processes are not on this machine\n", 11)
    assert innocent.poll() is None

    innocent.kill()
    innocent.wait()
    pid.write_text(true)


@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        (("logs", "demo"), "there are no jobs on `demo`", 3),
        (("attach", "demo", "a"), "there is no job `a` on `demo`", 3),
        (("kill", "demo", "a"), "there is no job `a` on `demo`", 3),
        (("jobs", "demo", "--remove", "a"), "there is no job `a` on `demo`", 3),
        (("logs", "demo", "../a"), "`../a` cannot be the name of a job", 2),
        (("jobs", "demo", "--remove", "a/b"), "`a/b` cannot be the name of a job", 2),
        (("kill", "demo", "a", "-s", "NO"), "there is no signal `NO`", 2),
        (
            ("kill", "demo", "a", "--wait", "--timeout", "forever"),
            "`--timeout forever` is longer than a session may last",
            2,
        ),
        (("jobs", "demo", "--older-than", "1d"), "`--older-than` goes with `--prune`", 2),
        (("logs",), "which node?", 2),
        (("logs", "demo", "--worker", "2"), "`demo` has no worker 2", 2),
        (("logs", "stopped", "-f"), "`stopped` is STOPPED: ssh cannot reach it", 8),
        (("attach", "-l", "team=none", "a"), "no node of project sandbox is meant", 3),
    ],
)
def test_what_cannot_be(
    tpuctl: Console, sandbox: Sandbox, demo: Slice, *, arguments: tuple[str, ...], error: str, code: int
) -> None:
    put(sandbox, "stopped", state="STOPPED")

    out, err, ended = tpuctl(*arguments)

    assert (out, err.splitlines()[0], ended) == ("", f"error: {error}", code)
    assert err.splitlines()[1].startswith("  hint: ")


def test_a_job_of_several_nodes_is_one(tpuctl: Console, sandbox: Sandbox, demo: Slice) -> None:
    put(sandbox, "other", labels={"team": "vision"})
    sandbox_nodes = ("demo", "other")
    assert tpuctl("run", *sandbox_nodes, "--detach", "--name", "a", "--", "echo $TPUCTL_NODE")[0] == "a\n"

    out, err, code = tpuctl("logs", *sandbox_nodes, "a", "-f")
    assert (sorted(out.splitlines()), err, code) == (["[demo-0]  demo", "[demo-1]  demo", "[other-0] other"], "", 0)
    assert tpuctl("logs", "-l", "team=vision", "a") == ("other\n", "", 0)
    assert tpuctl("jobs", *sandbox_nodes)[0].split("\t")[2] == "exited 0"


BEGAN = datetime(2026, 4, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (((State.RUNNING, None),) * 8, "running on 8 workers"),
        (((State.RUNNING, None),), "running"),
        (((State.EXITED, 0),) * 8, "exited 0"),
        ((*((State.EXITED, 0),) * 7, (State.EXITED, 1)), "exited 1 on worker 7, exited 0 on 7 workers"),
        (((State.LOST, None), (State.EXITED, 0), (State.LOST, None)), "lost on workers 0, 2, exited 0 on worker 1"),
        (((State.SIGNALED, 137), (State.SIGNALED, 143)), "ended by KILL on worker 0, ended by TERM on worker 1"),
        (((State.LOST, None), (State.RUNNING, None)), "running on worker 1, lost on worker 0"),
    ],
)
def test_words_for_how_a_job_is(states: tuple[tuple[State, int | None], ...], expected: str) -> None:
    shares = [
        Share(
            member=cast("Member", SimpleNamespace(label=str(worker), worker=worker)),
            job="a",
            state=state,
            began=datetime(2026, 4, 12, tzinfo=UTC),
            age=timedelta(),
            duration=None,
            code=code,
            signal=code - 128 if code and state is State.SIGNALED else None,
        )
        for worker, (state, code) in enumerate(states)
    ]
    assert shown.state(shares) == expected


_PROGRAMS = sorted(
    path.name.removesuffix(".py")
    for path in resources.files("tpuctl.remote.onboard").iterdir()
    if path.name.endswith(".py") and path.name != "__init__.py"
)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_what_runs_on_workers_is_python_3_8(name: str) -> None:
    _, source = bootstrap(name, "pass")

    ast.parse(source, feature_version=(3, 8))


@pytest.mark.parametrize("name", ["job", "jobs"])
def test_what_every_run_starts_on_workers_imports_little(name: str) -> None:
    tree = ast.parse(bootstrap(name, "pass")[1])
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}

    assert imported <= {"__future__", "os", "sys", "time", "fcntl", "select"}


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The program in a process of its own, on a sandbox slice of two workers, with the machine's own ssh and sshd."""
    with World.open(tmp_path / "state" / "sandbox" / "world.sqlite3", speed=600) as world:
        admin.add_node(world, "demo", zone=ZONE, acceleratorType="v4-16")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(tmp_path / "state"),
        "TPUCTL_SANDBOX": "1",
    }
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tpuctl", *arguments],
            env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.sshd
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ssh of another process in /proc")
def test_a_detached_job_outlives_links_and_those_who_follow_it(real: Callable[..., subprocess.Popen[str]]) -> None:
    line = "for i in $(seq 60); do echo $i; sleep 0.05; done; exit $TPUCTL_WORKER_ID"
    begun = real("run", "demo", "--detach", "--name", "long", "--", line)
    assert begun.communicate(timeout=60)[0] == "long\n"

    first, second = real("logs", "demo", "-f"), real("attach", "demo", "long")
    assert first.stdout is not None
    assert second.stdout is not None
    begun_line = first.stdout.readline().rstrip()
    assert second.stdout.readline().endswith(" 1\n")
    for pid in children(first.pid):
        os.kill(pid, signal.SIGKILL)
    second.send_signal(signal.SIGINT)

    # Who only looks on may leave; what the cut link has not brought comes once it is made again.
    assert second.communicate(timeout=60)[1].endswith(
        "interrupted: job `long` goes on without us; nothing was undone\n"
        "  go on: tpuctl logs demo long -f\n  undo:  tpuctl kill demo long\n"
    )
    out, err = first.communicate(timeout=60)
    whole = [f"[{worker}] {number}" for worker in (0, 1) for number in range(1, 61)]
    assert (err.count("attaching again"), first.returncode, second.returncode) == (2, 0, 130)
    assert sorted([begun_line, *out.splitlines()]) == sorted(whole)
