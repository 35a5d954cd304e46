"""`tpuctl run --keep` and `watch --job`: a job that ends only when it is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.conftest import Console, Sandbox
from tests.json_contract import check_documents
from tests.lifecycle import ZONE
from tests.tpuctl_process import TpuctlProcess
from tests.workers.running import Slice
from tests.workers.running.test_left_alone import until
from tests.workers.running.test_output import peak
from tpuctl.sandbox import administration
from tpuctl.sandbox.stock import put_stockout

TWO = ("--name", "train", "--no-sync", "--")
# Fails if it runs twice at the same time, or after it has ended with 0.
ALONE = "test ! -e done && mkdir running || touch DOUBLE; trap 'rmdir running' EXIT; echo x >> starts; "


@pytest.fixture
def pod(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> Iterator[Slice]:
    """Two workers that know our key."""
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    sandbox.add_node("pod", zone="us-east5-a", acceleratorType="v5p-16")  # with a price
    tpuctl("ssh", "pod", "--", "true")
    made.log_in()
    yield made
    made.end_all()


def verdicts(pod: Slice, job: str = "train") -> list[tuple[Any, Any, Any]]:
    """Return how the attempts of a job ended: the verdict, the worker that ended first, its exit code."""
    out, _, _ = pod.tpuctl("history", "pod", "--job", job, "-o", "json")
    return [(one["verdict"], one["worker"], one["exitCode"]) for one in json.loads(out)["attempts"]]


def keep(pod: Slice, line: str, *options: str) -> tuple[str, str, int]:
    return pod.run("--keep", *options, *TWO, line)


def test_kept_job_that_ends_with_0_is_not_started_again(pod: Slice) -> None:
    line = ALONE + "echo step; touch done"

    out, err, code = keep(pod, line)
    again = keep(pod, line)

    assert (sorted(out.splitlines()), code) == (["[0] step", "[1] step"], 0)
    assert err.splitlines()[-1] == "train: ended with 0 on all workers"
    assert again == ("", "train: ended with 0 on all workers\n", 0)
    assert pod.texts("starts") == {0: "x\n", 1: "x\n"}
    assert verdicts(pod) == [("succeeded", None, 0)]


def test_kept_job_with_a_bug_ends_within_two_attempts(pod: Slice) -> None:
    _, err, code = keep(pod, ALONE + "exit 3")

    assert code == 11
    assert err.splitlines()[-1] == (
        "train: given up: exit code 3 on all workers within 2 minutes of the start, twice: a bug of the program"
    )
    assert pod.texts("starts") == {0: "x\nx\n", 1: "x\nx\n"}
    entries = json.loads(pod.tpuctl("history", "pod", "-o", "json")[0])
    steps = ["job-start", "job-running", "job-end"]
    assert [one["event"] for one in entries if one.get("job") == "train"] == ["job", *steps, *steps, "job-over"]
    assert [(verdict, exit_code) for verdict, _, exit_code in verdicts(pod)] == [("program", 3)] * 2


def test_kept_job_stops_all_workers_and_starts_again_when_one_fails(pod: Slice) -> None:
    """Its processes ignore TERM: they are killed."""
    line = (
        "echo $TPUCTL_JOB $TPUCTL_ATTEMPT ${TPUCTL_RESTART_REASON:-none}; test $TPUCTL_ATTEMPT = 2 && exit 0; "
        "test $TPUCTL_WORKER_ID = 0 && exit 9; sleep 60"
    )

    out, _, code = keep(pod, line)

    assert (sorted(out.splitlines()), code) == (
        ["[0] train 1 none", "[0] train 2 program", "[1] train 1 none", "[1] train 2 program"],
        0,
    )
    assert verdicts(pod) == [("program", "0", 9), ("succeeded", None, 0)]
    jobs = json.loads(pod.tpuctl("jobs", "pod", "-o", "json")[0])
    assert sorted((job["job"], job["workers"][0]["exitCode"]) for job in jobs) == [("train", 0), ("train.1", 9)]
    (record,) = [job["kept"] for job in jobs if "kept" in job]
    assert (record["outcome"], len(record["attempts"])) == ("ended with 0 on all workers in attempt 2", 2)
    (node,) = json.loads(pod.tpuctl("status", "pod", "-o", "json")[0])
    assert node["keptJobs"] == [record]
    text = "train: ended with 0 on all workers in attempt 2 (program, succeeded)"
    assert text in " ".join(pod.tpuctl("status", "pod", terminal=True)[0].split())


def test_detached_kept_job_is_supervised_by_watch(pod: Slice) -> None:
    begun = keep(pod, ALONE + "echo out; while test ! -e go; do sleep 0.05; done; touch done", "--detach")
    for worker in (0, 1):
        (pod.home(worker) / "go").touch()

    out, err, code = pod.tpuctl("watch", "pod", "--job", "train")

    assert (begun[2], code, sorted(out.splitlines())) == (0, 0, ["[0] out", "[1] out"])
    assert err.splitlines()[-1] == "train: ended with 0 on all workers"
    assert pod.tpuctl("watch", "pod", "--job", "train") == ("", "train: ended with 0 on all workers\n", 0)
    assert pod.texts("starts") == {0: "x\n", 1: "x\n"}


def test_second_kept_job_of_a_node_is_refused(pod: Slice) -> None:
    keep(pod, "sleep 60", "--detach")

    other = pod.run("--keep", "--name", "other", "--no-sync", "--", "true")
    absent = pod.tpuctl("watch", "pod", "--job", "absent")

    assert other == (
        "",
        (
            "error: `pod` has the unfinished job `train`\n"
            "  hint: go on with it: `tpuctl watch pod --job train`, or end it: `tpuctl kill pod train`\n"
        ),
        8,
    )
    assert (absent[2], absent[1].splitlines()[0]) == (3, "error: the journal has no job `absent` of `pod` to supervise")


def test_killed_kept_job_is_not_started_again(pod: Slice) -> None:
    keep(pod, "sleep 60", "--detach")

    killed = pod.tpuctl("kill", "pod", "train")
    watched = pod.tpuctl("watch", "pod", "--job", "train")

    assert "job `train` is not started again\n" in killed[1]
    assert watched == (
        "",
        "train: attempt 1 ended: stopped: `tpuctl kill` sent TERM\ntrain: stopped: `tpuctl kill` sent TERM\n",
        11,
    )


def test_worker_that_loses_its_disk_is_a_bad_machine(pod: Slice) -> None:
    keep(pod, "test $TPUCTL_ATTEMPT = 2 || exec sleep 600", "--detach")
    gone = pod.home(1) / ".tpuctl" / "jobs" / "train.1"
    pid = int((gone / "pid").read_text().split()[0])
    gone.rename(pod.home(1) / "lost")
    os.killpg(pid, signal.SIGKILL)

    _, _, code = pod.tpuctl("watch", "pod", "--job", "train")

    assert (code, verdicts(pod)) == (0, [("machine", "1", None), ("succeeded", None, 0)])


def test_command_that_cannot_be_started_is_given_up(pod: Slice) -> None:
    _, err, code = pod.run("--keep", "--workdir", "absent", *TWO, "true")

    assert code == 11
    assert err.splitlines()[-1].startswith("train: given up after 4 failures of the program (`--max-failures 3`)")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param(("--keep", "--batch", "1"), "cannot combine `--keep` and `--batch`", id="batch"),
        pytest.param(("--keep", "--up", "v4-8"), "cannot combine `--keep` and `--up`", id="up"),
        pytest.param(("--max-failures", "1"), "`--max-failures` needs `--keep`", id="without-keep"),
        pytest.param(("--keep", "--restart-on", "x"), "`x` is not an exit code from 1 to 255", id="codes"),
    ],
)
def test_option_that_does_not_fit_is_refused(pod: Slice, options: tuple[str, ...], error: str) -> None:
    _, err, code = pod.run(*options, "--", "true")

    assert (code, err.splitlines()[0]) == (2, f"error: {error}")


IN_BUCKET = {"TPUCTL_JOURNAL": "gs://data/journal", "TPUCTL_LEASE": "gs://data/leases"}


def another_machine(pod: Slice, tmp_path: Path) -> Console:
    """Return the program on a machine that shares only the bucket, and the cloud, with the first one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "sandbox").symlink_to(Path(pod.tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox")
    return replace(pod.tpuctl, environ={**pod.tpuctl.environ, **IN_BUCKET, "TPUCTL_STATE_DIR": str(elsewhere)})


@pytest.mark.parametrize(
    ("moment", "is_elsewhere"),
    [
        *((pytest.param(0.2 + 0.1 * number, True, id=f"{number}-elsewhere")) for number in range(30)),
        *((pytest.param(0.2 + 0.1 * number, False, id=f"{number}-here")) for number in range(0, 30, 3)),
    ],
)
def test_supervisor_killed_at_any_moment_is_replaced(
    pod: Slice, sandbox: Sandbox, tmp_path: Path, *, moment: float, is_elsewhere: bool
) -> None:
    """The job runs once at a time, and not again after it has ended with 0."""
    administration.add_bucket(sandbox.state, "data")
    line = ALONE + "echo step; sleep 0.7; touch done"
    places: dict[str, Any] = IN_BUCKET if is_elsewhere else {}
    with pod.start("--keep", *TWO, line, **places) as program:
        time.sleep(moment)
        program.send_signal(signal.SIGKILL)

    environ = {"PATH": os.environ["PATH"], **(another_machine(pod, tmp_path) if is_elsewhere else pod.tpuctl).environ}

    def tpuctl(*words: str) -> tuple[int, str]:
        with TpuctlProcess(
            words, env=environ, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            _, err = process.communicate(timeout=60)
        return process.returncode, err.decode()

    if is_elsewhere:  # there only the age of its lease shows that the first one is gone
        sandbox.state.advance(timedelta(minutes=3))
    code, err = tpuctl("watch", "pod", "--job", "train")
    if code == 3:  # killed before the job was in the journal
        code, err = tpuctl("run", "pod", "--keep", *TWO, line)

    assert code == 0, err
    assert pod.texts("DOUBLE") == {}
    assert pod.texts("starts") == {0: "x\n", 1: "x\n"}


def test_second_supervisor_waits_for_the_first(pod: Slice) -> None:
    line = "while test ! -e go; do sleep 0.05; done; touch done"
    with pod.start("--keep", *TWO, ALONE + line) as first:
        until(lambda: len(pod.left()) == 2)
        with pod.start("--keep", *TWO, ALONE + line) as second:
            assert second.stderr is not None
            noted = second.stderr.readline().decode()
            for worker in (0, 1):
                (pod.home(worker) / "go").touch()
            first.communicate(timeout=60)
            second.communicate(timeout=60)

    assert f"`run on {os.uname().nodename} pid {first.pid}` supervises the job of `pod`" in noted
    assert (first.returncode, second.returncode, pod.texts("starts")) == (0, 0, {0: "x\n", 1: "x\n"})


def test_hook_gets_the_end_of_the_job(pod: Slice) -> None:
    keep(pod, "true", "--on-job-end", f"cat > '{pod.root}/ended.json'")

    text = (pod.root / "ended.json").read_text()
    check_documents("events", text)
    event = json.loads(text)
    assert {name: event[name] for name in ("event", "node", "job", "exit_code", "attempts", "text")} == {
        "event": "job-ended",
        "node": "pod",
        "job": "train",
        "exit_code": 0,
        "attempts": 1,
        "text": "ended with 0 on all workers",
    }


def test_silent_job_is_a_warning(pod: Slice) -> None:
    hook = ("--on-job-stall", f"cat > '{pod.root}/stalled.json'")

    out, err, code = keep(pod, "sleep 2.5; echo end", "--hang-after", "1s", "--start-grace", "1s", *hook)

    assert (sorted(out.splitlines()), code) == (["[0] end", "[1] end"], 0)
    assert err.count("warning: job `train` may hang: no output for ") == 1
    text = (pod.root / "stalled.json").read_text()
    check_documents("events", text)
    assert {name: json.loads(text)[name] for name in ("event", "job", "attempt")} == {
        "event": "job-stalled",
        "job": "train",
        "attempt": 1,
    }


@contextmanager
def metadata_server() -> Iterator[tuple[str, threading.Event]]:
    """Serve `instance/preempted` as Compute Engine's metadata server does; yield its address, and what sets it to TRUE."""
    is_preempted = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            given = parse_qs(url.query)
            assert (url.path, self.headers["Metadata-Flavor"]) == ("/computeMetadata/v1/instance/preempted", "Google")
            if "wait_for_change" in given and given["last_etag"] == ["e0"]:
                is_preempted.wait(float(given["timeout_sec"][0]))
            text = b"TRUE" if is_preempted.is_set() else b"FALSE"
            self.send_response(200)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("ETag", f"e{is_preempted.is_set():d}")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", is_preempted
    is_preempted.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        pytest.param((), "10 30\n", id="default"),
        pytest.param(("--preempt-signal", "USR1"), "usr1\n", id="another-signal"),
    ],
)
def test_notice_of_a_preemption_reaches_the_job_as_a_signal(pod: Slice, options: tuple[str, ...], printed: str) -> None:
    """A job that saves its state and ends with 0 is not done."""
    line = (
        "test $TPUCTL_ATTEMPT = 2 && exit 0; trap 'cat $TPUCTL_PREEMPTION_NOTICE > saved; exit 0' TERM; "
        "trap 'echo usr1 > saved; exit 0' USR1; touch waits; while :; do sleep 0.05; done"
    )
    with metadata_server() as (address, is_preempted):
        pod.plan({worker: [{"environ": {"GCE_METADATA_HOST": address}}] for worker in (0, 1)})
        with pod.start("--keep", *options, *TWO, line) as program:
            until(lambda: len(pod.texts("waits")) == 2)
            is_preempted.set()
            err = program.communicate(timeout=60)[1].decode()

    assert program.returncode == 0, err
    assert pod.texts("saved") == {0: printed, 1: printed}
    assert [one[0] for one in verdicts(pod)] == ["preempted", "succeeded"]


@pytest.mark.parametrize(
    "skews",
    [
        pytest.param((3600, 3600), id="ahead"),
        pytest.param((-180, -180), id="behind"),
        pytest.param((-3600, 180), id="one-behind-and-one-ahead"),
        pytest.param((180, -3600), id="one-ahead-and-one-behind"),
    ],
)
def test_wrong_clock_of_a_worker_changes_no_verdict(pod: Slice, skews: tuple[int, int]) -> None:
    """Which worker ended first, the two minutes of a bug, and the time after which failures are given back."""
    pod.plan({worker: [{"skew": skew}] for worker, skew in enumerate(skews)})

    _, err, code = keep(pod, ALONE + "sleep $TPUCTL_WORKER_ID; exit 3", "--healthy-after", "2m")

    assert (code, verdicts(pod)) == (11, [("program", "0", 3)] * 2), err
    assert err.splitlines()[-1].endswith("twice: a bug of the program")
    attempts = json.loads(pod.tpuctl("history", "pod", "--job", "train", "-o", "json")[0])["attempts"]
    assert all(one["seconds"] < 60 for one in attempts)


def test_worker_that_started_later_is_not_the_first_to_end(pod: Slice, tmp_path: Path) -> None:
    """A supervisor was killed between two starts, and the next one started the job on the other worker."""
    line = (
        "test $TPUCTL_ATTEMPT = 2 && exit 0; touch began; while test ! -e go; do sleep 0.05; done; "
        "sleep $TPUCTL_WORKER_ID; exit $((9 + 125 * TPUCTL_WORKER_ID))"
    )
    keep(pod, line, "--detach")
    until(lambda: len(pod.texts("began")) == 2)
    gone = pod.home(1) / ".tpuctl" / "jobs" / "train.1"
    os.killpg(int((gone / "pid").read_text().split()[0]), signal.SIGKILL)
    gone.rename(pod.home(1) / "lost")
    (pod.home(1) / "began").unlink()
    (journal,) = tmp_path.glob("**/journal/**/*.jsonl")
    kept = [text for text in journal.read_text().splitlines(keepends=True) if "job-running" not in text]
    journal.write_text("".join(kept))
    time.sleep(2.5)

    with pod.start("--keep", *TWO, line) as program:
        until((pod.home(1) / "began").exists)
        for worker in (0, 1):
            (pod.home(worker) / "go").touch()
        _, err = program.communicate(timeout=60)

    assert program.returncode == 0, err.decode()
    assert verdicts(pod) == [("program", "0", 9), ("succeeded", None, 0)]


def test_worker_that_lost_another_one_is_no_failure_of_the_program(pod: Slice) -> None:
    text = "heartbeat timeout. This indicates that the remote task has failed"
    line = f"test $TPUCTL_ATTEMPT = 2 && exit 0; test $TPUCTL_WORKER_ID = 1 && sleep 60; echo '{text}'; exit 134"

    _, err, code = keep(pod, line, "--max-failures", "0")

    assert (code, verdicts(pod)) == (0, [("consequence", "0", 134), ("succeeded", None, 0)]), err
    assert "heartbeat-timeout in its log: a consequence of what no worker reports" in err


def test_time_limit_counts_from_the_first_start(pod: Slice) -> None:
    _, err, code = keep(pod, "sleep 60", "--timeout", "2s")

    assert (code, verdicts(pod)[0][0]) == (5, "timed-out")
    assert err.splitlines()[-1] == "train: given up: its time limit has passed"


def test_another_machine_goes_on_with_the_journal_in_a_bucket(pod: Slice, sandbox: Sandbox, tmp_path: Path) -> None:
    """It has the order, the environment and the files of the first start, and no local state."""
    administration.add_bucket(sandbox.state, "data")
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.sh").write_text('echo "$TPUCTL_ATTEMPT $WORD"; test "$TPUCTL_ATTEMPT" = 2\n')
    words = ("--keep", "--detach", "--name", "train", "--sync", str(code), "--workdir", "code", "--env", "WORD=x")
    assert pod.run(*words, "--", "sh train.sh", **IN_BUCKET)[2] == 0
    (code / "train.sh").write_text("exit 9\n")

    out, err, exit_code = another_machine(pod, tmp_path)("watch", "pod", "--job", "train")

    assert exit_code == 0, err
    assert sorted(out.splitlines()) == ["[0] 1 x", "[0] 2 x", "[1] 1 x", "[1] 2 x"]


def test_present_files_are_used_after_resync(pod: Slice, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.sh").write_text("echo old; while test ! -e ~/go; do sleep 0.05; done; exit 9\n")
    words = ("--keep", "--name", "train", "--sync", str(code), "--workdir", "code")
    pod.run(*words, "--detach", "--", "sh train.sh")
    (code / "train.sh").write_text("echo new\n")
    for worker in (0, 1):
        (pod.home(worker) / "go").touch()

    wrong = pod.run(*words[:3], "--resync", "--sync", str(tmp_path), "--", "sh train.sh")
    out, _, exit_code = pod.run(*words, "--resync", "--", "sh train.sh")

    assert (wrong[2], wrong[1].splitlines()[0]) == (
        2,
        "error: `--resync`: the job was begun with the files of `~/code`",
    )
    assert (exit_code, sorted(out.splitlines())) == (0, ["[0] new", "[0] old", "[1] new", "[1] old"])


def test_output_and_files_of_all_attempts_are_collected(pod: Slice, tmp_path: Path) -> None:
    """Those of the first attempt, too, which failed on one worker."""
    line = "echo out $TPUCTL_ATTEMPT; echo $TPUCTL_ATTEMPT > result; test $TPUCTL_ATTEMPT$TPUCTL_WORKER_ID != 10"

    _, err, code = keep(pod, line, "--log-dir", str(tmp_path / "logs"), "--collect", "result")

    logs = {
        str(path.relative_to(tmp_path / "logs")): path.read_text()
        for path in tmp_path.glob("logs/*/**/*")
        if path.is_file()
    }
    assert code == 0, err
    assert logs == {
        **{f"{attempt}/worker-{worker}.log": f"out {attempt}\n" for attempt in (1, 2) for worker in (0, 1)},
        **{f"{attempt}/{worker}/result": f"{attempt}\n" for attempt in (1, 2) for worker in (0, 1)},
    }


@pytest.mark.parametrize(
    "options", [pytest.param((), id="run"), pytest.param(("--keep", "--name", "train", "--no-sync"), id="keep")]
)
def test_script_runs_on_all_workers_with_its_arguments(pod: Slice, tmp_path: Path, options: tuple[str, ...]) -> None:
    script = tmp_path / "it.sh"
    script.write_text('#!/bin/sh\necho "$1 on $TPUCTL_WORKER_ID"; test "$#" = 2\n')

    out, err, code = pod.run(*options, "--script", str(script), "--", "a b", "c")

    assert (sorted(out.splitlines()), code) == (["[0] a b on 0", "[1] a b on 1"], 0), err
    if options:
        (job,) = json.loads(pod.tpuctl("jobs", "pod", "-o", "json")[0])
        assert job["command"] == f"{script} 'a b' c"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param({"status": 503, "count": 250}, 0, id="api-down-for-hours"),
        pytest.param({"status": 401, "count": 1}, 4, id="login-expired"),
    ],
)
def test_failing_api_never_ends_the_job(pod: Slice, sandbox: Sandbox, fault: dict[str, Any], code: int) -> None:
    keep(pod, ALONE + "while test ! -e go; do sleep 0.05; done; touch done", "--detach")
    for worker in (0, 1):
        (pod.home(worker) / "go").touch()
    sandbox.fault("http-error", method="*.nodes.get", **fault)

    first = pod.tpuctl("watch", "pod", "--job", "train")
    second = pod.tpuctl("watch", "pod", "--job", "train")

    assert (first[2], second[2], pod.texts("starts")) == (code, 0, {0: "x\n", 1: "x\n"})


def test_preempted_node_without_capacity_moves_to_another_zone_and_tier(pod: Slice, sandbox: Sandbox) -> None:
    first, other = "us-west4-a", "europe-west4-b"
    zones = ("--zone", f"{first},{other}", "--type", "v5litepod-16", "--tier", "spot,on-demand")
    pod.tpuctl("down", "pod", "--yes")
    pod.run("--keep", *zones, "--detach", *TWO, "test $TPUCTL_ATTEMPT = 2 || sleep 60")
    sandbox.fault("preempt", node="pod")
    with sandbox.state.write() as session:
        put_stockout(session, zone=first, accelerator_type="v5litepod-*")
        put_stockout(session, zone=other, accelerator_type="v5litepod-*", tier="spot")

    _, err, code = pod.tpuctl("watch", "pod", "--job", "train")

    record = json.loads(pod.tpuctl("history", "pod", "--job", "train", "-o", "json")[0])
    assert [(one["zone"], one["tier"], one["verdict"]) for one in record["attempts"]] == [
        (first, "spot", "preempted"),
        (other, "on-demand", "succeeded"),
    ], err
    assert code == 0


def test_processes_that_ignore_term_are_killed(pod: Slice) -> None:
    line = "trap '' TERM; test $TPUCTL_ATTEMPT = 2 && exit 0; test $TPUCTL_WORKER_ID = 0 && exit 9; sleep 90; sleep 90"

    _, err, code = keep(pod, line)

    assert (code, verdicts(pod)) == (0, [("program", "0", 9), ("succeeded", None, 0)]), err


def test_full_local_disk_ends_the_copy_of_the_output_only(pod: Slice, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "1"
    folder.mkdir(parents=True)
    (folder / "worker-0.log").symlink_to("/dev/full")

    out, err, code = keep(pod, "echo out", "--log-dir", str(tmp_path / "logs"))

    assert (sorted(out.splitlines()), code) == (["[0] out", "[1] out"], 0)
    assert f"warning: no more output is kept in `{folder}`: no space left on device\n" in err


def test_state_that_cannot_be_written_ends_the_supervisor_only(pod: Slice, tmp_path: Path) -> None:
    """As on a full disk, or a read-only one. Nothing is started without the journal, and nothing twice."""
    journal = Path(pod.tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal"
    journal.mkdir(mode=0o700)
    away = tmp_path / "away"
    line = ALONE + "while test ! -e go; do sleep 0.05; done; touch done"

    def break_journal() -> None:
        journal.rename(away)
        journal.touch()

    def repair_journal() -> None:
        journal.unlink()
        away.rename(journal)

    break_journal()
    refused = keep(pod, line)
    repair_journal()
    with pod.start("--keep", *TWO, line) as program:
        until(lambda: len(pod.texts("starts")) == 2)
        time.sleep(0.5)
        break_journal()
        for worker in (0, 1):
            (pod.home(worker) / "go").touch()
        err = program.communicate(timeout=60)[1].decode()
    blind = pod.tpuctl("watch", "pod", "--job", "train")
    repair_journal()
    again = pod.tpuctl("watch", "pod", "--job", "train")

    assert (refused[2], program.returncode, blind[2], again[2]) == (1, 1, 1, 0), err
    assert refused[1].startswith("error: cannot read the journal: ")
    assert blind[1].startswith("error: cannot read the journal: ")
    assert (pod.texts("starts"), pod.texts("DOUBLE")) == ({0: "x\n", 1: "x\n"}, {})


def test_long_output_is_kept_here_up_to_a_limit(pod: Slice, tmp_path: Path) -> None:
    line = "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 999; echo; echo end"

    out, err, code = pod.run("--keep", "--log-dir", str(tmp_path / "logs"), *TWO, line, TPUCTL_KEPT_LOG_MIB="1")

    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("logs/1/*.log"))]
    assert (code, sizes, len(out.splitlines())) == (0, [1 << 20] * 2, 2 * (3000000 // 999 + 2))
    assert err.count("only the first 1 MiB of its output are kept here; all is on the worker") == 2


def test_memory_of_the_supervisor_with_large_output_is_bounded(pod: Slice) -> None:
    peaks = [peak(pod, size, "--keep", "--name", f"job-{size}", "--no-sync") for size in (1_000_000, 50_000_000)]

    assert peaks[1] - peaks[0] < 8_000  # KiB


def test_worker_keeps_the_output_of_the_last_attempts_only(pod: Slice) -> None:
    _, err, code = keep(pod, "test $TPUCTL_ATTEMPT = 7 || exit 42")

    assert code == 0, err
    assert pod.left() == [
        f"{worker}/.tpuctl/jobs/train{old}.{worker}" for worker in (0, 1) for old in ("", ".4", ".5", ".6")
    ]


@pytest.mark.parametrize(
    ("words", "number", "word", "code"),
    [
        pytest.param(("run", "pod", "--keep", *TWO, "x"), signal.SIGINT, "interrupted", 130, id="ctrl-c"),
        pytest.param(("watch", "pod", "--job", "train"), signal.SIGTERM, "terminated", 143, id="stopped-service"),
    ],
)
def test_interrupted_supervisor_leaves_the_job_and_names_both_ways_on(
    pod: Slice, words: tuple[str, ...], *, number: int, word: str, code: int
) -> None:
    """0 would say that the job is done."""
    keep(pod, "sleep 60", "--detach")
    environ = {"PATH": os.environ["PATH"], **pod.tpuctl.environ}
    with TpuctlProcess(words, env=environ, cwd=pod.tpuctl.folder, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        begun = program.stderr.readline()
        time.sleep(0.5)
        program.send_signal(number)
        _, err = program.communicate(timeout=60)

    assert (program.returncode, begun.startswith("train: going on with attempt 1, begun ")) == (code, True)
    assert err.endswith(
        f"{word}: job `train` goes on without a supervisor; nothing was undone\n"
        "  resume: tpuctl watch pod --job train\n  undo:   tpuctl kill pod train\n"
    )
    (job,) = json.loads(pod.tpuctl("jobs", "pod", "-o", "json")[0])
    assert job["state"] == "running on 2 workers"


@pytest.mark.parametrize(
    ("line", "flag", "code", "left"),
    [
        pytest.param("true", "--rm", 0, "", id="rm-after-success"),
        pytest.param("exit 3", "--rm", 11, "", id="rm-after-failure"),
        pytest.param("true", "--rm-on-success", 0, "", id="rm-on-success-after-success"),
        pytest.param("exit 3", "--rm-on-success", 11, "ci\n", id="rm-on-success-after-failure"),
        pytest.param("true", "--rm=success", 0, "", id="rm=success-after-success"),
        pytest.param("exit 3", "--rm=success", 11, "ci\n", id="rm=success-after-failure"),
    ],
)
def test_node_of_a_kept_job_is_deleted_at_the_end(
    tpuctl: Console, fake_ssh: Callable[[str], None], tmp_path: Path, *, line: str, flag: str, code: int, left: str
) -> None:
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    made.log_in()

    found = tpuctl("run", "ci", "--keep", "--type", "v4-16", "--zone", ZONE, flag, *TWO, line)
    made.end_all()

    assert found[2] == code
    assert tpuctl("list", "--columns", "name")[0] == left


def test_price_limit_of_the_first_start_counts_for_the_next_ones(pod: Slice, sandbox: Sandbox) -> None:
    zone = "us-west4-a"
    pod.tpuctl("down", "pod", "--yes")
    limits = ("--tier", "spot,on-demand", "--max-price", "15")
    line = "test $TPUCTL_ATTEMPT = 2 || sleep 60"
    pod.run("--keep", "--zone", zone, "--type", "v5litepod-16", *limits, "--detach", *TWO, line)
    sandbox.fault("preempt", node="pod")
    with sandbox.state.write() as session:
        put_stockout(session, zone=zone, accelerator_type="v5litepod-*", tier="spot", duration=timedelta(hours=3))

    _, err, code = pod.tpuctl("watch", "pod", "--job", "train")

    attempts = json.loads(pod.tpuctl("history", "pod", "--job", "train", "-o", "json")[0])["attempts"]
    assert (code, [one["tier"] for one in attempts]) == (0, ["spot", "spot"]), err


def test_node_that_cannot_be_stopped_is_refused_at_the_beginning(pod: Slice) -> None:
    out, err, code = keep(pod, "true", "--stop")

    text = "it is a slice of 2 workers, and the service stops single-worker nodes only"
    assert (out, err.splitlines()[0], code) == ("", f"error: `--stop`: `pod` cannot be stopped: {text}", 2)
    assert pod.left() == []


def test_single_worker_node_is_stopped_at_the_end(
    tpuctl: Console, fake_ssh: Callable[[str], None], tmp_path: Path
) -> None:
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    made.log_in()

    _, err, code = tpuctl("run", "ci", "--keep", "--type", "v4-8", "--zone", ZONE, "--stop", *TWO, "true")
    made.end_all()

    assert code == 0, err
    assert tpuctl("list", "--columns", "name,state")[0] == "ci\tSTOPPING\n"


def test_max_cost_without_a_price_is_a_warning(
    tpuctl: Console, fake_ssh: Callable[[str], None], tmp_path: Path
) -> None:
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    made.log_in()
    node = ("--type", "v4-8", "--spot", "--zone", ZONE)

    _, err, code = tpuctl("run", "ci", "--keep", *node, "--max-cost", "9", *TWO, "true")
    made.end_all()

    assert code == 0, err
    assert "warning: the price of `ci` is unknown: `--max-cost` does not count this attempt\n" in err
