"""`tpuctl run --up`: a whole job, and its node after every kind of end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, EventfulClock, own, put
from tests.workers.running import GOOD, REFUSED, Slice
from tpuctl.durations import parse_timestamp
from tpuctl.sandbox import administration
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.stock import put_stockout

AUTHORIZED = {"Authorization": "Bearer sandbox"}
START = datetime(2026, 1, 1, tzinfo=UTC)
UP = ("run", "ci", "--up", "v4-16", "--zone", ZONE, "--no-sync")


@pytest.fixture
def workers(tpuctl: Console, fake_ssh: Callable[[str], None], tmp_path: Path) -> Iterator[Slice]:
    """The homes of the workers of a node that does not exist yet."""
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    made.log_in()
    yield made
    made.end_all()


def nodes(tpuctl: Console) -> str:
    return tpuctl("list", "--columns", "name")[0]


def contents(folder: Path) -> dict[str, str]:
    """Return the files that a job has left here, without those of libtpu on this machine."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".git/" not in str(path))
    return {str(path.relative_to(folder)): path.read_text() for path in files if "/tpu_logs/" not in str(path)}


def test_one_off_node_is_deleted_after_any_exit(tpuctl: Console, workers: Slice, sandbox: Sandbox) -> None:
    (tpuctl.folder / "spec.yaml").write_text(f"type: v4-8\ntier: spot\nzone: {ZONE}\n")

    good = tpuctl(*UP, "--rm", "--", "echo $TPUCTL_WORKER_ID")
    bad = tpuctl(*UP, "--rm", "--log-dir", "logs", "--", "echo $TPUCTL_WORKER_ID; exit 3")
    of_file = tpuctl("run", "--up", "spec.yaml", "--no-sync", "--rm", "--", "echo $TPUCTL_WORKER_COUNT; exit 4")

    assert (sorted(good[0]), good[2]) == (sorted("[0] 0\n[1] 1\n"), 0)
    assert bad[2] == 11
    assert "error: the command failed on 2 of 2 workers: 0-1 (exit 3)\nci: deleting it\n" in bad[1]
    assert (of_file[0], of_file[2]) == ("1\n", 11)
    made = (
        f"creating v4-8 (tpu-ubuntu2204-base, spot, price unknown) (zone {ZONE}, type v4-8, tier spot: from spec.yaml)"
    )
    assert f": {made}\n" in of_file[1]
    assert (sandbox.changes(), nodes(tpuctl)) == (["create", "delete"] * 3, "")
    assert {name: text for name, text in contents(tpuctl.folder).items() if not name.startswith("tpuctl-logs/run-")} == {
        "spec.yaml": (tpuctl.folder / "spec.yaml").read_text(), "logs/worker-0.log": "0\n", "logs/worker-1.log": "1\n",
        "tpuctl-logs/.gitignore": "*\n", "tpuctl-logs/ci/worker-0.log": "0\n", "tpuctl-logs/ci/worker-1.log": "1\n",
    }  # fmt: skip


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(
    ("options", "setting", "left"),
    [
        pytest.param(("--rm",), {}, timedelta(hours=25), id="a-day-and-an-hour"),
        pytest.param(("--rm", "--timeout", "2h"), {}, timedelta(hours=3), id="time-limit-and-an-hour"),
        pytest.param(("--rm", "--ttl", "90m"), {"TPUCTL_TTL": "5h"}, timedelta(minutes=90), id="ttl"),
        pytest.param(("--rm", "--timeout", "2h"), {"TPUCTL_TTL": "5h"}, timedelta(hours=5), id="setting"),
        pytest.param(("--rm", "--ttl", "forever"), {"TPUCTL_TTL": "5h"}, None, id="forever"),
        pytest.param((), {}, None, id="kept-node"),
        pytest.param(("--ttl", "90m"), {}, timedelta(minutes=90), id="kept-node-with-ttl"),
    ],
)
def test_one_off_node_gets_an_end(
    tpuctl: Console, sandbox: Sandbox, options: tuple[str, ...], setting: dict[str, Any], left: timedelta | None
) -> None:
    """So that whatever cleans up ends the node of a run that was killed."""
    sandbox.fault("http-error", method="*.nodes.delete", status=403)

    tpuctl(*UP, *options, "--", "true", **setting)

    (node,) = json.loads(tpuctl("list", "-o", "json")[0])
    expires = parse_timestamp(node.get("expires"))
    assert expires == (None if left is None else pytest.approx(START + left, abs=timedelta(seconds=2)))


def test_one_off_existing_node_is_kept_or_refused(tpuctl: Console, workers: Slice, sandbox: Sandbox) -> None:
    put(sandbox, "ci", acceleratorType="v4-16")

    out, err, code = tpuctl(*UP, "--rm", "--", "echo there; exit 1")

    assert (sorted(out.splitlines()), code) == (["[0] there", "[1] there"], 11)
    assert err.endswith(
        "error: the command failed on 2 of 2 workers: 0-1 (exit 1)\n`ci` existed before this run and is not deleted\n"
        f"logs: `{tpuctl.folder}/tpuctl-logs/ci`\n"
    )
    assert tpuctl(*UP, "--rm", "--exclusive", "--", "echo there") == (
        "",
        (
            "error: `ci` already exists, and `--exclusive` needs a new node\n"
            "  hint: leave ci out to use a generated name\n"
        ),
        8,
    )
    assert ("delete" in sandbox.changes(), nodes(tpuctl)) == (False, "ci\n")


def _leave_behind(tpuctl: Console, sandbox: Sandbox) -> None:
    """Let a run with `--rm` create `ci` and fail to delete it, like a killed one."""
    sandbox.fault("http-error", method="*.nodes.delete", status=403)
    assert tpuctl(*UP, "--rm", "--", "true")[2] == 4
    assert nodes(tpuctl) == "ci\n"


def test_one_off_node_left_by_earlier_rm_run_is_taken_over_and_deleted(
    tpuctl: Console, workers: Slice, sandbox: Sandbox
) -> None:
    _leave_behind(tpuctl, sandbox)

    out, err, code = tpuctl(*UP, "--rm", "--", "echo there")

    assert (sorted(out.splitlines()), code, nodes(tpuctl)) == (["[0] there", "[1] there"], 0, "")
    assert err.startswith(
        "using `ci`, which an earlier run of this spec with `--rm` left behind; it is deleted at the end\n"
    )
    # Its time is that of this run.
    assert sandbox.changes() == ["create", "patch", "delete"]


@pytest.mark.parametrize(
    ("options", "is_used"),
    [
        pytest.param(("--rm", "--spot", "--yes"), False, id="another-spec"),
        pytest.param(("--rm",), True, id="a-detached-job-runs-there"),
        pytest.param((), False, id="without-rm"),
    ],
)
def test_one_off_node_left_by_earlier_rm_run_in_use_is_kept(
    tpuctl: Console, workers: Slice, sandbox: Sandbox, options: tuple[str, ...], is_used: bool
) -> None:
    _leave_behind(tpuctl, sandbox)
    if is_used:
        assert tpuctl("run", "ci", "--detach", "--", "exec sleep 60")[2] == 0

    err = tpuctl(*UP, *options, "--", "true")[1]

    assert (sandbox.changes(), nodes(tpuctl)) == (["create", "patch"] if is_used else ["create"], "ci\n")
    warned = "warning: another run uses `ci`: it is not deleted at the end of this one\n"
    assert (warned in err) == is_used


@pytest.mark.parametrize("moment", ["while it is created", "while the command runs"])
def test_one_off_interrupted_requests_the_deletion_first(
    tpuctl: Console, workers: Slice, sandbox: Sandbox, clock: EventfulClock, moment: str
) -> None:
    if moment == "while it is created":
        clock.after(timedelta(seconds=20), lambda: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()

    out, err, code = tpuctl(*UP, "--rm", "--", f"[ $TPUCTL_WORKER_ID = 1 ] || kill -INT {os.getpid()}; exec sleep 60")

    assert (out, code) == ("", 130)
    assert err.splitlines()[-3:] == [
        "ci: deleting it",
        f"warning: interrupted: `{ZONE}/ci` is being deleted",
        f"  resume: tpuctl wait {ZONE}/ci --for gone",
    ]
    assert (sandbox.changes(), time.monotonic() - began < 50) == (["create", "delete"], True)


def test_one_off_interrupted_during_deletion_says_that_it_continues(
    tpuctl: Console, workers: Slice, sandbox: Sandbox, clock: EventfulClock
) -> None:
    def interrupt_once_it_is_deleted() -> None:
        if "delete" in sandbox.changes():
            os.kill(os.getpid(), signal.SIGINT)
        else:
            clock.after(timedelta(seconds=2), interrupt_once_it_is_deleted)

    interrupt_once_it_is_deleted()

    out, err, code = tpuctl(*UP, "--rm", "--", "true")

    assert (out, code) == ("", 130)
    assert err.splitlines()[-2:] == [
        f"warning: interrupted: `{ZONE}/ci` is being deleted",
        f"  resume: tpuctl wait {ZONE}/ci --for gone",
    ]
    assert sandbox.changes() == ["create", "delete"]


def test_one_off_that_cannot_run_deletes_its_node(tpuctl: Console, workers: Slice, sandbox: Sandbox) -> None:
    with sandbox.state.write() as session:
        administration.add_stockout(session, zone=ZONE)
    nothing = tpuctl(*UP, "--rm", "--", "true", TPUCTL_TIMEOUT="5m")
    tried = sandbox.changes()
    with sandbox.state.write() as session:
        administration.end_stockouts(session)
    workers.plan({worker: [GOOD, REFUSED] for worker in range(8)})

    unreachable = tpuctl(*UP, "--rm", "--connect-timeout", "2s", "--", "true")

    assert (nothing[2], tried) == (6, ["create"])
    assert (unreachable[2], sandbox.changes()[-2:], nodes(tpuctl)) == (11, ["create", "delete"], "")
    assert "cannot be reached, so the command was not started on any worker" in unreachable[1]


def test_one_off_with_local_error_creates_no_node(tpuctl: Console, workers: Slice, sandbox: Sandbox) -> None:
    (tpuctl.folder / "file").touch()
    here = tpuctl.folder

    def refused(*options: str) -> str:
        out, err, code = tpuctl(*UP[:-1], *options, "--", "true")
        assert (out, code) == ("", 2)
        return err

    logs = "  hint: name another folder with `--log-dir`\n"
    out_of_two = "  hint: leave one of them out\n"
    detached = "error: `--detach` leaves the command running, and "
    assert [
        refused("--no-sync", "--log-dir", "/dev/null/x"),
        refused("--no-sync", "--log-dir", "file"),
        refused("--sync", "nowhere", "--rm"),
        refused("--no-sync", "--rm", "--detach"),
        refused("--no-sync", "--collect", "x", "--detach"),
    ] == [
        f"error: no logs can be written to `/dev/null/x`: not a directory\n{logs}",
        f"error: no logs can be written to `{here}/file`: file exists\n{logs}",
        f"error: no such folder: `{here}/nowhere`\n",
        f"{detached}`--rm` would delete the node under it\n{out_of_two}",
        f"{detached}`--collect` would copy before the command has ended\n{out_of_two}",
    ]
    (here / "tpuctl-logs").touch()
    assert refused("--no-sync", "--rm") == f"error: no logs can be written to `{here}/tpuctl-logs`: file exists\n{logs}"
    assert sandbox.changes() == []


def test_one_off_without_created_node_reports_no_deletion(tpuctl: Console, workers: Slice, sandbox: Sandbox) -> None:
    sandbox.fault("quota")

    _, err, code = tpuctl(*UP, "--rm", "--", "true")

    assert (code, nodes(tpuctl), "is deleted" in err, "  hint: " in err) == (7, "", False, True), err


def test_one_off_deletion_failed_after_interrupt_prints_the_down_command(
    tpuctl: Console, workers: Slice, sandbox: Sandbox
) -> None:
    sandbox.fault("http-error", method="*.nodes.delete", status=403, count=0)

    _, err, code = tpuctl(*UP, "--rm", "--", f"[ $TPUCTL_WORKER_ID = 1 ] || kill -INT {os.getpid()}; exec sleep 60")

    assert (code, nodes(tpuctl)) == (130, "ci\n")
    assert err.splitlines()[-2:] == [
        f"warning: interrupted: `{ZONE}/ci` could not be deleted and is still billed",
        f"  resume: tpuctl down {ZONE}/ci",
    ]


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        pytest.param({}, "another client has deleted it meanwhile", id="by-another-client"),
        pytest.param(
            {"tpuctl-expires": str(int((START - timedelta(hours=1)).timestamp()))},
            "its time ended 2025-12-31T23:00:00Z: the guard, `tpuctl gc` or `tpuctl watch` deleted it",
            id="at-the-end-of-its-time",
        ),
    ],
)
def test_one_off_node_deleted_under_the_run_is_reported(
    tpuctl: Console, workers: Slice, sandbox: Sandbox, labels: dict[str, str], why: str
) -> None:
    put(sandbox, "ci", acceleratorType="v4-8", labels=labels)
    with open_server(sandbox.state) as server:
        server.start()
        url = f"{server.url}/v2/projects/sandbox/locations/{ZONE}/nodes/ci"
        delete = (
            f"import urllib.request as u; u.urlopen(u.Request('{url}', method='DELETE', headers={AUTHORIZED})).read()"
        )
        command = ("run", "ci", "--up", "v4-8", "--zone", ZONE, "--no-sync", "--rm", "--", sys.executable, "-c", delete)
        _, err, code = tpuctl(*command)

    assert code == 0, err
    assert f"`ci` existed before this run, and {why}" in err


@pytest.mark.parametrize("limit", [("--ttl", "8h"), ("--until", "8h"), ("--ttl", "forever")], ids="=".join)
def test_one_off_changes_no_limit_of_a_node_that_existed(
    tpuctl: Console, workers: Slice, sandbox: Sandbox, limit: tuple[str, ...]
) -> None:
    own(sandbox, "ci", acceleratorType="v4-16", labels={"tpuctl-expires": "1767340800"})

    _, err, code = tpuctl(*UP, "--rm", *limit, "--idle", "2h", "--", "true")

    (node,) = json.loads(tpuctl("list", "-o", "json")[0])
    assert (code, node["expires"]) == (0, "2026-01-02T08:00:00Z"), err
    assert "ci: its time limit is not changed, because this run did not create the node: `tpuctl extend" in err
    assert "ci: no idle limit is applied, because this run did not create the node: `tpuctl up ci --idle 2h`" in err


@pytest.mark.parametrize("line", [("up", "ci", "--ttl", "8h"), ("extend", "ci", "8h")], ids=["up", "extend"])
def test_end_of_a_node_with_a_running_job_needs_an_answer(
    tpuctl: Console, workers: Slice, sandbox: Sandbox, line: tuple[str, ...]
) -> None:
    own(sandbox, "ci", acceleratorType="v4-16")
    job = tpuctl("run", "ci", "--detach", "--", "exec sleep 60")[0].strip()

    def has_end() -> bool:
        return "tpuctl-expires" in json.loads(tpuctl("list", "-o", "json")[0])[0]["labels"]

    _, err, code = tpuctl(*line, "--zone", ZONE)

    assert (code, has_end(), f"(it is in use: job `{job}`" in err) == (2, False, True), err
    assert (tpuctl(*line, "--zone", ZONE, "--yes")[2], has_end()) == (0, True)


def test_end_of_the_node_counts_from_ready(tpuctl: Console, workers: Slice, sandbox: Sandbox) -> None:
    """A bring-up longer than the time limit of the command and an hour: the guard would delete the node at once."""
    sandbox.fault("hang", state="CREATING", duration=timedelta(hours=3))

    out, err, code = tpuctl(*UP, "--rm", "--timeout", "10m", "--", "echo $TPUCTL_WORKER_ID", TPUCTL_TIMEOUT="8h")

    assert (sorted(out.splitlines()), code, sandbox.changes()) == (
        ["[0] 0", "[1] 1"], 0, ["create", "patch", "delete"],
    ), err  # fmt: skip
    assert "ci: setting the end of its time: 2026-01-01T04:1" in err


def test_one_off_syncs_the_tree_and_collects_paths(tpuctl: Console, workers: Slice) -> None:
    tree = tpuctl.folder / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "job").write_text("pwd; cat ../data; mkdir -p ~/results; echo $TPUCTL_WORKER_ID >~/results/r")
    (tree / "data").write_text("data\n")
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    here = Console(tpuctl.environ, tree / "below", tpuctl.clock)

    wanted = ("--collect", "~/results", "--collect", "~/resluts")
    out, err, code = here(*UP[:-1], "--rm", *wanted, "--", "sh job")

    homes = [workers.home(worker) for worker in (0, 1)]
    told = [f"[{worker}] {text}" for worker, home in enumerate(homes) for text in (f"{home}/tree/below", "data")]
    assert (sorted(out.splitlines()), code) == (sorted(told), 0), err
    assert "warning: `~/resluts` was not collected: no worker has it\n" in err
    assert err.endswith(f"logs: `{tree}/below/tpuctl-logs/ci`\n")
    logs = {name: text for name, text in contents(tree / "below").items() if not name.endswith((".log", "job"))}
    assert logs == {
        "tpuctl-logs/.gitignore": "*\n", "tpuctl-logs/ci/0/results/r": "0\n", "tpuctl-logs/ci/1/results/r": "1\n",
    }  # fmt: skip


def test_one_off_with_sync_and_workdir_syncs_and_runs_in_the_workdir(tpuctl: Console, workers: Slice) -> None:
    (tpuctl.folder / "tree").mkdir()
    (tpuctl.folder / "tree" / "data").write_text("data\n")

    up = (*UP[:-1], "--rm", "--workdir", "/usr")
    out, err, code = tpuctl(*up, "--sync", "tree", "--", "pwd; cat ~/tree/data")

    assert (sorted(out.splitlines()), code) == (["[0] /usr", "[0] data", "[1] /usr", "[1] data"], 0), err


def test_one_off_with_workdir_alone_syncs_nothing(tpuctl: Console, workers: Slice) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tpuctl.folder, check=True)
    (tpuctl.folder / "data").write_text("data\n")

    out, err, code = tpuctl(*UP[:-1], "--rm", "--workdir", ".", "--", "ls")

    assert (sorted(out.splitlines()), code, "synced" in err) == (["[0] links", "[1] links"], 0, False), err


def test_end_of_the_node_moves_on_while_its_run_lives(
    tpuctl: Console, workers: Slice, sandbox: Sandbox, clock: EventfulClock, tmp_path: Path
) -> None:
    """Else the guard would delete the node under a run of more than a day, or one whose bring-up or sync takes long."""
    started = tmp_path / "started"

    def let_days_pass() -> None:
        while not started.exists():
            time.sleep(0.05)
        clock.sleep(timedelta(hours=24))

    def patches(*options: str) -> int:
        started.unlink(missing_ok=True)
        days = threading.Thread(target=let_days_pass)
        days.start()
        assert tpuctl(*UP, "--rm", *options, "--", f"touch {started}; sleep 2.5")[2] == 0
        days.join()
        return sandbox.changes().count("patch")

    assert (patches("--timeout", "40h"), patches(), patches("--ttl", "40h")) == (1, 2, 2)


@pytest.mark.parametrize(
    ("options", "zone", "left"),
    [
        pytest.param(("--zone", "any"), "europe-west4-a", ["ci"], id="any-zone"),
        pytest.param(("--zone", "us-east1-d,europe-west4-a", "--rm"), "europe-west4-a", [], id="zones-and-rm"),
        pytest.param(("--zone", "us-east1-d", "--tier", "spot,on-demand"), "us-east1-d", ["ci"], id="tiers"),
    ],
)
def test_one_off_node_is_created_where_there_is_capacity(
    tpuctl: Console, workers: Slice, sandbox: Sandbox, *, options: tuple[str, ...], zone: str, left: list[str]
) -> None:
    for zones in ("us-*", "asia-*"):
        with sandbox.state.write() as session:
            put_stockout(session, zone=zones, accelerator_type="v6e-*", tier="spot")
    tier = () if "--tier" in options else ("--spot",)
    show = 'echo "$TPUCTL_ZONE"'

    out, err, code = tpuctl("run", "ci", "--up", "v6e-8", *tier, *options, "--no-sync", "--timeout", "1h", "--", show)

    assert (out, code) == (f"{zone}\n", 0), err
    assert nodes(tpuctl).split() == left
    assert tpuctl("run", "ci", "--up", "v6e-8", *tier, *options, "--no-sync", "--", show)[::2] == (f"{zone}\n", 0)


def test_one_off_search_deletes_no_node_of_another_client(
    tpuctl: Console, workers: Slice, sandbox: Sandbox, clock: EventfulClock
) -> None:
    """After an attempt without capacity, the node in the next zone is not known to be of this run."""
    with sandbox.state.write() as session:
        put_stockout(session, zone="us-east1-d", accelerator_type="v6e-*", tier="spot")
    clock.after(
        timedelta(seconds=5),
        lambda: sandbox.add_node("ci", zone="us-east5-b", acceleratorType="v6e-8", schedulingConfig={"spot": True}),
    )

    zones = ("--zone", "us-east1-d,us-east5-b")
    _, err, code = tpuctl("run", "ci", "--up", "v6e-8", "--spot", *zones, "--no-sync", "--rm", "--", "true")

    assert (code, nodes(tpuctl), "delete" in sandbox.changes()) == (0, "ci\n", False), err


def test_one_off_search_without_capacity_leaves_nothing(tpuctl: Console, workers: Slice, sandbox: Sandbox) -> None:
    with sandbox.state.write() as session:
        put_stockout(session, zone="*", accelerator_type="v6e-*")

    zones = ("--zone", "us-east1-d,us-east5-b")
    options = ("--no-sync", "--rm")
    _, err, code = tpuctl("run", "ci", "--up", "v6e-8", "--spot", *zones, *options, "--", "true", TPUCTL_TIMEOUT="10m")

    assert (code, nodes(tpuctl), "no capacity for `v6e-8` in any of 2 zones" in err) == (6, "", True)
