"""Commands whose client has gone, and their files on the worker's disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.workers.running import Slice
from tpuctl.ssh.channel import bootstrap
from tpuctl.workers.runner import RunRequest

MIB = 1024 * 1024


@pytest.fixture
def worker(tmp_path: Path) -> Callable[[RunRequest, tuple[int, int]], subprocess.Popen[bytes]]:
    """The program of a worker alone: the test sends the frames and reads the answers."""

    def start(request: RunRequest, offsets: tuple[int, int] = (0, 0)) -> subprocess.Popen[bytes]:
        order = request.worker_request(token="t" * 32, environment={}) | {"name": "job.0", "offsets": offsets}
        line, source = bootstrap("job", f"run_agent(serve_job, {order!r})")
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "SHELL": "/bin/sh"}
        program = subprocess.Popen(
            ["sh", "-c", line], env=environ, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        say(program, source)
        return program

    return start


def say(program: subprocess.Popen[bytes], data: bytes) -> None:
    assert program.stdin is not None
    program.stdin.write(data)
    program.stdin.flush()


def begin(program: subprocess.Popen[bytes]) -> None:
    """Start the command when the program is ready."""
    assert program.stdout is not None
    assert program.stdout.read(15 + 8)[-3:] == b"new"
    say(program, frame(b"g"))


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_command_without_client_is_terminated_after_linger(worker: Callable[..., Any], tmp_path: Path) -> None:
    order = RunRequest(line="sleep 60; sleep 60", linger=timedelta(seconds=0.1))
    job = tmp_path / ".tpuctl" / "jobs" / "job.0"

    with worker(order) as client:
        begin(client)
        until((job / "pid").exists)
        group = int((job / "pid").read_text().split()[0])
        client.kill()
        client.communicate()

    until((job / "exit").exists)
    assert (job / "exit").read_text().endswith(" abandoned")
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


def test_full_disk_is_reported_with_the_exit_code(pod: Slice) -> None:
    small = 'mkdir -p ~/.tpuctl && mount -t tmpfs -o size=300k none ~/.tpuctl && exec /bin/sh "$@"'
    shell = pod.root / "small"
    shell.write_text(f"#!/bin/sh\nexec unshare -rm sh -c '{small}' sh \"$@\"\n")
    shell.chmod(0o755)
    pod.plan({0: [{"shell": str(shell)}]})
    environ = {"HOME": str(pod.home(0)), "PATH": os.environ["PATH"]}
    if subprocess.run([shell, "-c", "true"], env=environ, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    line = "head -c 1000000 /dev/zero 2>/dev/null; exit 3"

    out, err, code = pod.run("--worker", "0-1", "-o", "json", "--", line)

    report = json.loads(out)["workers"]
    assert [(one["exitCode"], one["stdoutBytes"], one.get("diskFull")) for one in report] == [
        (3, report[0]["stdoutBytes"], True),
        (3, 1_000_000, None),
    ]
    assert 200_000 < report[0]["stdoutBytes"] < 300_000
    assert ("warning: the disk of worker 0 was full: output may be incomplete" in err.splitlines(), code) == (True, 11)


def test_received_output_frees_its_disk_space(worker: Callable[..., Any], tmp_path: Path) -> None:
    size = 80 * MIB
    order = RunRequest(line=f"head -c {size} /dev/urandom; exec sleep 60")
    out = tmp_path / ".tpuctl" / "jobs" / "job.0" / "out"
    with worker(order, (size, 0)) as client:
        begin(client)
        until(lambda: out.exists() and out.stat().st_size == size)
        say(client, frame(b"t", b"%d 0" % (64 * MIB)))
        until(lambda: out.stat().st_blocks * 512 < 20 * MIB)
        # Whoever looks on from the beginning is told what is missing.
        with worker(order) as late:
            say(late, b"")
            told = late.stdout.read(15 + 10 + 5 + 5 + 8)
            late.kill()
        say(client, frame(b"k", b"9"))
        client.stdin.close()
        client.stdout.read()

    assert told[-13:] == frame(b"O", b"%d" % (64 * MIB))
    assert out.stat().st_size == size


def test_late_go_of_an_earlier_connection_starts_nothing(worker: Callable[..., Any], tmp_path: Path) -> None:
    """A GO delayed by a hanging connection arrives after a second connection has done everything."""
    order = RunRequest(line="echo x >>count")
    with worker(order) as early:
        assert early.stdout.read(15 + 8)[-3:] == b"new"
        other = worker(order)
        assert other.stdout.read(15 + 8)[-3:] == b"new"
        with worker(order) as late:
            begin(late)
            until((tmp_path / ".tpuctl" / "jobs" / "job.0" / "exit").exists)
            say(late, frame(b"b"))
            late.communicate()
        for client in (early, other):
            say(client, frame(b"g"))
            client.communicate()

    assert (tmp_path / "count").read_text() == "x\n"
    assert list((tmp_path / ".tpuctl" / "jobs").iterdir()) == []


def test_client_killed_leaves_its_command_to_the_next_client(pod: Slice) -> None:
    with pod.start(
        "--worker", "0", "--name", "mine", "--", "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"one\n"
        client.send_signal(signal.SIGKILL)
    jobs = pod.tpuctl("jobs", "pod", "-o", "json")
    (pod.home(0) / "go").touch()

    assert [(job["job"], job["state"]) for job in json.loads(jobs[0])] == [("mine", "running")]
    assert pod.tpuctl("attach", "pod", "mine") == ("one\ntwo\n", "", 0)


def test_job_without_returning_client_is_removed_after_a_day(pod: Slice) -> None:
    for name, options in (("kept", ("--detach",)), ("forgotten", ())):
        job = pod.home(0) / ".tpuctl" / "jobs" / f"{name}.0"
        job.mkdir(parents=True)
        (job / "exit").write_text("exit 0 1.0")
        (job / "token").write_text("x")
        if options:
            (job / "detached").touch()
        os.utime(job / "exit", (time.time() - 90_000,) * 2)

    assert pod.run("--worker", "0", "--", "true")[2] == 0
    assert pod.left() == ["0/.tpuctl/jobs/kept.0"]
