"""`tpuctl top` and `tpuctl stacks --device`: real programs that hold chips, and serve metrics well, badly or not at all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.workers.programs import GUEST, Pair
from tpuctl.errors import ExitCode

# Takes the chips as libtpu does, and serves metrics.
TRAINING = "from sandbox_chips import Chips; import time; chips = Chips(); print(flush=True); time.sleep(120)"
# Takes a chip, and answers each connection with a text, or with nothing.
OTHER_SERVER = """
import glob, os, socket, sys, time
chip = open(glob.glob(os.environ["TPUCTL_DEVICE_ROOT"] + "/dev/accel*")[0])
server = socket.create_server(("127.0.0.1", 0))
print(flush=True)
clients = []
while True:
    clients.append(server.accept()[0])
    if sys.argv[1:]:
        clients[-1].recv(65536)
        clients[-1].sendall(sys.argv[1].encode().decode("unicode_escape").encode("latin-1"))
"""
# Takes a chip, and listens on no port, as a program without libtpu or with an old one.
NO_SERVER = """
import glob, os, time
chip = open(glob.glob(os.environ["TPUCTL_DEVICE_ROOT"] + "/dev/accel*")[0])
print(flush=True)
time.sleep(120)
"""
# Takes a chip, and answers each connection with frames of HTTP/2 without end.
FLOOD = """
import glob, os, socket, sys
chip = open(glob.glob(os.environ["TPUCTL_DEVICE_ROOT"] + "/dev/accel*")[0])
server = socket.create_server(("127.0.0.1", 0))
print(flush=True)
frame = sys.argv[1].encode().decode("unicode_escape").encode("latin-1")
while True:
    client = server.accept()[0]
    try:
        while True:
            client.sendall(frame * 500)
    except OSError:
        client.close()
"""
# The metrics of a libtpu that lacks one, or that reports nonsense.
OTHER_METRICS = """
import sandbox_metrics, time
values = sandbox_metrics.ChipMetrics.values
def changed(self, name):
    return {changed}
sandbox_metrics.ChipMetrics.values = changed
from sandbox_chips import Chips
chips = Chips()
print(flush=True)
time.sleep(120)
"""


@pytest.fixture(autouse=True)
def sessions(pair: Pair) -> None:
    """Let sessions on the workers see their devices."""
    pair.slice.plan({worker: [{"environ": pair.environ(worker)}] for worker in (0, 1)})


@contextmanager
def programs(pair: Pair, *words: str, faults: Mapping[int, str] | None = None) -> Iterator[None]:
    """Run a Python program on both workers, until the end of the block; `faults` are variables of workers."""
    with ExitStack() as stack:
        for worker in (0, 1):
            variables = {"PYTHONPATH": str(GUEST / "frameworks" / "chips"), (faults or {}).get(worker, "NO_FAULT"): "1"}
            process = subprocess.Popen(
                [sys.executable, "-c", *words],
                env=pair.environ(worker, PATH="/usr/bin:/bin", **variables),
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline()
        yield


def top(pair: Pair) -> list[dict[str, Any]]:
    out, _, code = pair.tpuctl("top", "pair", "--once", "-o", "json")
    assert code == ExitCode.OK
    workers: list[dict[str, Any]] = json.loads(out)["workers"]
    return workers


def duties(worker: dict[str, Any]) -> list[float]:
    return [device["dutyCyclePercent"] for device in worker["devices"]]


def test_each_worker_shows_program_memory_and_duty_cycle_of_its_chips(pair: Pair) -> None:
    with programs(pair, TRAINING):
        workers = top(pair)
        table, _, code = pair.tpuctl("top", "pair")

    assert [(worker["chips"], len(worker["devices"]), worker["isOutlier"]) for worker in workers] == [(4, 4, False)] * 2
    for worker in workers:
        assert worker["programs"][0]["command"].endswith("time.sleep(120)")
        assert all(device["hbmTotalBytes"] == 32 << 30 for device in worker["devices"])
        assert all(0 < device["hbmUsedBytes"] < 32 << 30 for device in worker["devices"])
        assert all(50 < duty <= 100 for duty in duties(worker))
        assert worker["memoryTotalBytes"] > worker["memoryUsedBytes"] > 0
        assert worker["diskFreeBytes"] > 0
    rows = [line.split("\t") for line in table.splitlines()]
    assert [row[0] for row in rows] == ["0", "1"]
    assert all(row[3].endswith("/32 GiB") for row in rows)
    assert code == 0


def test_worker_without_a_program_is_idle(pair: Pair) -> None:
    out, err, code = pair.tpuctl("top", "pair", "--once")

    assert [line.split("\t")[:3] for line in out.splitlines()] == [
        [worker, "4", "idle: no program holds the chips"] for worker in "01"
    ]
    assert (err, code) == ("", 0)


def test_slow_chip_is_an_outlier(pair: Pair) -> None:
    with programs(pair, TRAINING, faults={1: "TPUCTL_SANDBOX_STRAGGLER"}):
        assert [worker["isOutlier"] for worker in top(pair)] == [False, True]
        out, *_ = pair.tpuctl("top", "pair", "--columns", "worker,duty", "--sort", "duty")
        stacks, *_ = pair.tpuctl("stacks", "pair", "--device")

    assert [line.split("\t")[0] for line in out.splitlines()] == ["1", "0"]
    assert stacks.startswith("worker 1 is at launch "), stacks


def test_program_that_runs_well_has_no_worker_behind(pair: Pair) -> None:
    with programs(pair, TRAINING):
        for _ in range(5):
            assert "the others wait" not in pair.tpuctl("stacks", "pair", "--device")[0]


def test_list_shows_the_duty_cycle_on_request(pair: Pair) -> None:
    with programs(pair, TRAINING):
        top(pair)
        out, *_ = pair.tpuctl("list", "--columns", "name,duty")
    wide, *_ = pair.tpuctl("list", "-o", "wide")

    name, duty = out.split()
    assert (name, re.fullmatch(r"8\d-[89]\d%", duty) is not None, "duty" in wide.lower()) == ("pair", True, False), out


def test_hang_has_no_duty_and_its_culprit_is_named(pair: Pair) -> None:
    with programs(pair, TRAINING, faults={1: "TPUCTL_SANDBOX_DUTY_ZERO"}):
        # Each look lasts longer than the interval in which the workers learn of the hang.
        for _ in range(20):
            workers = top(pair)
            if not any(duties(workers[0])):
                break
        assert [duties(worker) for worker in workers] == [[0.0] * 4] * 2
        out, _, code = pair.tpuctl("stacks", "pair", "--device")
        groups = json.loads(pair.tpuctl("stacks", "pair", "--device", "-o", "json")[0])["devices"]

    first = out.splitlines()[0]
    assert first.startswith("worker 1 is at launch ")
    assert " in fusion.42; the others wait at " in first
    assert first.endswith(" in all-reduce.17")
    found = {group["workers"][0]["worker"]: (group["launch"], group["place"]) for group in groups}
    assert found[0] == (found[1][0] + 1, "all-reduce.17")
    assert code == 0


def test_straggler_is_named_by_the_launch_that_the_others_wait_in(pair: Pair) -> None:
    with programs(pair, TRAINING, faults={1: "TPUCTL_SANDBOX_STRAGGLER"}):
        for _ in range(20):  # as above
            out, _, _ = pair.tpuctl("stacks", "pair", "--device")
            if " in all-reduce.17" in out.splitlines()[0]:
                break

    first = out.splitlines()[0]
    assert first.startswith("worker 1 is at launch ")
    assert first.endswith(" in all-reduce.17")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        pytest.param((), "no answer within 1 s", id="silent"),
        pytest.param(("HTTP/1.1 400 Bad Request\\r\\n\\r\\n",), "it speaks another protocol", id="http"),
        pytest.param((r"\xff\xff\xff\x00",), "no answer within 1 s", id="half a frame"),
        pytest.param((r"\xff\xff\xff\x00\x00\x00\x00\x00\x01",), "a frame of 16777215 bytes", id="huge frame"),
        pytest.param((r"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + r"\x00" * 8,), "closes its connections", id="goaway"),
        pytest.param((r"\x00\x00\x04\x03\x00\x00\x00\x00\x01" + r"\x00" * 4,), "refused the call", id="reset"),
        pytest.param((r"\x00\x00\x00\x00\x01\x00\x00\x00\x01",), "an incomplete answer", id="empty"),
        pytest.param(
            (r"\x00\x00\x0f\x01\x05\x00\x00\x00\x01\x00\x0bgrpc-status\x015",), "status 5 of gRPC", id="not found"
        ),
    ],
)
def test_program_without_usable_metrics_says_why(pair: Pair, words: tuple[str, ...], problem: str) -> None:
    with programs(pair, OTHER_SERVER, *words):
        workers = top(pair)
        out, _, code = pair.tpuctl("top", "pair", "--once")

    assert all(problem in worker["problem"] for worker in workers), [worker["problem"] for worker in workers]
    assert [worker["devices"] for worker in workers] == [[], []]
    assert out.count("no metrics: port ") == 2
    assert code == 0


def test_program_that_listens_on_no_port_says_so(pair: Pair) -> None:
    with programs(pair, NO_SERVER):
        workers = top(pair)

    assert [worker["problem"] for worker in workers] == ["the program listens on no port"] * 2
    assert all(worker["programs"] for worker in workers)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(r"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + r"\x00" * 8, id="pings"),
        pytest.param(r"\x00\x00\x00\x04\x00\x00\x00\x00\x00", id="settings"),
        pytest.param(r"\x00\x40\x00\x00\x00\x00\x00\x00\x01" + r"\x00" * 16384, id="data"),
    ],
)
def test_server_that_floods_is_left_after_a_second(pair: Pair, frame: str) -> None:
    with programs(pair, FLOOD, frame):
        began = time.monotonic()
        workers = top(pair)
        took = time.monotonic() - began

    assert all(worker["problem"].startswith("port ") for worker in workers), [worker["problem"] for worker in workers]
    assert took < 20


def test_metric_that_libtpu_lacks_is_unknown(pair: Pair) -> None:
    lacking = OTHER_METRICS.format(changed="None if name == sandbox_metrics._DUTY else values(self, name)")
    with programs(pair, lacking):
        worker, _ = top(pair)

    assert [device["dutyCyclePercent"] for device in worker["devices"]] == [None] * 4
    assert worker["devices"][0]["hbmUsedBytes"] > 0


@pytest.mark.parametrize("value", ["2**63", "2**63 - 1", "float('nan')", "1e300"])
def test_impossible_value_is_a_problem_of_its_worker(pair: Pair, value: str) -> None:
    with programs(pair, OTHER_METRICS.format(changed=f"[{value}] * 4")):
        worker, _ = top(pair)

    assert "an impossible value" in worker["problem"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("top",), "no node given", id="no node"),
        pytest.param(("top", "pair", "--interval", "0.1s"), "`--interval` is from 0.5s to 10m", id="short"),
        pytest.param(("top", "pair", "--interval", "forever"), "`--interval` is from 0.5s to 10m", id="forever"),
        pytest.param(("top", "pair", "--columns", "nope"), "nope", id="column"),
    ],
)
def test_wrong_input_is_named(pair: Pair, words: tuple[str, ...], message: str) -> None:
    _, err, code = pair.tpuctl(*words)

    assert message in err
    assert code == ExitCode.USAGE
