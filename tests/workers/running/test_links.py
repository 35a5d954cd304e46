"""Broken connections: a command runs at most once, and its stdin and output are neither lost nor doubled."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest

from tests.conftest import Sandbox
from tests.workers.running import GOOD, REFUSED, Link, Slice

ATTACHING = "worker {}: connection lost (client_loop: send disconnect: Broken pipe); reconnecting"


@pytest.mark.parametrize(
    "cuts",
    [
        # The worker sends a mark of 13 bytes, `h` (8), `s` (5), a line (7), then how it ended; we send `go` and at last `bye`.
        [{"received": count} for count in (0, 14, 15, 22, 23, 27, 28, 32)],
        [{"received": count} for count in (34, 35, 36, 42, 51, 52, 53, 54)],
        [{"said": count} for count in (-28_000, -10_000, -1, 0, 1, 4, 5, 9)],
    ],
    ids=["at the beginning", "at the end", "of what is said"],
)  # fmt: skip
def test_command_with_connection_cut_anywhere_runs_once(pod: Slice, cuts: list[Link]) -> None:
    pod.plan({worker: [cut, GOOD] for worker, cut in enumerate(cuts)})

    out, err, code = pod.run("--", "echo x >>count; echo $TPUCTL_WORKER_ID; exit 255")

    assert sorted(out.splitlines()) == [f"[{worker}] {worker}" for worker in range(8)], err
    assert pod.texts("count") == dict.fromkeys(range(8), "x\n")
    *told, last = err.splitlines()
    assert set(told) <= {ATTACHING.format(worker) for worker in range(8)}
    # The remote command's own code is not taken for a failure of ssh.
    assert (last, code) == ("error: the command failed on 8 of 8 workers: 0-7 (exit 255)", 11)


def test_output_with_connection_cut_anywhere_is_complete(pod: Slice) -> None:
    sizes: list[Link] = [{"received": size} for size in (35, 200_001, 500_000)]
    pod.plan({worker: [sizes[worker % 3], {"received": 25_000 * worker + 1}, GOOD] for worker in range(3)})

    out, err, code = pod.run("--worker", "0-3", "--log-dir", "logs", "--", "seq 100000; seq 3 >&2")

    told = [line for line in err.splitlines() if "reconnecting" not in line]
    assert sorted(told) == [f"[{worker}] {number}" for worker in range(4) for number in (1, 2, 3)]
    expected = [str(number) for number in range(1, 100_001)]
    lines = out.splitlines()
    for worker in range(4):
        assert [line[4:] for line in lines if line.startswith(f"[{worker}] ")] == expected
        assert len((pod.tpuctl.folder / "logs" / f"worker-{worker}.log").read_bytes()) == len("\n".join(expected)) + 7
    assert (code, len(lines), [pod.links(worker) > 2 for worker in range(4)]) == (
        0,
        4 * 100_000,
        [True, True, True, False],
    )
    assert pod.left() == []


def test_ssh_killed_is_restarted_and_login_output_is_not_its_message(pod: Slice) -> None:
    """On worker 0 the local ssh is killed, on worker 1 the login shell; neither prints it, but other programs have printed."""
    shell = pod.root / "noisy"
    shell.write_text('#!/bin/sh\necho "pyenv: cannot rehash" >&2\necho $PPID >0; echo $$ >1\nexec /bin/sh "$@"\n')
    shell.chmod(0o755)
    early = pod.root / "early"
    early.write_text("#!/bin/sh\nkill -9 $PPID\n")
    early.chmod(0o755)
    links: list[Link] = [{"shell": str(early)}, {"shell": str(shell)}, GOOD]
    pod.plan({0: links, 1: links[1:]})

    line = "echo x >>count; kill -9 $(cat ~/$TPUCTL_WORKER_ID); sleep 0.1; cat count"
    out, err, code = pod.run("--worker", "0-1", "--", line)

    assert (sorted(out.splitlines()), sorted(err.splitlines()), code) == (
        ["[0] x", "[1] x"],
        [
            "worker 0: connection lost (ssh was terminated on this machine by KILL); reconnecting",
            "worker 1: connection lost; reconnecting",
        ],
        0,
    )


def test_stdin_over_cut_connections_arrives_once(pod: Slice) -> None:
    data = os.urandom(5_000_000)
    pod.plan({2: [{"said": 2_000_000}, {"said": 1_500_001}, GOOD]})

    with pod.start("--worker", "2", "--", "cat >data; echo $?", stdin=-1) as program:
        out, err = program.communicate(data, 60)

    assert (out, err.decode().splitlines(), program.returncode) == (b"0\n", [ATTACHING.format(2)] * 2, 0)
    assert (pod.home(2) / "data").read_bytes() == data
    assert pod.links(2) == 3


def test_node_preempted_ends_the_run_soon(pod: Slice, sandbox: Sandbox) -> None:
    pod.plan({worker: [{"received": 36}, REFUSED] for worker in (0, 1)})
    began = time.monotonic()
    with pod.start(
        "--worker", "0-1", "--", "echo 1; while [ ! -e go ]; do sleep 0.02; done; echo 2; sleep 60"
    ) as program:
        assert program.stdout is not None
        assert [program.stdout.readline()[4:] for _ in range(2)] == [b"1\n"] * 2
        sandbox.fault("preempt", node="pod")
        for worker in (0, 1):
            (pod.home(worker) / "go").touch()
        _, err = program.communicate(timeout=60)

    *told, error, hint, more = err.decode().splitlines()
    assert sorted(told) == [ATTACHING.format(worker) for worker in (0, 1)]
    assert (error, hint, more) == (
        "error: `pod` was PREEMPTED: the command failed on 2 of 2 workers: 0-1 (lost)",
        "  hint: recreate what is lost with `tpuctl up pod`, then run the command again",
        "  more: tpuctl explain preempted",
    )
    assert (program.returncode, time.monotonic() - began < 40) == (10, True)


@pytest.mark.parametrize("node_fields", [{"schedulingConfig": {"spot": True}}], ids=["spot"])
@pytest.mark.parametrize(
    ("command_code", "options", "expected"),
    [
        pytest.param(
            0,
            (),
            ("warning: `pod` was PREEMPTED about when the command ended, and its boot disk is lost\n", 0),
            id="command-succeeded",
        ),
        pytest.param(
            143,
            (),
            (
                (
                    "error: `pod` was PREEMPTED: the command failed on 2 of 2 workers: 0-1 (exit 143: terminated by TERM)\n"
                    "  hint: recreate what is lost with `tpuctl up pod`, then run the command again\n"
                    "  more: tpuctl explain preempted\n"
                ),
                10,
            ),
            id="command-terminated",
        ),
        pytest.param(3, ("-o", "json"), ("preempted", ["pod"], 10), id="json"),
    ],
)
def test_command_on_preempted_spot_node_says_so(
    pod: Slice, sandbox: Sandbox, command_code: int, options: tuple[str, ...], expected: tuple[object, ...]
) -> None:
    """Workers are shut down in order: their connections may outlast the command."""
    line = f"touch began; while [ ! -e go ]; do sleep 0.02; done; exit {command_code}"

    with pod.start("--worker", "0-1", *options, "--", line, stderr=subprocess.PIPE) as program:
        while len(pod.texts("began")) < 2:
            assert program.poll() is None
            time.sleep(0.02)
        sandbox.fault("preempt", node="pod")
        for worker in (0, 1):
            (pod.home(worker) / "go").touch()
        out, err = program.communicate(timeout=60)

    if options:
        said: tuple[object, ...] = json.loads(err)["error"]["kind"], json.loads(out)["preempted"], program.returncode
    else:
        said = err.decode(), program.returncode
    assert said == expected
