"""Stopping a run: the signals to its remote processes, and their end."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

from tests.workers.running import Slice
from tpuctl.workers.runner import forwarded_signals

DEFIANT = 'for s in INT QUIT TERM; do trap "echo $s >>got" $s; done; touch ready; while :; do sleep 0.02; done'

LOUD = "trap 'echo TERM >>got; exit' TERM; touch ready; while :; do echo line; done"


def wait_for(pod: Slice, name: str, text: str, workers: int = 2) -> None:
    """Wait until a file on that many workers has that text."""
    end = time.monotonic() + 60
    while list(pod.texts(name).values()) != [text] * workers:
        assert time.monotonic() < end, pod.texts(name)
        time.sleep(0.02)


def running(pod: Slice) -> list[str]:
    """Return the processes that run in a worker's home."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            place = str(link.readlink())
            command = (link.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if place.startswith(f"{pod.root}/"):
            found.append(command.replace(b"\0", b" ").decode())
    return found


def test_interrupts_repeated_send_stronger_signals(pod: Slice) -> None:
    with pod.start("--worker", "0-1", "--", DEFIANT) as program:
        wait_for(pod, "ready", "")
        program.send_signal(signal.SIGINT)
        wait_for(pod, "got", "INT\n")
        program.send_signal(signal.SIGINT)
        wait_for(pod, "got", "INT\nQUIT\n")
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)

    told = [line for line in err.decode().splitlines() if not line.startswith("[")]
    assert told == [
        "INT sent; Ctrl-C again sends QUIT, a third time KILL", "QUIT sent; Ctrl-C again sends KILL",
        "KILL sent; Ctrl-C again leaves them running", "interrupted",
    ]  # fmt: skip
    assert (out, program.returncode, running(pod), pod.left()) == (b"", 130, [], [])


def test_interrupts_arriving_together_are_counted() -> None:
    """Python calls a handler once for several signals that arrived while it was busy."""
    with forwarded_signals() as interrupts:
        # The kernel keeps one pending signal of a kind: the next is sent when this one has been delivered.
        delivered = f"while grep -qs '^ShdPnd:.*[1-9a-f]' /proc/{os.getpid()}/status; do sleep 0.01; done"
        line = f"for i in 1 2 3; do kill -INT {os.getpid()}; sleep 0.01; {delivered}; done"
        with subprocess.Popen(["sh", "-c", line]) as keys:
            while keys.poll() is None:
                hashlib.pbkdf2_hmac("sha256", b"", b"", 400_000)  # nothing is handled meanwhile
        assert interrupts.take() == [signal.SIGINT] * 3
        assert interrupts.take() == []


def test_term_ends_all_processes_of_the_command(pod: Slice) -> None:
    line = (
        "(trap 'sleep 0.3; echo saved >>got' TERM; trap '' QUIT INT; touch ready; while :; do sleep 0.02; done) & wait"
    )
    with pod.start("--worker", "0-1", "--", line) as program:
        wait_for(pod, "ready", "")
        program.send_signal(signal.SIGTERM)
        wait_for(pod, "got", "saved\n")
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        program.send_signal(signal.SIGTERM)
        assert program.stderr is not None
        err = b""
        while b"QUIT sent" not in err:  # the kernel keeps one pending interrupt of two
            err += program.stderr.readline()
        program.send_signal(signal.SIGINT)
        err += program.stderr.read()

    told = [line for line in err.decode().splitlines() if not line.startswith("[")]
    assert told == [
        "terminated: stopping the remote processes", "QUIT sent; Ctrl-C again sends KILL",
        "KILL sent; Ctrl-C again leaves them running", "terminated",
    ]  # fmt: skip
    assert (program.returncode, running(pod)) == (143, [])


def test_run_timed_out_is_terminated(pod: Slice) -> None:
    out, err, code = pod.run("--worker", "0-1", "--timeout", "3s", "--", "echo here; sleep 60 & sleep 60")

    assert (sorted(out.splitlines()), err, code) == (
        ["[0] here", "[1] here"],
        (
            "timed out: stopping the remote processes\n"
            "error: timed out after 3s (`--timeout`): command terminated on 2 of 2 workers: 0-1\n"
        ),
        5,
    )
    assert running(pod) == []


def test_fail_fast_terminates_the_other_workers(pod: Slice) -> None:
    line = "[ $TPUCTL_WORKER_ID = 1 ] && exit 3; sleep 60 & sleep 60"

    out, err, code = pod.run("--worker", "0-2", "--fail-fast", "-o", "json", "--", line)

    assert json.loads(out)["stopped"] == "another worker failed"
    assert (err.splitlines()[0], code) == ("another worker failed: stopping the remote processes", 11)
    message = "the command failed on 1 of 3 workers: 1 (exit 3); terminated on 0,2"
    assert json.loads(err.splitlines()[1])["error"]["message"] == message
    assert running(pod) == []


def test_fail_fast_does_not_start_waiting_workers(pod: Slice) -> None:
    line = (
        "[ $TPUCTL_WORKER_ID = 1 ] && while [ ! -e ../0/began ]; do sleep 0.02; done && exit 3; touch began; sleep 60"
    )

    _, err, code = pod.run("--worker", "0-4", "--batch", "2", "--fail-fast", "--", line)

    assert (err.splitlines()[-1], code, list(pod.texts("began"))) == (
        "error: the command failed on 1 of 5 workers: 1 (exit 3); terminated on 0; not started on 2-4",
        11,
        [0],
    )


def test_interrupted_while_connecting_starts_nothing(pod: Slice) -> None:
    pod.plan({1: [{"hangs": True}]})
    with pod.start("--worker", "0-1", "--", "touch began") as program:
        while not list(pod.root.glob("0/.tpuctl/jobs/.*")):
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)

    assert (out, err, program.returncode) == (b"", b"not started on any worker\ninterrupted\n", 130)
    assert (pod.texts("began"), pod.left()) == ({}, [])


def test_reader_gone_terminates_the_command_quietly(pod: Slice) -> None:
    with pod.start("--worker", "0-1", "--", LOUD) as program:
        wait_for(pod, "ready", "")
        assert program.stdout is not None
        program.stdout.readline()
        program.stdout.close()
        assert program.wait(60) == 141
        assert program.stderr is not None
        assert program.stderr.read() == b""

    assert (pod.texts("got"), running(pod), pod.left()) == ({0: "TERM\n", 1: "TERM\n"}, [], [])


def test_interrupt_note_begins_a_new_line(pod: Slice) -> None:
    """A terminal shows `^C` at the cursor; here it shows the typed character."""
    ours, theirs = os.openpty()
    with pod.start("--worker", "0-1", "--", DEFIANT, stderr=theirs) as program:
        os.close(theirs)
        wait_for(pod, "ready", "")
        os.write(ours, b"typed")
        shown = b""
        while not shown.endswith(b"typed") and select.select([ours], [], [], 60)[0]:  # the kernel echoes a moment later
            shown += os.read(ours, 65536)
        for number in range(3):
            program.send_signal(signal.SIGINT)
            while shown.count(b" sent; ") <= number and select.select([ours], [], [], 60)[0]:
                shown += os.read(ours, 65536)
        program.wait(timeout=60)
    os.close(ours)

    assert [shown.count(b"\n%s sent; " % name) for name in (b"INT", b"QUIT", b"KILL")] == [1, 1, 1], shown
