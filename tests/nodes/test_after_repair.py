"""After a creation or a repair: the set-up and `--on-recover`."""

from __future__ import annotations

import json
import re
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, EventfulClock, put, said, told
from tests.others import errors, interrupt, somebody
from tpuctl.cloud.storage import StorageClient
from tpuctl.names import BucketPath, NodeName
from tpuctl.nodes.lease import BucketLeaseStore, Lease, LeaseKeeper, LeaseOwner, LeasePolicy
from tpuctl.sandbox import administration
from tpuctl.sandbox.in_process import SandboxHttp

FakeSsh = Callable[[str], None]
# Runs here what the workers would run.
RUNS = 'for last; do :; done\ncase $last in *TPUCTL_WORKER=*) exec sh -c "$last" ;; esac'
OLD_AND_NEW = (("old", 3), ("new", 0), ("new", 0))
QUICK: dict[str, Any] = {
    "TPUCTL_UNHEALTHY_AFTER": "1m",
    "TPUCTL_DEVICES_AFTER": "1m",
    "TPUCTL_RECHECK_AFTER": "30s",
    "TPUCTL_TIMEOUT": "1h",
}


class FileClock(EventfulClock):
    """A clock that lets something happen once a file exists, each time."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.happens: Callable[[], object] = bool

    def sleep(self, duration: timedelta) -> None:
        super().sleep(duration)
        if self.file.exists():
            self.file.unlink()
            self.happens()


@pytest.fixture
def clock(tmp_path: Path) -> FileClock:
    return FileClock(tmp_path / "begun")


def test_setup_of_a_created_node_runs_once_on_each_worker(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    fake_ssh(RUNS)
    log = tmp_path / "log"
    wanted = ("--type", "v4-16", "--zone", ZONE, "--setup", f"echo $TPUCTL_NODE $TPUCTL_WORKER >> {log}")

    assert tpuctl("up", "new", *wanted)[2] == 0
    assert tpuctl("up", "new", *wanted)[2] == 0
    assert sorted(log.read_text().splitlines()) == ["new 0", "new 1"]
    assert tpuctl("reset", "new", "--mode", "recreate", "--yes")[2] == 0
    assert sorted(log.read_text().splitlines()) == ["new 0"] * 2 + ["new 1"] * 2


def test_setup_that_failed_runs_again(tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path) -> None:
    fake_ssh(RUNS)
    log = tmp_path / "log"
    wanted = (
        "--type",
        "v4-16",
        "--zone",
        ZONE,
        "--setup",
        f"echo worker $TPUCTL_WORKER | tee -a {log}; test -e {tmp_path}/ok",
    )

    _, err, code = tpuctl("up", "demo", *wanted)
    (tmp_path / "ok").touch()
    again = [tpuctl("up", "demo", *wanted)[2] for _ in range(2)]

    assert (code, again, sandbox.changes()) == (11, [0, 0], ["create"])
    assert errors(err) == ["error: the set-up of `demo` failed on worker 0 (exit 1), 1 (exit 1)"]
    assert len(log.read_text().splitlines()) == 4


def test_setup_that_is_given_after_a_failure_runs_in_its_place(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    fake_ssh(RUNS)
    wanted, log = ("--type", "v4-8", "--zone", ZONE, "--setup"), tmp_path / "log"

    codes = [tpuctl("up", "demo", *wanted, f"echo {name} >> {log}; exit {code}")[2] for name, code in OLD_AND_NEW]
    before = log.read_text()
    codes.append(tpuctl("reset", "demo", "--mode", "recreate", "--yes")[2])

    assert (codes, before, log.read_text()) == ([11, 0, 0, 0], "old\nnew\n", "old\nnew\nnew\n")
    assert sandbox.changes() == ["create", "delete", "create"]


def test_setup_that_is_named_for_a_set_up_node_runs_once(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    fake_ssh(RUNS)
    log = tmp_path / "log"
    setups = [f"echo {name} >> {log}" for name in ("first", "second", "third")]

    codes = [
        tpuctl(*command, *setup)[2]
        for command, setup in [
            (UP, ("--setup", setups[0])),
            (("up", "demo"), ("--setup", setups[1])),
            (("up", "demo"), ("--setup", setups[1])),
            (("up", "demo"), ()),
            (("watch", "demo", "--until", "5m"), ("--setup", setups[2])),
        ]
    ]

    assert (codes, log.read_text()) == ([0] * 5, "first\nsecond\nthird\n")
    assert tpuctl("reset", "demo", "--mode", "recreate", "--yes")[2] == 0
    assert log.read_text() == "first\nsecond\nthird\nthird\n"


def test_setup_after_a_failed_one_needs_no_type(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    fake_ssh(RUNS)
    (tpuctl.folder / "better.sh").write_text(f"touch {tmp_path}/done\n")

    _, err, code = tpuctl(*UP, "--setup", "exit 3")

    assert (code, "`tpuctl up demo --setup-script FILE" in err) == (11, True)
    assert tpuctl("up", "demo", "--setup-script", "better.sh")[2] == 0
    assert ((tmp_path / "done").exists(), sandbox.changes()) == (True, ["create"])


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("up", "demo"), id="up"),
        pytest.param(("up", "demo", "--type", "v4-8"), id="up with a type"),
        pytest.param(("watch", "demo", "--until", "5m"), id="watch"),
    ],
)
def test_setup_named_for_a_node_of_another_client_is_refused(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, command: tuple[str, ...]
) -> None:
    fake_ssh(RUNS)
    put(sandbox)

    _, err, code = tpuctl(*command, "--zone", ZONE, "--setup", "true")

    assert (code, sandbox.changes()) == (8, [])
    assert "the set-up is not run on `demo`: the journal does not say that tpuctl created it" in err


def test_setups_of_several_nodes_run_side_by_side(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    """Each waits for all others."""
    fake_ssh(RUNS)
    (tmp_path / "here").mkdir()
    ready = "for i in $(seq 400); do [ $(ls | wc -l) = 3 ] && exit; sleep 0.05; done; exit 1"
    setup = f"cd {tmp_path}/here; touch $TPUCTL_NODE; {ready}"

    code = tpuctl("up", "a", "b", "c", "--type", "v4-8", "--zone", ZONE, "--setup", setup)[2]

    assert (code, sandbox.changes()) == (0, ["create"] * 3)


def test_preemption_during_a_setup_is_seen_and_the_next_node_gets_its_own(
    tpuctl: Console, sandbox: Sandbox, clock: FileClock, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    fake_ssh(RUNS)
    setup = f"cd {tmp_path}; echo ran >> log; touch begun; while [ -e begun ] && [ ! -e go ]; do sleep 0.05; done"

    def preempt() -> None:
        if not (tmp_path / "go").exists():
            (tmp_path / "go").touch()
            sandbox.fault("preempt")

    clock.happens = preempt
    code = tpuctl("up", "demo", "--type", "v4-8", "--spot", "--zone", ZONE, "--setup", setup, "--timeout", "1h")[2]

    assert (code, sandbox.changes()) == (0, ["create", "delete", "create"])
    assert (tmp_path / "log").read_text() == "ran\n" * 2


def test_lease_is_held_during_a_setup_and_another_run_waits(
    tpuctl: Console, sandbox: Sandbox, clock: FileClock, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    fake_ssh(RUNS)
    up = ("up", "demo", "--type", "v4-8", "--zone", ZONE)
    setup = f"cd {tmp_path}; echo ran >> log; touch begun; while [ -e begun ] && [ ! -e go ]; do sleep 0.05; done; test -e ok"
    seen: list[object] = []

    def look() -> None:
        seen.append(tpuctl(*up, "--timeout", "10s")[1:])
        (tmp_path / "go").touch()

    clock.happens = look
    assert tpuctl(*up, "--setup", setup)[2] == 11
    (text, code) = cast("tuple[str, int]", seen[0])

    assert (code, (tmp_path / "log").read_text(), sandbox.changes()) == (5, "ran\n", ["create"])
    assert re.search(r"error: up on \S+ pid \d+ has not ended, and may be setting `demo` up\n", text)


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_lease_in_a_bucket_is_renewed_while_a_run_waits_for_nothing_but_a_setup(
    tpuctl: Console, sandbox: Sandbox, clock: FileClock, fake_ssh: FakeSsh, tmp_path: Path, *, is_interrupted: bool
) -> None:
    """The set-up takes real time, in which the run does not look at the node."""
    fake_ssh(RUNS)
    administration.add_bucket(sandbox.state, "data")
    program = replace(tpuctl, environ={**tpuctl.environ, "TPUCTL_LEASE": "gs://data/leases"})
    setup = f"cd {tmp_path}; touch started; while [ -e started ] && [ ! -e go ]; do sleep 0.05; done"
    store = BucketLeaseStore(
        StorageClient(lambda: SandboxHttp(sandbox.state), clock), BucketPath.parse("gs://data/leases")
    )
    others, found = LeaseKeeper(store, clock, LeaseOwner("elsewhere", 1, "token")), list[Lease | None]()
    name, has_ended = NodeName("sandbox", ZONE, "demo"), threading.Event()

    def look() -> None:
        while not (tmp_path / "started").exists() and not has_ended.is_set():
            time.sleep(0.02)
        clock.sleep(10 * LeasePolicy().ttl)
        found.append(others.acquire(name, "watch"))
        if is_interrupted:
            interrupt_main()
        else:
            (tmp_path / "go").touch()

    assert program(*UP, "--no-wait", "--setup", setup)[2] == 0
    clock.sleep(timedelta(minutes=10))
    with ThreadPoolExecutor(1) as threads:
        looked = threads.submit(look)
        code = program(*UP, "--no-wait", "--for", "healthy")[2]
        (tmp_path / "go").touch()
        has_ended.set()
        looked.result()

    assert found[0] is not None
    assert (found[0].record.purpose, found[0].age <= timedelta(seconds=50)) == ("up", True)
    assert (code, others.holder(name)) == (130 if is_interrupted else 0, None)


def test_interruption_during_a_setup_says_that_it_continues(
    tpuctl: Console, clock: FileClock, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    fake_ssh(RUNS)

    clock.happens = interrupt
    setup = f"cd {tmp_path}; touch begun; while [ -e begun ] && [ ! -e go ]; do sleep 0.05; done"
    out, err, code = tpuctl("up", "demo", "--type", "v4-8", "--zone", ZONE, "--setup", setup, "--events", "-")
    (tmp_path / "go").touch()

    assert code == 130
    assert [event["event"] for event in map(json.loads, out.splitlines()) if event.get("setup")] == ["action", "wait"]
    assert f"interrupted: `demo` in {ZONE} bills, and its set-up continues on the workers; nothing was undone" in err


def test_watch_notices_that_another_run_has_completed_a_failed_setup(
    tpuctl: Console, clock: EventfulClock, fake_ssh: FakeSsh
) -> None:
    fake_ssh(RUNS)
    up = ("--type", "v4-8", "--zone", ZONE)
    assert (tpuctl("up", "well", *up)[2], tpuctl("up", "sick", *up, "--setup", "exit 3")[2]) == (0, 11)

    def complete() -> None:
        (journal,) = Path(tpuctl.environ["TPUCTL_STATE_DIR"]).rglob("sick.jsonl")
        (failed, *_) = [line for line in journal.read_text().splitlines() if '"event": "setup"' in line]
        with journal.open("a") as file:
            file.write(json.dumps(json.loads(failed) | {"ok": True}) + "\n")

    clock.after(timedelta(minutes=2), complete)
    out, _, code = tpuctl("watch", "well", "sick", "--until", "10m", "--events", "-")

    of_sick = [event["event"] for event in map(json.loads, out.splitlines()) if event["node"] == "sick"]
    assert (code, [kind for kind in of_sick if kind not in {"state", "action", "wait"}]) == (
        0,
        ["gave-up", "recovered"],
    )


def test_on_recover_runs_only_after_a_repair(tpuctl: Console, sandbox: Sandbox, tmp_path: Path) -> None:
    hook = ("--on-recover", f'cat >> {tmp_path}/hook; echo "$TPUCTL_NODE $TPUCTL_EVENT" >> {tmp_path}/told')
    sandbox.fault("unhealthy", node="sick")

    well, of_sick = (tpuctl("up", name, "--type", "v4-8", "--zone", ZONE, *hook, **QUICK) for name in ("well", "sick"))

    note = "`--on-recover` did not run: nothing had to recover; `--on-usable` runs the first time too"
    assert (well[1].splitlines()[-1], well[2], of_sick[2], note in of_sick[1]) == (note, 0, 0, False)
    assert (tmp_path / "told").read_text() == "sick recovered\n"
    assert json.loads((tmp_path / "hook").read_text())["event"] == "recovered"


def test_on_usable_runs_each_time_a_node_becomes_usable(tpuctl: Console, sandbox: Sandbox, tmp_path: Path) -> None:
    log = tmp_path / "log"
    usable, back = (f'echo "{name} $TPUCTL_NODE $TPUCTL_EVENT" >> {log}' for name in ("usable", "back"))
    hooks = ("--on-usable", usable, "--on-recover", back)

    assert tpuctl("up", "well", "--type", "v4-8", "--zone", ZONE, "--on-usable", usable, **QUICK)[2] == 0
    sandbox.fault("unhealthy", node="sick")
    assert tpuctl("up", "sick", "--type", "v4-8", "--zone", ZONE, *hooks, **QUICK)[2] == 0
    assert tpuctl("watch", "well", "--until", "5m", *hooks)[2] == 0

    assert log.read_text().splitlines() == [
        "usable well reached", "back sick recovered", "usable sick recovered", "usable well reached",
    ]  # fmt: skip


def test_node_recreated_by_another_client_is_not_repaired_as_ours(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    sandbox.fault("hang", state="CREATING", duration=timedelta(minutes=10))

    def replace() -> None:
        somebody(sandbox, "delete")
        sandbox.advance(minutes=3)
        put(sandbox, health="UNHEALTHY_TENSORFLOW")

    clock.after(timedelta(minutes=4), replace)

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("", 10, ["create", "delete"])
    assert "another client recreated the node; following the new node" in told(err)


def test_setup_that_is_named_for_a_node_that_is_set_up_runs_once(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    """Neither its type nor a failure before is needed."""
    fake_ssh(RUNS)
    log = tmp_path / "log"
    old, new = (f"echo {name} >> {log}" for name in ("old", "new"))

    codes = [tpuctl(*UP, "--setup", old)[2]]
    codes += [tpuctl("up", "demo", "--setup", new)[2] for _ in range(2)]
    codes += [tpuctl("watch", "demo", "--until", "1m", "--setup", old)[2] for _ in range(2)]

    assert (codes, log.read_text().split(), sandbox.changes()) == ([0] * 5, ["old", "new", "old"], ["create"])


def test_changed_setup_is_said_and_runs_on_request(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    fake_ssh('for last; do :; done\ncase $last in *train-now*) exec sh -c "$last" ;; esac\n' + RUNS)
    log = tmp_path / "log"
    old, new = (f"echo {name} >> {log}" for name in ("old", "new"))
    note = "`setup` changed since `demo` was made; `tpuctl run demo --setup` runs it"

    made, same = tpuctl(*UP, TPUCTL_SETUP=old), tpuctl("up", "demo", TPUCTL_SETUP=old)
    changed = tpuctl("up", "demo", TPUCTL_SETUP=new)
    ran, again = (tpuctl("run", "demo", "--setup", TPUCTL_SETUP=new) for _ in range(2))
    back = tpuctl("up", "demo", TPUCTL_SETUP=new)
    tpuctl("run", "demo", "--setup", f"echo named >> {log}")

    assert [note in err for _, err, _ in (made, same, changed, back)] == [False, False, True, False]
    assert [code for _, _, code in (made, same, changed, ran, again, back)] == [0] * 6
    assert again[1].endswith("the set-up of `demo` has not changed since it ran\n")
    assert (log.read_text().split(), sandbox.changes()) == (["old", "new", "named"], ["create"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param(
            (), "no `setup` is set\n  hint: add `setup: COMMANDS` to tpuctl.yaml, or use `--setup CMD`", id="none"
        ),
        pytest.param(
            ("--up", "v4-8"), "no command given\n  hint: put it after `--`: `tpuctl run NODE -- hostname`", id="up"
        ),
    ],
)
def test_setup_without_commands_is_refused(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], error: str
) -> None:
    put(sandbox)

    _, err, code = tpuctl("run", "demo", *words, "--setup")

    assert (err.endswith(said(f"error: {error}")), code) == (True, 2), err


def test_setup_of_an_untrusted_project_file_is_asked_for(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    (tpuctl.folder / "tpuctl.yaml").write_text("setup: echo hi\n")

    _, err, code = tpuctl("run", "demo", "--setup", stdin="n\n")

    assert (code, "trust this file until it changes? [y/N]" in err) == (1, True), err
