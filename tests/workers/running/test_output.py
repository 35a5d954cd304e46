"""The output of commands: exact in a pipe and in files, harmless on a terminal."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

from tests.tpuctl_process import TpuctlProcess
from tests.workers.running import Slice
from tpuctl.ssh.agent.job import AFTERWARDS
from tpuctl.workers.execution import _LineWriter

EVERY_BYTE = 'i=0; while [ $i -lt 256 ]; do printf "\\\\$(printf %03o $i)"; i=$((i+1)); done'


def test_output_of_one_worker_is_unchanged_on_two_streams(pod: Slice) -> None:
    with pod.start("--worker", "3", "--", f"{EVERY_BYTE}; printf 'no end' >&2") as program:
        assert program.communicate(timeout=60) == (bytes(range(256)), b"no end")
    assert program.returncode == 0


def test_output_of_several_workers_is_marked_by_whole_lines(pod: Slice) -> None:
    line = "head -c 1000000 /dev/zero | tr '\\0' $TPUCTL_WORKER_ID; printf '\\n\\nlast \\377 \\0'"
    with pod.start("--worker", "0-1", "--log-dir", "logs", "--", line) as program:
        out, err = program.communicate(timeout=60)

    assert (err, program.returncode) == (b"", 0)
    for worker in (b"0", b"1"):
        mark = b"[%s] " % worker
        mine = [shown.removeprefix(mark) for shown in out.split(b"\n") if shown.startswith(mark)]
        # A line that is too long to be kept is shown in parts.
        assert (b"".join(mine[:-2]), mine[-2:]) == (worker * 1_000_000, [b"", b"last \xff \0"])
        logged = (pod.tpuctl.folder / "logs" / f"worker-{worker.decode()}.log").read_bytes()
        assert logged == worker * 1_000_000 + b"\n\nlast \xff \0"


def test_output_on_a_terminal_has_no_harmful_sequences(pod: Slice) -> None:
    """Colours and progress bars pass; sequences that move the cursor, ask, or set titles do not, even in pieces."""
    script = pod.root / "shown.py"
    script.write_text(
        "import os, time\n"
        "for part in (b'\\x1b[3', b'1mred\\x1b[0m\\x1b[2J\\x1b]0;ti', b'tle\\x07\\x1b[6n\\x1b(0',\n"
        "             b'\\xc3', b'\\xa9\\x9b1m\\xff\\0\\a',\n"
        "             b'\\r10%', b'\\r\\x1b[K20%\\n', b'\\x1b[?1049hend'):\n"
        "    os.write(1, part); time.sleep(0.03)\n"
    )
    line = f"exec {sys.executable} -IS {script}"

    one, several = (on_terminal(pod, "--worker", workers, "--", line) for workers in ("0", "0-1"))

    assert one == "\x1b[31mred\x1b[0mé\ufffd1m\ufffd\r10%\r20%\r\nend"
    for worker, hue in (("0", 36), ("1", 33)):
        mark = f"\x1b[{hue}m[{worker}]\x1b[0m "
        mine = [shown.removeprefix(mark) for shown in several.splitlines() if shown.startswith(mark)]
        assert mine == ["\x1b[31mred\x1b[0mé\ufffd1m\ufffd", "10%", "20%", "end"]


def test_carriage_returns_take_linear_time() -> None:
    """Quadratic would be many seconds."""
    written: list[bytes] = []
    began = time.thread_time()
    _LineWriter(written.append, b"[0] ", is_terminal=True).write(b"a\r\r\rb\r\n" + b"c" + b"\r" * 64_000)

    assert (written, time.thread_time() - began < 2) == ([b"[0] a\n[0] b\n"], True)


def test_output_after_the_end_of_the_shell_is_shown(pod: Slice) -> None:
    """As with ssh, for a while: from processes that hold the output open, and from no others."""
    line = "sleep 20 >/dev/null 2>&1 & (sleep 0.5; echo late; echo err >&2) & echo first; exit 3"
    began = time.monotonic()

    failed = "error: the command failed on worker 0 (exit 3)\n"
    assert pod.run("--worker", "0", "--", line) == ("first\nlate\n", f"err\n{failed}", 11)
    assert time.monotonic() - began < AFTERWARDS


def test_output_without_stdout_is_an_error(pod: Slice) -> None:
    words = [sys.executable, "-m", "tpuctl", "run", "pod", "--worker", "0", "--"]
    environ = {"PATH": os.environ["PATH"], **pod.tpuctl.environ}
    results = []
    for line in ("echo out; sleep 60", "echo err >&2"):
        shell = ["sh", "-c", 'exec "$@" >&-', "sh", *words, line]
        done = subprocess.run(
            shell,
            env=environ,
            cwd=pod.tpuctl.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        results.append((done.stderr, done.returncode))

    closed = (
        b"error: cannot write to stdout: it is closed\n"
        b"  hint: the command was terminated on the workers where it was still running\n"
        b"  more: tpuctl explain failure\n"
    )
    assert results == [(closed, 1), (b"err\n", 0)]
    assert pod.left() == []


def on_terminal(pod: Slice, *arguments: str) -> str:
    """Return what the program shows on a terminal."""
    ours, theirs = os.openpty()
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8", **pod.tpuctl.environ}
    words = ["run", "pod", *arguments]
    with TpuctlProcess(
        words, env=environ, cwd=pod.tpuctl.folder, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL
    ) as program:
        os.close(theirs)
        shown = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # nobody has it open any more
                break
        program.wait(60)
    os.close(ours)
    return shown.decode()


def test_memory_with_large_output_is_bounded(pod: Slice) -> None:
    peaks = [peak(pod, size) for size in (1_000_000, 30_000_000)]

    assert peaks[1] - peaks[0] < 8_000  # KiB


def peak(pod: Slice, size: int, *options: str) -> int:
    """Return the peak memory of the program in KiB while two workers print that much."""
    chosen = options or ("--worker", "0-1")
    words = [sys.executable, "-m", "tpuctl", "run", "pod", *chosen, "--", f"head -c {size} /dev/zero"]
    program = subprocess.Popen(
        words,
        env={"PATH": os.environ["PATH"], **pod.tpuctl.environ},
        cwd=pod.tpuctl.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    assert program.returncode == 0
    return usage.ru_maxrss


def test_logs_not_writable_are_reported_before_and_during_the_run(pod: Slice) -> None:
    (pod.tpuctl.folder / "file").touch()
    (pod.tpuctl.folder / "full").mkdir()
    (pod.tpuctl.folder / "full" / "worker-1.log").symlink_to("/dev/full")

    assert pod.run("--log-dir", "file", "--", "touch ran") == (
        "",
        (
            f"error: cannot write logs to `{pod.tpuctl.folder}/file`: file exists\n"
            "  hint: name another directory with `--log-dir`\n"
        ),
        2,
    )
    assert pod.texts("ran") == {}
    out, err, code = pod.run("--worker", "1", "--log-dir", "full", "--", "yes; touch ~/went-on")
    assert (err.splitlines(), code) == (
        [
            f"error: {pod.tpuctl.folder}/full/worker-1.log: no space left on device",
            "  hint: the command was terminated on the workers where it was still running",
        ],
        1,
    )
    assert (set(out.split()) <= {"y"}, pod.texts("went-on"), pod.left()) == (True, {}, [])


def test_output_in_github_actions_has_no_workflow_commands(pod: Slice) -> None:
    """Neither on stdout nor on stderr, of one worker or of several; other output is unchanged."""
    line = (
        "printf '::set-output name=a::b\\n  ::add-'; sleep 0.1; printf 'mask::x\\nlog ##[error]y\\n\\377'; "
        "printf '::warning::z\\n' >&2"
    )
    with (
        pod.start("--worker", "3", "--", line, GITHUB_ACTIONS="true") as one,
        pod.start("--worker", "0-1", "--", line, GITHUB_ACTIONS="true") as two,
    ):
        alone, several = one.communicate(timeout=60), two.communicate(timeout=60)

    assert alone == (
        b"\\u003a:set-output name=a::b\n  \\u003a:add-mask::x\nlog ##\\u005berror]y\n\xff",
        b"\\u003a:warning::z\n",
    )
    for out in several:
        assert all(shown.startswith((b"[0] ", b"[1] ")) for shown in out.splitlines())
        assert b"##[" not in out
