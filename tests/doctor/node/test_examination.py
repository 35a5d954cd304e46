"""The program that examines a worker, run for real on a folder in place of its root; and how strictly its answer is parsed."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.node.conftest import Worker
from tests.tpu_files import running
from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.doctor.doctor_facts import (
    FileSystemUsage,
    LogFolder,
    LogFolderState,
    OomKills,
    PythonEnvironment,
    TpuVariables,
    WorkerMemory,
    WorkerReport,
)
from tpuctl.doctor.node_probes import examination_request, parse_examination
from tpuctl.nodes.conditions import StartupState
from tpuctl.nodes.inspection import InspectionReport
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.channel import FrameDecoder, WorkerFrame, bootstrap

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def answer_of(worker: Worker, request: dict[str, Any], **environ: str) -> Any:
    """Run the program on a worker, and return the JSON of its only frame."""
    line, program = bootstrap("worker_facts", f"run_agent(serve_worker_facts, { {**request, 'worker': 0}!r})")
    clean = {key: value for key, value in os.environ.items() if key not in {"VIRTUAL_ENV", "CONDA_PREFIX"}}
    paths = {
        "TPUCTL_DEVICE_ROOT": str(worker.root),
        "HOME": str(worker.home),
        "PATH": f"{worker.programs}:{os.environ['PATH']}",
        "SHELL": "/bin/sh",
    }
    done = subprocess.run(
        ["sh", "-c", line], input=program, capture_output=True, env=clean | paths | environ, check=True
    )
    ((kind, payload),) = FrameDecoder(1 << 20).feed(done.stdout)
    assert kind is WorkerFrame.EXIT
    return json.loads(payload)


def examine(worker: Worker, *, patience: float = 5, **environ: str) -> tuple[dict[str, Any], WorkerReport]:
    """Run the program on a worker. Return its report as JSON and parsed."""
    before = datetime.now(UTC)
    answer = answer_of(worker, examination_request(timedelta(seconds=patience)), **environ)
    return answer, parse_examination(answer, before, datetime.now(UTC))


def workers_python() -> str:
    """Return the version of the Python that programs on a worker run under."""
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "python3"
    line = 'import sys; print("%d.%d" % sys.version_info[:2])'
    return subprocess.run([python, "-c", line], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def test_examination_healthy_worker_reports_everything(worker: Worker) -> None:
    _, report = examine(worker)

    assert report.disks == Known((FileSystemUsage("/", 0, 20),))
    assert report.logs == Known(LogFolder("/tmp/tpu_logs", LogFolderState.ABSENT, 0, 0, is_complete=True))
    assert report.memory == Known(WorkerMemory(1024000, 921600))
    assert report.uptime == Known(timedelta(seconds=90000))
    assert report.oom_kills == Known(OomKills(0))
    assert isinstance(report.tpu_use, Known)
    assert (report.tpu_use.value.holders, report.tpu_use.value.is_free) == ((), True)
    assert report.inspection == Known(InspectionReport(StartupState.DONE, chips=4))
    assert (report.variables, report.environments) == (Known(TpuVariables()), Known(()))
    assert report.is_synchronized == Known(value=True)
    assert (report.kernel, report.offset.low <= timedelta() <= report.offset.high) == (os.uname().release, True)


def test_examination_reports_each_problem(worker: Worker) -> None:
    worker.says("dmesg", "[1] Out of memory: Killed process 7 (python3)\n[2] oom_reaper: reaped process 7\n")
    worker.says("timedatectl", "NTPSynchronized=no\n")
    worker.says("cloud-init", "status: error\n")
    worker.write("tmp/tpu_logs/tpu_driver.INFO", "x" * 5000)
    (worker.root / "dev/accel3").unlink()
    worker.lock_file.touch()

    with running("sleep", "60", path=worker.root / "dev" / "accel0") as process:
        _, report = examine(worker)

    assert report.oom_kills == Known(OomKills(1, "[2] oom_reaper: reaped process 7"))
    assert report.is_synchronized == Known(value=False)
    assert isinstance(report.inspection, Known)
    inspection = report.inspection.value
    assert (inspection.chips, inspection.startup, inspection.detail) == (
        3,
        StartupState.CLOUD_INIT_FAILED,
        "cloud-init failed",
    )
    assert isinstance(report.logs, Known)
    assert (report.logs.value.state, report.logs.value.size >= 4096, report.logs.value.files) == (
        LogFolderState.WRITABLE,
        True,
        1,
    )
    assert isinstance(report.tpu_use, Known)
    (holder,), lock_file = report.tpu_use.value.holders, report.tpu_use.value.lock_file
    assert (holder.pid, holder.user, holder.name, holder.state) == (process.pid, getuser(), "sleep", "S")
    assert lock_file is not None
    assert lock_file.user == getuser()


def test_examination_reads_packages_from_metadata(worker: Worker) -> None:
    worker.install("jax", "0.4.35")
    worker.install("torch_xla", "2.5.0+libtpu")
    worker.install("numpy", "2.0")
    worker.install("flax", "0.10", place="train/.venv")
    worker.install("tensorflow", "2.11.0", place="elsewhere")
    system = worker.root / "usr/lib/python3/dist-packages/torch-2.5.0.dist-info"
    system.mkdir(parents=True)

    _, report = examine(worker, VIRTUAL_ENV=str(worker.home / "train/.venv"))

    assert isinstance(report.environments, Known)
    assert [(one.kind, one.path, one.python, one.packages) for one in report.environments.value] == [
        ("system", "/usr", workers_python(), {"torch": "2.5.0"}),
        ("venv", "~/train/.venv", "3.10", {"flax": "0.10"}),
        ("venv", "~/venv", "3.10", {"jax": "0.4.35", "torch-xla": "2.5.0+libtpu"}),
        ("venv", "~/elsewhere", "3.10", {"tensorflow": "2.11.0"}),
    ]


@pytest.mark.parametrize(
    ("script", "broken", "unchecked"),
    [
        ("echo 'No broken requirements found.'", (), None),
        (
            "echo 'jax 1 requires jaxlib, which is not installed.'; echo 'x 1 requires y, which is not installed.'; exit 1",
            ("jax 1 requires jaxlib, which is not installed.",),
            None,
        ),
        ("echo '/bin/python: No module named pip' >&2; exit 1", (), "/bin/python: No module named pip"),
        ("exit 3", (), "`pip check` failed"),
        ("exec sleep 60", (), "`pip check` did not end in time"),
    ],
    ids=["fine", "broken", "no-pip", "failed", "hangs"],
)
def test_examination_runs_pip_check_of_each_environment(
    worker: Worker, script: str, broken: tuple[str, ...], unchecked: str | None
) -> None:
    worker.install("jax", "1")
    python = worker.home / "venv/bin/python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f'#!/bin/sh\n[ "$*" = "-m pip check" ] || exit 4\n{script}\n')
    python.chmod(0o755)

    _, report = examine(worker, patience=0.5)

    assert isinstance(report.environments, Known)
    (one,) = report.environments.value
    assert (one.packages, one.broken, one.unchecked) == ({"jax": "1"}, broken, unchecked)


def test_examination_reports_only_known_variables(worker: Worker) -> None:
    (worker.home / ".profile").write_text("export JAX_PLATFORMS=cpu TOKEN=secret; echo welcome\n")
    job = worker.home / ".tpuctl/jobs/train.0"
    job.mkdir(parents=True)
    ended = worker.home / ".tpuctl/jobs/old.0"
    ended.mkdir()
    (ended / "exit").write_text("0")
    for folder in (job, ended):
        (folder / "token").touch()

    with subprocess.Popen(["sleep", "60"], env={"TPU_LOG_DIR": str(worker.home), "PASSWORD": "secret"}) as process:
        (job / "pid").write_text(f"{process.pid} 1")
        raw, report = examine(worker, PJRT_DEVICE="TPU")
        process.kill()

    session, login = {"PJRT_DEVICE": "TPU"}, {"PJRT_DEVICE": "TPU", "JAX_PLATFORMS": "cpu"}
    assert report.variables == Known(TpuVariables(session, login, ({"TPU_LOG_DIR": str(worker.home)},)))
    assert "secret" not in json.dumps(raw)
    # The log folder is that of the job's variable.
    assert report.logs == Known(LogFolder(str(worker.home), LogFolderState.LACKS_PARENT, 0, 0, is_complete=True))


def test_examination_failed_part_does_not_affect_others(worker: Worker) -> None:
    (worker.programs / "df").write_text("#!/bin/sh\nexec sleep 60\n")
    worker.says("dmesg", "dmesg: read kernel buffer failed: Operation not permitted\n", code=1)
    (worker.programs / "timedatectl").write_text("#!/bin/sh\nexit 127\n")
    (worker.home / ".profile").write_text("exit 3\n")

    request = {"inspection": "exit 1", "seconds": 0.5}
    report = parse_examination(answer_of(worker, request, TPUCTL_DEVICE_ROOT=""), NOW, NOW)

    assert report.disks == Unknown("`df` did not end in time")
    assert report.oom_kills == Unknown("dmesg: read kernel buffer failed: Operation not permitted")
    assert report.inspection == Unknown("`sh` failed: exit 1")
    assert report.is_synchronized == Absent("`timedatectl` is missing")
    assert isinstance(report.memory, Known)
    assert isinstance(report.variables, Known)
    assert report.variables.value.login_unread == "a login shell runs no commands: exit 3"


def test_examination_hanging_profile_has_a_clear_reason(worker: Worker) -> None:
    (worker.home / ".profile").write_text("exec sleep 60\n")
    worker.says("timedatectl", "")
    (worker.root / "proc/uptime").write_text("\n")

    _, report = examine(worker, patience=0.5)

    waits = "a login shell did not start within 0.5 s: a command in its profile waits"
    assert report.variables == Known(TpuVariables(login_unread=waits))
    assert report.uptime == Unknown("unexpected content (IndexError)")
    assert report.is_synchronized == Unknown("`timedatectl` printed no state")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([], "the answer: expected an object, got a list"),
        ({}, "the answer: `began` is missing"),
        ({"began": "x", "ended": 1}, "the answer.began: expected a number, got `x`"),
        ({"began": 1, "ended": 1, "kernel": 1}, "the answer.kernel: expected a string, got 1"),
        ({"began": 1e300, "ended": 1}, "the answer.began: expected 0 to 2.21845e+11, got 1e+300"),
    ],
)
def test_examination_invalid_answer_is_rejected(answer: Any, expected: str) -> None:
    with pytest.raises(UnexpectedAnswerError) as rejected:
        parse_examination(answer, NOW, NOW)

    assert rejected.value.what == expected


def test_examination_invalid_part_is_unknown() -> None:
    report: dict[str, Any] = {
        "began": NOW.timestamp() + 5,
        "ended": NOW.timestamp() + 6,
        "kernel": "6\x1b[2J",
        "uptime": {"ok": "x"},
        "disks": [],
        "logs": {"ok": {"path": "/x", "state": "new", "size": 1, "files": 1, "is_complete": True}},
        "memory": {"error": "it is gone"},
        "oom_kills": {"ok": []},
        "tpu_use": {"ok": {}},
        "inspection": {"ok": "tpuctl-worker"},
        "variables": {"ok": {"session": {"JAX_PLATFORMS": 1}}},
        "environments": {"ok": [{"kind": "venv"}]},
        "is_synchronized": {"ok": 1},
    }

    one = parse_examination(report, NOW, NOW + timedelta(seconds=2))

    assert (one.kernel, one.offset.low, one.offset.high) == (r"6\x1b[2J", timedelta(seconds=4), timedelta(seconds=5))
    names = (
        "uptime", "disks", "logs", "oom_kills", "tpu_use", "inspection", "variables", "environments", "is_synchronized",
    )  # fmt: skip
    assert {name: getattr(one, name).reason.removeprefix("unexpected answer: the answer") for name in names} == {
        "uptime": ".uptime.ok: expected a number, got `x`",
        "disks": ".disks: expected an object, got a list",
        "logs": ".logs.ok.state: expected writable or absent or lacks-parent or refused or relative, got `new`",
        "oom_kills": ".oom_kills.ok: expected an object, got a list",
        "tpu_use": ".tpu_use.ok: `holders` is missing",
        "inspection": ".inspection.ok: not a report",
        "variables": ".variables.ok.session.JAX_PLATFORMS: expected a string, got 1",
        "environments": ".environments.ok[0]: `path` is missing",
        "is_synchronized": ".is_synchronized.ok: expected true or false, got 1",
    }
    assert one.memory == Unknown("it is gone")
    # The version becomes part of suggested commands, so invalid ones are dropped.
    packages = {"jax": "1; rm -rf /", "flax": "1.0"}
    about: dict[str, Any] = {"kind": "venv", "path": "~/x", "python": "3", "packages": packages}
    report["environments"] = {"ok": [about]}
    assert parse_examination(report, NOW, NOW).environments == Known(
        (PythonEnvironment("venv", "~/x", "3", {"flax": "1.0"}),)
    )
