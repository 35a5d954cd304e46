"""`tpuctl run --keep --multislice`: a job over two slices of two workers that ends only when it is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, put
from tests.workers.running import Slice

NAMES = ("s-10", "s-2")
KEEP = ("--keep", "--multislice", "--name", "train", "--no-sync", "--zone", ZONE)
CREATE = ("--type", "v4-16", "--spot")
# The first attempt works until it is ended.
WORK = "echo $TPUCTL_ATTEMPT $MEGASCALE_SLICE_ID $MEGASCALE_COORDINATOR_ADDRESS; test $TPUCTL_ATTEMPT = 2 || sleep 60"


@pytest.fixture
def slices(tpuctl: Console, fake_ssh: Callable[[str], None], tmp_path: Path) -> Iterator[Slice]:
    """The workers of the nodes that a test creates."""
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    made.log_in()
    yield made
    made.end_all()


def attempts(slices: Slice) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(slices.tpuctl("history", "s-2", "--job", "train", "-o", "json")[0])[
        "attempts"
    ]
    return found


def nodes(slices: Slice) -> dict[str, tuple[str, str]]:
    """Return the id and the address of worker 0 of each node."""
    listed = json.loads(slices.tpuctl("list", "-o", "json")[0])
    return {one["nodeId"]: (one["id"], one["networkEndpoints"][0]["ipAddress"]) for one in listed}


@pytest.mark.parametrize("lost", ["s-2", "s-10"])
def test_lost_slice_is_made_again_and_all_restart_with_new_variables(
    slices: Slice, sandbox: Sandbox, lost: str
) -> None:
    begun = slices.tpuctl("run", *NAMES, *KEEP, *CREATE, "--detach", "--", WORK)
    before = nodes(slices)
    sandbox.fault("preempt", node=lost)

    out, err, code = slices.tpuctl("watch", "s-2", "--job", "train")

    after = nodes(slices)
    coordinator = f"{after['s-2'][1]}:8081"
    assert (begun[2], code) == (0, 0), err
    assert [line.split() for line in sorted(out.splitlines()) if " 2 " in line] == [
        ["[s-10-0]", "2", "1", coordinator],
        ["[s-10-1]", "2", "1", coordinator],
        ["[s-2-0]", "2", "0", coordinator],
        ["[s-2-1]", "2", "0", coordinator],
    ]
    assert [name for name in sorted(after) if after[name] != before[name]] == [lost]
    assert [one["verdict"] for one in attempts(slices)] == ["preempted", "succeeded"]
    assert attempts(slices)[0]["evidence"].startswith(f"`{lost}`: its node is ")


def test_failure_of_one_worker_restarts_all_slices(slices: Slice) -> None:
    line = 'test $TPUCTL_ATTEMPT = 2 && exit 0; test "$MEGASCALE_SLICE_ID$TPUCTL_WORKER_ID" = 11 && exit 9; sleep 60'

    _, err, code = slices.tpuctl("run", *NAMES, *KEEP, *CREATE, "--rm", "--", line)

    found = [(one["verdict"], one["worker"], one["exitCode"]) for one in attempts(slices)]
    assert (code, found) == (0, [("program", "s-10-1", 9), ("succeeded", None, 0)]), err
    assert nodes(slices) == {}


def test_slice_that_is_deleted_ends_the_job(slices: Slice) -> None:
    slices.tpuctl("run", *NAMES, *KEEP, *CREATE, "--detach", "--", WORK)
    slices.tpuctl("down", "s-10", "--yes")

    _, err, code = slices.tpuctl("watch", "s-2", "--job", "train")

    assert (code, [one["verdict"] for one in attempts(slices)]) == (3, ["deleted"]), err
    assert [*nodes(slices)] == ["s-2"]


def test_killed_job_is_started_again_on_no_slice(slices: Slice) -> None:
    slices.tpuctl("run", *NAMES, *KEEP, *CREATE, "--detach", "--", WORK)
    killed = slices.tpuctl("kill", "s-*", "train")

    _, _, code = slices.tpuctl("watch", "s-2", "--job", "train")

    assert (killed[2], code, [one["verdict"] for one in attempts(slices)]) == (0, 11, ["stopped"])


def test_unfinished_job_goes_on_with_its_own_slices_only(slices: Slice) -> None:
    slices.tpuctl("run", *NAMES, *KEEP, *CREATE, "--detach", "--", WORK)

    _, err, code = slices.tpuctl("run", "s-2", "s-3", *KEEP, *CREATE, "--", WORK)

    assert (err.splitlines(), code) == (
        [
            "error: the unfinished job `train` was begun on s-2, s-10",
            (
                f"  hint: go on with it: `tpuctl watch s-2 --job train --zone {ZONE}`, "
                f"or end it: `tpuctl kill s-2 s-10 train --zone {ZONE}`"
            ),
        ],
        8,
    )


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        pytest.param(("s-2", "s-10"), "`--keep` takes one node", 2, id="several-nodes"),
        pytest.param(("s-2", "--multislice"), "needs two nodes or more, and selects 1", 2, id="one-slice"),
        pytest.param(("s-2", "s-2", "--multislice"), "`s-2` is named twice", 2, id="named-twice"),
        pytest.param(("s-*", "--multislice", "--skip-validation"), "cannot combine `--keep`", 2, id="unchecked"),
        pytest.param(("s-2", "--megascale-port", "9000"), "needs `--multislice`", 2, id="port-alone"),
        pytest.param(("s-*", "--multislice"), "the slices of one job have the same workers", 8, id="unequal"),
        pytest.param(("a", "b", "--multislice", "--type", "v3-32"), "multislice is for v4 and later", 8, id="old"),
    ],
)
def test_what_cannot_be_one_kept_job_is_refused_and_nothing_is_created(
    slices: Slice, sandbox: Sandbox, words: tuple[str, ...], text: str, code: int
) -> None:
    put(sandbox, "s-2", acceleratorType="v4-16")
    put(sandbox, "s-10", acceleratorType="v4-32")

    _, err, found = slices.tpuctl("run", *words, "--keep", "--name", "train", "--zone", ZONE, "--", "true")

    assert (found, sorted(nodes(slices))) == (code, ["s-10", "s-2"])
    assert text in err
