"""Stdin of this process, passed to the command of one worker."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from tests.workers.running import Slice

DATA = os.urandom(3_000_000)


def test_stdin_of_file_and_pipe_arrives_unchanged(pod: Slice) -> None:
    (pod.root / "data").write_bytes(DATA)
    with (pod.root / "data").open("rb") as file:
        file.seek(1_000_000)
        with pod.start("--worker", "1", "--", "cat", stdin=file) as program:
            assert program.communicate(timeout=60) == (DATA[1_000_000:], b"")
    with pod.start("--worker", "1", "--", "cat", stdin=subprocess.PIPE) as program:
        assert program.communicate(DATA, timeout=60) == (DATA, b"")


def test_stdin_not_read_by_the_command_is_no_error(pod: Slice) -> None:
    run = shlex.join([sys.executable, "-m", "tpuctl", "run", "pod", "--worker", "1", "--"])
    words = ["bash", "-c", f"yes | {run} 'head -c 4'; echo $?; {run} 'echo none' <{os.devnull}"]
    environ = {"PATH": os.environ["PATH"], **pod.tpuctl.environ}

    done = subprocess.run(words, env=environ, cwd=pod.tpuctl.folder, capture_output=True, timeout=60, check=False)

    assert (done.stdout, done.stderr, done.returncode) == (b"y\ny\n0\nnone\n", b"", 0)


def test_stdin_with_data_for_several_workers_is_refused(pod: Slice) -> None:
    (pod.root / "data").write_bytes(b"x")
    for options, code in (((), 2), (("--no-stdin",), 0)):
        command = ("--worker", "0-1", *options, "--", "cat; touch began")
        with (pod.root / "data").open("rb") as file, pod.start(*command, stdin=file) as program:
            out, err = program.communicate(timeout=60)
        assert (out, program.returncode, len(pod.texts("began"))) == (b"", code, 2 if code == 0 else 0)
        assert err.decode().splitlines()[:1] == (["error: stdin can be passed to one worker, not to 2"] if code else [])
