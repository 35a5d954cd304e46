"""`tpuctl test`: the program with the stand-ins of the frameworks, what it reports, and what is said of it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.lifecycle import said
from tests.tpu_files import running
from tests.workers.programs import GUEST, Pair
from tpuctl.workers.node_test import AllReduce, ChipTestReport, Product, describe_steps, judge, parse_report

GOOD = tuple(Product(chip, 250.0, is_right=True) for chip in range(4))
REPORT = ChipTestReport(phase="done", device_files=4, chips=4, products=GOOD)


@pytest.mark.parametrize("framework", ["jax", "torch_xla"])
def test_test_shows_the_figures_of_each_worker(pair: Pair, framework: str) -> None:
    pair.install(framework)

    out, err, code = pair.tpuctl("test", "pair")

    name = {"jax": "JAX 0.6.2", "torch_xla": "PyTorch/XLA 2.7.0"}[framework]
    # Of equal chips the first that has reported is the slowest.
    assert [re.sub(r"\t248\t\d\t", "\t248\tN\t", line) for line in out.splitlines()] == [
        f"{worker}\t4\t248\t248\tN\t1.47\t80\tok" for worker in (0, 1)
    ]
    assert (err, code) == (f"tested with {name}\n", 0)
    assert pair.slice.left() == []


def test_test_names_the_slow_chip_and_exits_with_10(pair: Pair) -> None:
    pair.install("jax", faults={1: "TPUCTL_SANDBOX_STRAGGLER"})

    out, err, code = pair.tpuctl("test", "pair", "-o", "json")

    document = json.loads(out)
    assert (document["isGood"], [one["problems"] for one in document["workers"]]) == (
        False,
        [[], ["chip 3: 124 TFLOP/s, 50% of the median"]],
    )
    assert [one["teraflops"] for one in document["workers"][1]["teraflops"]] == [247.5, 247.5, 247.5, 123.8]
    assert (
        json.loads(err)["error"]["message"] == "`pair` falls short: worker 1 (chip 3: 124 TFLOP/s, 50% of the median)"
    )
    assert code == 10


def test_test_warns_of_a_closed_port_before_it_waits_for_it(pair: Pair) -> None:
    path = f"{GUEST / 'frameworks' / 'jax'}{os.pathsep}{GUEST / 'frameworks' / 'chips'}"
    network = {"PYTHONPATH": path, "TPUCTL_SANDBOX_NETWORK": "127.77"}
    pair.slice.plan({worker: [{"environ": pair.environ(worker, **network)}] for worker in (0, 1)})
    node = json.loads(pair.tpuctl("status", "pair", "-o", "json")[0])[0]
    place = ("127.77." + node["networkEndpoints"][0]["ipAddress"].split(".", 2)[2], 8482)

    # A socket whose queue is full drops connections, as a firewall does.
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(place)
        server.listen(0)
        for waiting in (first, second):
            waiting.settimeout(0)
            waiting.connect_ex(place)
        out, err, code = pair.tpuctl("test", "pair", "-o", "json")

    assert (json.loads(out)["closedPorts"], code) == ([{"port": 8482, "workers": [1]}], 0), err
    assert (
        "worker 1 does not reach worker 0 at 8482 (JAX's coordinator from 0.8.1 on): no answer; `tpuctl doctor pair`"
        in err
    )


def test_test_of_a_worker_without_a_chip_ends_the_others(pair: Pair) -> None:
    """Those would wait for it."""
    pair.give_chips(1, 3)
    pair.install("jax")

    out, err, code = pair.tpuctl("test", "pair")

    first, second = (line.split("\t")[-1] for line in out.splitlines())
    assert (first.startswith("stopped in "), second) == (True, "3 of 4 chips")
    lines = err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert errors == ["error: `pair` falls short: worker 1 (3 of 4 chips)"]
    assert "  hint: reset it, which keeps its boot disk: `tpuctl reset pair --for devices`" in lines
    assert code == 10


def test_test_of_one_worker_needs_no_other(pair: Pair) -> None:
    pair.install("jax")

    out, _, code = pair.tpuctl("test", "pair", "--worker", "1", "-o", "json")

    (worker,) = json.loads(out)["workers"]
    assert (worker["worker"], worker["allReduce"]["devices"], code) == (1, 4, 0)


def test_test_that_hangs_is_ended_on_all_workers_and_says_where_they_were(pair: Pair) -> None:
    pair.install("jax", faults={1: "TPUCTL_SANDBOX_DUTY_ZERO"})

    _, err, code = pair.tpuctl("test", "pair", "--timeout", "8s")

    lines = err.splitlines()
    (error,) = [line for line in lines if line.startswith("error: ")]
    assert (code, re.match(r"error: the test did not end within 8s: worker \S+ in the ", error) is not None) == (
        5,
        True,
    )
    assert "  hint: show what they wait for, while a test runs: `tpuctl stacks pair`" in lines
    assert pair.slice.left() == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param({0: "all-reduce", 1: "all-reduce"}, "worker 0-1 in the all-reduce", id="together"),
        pytest.param(
            {0: "start", 1: "connect", 2: "start"},
            "worker 1 in starting Python; worker 0,2 in starting the TPU with all workers",
            id="the earliest first",
        ),
    ],
)
def test_describe_steps_names_the_workers_of_each_step(steps: dict[int, str], expected: str) -> None:
    assert describe_steps(steps) == expected


def test_test_without_a_framework_says_what_to_install(pair: Pair) -> None:
    pair.install("")

    _, err, code = pair.tpuctl("test", "pair")

    # The test of a worker may end before it finds this out, because that of the other has failed.
    assert re.sub(r"worker \S+$", "worker N", err, flags=re.MULTILINE).splitlines()[-3:] == [
        "error: neither JAX nor PyTorch/XLA is installed on worker N",
        "  hint: install JAX: `tpuctl run pair -- 'python3 -m pip install -U \"jax[tpu]\"'`",
        "  hint: name the Python of another environment: `--python PATH`",
    ]
    assert code == 11


def test_test_on_a_busy_tpu_is_refused_unless_forced(pair: Pair) -> None:
    pair.install("jax")

    with running("sleep", "60", path=pair.root / "1" / "dev" / "accel0") as holder:
        refused = pair.tpuctl("test", "pair")
        forced = pair.tpuctl("test", "pair", "--force")

    assert re.sub(r"of \S+, for \d+s", "of USER", refused[1]) == said(
        f"error: the TPU is in use: {holder.pid} sleep of USER, on worker 1",
        "  hint: end what holds it: `tpuctl unstick pair`; to test all the same: `--force`",
    )
    assert (refused[2], forced[2]) == (8, 0)


@pytest.mark.parametrize("path", ["python3; true", "", "$(true)", "python3 -E"])
def test_test_with_a_python_that_is_no_path_is_refused(pair: Pair, path: str) -> None:
    out, _, code = pair.tpuctl("test", "pair", "--python", path)

    assert (out, code) == ("", 2)


def with_chip_2(teraflops: float, *, is_right: bool = True) -> tuple[Product, ...]:
    return (*GOOD[:2], Product(2, teraflops, is_right=is_right), GOOD[3])


SUM = AllReduce(devices=8, duration=timedelta(milliseconds=1), gigabytes_per_second=80.0, is_right=True)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([REPORT, REPORT], [[], []], id="all good"),
        pytest.param([replace(REPORT, device_files=3)], [["3 of 4 chips"]], id="a device file is missing"),
        pytest.param([replace(REPORT, chips=3)], [["3 of 4 chips"]], id="the framework misses a chip"),
        pytest.param([replace(REPORT, device_files=None, chips=None)], [[]], id="no count reported"),
        pytest.param([REPORT, replace(REPORT, products=with_chip_2(200.0))], [[], []], id="at the threshold"),
        pytest.param(
            [REPORT, replace(REPORT, products=with_chip_2(199.0))],
            [[], ["chip 2: 199 TFLOP/s, 80% of the median"]],
            id="below the threshold",
        ),
        pytest.param(
            [replace(REPORT, products=tuple(replace(one, teraflops=0.0) for one in GOOD))], [[]], id="all zero"
        ),
        pytest.param(
            [replace(REPORT, products=with_chip_2(250.0, is_right=False))],
            [["chip 2: wrong product"]],
            id="a wrong product",
        ),
        pytest.param([replace(REPORT, sums=(SUM,))], [[]], id="a right sum"),
        pytest.param(
            [replace(REPORT, sums=(SUM, replace(SUM, is_right=False)))],
            [["wrong sum over all chips"]],
            id="a wrong sum",
        ),
    ],
)
def test_judge_names_what_falls_short(reports: list[ChipTestReport], expected: list[list[str]]) -> None:
    assert judge(reports, chips=4) == expected


def test_judge_of_an_unknown_type_counts_no_chips() -> None:
    assert judge([replace(REPORT, chips=1)], chips=None) == [[]]


PRODUCT = {"chip": 1, "teraflops": 10.5, "isRight": True}
SUMMED = {"devices": 8, "seconds": 0.001, "gigabytesPerSecond": 80.0, "isRight": True}


def printed_lines(*lines: Any) -> bytes:
    return b"".join(b"tpuctl-test %s\n" % json.dumps(line).encode() for line in lines)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param(printed_lines({"phase": "start"}), ChipTestReport(phase="start"), id="a phase"),
        pytest.param(
            printed_lines({"deviceFiles": 4}, {"chips": 4}), ChipTestReport(device_files=4, chips=4), id="two lines"
        ),
        pytest.param(
            printed_lines({"framework": "JAX", "version": "1\u001b[2J"}),
            ChipTestReport(framework="JAX", version="1\\x1b[2J"),
            id="a version with control characters",
        ),
        pytest.param(
            b"I0101 hello\n" + printed_lines({"chips": 4}) + b"tpuctl-test {",
            ChipTestReport(chips=4),
            id="other output",
        ),
        pytest.param(printed_lines({"event": "chips", "chips": 4}), ChipTestReport(chips=4), id="one more field"),
    ],
)
def test_lines_of_a_worker_make_a_report(output: bytes, expected: ChipTestReport) -> None:
    assert parse_report(output, "0") == (expected, None)


def test_figures_of_several_devices_are_those_of_their_chips() -> None:
    wrong = {**PRODUCT, "isRight": False}
    lines = [
        {"products": [PRODUCT]},
        {"products": [wrong]},
        {"sums": [SUMMED]},
        {"sums": [{**SUMMED, "isRight": False}]},
    ]

    report, error = parse_report(printed_lines(*lines, {"sums": [SUMMED]}), "0")

    assert (report.teraflops, report.wrong, report.all_reduce) == (
        {1: 21.0},
        frozenset({1}),
        replace(SUM, is_right=False),
    )
    assert error is None


@pytest.mark.parametrize(
    "line",
    [
        pytest.param([], id="a list"),
        pytest.param({"phase": "lunch"}, id="an unknown phase"),
        pytest.param({"phase": {}}, id="a phase that is an object"),
        pytest.param({"deviceFiles": -1}, id="a negative count"),
        pytest.param({"chips": 10**6}, id="a million chips"),
        pytest.param({"products": [{**PRODUCT, "chip": 64}]}, id="chip 64"),
        pytest.param({"products": [{**PRODUCT, "teraflops": 1e300}]}, id="too fast"),
        pytest.param({"products": [{**PRODUCT, "isRight": 1}]}, id="a number for true"),
        pytest.param({"products": [PRODUCT, PRODUCT]}, id="two products in a line"),
        pytest.param({"sums": [{**SUMMED, "seconds": "1"}]}, id="a time as text"),
        pytest.param({"sums": [{**SUMMED, "seconds": 1e300}]}, id="a time that no date can hold"),
    ],
)
def test_line_that_does_not_fit_is_an_error(line: Any) -> None:
    report, error = parse_report(printed_lines({"chips": 4}, line), "3")

    assert report == ChipTestReport(chips=4)
    assert error is not None
    assert error.message.startswith("unexpected answer from worker 3: the line")


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        pytest.param("echo 'tpuctl-test {\"chips\": 1'", 'not JSON: `{"chips": 1`', id="half an object"),
        pytest.param("yes 'tpuctl-test {\"chips\": 4}' | head -1001", "more than 1000 lines", id="too many lines"),
        pytest.param(
            "yes 'tpuctl-test {\"chips\": 4}' | head -c 3000000", "more output than is kept", id="much output"
        ),
        pytest.param(
            "printf 'tpuctl-test '; head -c 9000 /dev/zero | tr '\\0' 7; echo",
            " bytes where at most 4096 are expected",
            id="a long line",
        ),
    ],
)
def test_test_of_a_worker_that_breaks_the_protocol_says_so(pair: Pair, printed: str, expected: str) -> None:
    pair.install("")
    program = pair.slice.home(0) / "evil"
    program.write_text(f"#!/bin/sh\n{printed}\n")
    program.chmod(0o755)

    _, err, code = pair.tpuctl("test", "pair", "--worker", "0", "--python", "~/evil")

    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: unexpected answer from worker 0: ")
    assert (line.endswith(expected), code) == (True, 11)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        pytest.param("print(jax.device_count(), jax.local_device_count(), len(jax.devices()))", "8 4 8", id="counts"),
        pytest.param("print(jax.process_index(), jax.process_count(), jax.__version__)", "1 2 0.6.2", id="process"),
        pytest.param("print([one.id for one in jax.local_devices()])", "[4, 5, 6, 7]", id="local"),
        pytest.param("print(hasattr(jax, 'random'))", "False", id="hasattr"),
        pytest.param("jax.random", "has no `jax.random`; for the real one on the CPU: `", id="attribute"),
        pytest.param("import jax.random", "has no `jax.random`; for the real one on the CPU: `", id="module"),
        pytest.param("from jax import random", "has no `jax.random`; for the real one on the CPU: `", id="from"),
    ],
)
def test_stand_in_for_jax_says_where_it_runs_and_what_it_lacks(pair: Pair, line: str, shown: str) -> None:
    path = f"{GUEST / 'frameworks' / 'jax'}{os.pathsep}{GUEST / 'frameworks' / 'chips'}"
    environ = {**os.environ, **pair.environ(1, PYTHONPATH=path), "JAX_PLATFORMS": "tpu"}

    done = subprocess.run(
        [sys.executable, "-c", f"import jax\n{line}"], env=environ, capture_output=True, text=True, check=False
    )

    said_last = (done.stdout or done.stderr).splitlines()[-1]
    assert shown in said_last
    assert ("the sandbox has no real JAX" in said_last) == (done.returncode != 0)
