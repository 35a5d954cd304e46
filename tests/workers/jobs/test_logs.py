"""`tpuctl logs` and `attach`: the output of jobs, complete and once, and their results."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import Console, Result, Sandbox
from tests.lifecycle import put, said
from tests.tpuctl_process import TpuctlProcess
from tests.workers.jobs import Slice, timeless
from tpuctl.ssh.agent.job_files import MOST_TIMES, OutputTimes, sizes_at


def test_logs_follow_with_tail_begins_with_the_last_lines(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "seq 5; while [ ! -e go ]; do sleep 0.02; done; printf 6; exit $TPUCTL_WORKER_ID")
    demo.until_printed("a", "5\n", 0, 1)
    # The first session tells of the job; it goes on in the second, which follows it.
    demo.ssh('[ -e "$home/told" ] && : > "$home/go"; : > "$home/told"')

    out, err, code = tpuctl("logs", "demo", "-f", "-n", "2")
    lines = [f"[{worker}] {number}" for worker in (0, 1) for number in (4, 5, 6)]
    # The result of the job comes last, as from `attach`.
    failed = "error: the command failed on 1 of 2 workers: 1 (exit 1)\n"
    assert (sorted(out.splitlines()), err, code) == (lines, failed, 11)

    # What has ended is still there for the next.
    out, err, code = tpuctl("attach", "demo", "a", "--tail", "0")
    assert (out, err, code) == ("", "error: the command failed on 1 of 2 workers: 1 (exit 1)\n", 11)
    report = timeless(tpuctl("attach", "demo", "a", "--worker", "1", "-o", "json")[0])
    assert [(one["worker"], one["exitCode"], one["stdoutBytes"]) for one in report["workers"]] == [(1, 1, 11)]


def timed(result: Result) -> Result:
    """Return what a command printed, without how long the job took."""
    return result[0], re.sub(r"after \d+s", "after Ns", result[1]), result[2]


@pytest.mark.parametrize(
    ("since", "times", "shown"),
    [
        pytest.param("10m", True, "789", id="mark"),
        pytest.param("1h", True, "456789", id="earlier-mark"),
        pytest.param("3h", True, "123456789", id="before-the-start"),
        pytest.param("1m", True, "", id="nothing-since"),
        pytest.param("10m", False, "123456789", id="no-times"),
    ],
)
def test_logs_since_begins_with_the_line_of_that_time(
    tpuctl: Console, demo: Slice, since: str, times: bool, shown: str
) -> None:
    demo.run("a", "seq 9", "--worker", "0")
    demo.until_ended("a", 0)
    folder, now = demo.jobs(0) / "a.0", time.time()
    os.utime(folder / "token", times=(now - 7200, now - 7200))
    # A mark may be in the middle of a line.
    marks = [(now - 7000, 6), (now - 3500, 13), (now - 120, 18)]
    (folder / "times").write_text("".join(f"{at:.3f} {size} 0\n" for at, size in marks))
    if not times:
        (folder / "times").unlink()

    unknown = "all output of worker 0 is shown: the job was started without records of time\n"
    assert tpuctl("logs", "demo", "a", "--worker", "0", "--since", since) == (said(*shown), "" if times else unknown, 0)


def test_logs_since_a_time_in_the_future_is_an_error(tpuctl: Console, demo: Slice) -> None:
    assert tpuctl("logs", "demo", "--since", "2100-01-01T00:00:00Z") == (
        "",
        "error: `--since 2100-01-01T00:00:00Z` is in the future\n  hint: write it like `--since 10m`\n",
        2,
    )


def test_worker_notes_how_much_was_printed_when(tpuctl: Console, demo: Slice) -> None:
    begin = time.time()
    demo.run("a", "seq 9", "--worker", "0")
    demo.until_ended("a", 0)

    (mark,) = [line.split() for line in (demo.jobs(0) / "a.0" / "times").read_text().splitlines()]
    assert (begin - 1 < float(mark[0]) < time.time() + 1, mark[1:]) == (True, ["18", "0"])


def test_times_of_output_are_bounded_and_thinned(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"")
    times = OutputTimes(str(tmp_path))
    for size in range(1, MOST_TIMES + 2):
        os.truncate(tmp_path / "out", size)
        times.note(is_last=True)

    lines = (tmp_path / "times").read_text().splitlines()
    assert len(lines) < MOST_TIMES * 3 / 4 + 2
    assert sizes_at(str(tmp_path), time.time() + 1) == [MOST_TIMES + 1, 0]


def test_logs_of_followed_job_have_stderr_after_stdout(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "true", "--worker", "0")
    demo.until_ended("a", 0)
    folder = demo.jobs(0) / "a.0"
    (folder / "out").write_bytes(b"out\xff\n")
    (folder / "err").write_bytes(b"err")

    assert tpuctl("logs", "demo") == ("out\ufffd\n", "err", 0)


def test_logs_after_broken_connection_continue(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "seq 3000", "--worker", "0")
    demo.until_ended("a", 0)
    # The first answer, of which job it is, is short; what comes then is cut off twice.
    demo.ssh(
        'case $(ls "$home" | grep -c cut) in 2) ;; *) : > "$home/cut$$"; env HOME="$home" sh -c "$word" | head -c 7000;'
        " exit 255;; esac"
    )

    assert tpuctl("logs", "demo", "a", "--worker", "0") == (said(*map(str, range(1, 3001))), "", 0)


def test_logs_with_connections_that_break_at_once_reconnect(tpuctl: Console, demo: Slice) -> None:
    """Queries and followed jobs are cut off alike: by a lost connection, or by a killed local ssh."""
    demo.run("a", "echo $TPUCTL_WORKER_ID")
    demo.until_ended("a", 0, 1)
    lost = 'echo "client_loop: send disconnect: Broken pipe" >&2; exit 255'
    demo.ssh(
        f': > "$home/at$$"; case $(ls "$home" | grep -c at).${{host##*.}} in [13].1) kill -9 $$;; 1.2) {lost};; esac'
    )

    assert sorted(tpuctl("logs", "demo", "-f")[0].splitlines()) == ["[0] 0", "[1] 1"]

    # Whose name is told is followed at once, wherever it is.
    demo.run("b", "echo $TPUCTL_NODE", "--worker", "1")
    demo.ssh(': > "$home/once$$"; [ $(ls "$home" | grep -c once) = 1 ] || exit 1')
    assert timed(tpuctl("logs", "demo", "b", "-f")) == ("[1] demo\n", "job `b` exited 0 after Ns\n", 0)

    demo.ssh("kill -9 $$")
    assert tpuctl("kill", "demo", "a", "--worker", "0") == (
        "",
        "error: worker 0: ssh was terminated on this machine by KILL\n",
        11,
    )


def test_logs_of_several_nodes_are_one_job(tpuctl: Console, sandbox: Sandbox, demo: Slice) -> None:
    put(sandbox, "other", labels={"team": "vision"})
    sandbox_nodes = ("demo", "other")
    assert tpuctl("run", *sandbox_nodes, "--detach", "--name", "a", "--", "echo $TPUCTL_NODE")[0] == "a\n"

    out, err, code = timed(tpuctl("logs", *sandbox_nodes, "a", "-f"))
    lines = ["[demo-0]  demo", "[demo-1]  demo", "[other-0] other"]
    assert (sorted(out.splitlines()), err, code) == (lines, "job `a` exited 0 after Ns\n", 0)
    assert tpuctl("logs", "-l", "team=vision", "a") == ("other\n", "", 0)
    assert tpuctl("jobs", *sandbox_nodes)[0].split("\t")[2] == "exited 0"


def test_logs_report_output_no_longer_stored(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "seq 9", "--worker", "0")
    demo.until_ended("a", 0)
    (demo.jobs(0) / "a.0" / "trimmed").write_text("6 0")
    gone = "worker 0: 6 bytes of its output are no longer stored\n"

    assert tpuctl("logs", "demo", "a", "--worker", "0") == (said(*"456789"), gone, 0)
    assert tpuctl("logs", "demo", "a", "--tail", "7", "--worker", "0") == (said(*"456789"), "", 0)
    assert tpuctl("logs", "demo", "a", "--tail", "2", "--worker", "0") == (said(*"89"), "", 0)


def test_attach_without_run_forwards_signals(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "trap 'echo got it; exit 5' INT; echo; while :; do sleep 0.02; done", "--worker", "0")
    demo.until_printed("a", "\n", 0)
    (demo.jobs(0) / "a.0" / "about").write_text('{"command": "train", "detached": false}')

    with TpuctlProcess(
        ["attach", "demo", "a", "--worker", "0"],
        env={**tpuctl.environ, "PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "\n"
        process.send_signal(signal.SIGINT)
        out, err = process.stdout.read(), process.stderr.read()

    assert (out, err.splitlines()[-2:], process.returncode) == (
        "got it\n",
        ["INT sent; Ctrl-C again sends QUIT, a third time KILL", "interrupted"],
        130,
    )
