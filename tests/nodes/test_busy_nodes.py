"""Nodes in use: what questions of destructive commands say about them, and what `--if-idle` refuses."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, put, said
from tests.tpu_files import Machine, running
from tpuctl.clock import ManualClock
from tpuctl.names import NodeName
from tpuctl.nodes.lease import LeaseKeeper, LeaseOwner, LocalLeaseStore
from tpuctl.nodes.usage import NodeUse, UseKind, WorkerUse, describe_worker_uses

USER = getuser()
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
QUESTION = "delete the v4-8 node (READY) `demo` in us-central2-b, with its boot disk?"
REFUSED = "  hint: nothing was done; leave out `--if-idle` to do it all the same"
ON_THIS = "for line; do :; done\nTPUCTL_DEVICE_ROOT='{root}' HOME='{root}' exec sh -c \"$line\""


def use(kind: str, name: str = "", command: str = "", user: str = "ann", age: timedelta = MINUTE) -> WorkerUse:
    return WorkerUse(UseKind(kind), name, command, user, age)


TRAIN = use("job", "train", "./train.sh")


@pytest.mark.parametrize(
    ("uses", "workers", "expected"),
    [
        pytest.param([], 1, (), id="idle"),
        pytest.param([(0, TRAIN)], 1, ("job `train` of ann (./train.sh), for 1m",), id="job"),
        pytest.param([(0, use("job", "train", user=""))], 1, ("job `train`, for 1m",), id="unreadable-job"),
        pytest.param(
            [(0, TRAIN), (1, use("job", "train", "./train.sh", age=HOUR))],
            2,
            ("job `train` of ann (./train.sh), for 1h, on all 2 workers",),
            id="job-everywhere-since-its-first-start",
        ),
        pytest.param(
            [(1, TRAIN), (3, TRAIN)], 4, ("job `train` of ann (./train.sh), for 1m, on worker 1, 3",), id="some-workers"
        ),
        pytest.param(
            [(worker, TRAIN) for worker in range(4)],
            8,
            ("job `train` of ann (./train.sh), for 1m, on 4 of 8 workers",),
            id="many-workers",
        ),
        pytest.param(
            [(0, use("process", "python3", "python3 a.py"))],
            1,
            ("process `python3 a.py` of ann on the TPU, for 1m",),
            id="process",
        ),
        pytest.param(
            [(0, use("process", "python3"))], 1, ("process `python3` of ann on the TPU, for 1m",), id="without-command"
        ),
        pytest.param(
            [(0, use("of-job", "python3")), (0, TRAIN)],
            1,
            ("job `train` of ann (./train.sh), for 1m",),
            id="process-of-a-job-is-named-once",
        ),
        pytest.param([(0, use("session")), (0, use("session"))], 1, ("an ssh session is open",), id="sessions"),
        pytest.param(
            [(0, use("session")), (0, use("process", "x", age=MINUTE)), (0, use("process", "y", age=HOUR)), (0, TRAIN)],
            1,
            (
                "job `train` of ann (./train.sh), for 1m",
                "process `y` of ann on the TPU, for 1h",
                "process `x` of ann on the TPU, for 1m",
                "an ssh session is open",
            ),
            id="order",
        ),
        pytest.param(
            [(0, use("job", "train", "x" * 90))], 1, (f"job `train` of ann ({'x' * 59}…), for 1m",), id="long-command"
        ),
    ],
)
def test_worker_uses_are_described(uses: list[tuple[int, WorkerUse]], workers: int, expected: tuple[str, ...]) -> None:
    assert describe_worker_uses(uses, workers) == expected


@pytest.mark.parametrize(
    ("found", "is_idle", "words"),
    [
        pytest.param(NodeUse(), True, "", id="idle"),
        pytest.param(NodeUse(("a", "b", "c")), False, "a; b; c", id="three"),
        pytest.param(NodeUse(("a", "b", "c", "d", "e")), False, "a; b; c; and 2 more", id="more"),
        pytest.param(NodeUse((), "no answer"), False, "no answer", id="unknown"),
        pytest.param(NodeUse(("a",), "no answer"), False, "a; no answer", id="both"),
    ],
)
def test_only_a_node_whose_use_is_known_is_idle(found: NodeUse, is_idle: bool, words: str) -> None:  # a column
    assert (found.is_idle, found.words) == (is_idle, words)


class Worker(Machine):
    """The only worker of a node, on which nothing runs."""

    def start_job(self, name: str, command: str, minutes: float) -> int:
        """Let a job run, as its files show it; return the handle of its lock."""
        folder = self.root / ".tpuctl" / "jobs" / f"{name}.0"
        folder.mkdir(parents=True)
        (folder / "about").write_text(json.dumps({"command": command, "detached": True}))
        (folder / "token").write_text("x")
        at = (folder / "token").stat().st_mtime - 60 * minutes
        os.utime(folder / "token", (at, at))
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(handle, fcntl.LOCK_EX)
        return handle


@pytest.fixture
def worker(tpuctl: Console, sandbox: Sandbox, tmp_path: Path, fake_ssh: Callable[[str], None]) -> Worker:
    """The worker of the node `demo`, whose commands run on this machine; this machine has an ssh key."""
    found = Worker(tmp_path / "root")
    fake_ssh(ON_THIS.format(root=found.root))
    put(sandbox)
    assert tpuctl("unstick", "demo")[2] == 0
    return found


def changes(sandbox: Sandbox) -> list[str]:
    return [one for one in sandbox.changes() if one != "patch"]


def test_question_about_an_idle_node_is_as_short_as_ever(tpuctl: Console, sandbox: Sandbox, worker: Worker) -> None:
    assert tpuctl("down", "demo", stdin="n\n") == ("", f"{QUESTION} [y/N] cancelled\n", 1)
    assert tpuctl("stop", "demo", stdin="n\n") == ("", "stop `demo`? [y/N] cancelled\n", 1)
    assert changes(sandbox) == []


RECREATE = "delete `demo` and its boot disk, and recreate it"
REPLACE = ("up", "demo", "--type", "v3-8", "--replace", "--skip-check", "all")
# Of each command that ends what runs on a node: its words, what the node is, and the question.
QUESTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "down": (("down", "demo"), {}, QUESTION),
    "delete": (("delete", "demo"), {}, QUESTION),
    "stop": (("stop", "demo"), {}, "stop `demo`?"),
    "reset": (("reset", "demo", "--mode", "recreate"), {}, f"{RECREATE}?"),
    "maintenance": (
        ("maintenance", "demo", "--perform"),
        {"upcomingMaintenance": {"maintenanceStatus": "PENDING", "canReschedule": True}},
        f"start the maintenance of `{ZONE}/demo` now (programs on it end)?",
    ),
    "queue-cancel": (
        ("queue", "cancel", "demo"),
        {"queued_resource": "demo"},
        "delete the queued resource `demo` (ACTIVE) with its node `demo` (READY) and all data on it?",
    ),
    "up-replace": (REPLACE, {}, f"{RECREATE} (accelerator_type: wanted `v3-8`, found `v4-8`)?"),
}


@pytest.mark.parametrize(("words", "fields", "question"), QUESTIONS.values(), ids=QUESTIONS)
def test_question_says_who_uses_the_node_for_what_and_since_when(  # noqa: PLR0917  # three fixtures and three columns
    tpuctl: Console, sandbox: Sandbox, worker: Worker, words: tuple[str, ...], fields: dict[str, Any], question: str
) -> None:
    put(sandbox, **fields)
    if "queued_resource" in fields:
        sandbox.add_queued_resource("demo", state="ACTIVE", node_ids=("demo",))
    handle = worker.start_job("train", "./train.sh --steps 1000", 90)
    in_use = f"`demo` is in use: job `train` of {USER} (./train.sh --steps 1000), for 1h30m"

    refused = tpuctl(*words, stdin="n\n")
    not_idle = tpuctl(*words, "--if-idle", "--yes")
    os.close(handle)

    assert refused == ("", f"{in_use}\n{question} [y/N] cancelled\n", 1)
    if words not in {REPLACE, ("queue", "cancel", "demo")}:  # without `--if-idle`
        assert not_idle == ("", said(f"error: {in_use}", REFUSED), 8)
    assert changes(sandbox) == []


def test_yes_deletes_a_node_in_use_without_asking_its_workers(
    tpuctl: Console, sandbox: Sandbox, worker: Worker, fake_ssh: Callable[[str], None], tmp_path: Path
) -> None:
    fake_ssh(f"touch '{tmp_path}/asked'; exit 255")

    assert tpuctl("down", "demo", "--yes")[2] == 0
    assert (changes(sandbox), (tmp_path / "asked").exists()) == (["delete"], False)


def test_if_idle_deletes_an_idle_node(tpuctl: Console, sandbox: Sandbox, worker: Worker) -> None:
    assert tpuctl("down", "demo", "--if-idle", "--yes")[::2] == ("demo\n", 0)
    assert changes(sandbox) == ["delete"]


def test_process_on_the_tpu_is_named_with_its_user(tpuctl: Console, sandbox: Sandbox, worker: Worker) -> None:
    with running("sleep", "60", path=worker.root / "dev" / "accel0"):
        out, err, code = tpuctl("stop", "demo", "--if-idle", "--yes")

    found = re.fullmatch(
        r"error: `demo` is in use: process `sleep 60` of (\w+) on the TPU, for \d+s\n" + re.escape(REFUSED), err.strip()
    )
    assert (out, found and found[1], code) == ("", USER, 8)
    assert changes(sandbox) == []


def test_text_of_a_worker_is_harmless_in_a_question(tpuctl: Console, worker: Worker) -> None:
    handle = worker.start_job("train", "\x1b[2Jecho\r\n`x`" + "y" * 500, 1)

    _, err, _ = tpuctl("down", "demo", stdin="n\n")
    os.close(handle)

    assert "\x1b" not in err
    assert err.count("\n") == 2
    assert len(err) < 400


def spoil_with_depth(about: Path) -> None:
    about.write_text("[" * 60_000)


def spoil_with_a_pipe(about: Path) -> None:
    about.unlink()
    os.mkfifo(about)


@pytest.mark.parametrize("spoil", [spoil_with_depth, spoil_with_a_pipe])
def test_job_with_a_spoiled_record_is_named_all_the_same(
    tpuctl: Console, worker: Worker, spoil: Callable[[Path], None]
) -> None:
    handle = worker.start_job("train", "./train.sh", 90)
    spoil(worker.root / ".tpuctl" / "jobs" / "train.0" / "about")

    _, err, _ = tpuctl("down", "demo", stdin="n\n")
    os.close(handle)

    assert err.startswith(f"`demo` is in use: job `train` of {USER}, for 1h30m\n{QUESTION}")


def test_worker_that_cannot_be_examined_is_not_idle(
    tpuctl: Console, sandbox: Sandbox, worker: Worker, fake_ssh: Callable[[str], None]
) -> None:
    fake_ssh("echo 'ssh: connect to host 198.18.0.1 port 22: Connection refused' >&2; exit 255")

    _, question, _ = tpuctl("down", "demo", stdin="n\n")
    _, refused, code = tpuctl("down", "demo", "--if-idle", "--yes")

    begin = "`demo` may be in use: its worker cannot be examined: "
    assert question.startswith(begin)
    assert question.endswith(f"\n{QUESTION} [y/N] cancelled\n")
    assert refused.startswith(f"error: {begin}")
    assert (code, changes(sandbox)) == (8, [])


def test_without_a_key_nothing_is_asked_and_nothing_counts_as_idle(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    why = "its workers cannot be examined: there is no ssh key on this machine"

    assert tpuctl("down", "demo", stdin="n\n")[1] == f"{QUESTION} [y/N] cancelled\n"
    assert tpuctl("down", "demo", "--if-idle", "--yes") == (
        "",
        said(f"error: `demo` may be in use: {why}", REFUSED),
        8,
    )
    assert sandbox.changes() == []


def test_question_about_several_nodes_has_a_line_for_each_in_use_those_of_others_first(
    tpuctl: Console, sandbox: Sandbox, tmp_path: Path, clock: ManualClock
) -> None:
    store = LocalLeaseStore(tmp_path / "state" / "sandbox" / "leases", clock)
    keeper = LeaseKeeper(store, clock, LeaseOwner("desk", 7, "token"))
    for name, owner in {"a": "you_example-com", "b": "ann", "c": "ann"}.items():
        put(sandbox, name, state="STOPPED", labels={"tpuctl-owner": owner})
        assert name == "c" or keeper.acquire(NodeName("sandbox", ZONE, name), "watch") is None

    _, err, code = tpuctl("down", "a", "b", "c", stdin="n\n")
    store.close()

    in_use = "is in use: `watch on desk pid 7` holds the lease, renewed 0s ago"
    lines = err.splitlines()
    assert lines[:2] == [f"`b` (created by ann) {in_use}", f"`a` (created by you_example-com) {in_use}"]
    assert lines[2].startswith("2 in use: delete the v4-8 node (STOPPED) `a` in")
    assert (len(lines), code, sandbox.changes()) == (3, 1, [])


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param("STOPPED", 0, id="stopped-is-idle"),
        pytest.param("PREEMPTED", 0, id="preempted-is-idle"),
        pytest.param("CREATING", 8, id="creating-is-unknown"),
        pytest.param("REPAIRING", 8, id="repairing-is-unknown"),
    ],
)
def test_state_without_ssh_decides_without_workers(  # noqa: PLR0917  # fixtures, and the values of a row
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path, state: str, expected: int
) -> None:
    put(sandbox, state=state, age=timedelta())
    fake_ssh(f"touch '{tmp_path}/asked'; exit 255")

    assert tpuctl("down", "demo", "--if-idle", "--yes", "--no-wait")[2] == expected
    assert not (tmp_path / "asked").exists()


def test_run_of_tpuctl_that_holds_the_lease_counts_as_use(
    tpuctl: Console, sandbox: Sandbox, tmp_path: Path, clock: ManualClock
) -> None:
    put(sandbox, state="STOPPED", labels={"tpuctl-owner": "ann"})
    store = LocalLeaseStore(tmp_path / "state" / "sandbox" / "leases", clock)
    keeper = LeaseKeeper(store, clock, LeaseOwner("desk", 7, "token"))
    assert keeper.acquire(NodeName("sandbox", ZONE, "demo"), "watch") is None

    refused = tpuctl("down", "demo", "--if-idle", "--yes")
    put(sandbox, "other")
    listed = tpuctl("list", "--columns", "name,owner,lease")
    store.close()
    later = tpuctl("list", "--columns", "name,lease")

    in_use = "`demo` (created by ann) is in use: `watch on desk pid 7` holds the lease, renewed 0s ago"
    assert refused == ("", said(f"error: {in_use}", REFUSED), 8)
    assert listed[::2] == ("demo\tann\twatch on desk pid 7\nother\t\t\n", 0)
    assert later[::2] == ("demo\t\nother\t\n", 0)
    assert sandbox.changes() == []


def test_list_without_an_answer_about_leases_says_so(tpuctl: Console, sandbox: Sandbox, tmp_path: Path) -> None:
    put(sandbox)
    (tmp_path / "state" / "sandbox" / "leases" / "sandbox" / ZONE).mkdir(parents=True)
    (tmp_path / "state" / "sandbox" / "leases" / "sandbox" / ZONE / "demo.json").write_text("garbled")

    out, err, code = tpuctl("list", "--columns", "name,lease")

    assert (out, code) == ("demo\t?\n", 0)
    assert err.startswith("warning: the holders of leases are unknown: cannot read ")


def test_run_says_first_which_job_uses_the_node(tpuctl: Console, worker: Worker) -> None:
    handle = worker.start_job("train", "./train.sh", 90)

    out, err, code = tpuctl("run", "demo", "--", "echo", "done")
    refused = tpuctl("run", "demo", "--if-idle", "--", "touch", "begun")
    os.close(handle)

    in_use = f"`demo` is in use: job `train` of {USER} (./train.sh), for 1h30m"
    assert (out, err, code) == ("done\n", f"{in_use}\n", 0)
    assert refused == ("", said(f"error: {in_use}", REFUSED), 8)
    assert not (worker.root / "begun").exists()


def test_run_that_finds_the_tpu_locked_leads_to_its_holder(tpuctl: Console, worker: Worker) -> None:
    worker.lock_file.touch()
    message = "The TPU is already in use by another process probably owned by another user."
    with worker.locked() as holder:
        _, err, code = tpuctl("run", "demo", "--", f"echo '{message}' >&2; exit 1")
        shown = tpuctl("unstick", "demo", "--dry-run")[0]

    assert (code, "run `tpuctl unstick demo`" in err) == (11, True), err
    assert (f"0\t{holder}\t" in shown, "lock file" in shown) == (True, True), shown


def test_run_on_an_idle_node_says_nothing(tpuctl: Console, worker: Worker) -> None:
    worker.lock_file.touch()

    assert tpuctl("run", "demo", "--if-idle", "--", "echo", "done") == ("done\n", "", 0)


def test_status_shows_owner_and_use_on_a_terminal(tpuctl: Console, sandbox: Sandbox, worker: Worker) -> None:
    put(sandbox, labels={"tpuctl-owner": "ann"})
    handle = worker.start_job("train", "./train.sh", 90)

    person = tpuctl("status", "demo", terminal=True, NO_COLOR="1")[0]
    piped = tpuctl("status", "demo")[0]
    os.close(handle)
    idle = tpuctl("status", "demo", terminal=True, NO_COLOR="1")[0]

    assert f"in use    job `train` of {USER} (./train.sh), for 1h30m\n" in person
    assert "owner     ann\n" in person
    assert "in use" not in piped + idle


def test_list_shows_what_runs_if_it_is_asked_for(tpuctl: Console, sandbox: Sandbox, worker: Worker) -> None:
    put(sandbox)
    put(sandbox, "spare", state="STOPPED")
    handle = worker.start_job("train", "./train.sh", 90)

    wide = tpuctl("list", "-o", "wide", terminal=True, width=300, NO_COLOR="1")[0]
    named = tpuctl("list", "--columns", "name,use", "-o", "tsv")[0]
    piped = tpuctl("list", "-o", "wide")[0]
    os.close(handle)
    idle = tpuctl("list", "--columns", "name,use", "-o", "tsv", "--no-header")[0]

    job = f"job `train` of {USER} (./train.sh), for 1h30m"
    assert job in wide
    assert named == said("name\tuse", f"demo\t{job}", "spare\t")
    assert job not in piped
    assert idle == said("demo\tidle", "spare\t")


def test_selection_with_a_node_in_use_is_refused_as_a_whole(tpuctl: Console, sandbox: Sandbox, worker: Worker) -> None:
    put(sandbox, "spare", state="STOPPED")
    handle = worker.start_job("train", "./train.sh", 90)

    in_use = f"`demo` is in use: job `train` of {USER} (./train.sh), for 1h30m"
    _, refused, code = tpuctl("down", "--all", "--if-idle", "--yes")
    _, asked, _ = tpuctl("down", "--all", stdin="n\n")
    _, stop, _ = tpuctl("stop", "--state", "READY", stdin="n\n")
    os.close(handle)

    assert refused.endswith(said(f"error: {in_use}", REFUSED))
    question = "1 in use: delete `demo`, `spare`, with their boot disks? [y/N] cancelled"
    assert asked.splitlines()[-2:] == [in_use, question]
    assert stop.endswith(f"{in_use}\nstop `demo`? [y/N] cancelled\n")
    assert (code, changes(sandbox)) == (8, [])


def test_every_node_of_a_queued_resource_is_examined(tpuctl: Console, sandbox: Sandbox) -> None:
    request = sandbox.add_queued_resource("pair", zone=ZONE, node_ids=("pair-0", "pair-1"))
    put(sandbox, "pair-0", state="PREEMPTED", queuedResource=request["name"])
    put(sandbox, "pair-1", state="REPAIRING", queuedResource=request["name"])

    refused = tpuctl("down", "pair", "--all-nodes", "--if-idle", "--yes")

    unknown = "`pair-1` may be in use: its state is REPAIRING"
    assert refused == ("", said(f"error: {unknown}", REFUSED), 8)
    assert sandbox.changes() == []
