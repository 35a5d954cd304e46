"""`tpuctl stacks`: the stacks of real processes, from each source, and which workers are shown together."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.lifecycle import said
from tests.workers.programs import Pair
from tests.workers.running import Plan
from tpuctl.ssh.agent.process_stacks import parse_dump
from tpuctl.ssh.agent.user_files import is_trusted
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer
from tpuctl.ssh.connection import Target
from tpuctl.workers.worker_stacks import WorkerStacks

# As py-spy 0.4 prints it.
SPY = """#!/bin/sh
cat "$HOME/spied"
"""
TRAINING = """
import faulthandler, signal, sys, time
if sys.argv[1] == "registers":
    faulthandler.register(signal.SIGUSR1)
def wait_for_data():
    print(flush=True)
    time.sleep(60)
wait_for_data()
"""


def spied(*functions: str) -> str:
    frames = [
        {"name": name, "filename": "/home/ada/train.py", "module": None, "line": 7, "locals": None}
        for name in functions
    ]
    threads = [
        {"pid": 1, "thread_id": 2, "thread_name": "loader", "os_thread_id": 3, "active": False, "frames": frames[-1:]},
        {"pid": 1, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 1, "active": False, "frames": frames},
    ]
    return json.dumps(threads)


@contextmanager
def training(pair: Pair, mode: str = "plain") -> Iterator[list[subprocess.Popen[str]]]:
    """A program on each worker that holds the TPU and waits; its stderr is a file."""
    with ExitStack() as stack:
        processes = []
        for worker in (0, 1):
            home = pair.slice.home(worker)
            chip = stack.enter_context((home / "dev" / "accel0").open())
            log = stack.enter_context((home / "train.log").open("w"))
            words = [sys.executable, "-c", TRAINING, mode]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, pass_fds=[chip.fileno()], text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            processes.append(process)
        yield processes


def install_spy(pair: Pair, *outputs: str) -> None:
    plan: dict[int, Plan] = {}
    for worker, output in enumerate(outputs):
        home = pair.slice.home(worker)
        program = home / "bin" / "py-spy"
        program.parent.mkdir()
        program.write_text(SPY)
        program.chmod(0o755)
        (home / "spied").write_text(output)
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        plan[worker] = [{"environ": pair.environ(worker, PATH=path)}]
    pair.slice.plan(plan)


def without_numbers(text: str) -> str:
    return re.sub(r"pid \d+ on worker (\d), for \d+s", r"pid on worker \1", text.replace(sys.executable, "python3"))


def test_stacks_groups_workers_at_the_same_place(pair: Pair) -> None:
    install_spy(pair, spied("wait", "main"), spied("wait", "main"))

    with training(pair):
        out, err, code = pair.tpuctl("stacks", "pair")

    header, *rest = without_numbers(out).splitlines()
    assert (header.partition(":")[0], header[-18:]) == ("worker 0-1 (2 of 2), by py-spy", " (pid on worker 0)")
    assert rest == [
        "  MainThread",
        "    wait (/home/ada/train.py:7)",
        "    main (/home/ada/train.py:7)",
        "  loader",
        "    main (/home/ada/train.py:7)",
    ]
    assert (err, code) == ("", 0)


def test_stacks_shows_a_worker_at_another_place_separately(pair: Pair) -> None:
    install_spy(pair, spied("wait", "main"), spied("load", "main"))

    with training(pair):
        out, _, code = pair.tpuctl("stacks", "pair", "-o", "json")

    groups = json.loads(out)["groups"]
    found = [
        (group["workers"][0]["worker"], group["stacks"][0]["threads"][0]["frames"][0]["function"]) for group in groups
    ]
    assert (found, code) == ([(0, "wait"), (1, "load")], 0)


@pytest.mark.parametrize("output", ["", '[{"thread_name": 1}]'], ids=["empty", "no frames"])
def test_stacks_without_a_usable_answer_of_py_spy_shows_the_kernel(pair: Pair, output: str) -> None:
    install_spy(pair, output, output)

    with training(pair):
        out, err, code = pair.tpuctl("stacks", "pair", "--worker", "0", "-o", "json")

    (group,) = json.loads(out)["groups"]
    assert (group["stacks"][0]["source"], err, code) == ("kernel", "py-spy: no JSON\n", 0)


def test_stacks_with_a_signal_shows_what_faulthandler_prints(pair: Pair) -> None:
    pair.install("")

    with training(pair, "registers"):
        out, err, code = pair.tpuctl("stacks", "pair", "--signal", "USR1")

    assert without_numbers(out).splitlines()[1:] == [
        "  current thread",
        "    wait_for_data (<string>:7)",
        "    <module> (<string>:8)",
    ]
    assert (err, code) == (
        "for Python stacks install py-spy: `tpuctl run pair -- 'python3 -m pip install py-spy'`\n",
        0,
    )


def test_stacks_sends_no_signal_to_a_process_without_a_handler(pair: Pair) -> None:
    pair.install("")

    with training(pair) as processes:
        out, err, code = pair.tpuctl("stacks", "pair", "--signal", "USR1")
        assert [process.poll() for process in processes] == [None, None]

    assert ("by kernel" in out, code) == (True, 0)
    assert err.splitlines()[1:] == ["no handler for that signal, so it was not sent"]


def test_stacks_of_a_job_shows_its_processes(pair: Pair) -> None:
    pair.install("")
    pair.tpuctl("run", "pair", "--detach", "--name", "long", "--", "exec sleep 61")

    out, _, code = pair.tpuctl("stacks", "pair", "--job", "long", "-o", "json")
    other = pair.tpuctl("stacks", "pair", "--job", "other")

    commands = [one["processes"][0]["command"] for group in json.loads(out)["groups"] for one in group["workers"]]
    assert (commands, code) == (["sleep 61", "sleep 61"], 0)
    assert other == (
        "",
        said("error: no process of job `other` runs on `pair`", "  hint: list the jobs: `tpuctl jobs pair`"),
        3,
    )


def test_stacks_of_a_free_tpu_says_so(pair: Pair) -> None:
    pair.install("")

    out, err, code = pair.tpuctl("stacks", "pair")

    assert (out, code) == ("worker 0-1 (2 of 2): no process\n", 0)
    assert err == "no process holds the TPU of `pair`; name a job: `--job JOB`\n"


DUMP = """\
Fatal Python error
Thread 0x00007f01 (most recent call first):
  File "/home/ada/a.py", line 3 in wait
Thread 0x00007f02 [loader] (most recent call first):
  File "/home/ada/b.py", line 4 in <listcomp>
Current thread 0x00007f03 (most recent call first):
  File "/home/ada/c.py", line 99999999999999999999 in main
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            DUMP,
            [("current thread", "main", 999999999), ("thread", "wait", 3), ("loader", "<listcomp>", 4)],
            id="three",
        ),
        pytest.param('  File "a.py", line 3 in wait\n', [], id="a frame of no thread"),
        pytest.param("step 100\n", [], id="other output"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_parse_dump_reads_the_output_of_faulthandler(text: str, expected: list[tuple[str, str, int]]) -> None:
    found = [(one["name"], one["frames"][0]["function"], one["frames"][0]["line"]) for one in parse_dump(text)]
    assert found == expected


@pytest.mark.parametrize(
    ("of_folder", "of_file", "expected"),
    [
        pytest.param(0o755, 0o755, True, id="only its owner may write"),
        pytest.param(0o755, 0o775, False, id="its group may write"),
        pytest.param(0o755, 0o757, False, id="others may write"),
        pytest.param(0o777, 0o755, False, id="others may replace it"),
    ],
)
def test_is_trusted_refuses_programs_that_others_may_change(
    tmp_path: Path, of_folder: int, of_file: int, *, expected: bool
) -> None:
    program = tmp_path / "bin" / "py-spy"
    program.parent.mkdir()
    program.touch()
    program.chmod(of_file)
    program.parent.chmod(of_folder)

    assert is_trusted(str(program), {0, os.geteuid()}) is expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param(0o755, True, id="only its owner may write"),
        pytest.param(0o777, False, id="others may replace the folder"),
        pytest.param(0o1777, True, id="others may create files only"),
    ],
)
def test_is_trusted_looks_at_every_folder_above(tmp_path: Path, mode: int, *, expected: bool) -> None:
    program = tmp_path / "shared" / "venv" / "bin" / "py-spy"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    (tmp_path / "shared").chmod(mode)

    assert is_trusted(str(program), {0, os.geteuid()}) is expected


def test_find_spy_returns_a_path_without_links(tmp_path: Path) -> None:
    """Another user could change a link after the program was trusted."""
    program = tmp_path / "real" / "py-spy"
    program.parent.mkdir()
    program.touch(0o755)
    (tmp_path / "link").symlink_to(program.parent)
    code = "import os; from tpuctl.ssh.agent.process_stacks import find_spy; print(find_spy(os.getpid()))"

    found = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": str(tmp_path / "link")}, capture_output=True, text=True, check=True
    )

    assert found.stdout == f"{program.resolve()}\n"


TARGET = cast(Target, SimpleNamespace(label="0"))
FRAME = {"function": "wait", "file": "a.py", "line": 3}
THREAD = {"name": "MainThread", "count": 1, "frames": [FRAME]}
PROCESS = {
    "pid": 7,
    "user": "ada",
    "age": 1.5,
    "command": "python3",
    "source": "py-spy",
    "hasSpy": True,
    "note": "",
    "threads": [THREAD],
}


def answer(**process: Any) -> dict[str, Any]:
    return {"processes": [{**PROCESS, **process}], "hidden": 0, "isRoot": True, "found": True}


def test_parse_stacks_escapes_control_characters() -> None:
    frames = [{**FRAME, "function": "\x1b[2J\nerror: x"}]

    (process,) = decode_answer(
        WorkerStacks, answer(command="\x07", threads=[{**THREAD, "frames": frames}]), target=TARGET
    ).processes

    assert (process.command, process.threads[0].frames[0].function) == ("\\x07", "\\x1b[2J\\nerror: x")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param([], id="a list"),
        pytest.param({**answer(), "processes": [PROCESS] * 17}, id="too many processes"),
        pytest.param(answer(threads=[THREAD] * 101), id="too many threads"),
        pytest.param(answer(threads=[{**THREAD, "frames": [FRAME] * 101}]), id="too many frames"),
        pytest.param(answer(threads=[{**THREAD, "count": 0}]), id="no thread"),
        pytest.param(answer(source="magic"), id="an unknown source"),
        pytest.param(answer(pid=-1), id="a negative pid"),
        pytest.param(answer(age="1"), id="an age as text"),
        pytest.param(answer(threads=None), id="no threads"),
    ],
)
def test_parse_stacks_rejects_what_does_not_fit(value: Any) -> None:
    with pytest.raises(UnexpectedAnswerError):
        decode_answer(WorkerStacks, value, target=TARGET)
