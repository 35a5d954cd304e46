"""`tpuctl run --multislice`: one job over two slices of two workers, on folders of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put
from tests.tpuctl_process import TpuctlProcess
from tests.workers.running import REFUSED, Plan, Slice

SHOW = "echo $MEGASCALE_COORDINATOR_ADDRESS $MEGASCALE_NUM_SLICES $MEGASCALE_SLICE_ID $MEGASCALE_PORT"


@pytest.fixture
def slices(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> Iterator[Slice]:
    """The nodes `s-2`, of the first two workers, and `s-10`, of the third and fourth."""
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    for name in ("s-2", "s-10"):
        put(sandbox, name, acceleratorType="v4-16")
        tpuctl("ssh", name, "--worker", "0", "--", "true")
    made.log_in()
    yield made
    made.end_all()


def test_each_worker_has_the_variables_of_its_slice(slices: Slice) -> None:
    out, err, code = slices.tpuctl("run", "s-*", "--multislice", "--", SHOW)

    lines = [line.split() for line in sorted(out.splitlines())]
    (address,) = {words[1] for words in lines}
    assert [[words[0], *words[2:]] for words in lines] == [
        ["[s-10-0]", "2", "1", "8081"],
        ["[s-10-1]", "2", "1", "8081"],
        ["[s-2-0]", "2", "0", "8081"],
        ["[s-2-1]", "2", "0", "8081"],
    ]
    assert address == f"{address_of(slices, 's-2')}:8081"
    assert (err, code) == (f"2 slices (s-2, s-10) meet at {address}\n", 0)


def address_of(slices: Slice, name: str) -> str:
    out, _, _ = slices.tpuctl("env", name, "-o", "json")
    return out.partition('"TPU_WORKER_HOSTNAMES": "')[2].partition(",")[0]


def test_nothing_of_it_is_written_to_a_worker(slices: Slice) -> None:
    slices.tpuctl("run", "s-2", "s-10", "--multislice", "--", "true")

    out, _, code = slices.tpuctl("run", "s-*", "--", "env | grep -c MEGASCALE || true")
    assert ({line.split()[-1] for line in out.splitlines()}, code) == ({"0"}, 0)
    kept = [path for path in slices.root.rglob("*") if path.is_file() and b"MEGASCALE" in path.read_bytes()]
    assert kept == []


@pytest.mark.parametrize("words", [("s-*",), ("s-2", "s-10")])
def test_job_starts_on_no_slice_if_a_worker_of_one_cannot_be_reached(slices: Slice, words: tuple[str, ...]) -> None:
    slices.plan({3: [REFUSED]})

    out, _, code = slices.tpuctl("run", *words, "--multislice", "--connect-timeout", "4s", "--", "touch started")

    assert (out, code, slices.texts("started")) == ("", 11, {})


def test_failure_of_one_worker_ends_the_job_on_all_slices(slices: Slice) -> None:
    line = 'if [ "$MEGASCALE_SLICE_ID$TPUCTL_WORKER_ID" = 11 ]; then exit 3; fi; sleep 60'

    _, err, code = slices.tpuctl("run", "s-*", "--multislice", "--", line)

    assert code == 11
    assert "s-10-1 (exit 3)" in err


def test_slice_that_is_gone_keeps_the_job_from_starting(slices: Slice, sandbox: Sandbox) -> None:
    put(sandbox, "s-11", acceleratorType="v4-16", state="PREEMPTED")

    out, err, code = slices.tpuctl("run", "s-*", "--multislice", "--", "touch started")
    named = slices.tpuctl("run", "s-2", "s-11", "--multislice", "--", "touch started")

    assert (out, code, slices.texts("started")) == ("", 8, {})
    assert err.startswith("error: `s-11` is PREEMPTED")
    assert named[2] == 8


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("s-2", "s-2", "--multislice"), "`s-2` is named twice"),
        (("s-2", "--multislice"), "needs two nodes or more, and selects 1"),
        (("s-*", "--multislice", "--worker", "0"), "cannot combine `--multislice` and `--worker`"),
        (("s-*", "--multislice", "--batch", "1"), "cannot combine `--multislice` and `--batch`"),
        (("s-*", "--multislice", "--env", "MEGASCALE_PORT=1"), "computes `MEGASCALE_PORT` for each start"),
        (("s-*", "--megascale-port", "9000"), "`--megascale-port` needs `--multislice`"),
        (("s-*", "--skip-validation"), "`--skip-validation` needs `--multislice`"),
        (("s-9", "--up", "v4-8", "--multislice"), "for nodes that exist, not for `--up`"),
    ],
)
def test_what_cannot_be_one_job_is_refused(slices: Slice, words: tuple[str, ...], text: str) -> None:
    out, err, code = slices.tpuctl("run", *words, "--", "true")

    assert (out, code) == ("", 2)
    assert text in err


def test_other_variables_of_the_user_are_passed(slices: Slice) -> None:
    out, _, code = slices.tpuctl(
        "run", "s-*", "--multislice", "--env", "MEGASCALE_TRANSPORT_TYPE=grpc", "--", "echo $MEGASCALE_TRANSPORT_TYPE"
    )

    assert ({line.split()[-1] for line in out.splitlines()}, code) == ({"grpc"}, 0)


def test_detached_job_is_one_job_on_all_slices(slices: Slice) -> None:
    name, _, code = slices.tpuctl("run", "s-*", "--multislice", "-d", "--name", "train", "--", f"{SHOW}; sleep 60")

    listed, _, _ = slices.tpuctl("jobs", "s-*")
    logged, _, _ = slices.tpuctl("logs", "s-*", "train")
    killed = slices.tpuctl("kill", "s-*", "train")

    assert (name, code) == ("train\n", 0)
    assert "running on 4 workers" in listed
    assert {line.split()[-2] for line in logged.splitlines()} == {"0", "1"}
    assert killed[2] == 0


def test_value_that_the_service_gave_a_slice_is_compared(slices: Slice, sandbox: Sandbox, tmp_path: Path) -> None:
    """Another client has made the two nodes with one request, as slices 1 and 0 of three."""
    for name in ("t-0", "t-1"):
        put(sandbox, name, acceleratorType="v4-16", multisliceNode=True)
    plan: dict[int, Plan] = {}
    for worker, number in ((4, 1), (6, 0)):
        folder = tmp_path / str(worker) / "instance" / "attributes"
        folder.mkdir(parents=True)
        coordinator = address_of(slices, "t-0")
        (folder / "tpu-env").write_text(
            f"NODE_ID: 't'\nMEGASCALE_NUM_SLICES: '3'\nMEGASCALE_SLICE_ID: '{number}'\n"
            f"MEGASCALE_COORDINATOR_ADDRESS: '{coordinator}'\nMEGASCALE_PORT: 'x\ny'\n"
        )
        plan[worker] = [{"environ": {"TPUCTL_METADATA_ROOT": str(tmp_path / str(worker))}}]
    slices.plan(plan)

    _, err, code = slices.tpuctl("run", "t-*", "--multislice", "--", "true")

    assert ([line for line in err.splitlines() if "for this run" in line], code) == (
        [
            "`t-0`: MEGASCALE_NUM_SLICES is 2 for this run; the service gave 3",
            "`t-0`: MEGASCALE_SLICE_ID is 0 for this run; the service gave 1",
            "`t-1`: MEGASCALE_NUM_SLICES is 2 for this run; the service gave 3",
            "`t-1`: MEGASCALE_SLICE_ID is 1 for this run; the service gave 0",
        ],
        0,
    )


def test_setup_comes_before_the_job_of_slices_too(slices: Slice) -> None:
    """It is refused on nodes that tpuctl did not create, and the command does not start without it."""
    _, err, code = slices.tpuctl("run", "s-*", "--multislice", "--setup", "true", "--", "touch started")

    assert err.startswith("error: the set-up is not run on `s-2`")
    assert (code, slices.texts("started")) == (8, {})


def test_slice_that_is_preempted_as_the_job_starts_ends_it_on_the_others(slices: Slice, sandbox: Sandbox) -> None:
    """All workers were ready; then the connections to one slice broke, and it is unknown whether the command began there."""
    slices.plan({worker: [{"said": 1}, REFUSED] for worker in (2, 3)})
    words = ["run", "s-*", "--multislice", "--", "touch started; sleep 60"]
    environ = {"PATH": os.environ["PATH"], **slices.tpuctl.environ}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    with TpuctlProcess(words, env=environ, cwd=slices.tpuctl.folder, **streams) as program:
        while {0, 1} - slices.texts("started").keys():
            assert program.poll() is None
            time.sleep(0.02)
        sandbox.fault("preempt", node="s-10")
        _, err = program.communicate(timeout=60)

    text = (
        "`s-10` was PREEMPTED: the command failed on 2 of 4 workers: s-10-0, s-10-1 (lost); terminated on s-2-0, s-2-1"
    )
    assert (f"error: {text}\n" in err.decode(), program.returncode) == (True, 10)
