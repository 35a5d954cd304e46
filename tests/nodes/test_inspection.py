"""The inspection of workers: the script in real shells, and the parser of its report."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.workers.holding import holding
from tpuctl.accelerators import parse_accelerator_type as accelerator
from tpuctl.nodes.conditions import StartupState, WorkerIdentity
from tpuctl.nodes.inspection import InspectionReport, inspection_script, parse_inspection

PATIENCE = timedelta(seconds=20)
# Where `sh` is one of the others, once is enough.
SHELLS = list({Path(path).resolve(): name for name in ("sh", "bash", "dash") if (path := shutil.which(name))}.values())
LINE = "tpuctl-worker startup=done about=- chips=4 holders=-\n"
DONE = InspectionReport(StartupState.DONE, 4)


@pytest.mark.parametrize(
    ("output", "probe", "report"),
    [
        (LINE, None, DONE),
        (f"Welcome!\ntpuctl-begin\r\n{LINE}", None, DONE),
        (f"{LINE}later\n", None, DONE),
        ("", None, None),
        ("tpuctl-begin\n", None, None),
        (LINE.replace("chips=4", "chips=four"), None, None),
        (LINE.replace("done", "sleeping"), None, None),
        (f"> {LINE}", None, None),
        (LINE.strip() + " more=1\n", None, None),
        (
            "tpuctl-worker startup=running about=cloud-init,startup-script chips=0 holders=7:python3,12:a_b\n",
            None,
            InspectionReport(
                StartupState.RUNNING, 0, ("7 python3", "12 a_b"), detail="cloud-init and the startup script still run"
            ),
        ),
        (
            LINE.replace("done about=-", "failed about=startup-script"),
            None,
            InspectionReport(StartupState.FAILED, 4, detail="the startup script failed"),
        ),
        (LINE.replace("=-\n", "=- identity=-\n"), None, DONE),
        (
            LINE.replace("=-\n", "=- identity=2/v4-32/A/2/v4-32\n"),
            None,
            replace(DONE, identity=WorkerIdentity("2", "v4-32", "A", "2", "v4-32")),
        ),
        (LINE.replace("=-\n", "=- identity=////\n"), None, replace(DONE, identity=WorkerIdentity("", "", ""))),
        (LINE.replace("=-\n", "=- identity=2/v4-32\n"), None, None),
        (f"{LINE}fine\n\ntpuctl-probe exit=0\n", "p", DONE),
        (
            f"{LINE}1\n\x1b[31mbad\x07\n\ntpuctl-probe exit=3\n",
            "p",
            InspectionReport(StartupState.DONE, 4, (), "exit 3: [31mbad"),
        ),
        (f"{LINE}\ntpuctl-probe exit=3\n", "p", InspectionReport(StartupState.DONE, 4, (), "exit 3")),
        (
            f"{LINE}waits\n\ntpuctl-probe exit=124\n",
            "p",
            InspectionReport(StartupState.DONE, 4, (), "timed out after 18 s: waits"),
        ),
        (LINE, "p", InspectionReport(StartupState.DONE, 4, (), "timed out after 18 s")),
        (
            f"{LINE}{'x' * 999}\n\ntpuctl-probe exit=1\n",
            "p",
            InspectionReport(StartupState.DONE, 4, (), f"exit 1: {'x' * 200}"),
        ),
    ],
)
def test_report_is_parsed_strictly(output: str, probe: str | None, report: InspectionReport | None) -> None:
    assert parse_inspection(output, probe=probe, timeout=PATIENCE) == report


class Machine:
    """A root folder with device files, and programs with given outputs."""

    def __init__(self, folder: Path) -> None:
        self.root, self.programs = folder / "root [1]*", folder / "bin"
        self.metadata = folder / "metadata"
        self.programs.mkdir()
        self.root.mkdir()

    def device(self, *names: str) -> None:
        for name in names:
            path = self.root / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def program(self, name: str, said: str, code: int = 0) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{said}\nEOF\nexit {code}\n")
        path.chmod(0o755)

    def ask(self, shell: str, probe: str | None = None) -> InspectionReport | None:
        # Of the programs of this machine, only those that the script needs.
        for name in ("cat", "cut", "find", "grep", "head", "id", "sed", "sh", "sort", "tail", "timeout", "tr", shell):
            if not (self.programs / name).exists():
                (self.programs / name).symlink_to(str(shutil.which(name)))
        environ = {"PATH": str(self.programs), "TPUCTL_DEVICE_ROOT": str(self.root)}
        environ |= {"TPUCTL_METADATA_ROOT": str(self.metadata)} if self.metadata.exists() else {}
        sent = inspection_script(probe, PATIENCE)
        done = subprocess.run(
            [shell, "-s"], input=sent, env=environ, capture_output=True, text=True, timeout=30, check=True
        )
        assert done.stderr == ""
        return parse_inspection(done.stdout, probe=probe, timeout=PATIENCE)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


INACTIVE = "LoadState=loaded\nActiveState=inactive\nResult=success"


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("programs", "startup", "detail"),
    [
        ({}, StartupState.UNKNOWN, ""),
        ({"systemctl": "LoadState=not-found\nActiveState=inactive"}, StartupState.UNKNOWN, ""),
        ({"cloud-init": "status: done"}, StartupState.DONE, ""),
        ({"cloud-init": "status: disabled"}, StartupState.DONE, ""),
        ({"cloud-init": "status: done\nextended_status: degraded done"}, StartupState.DONE, ""),
        ({"cloud-init": "status: not run"}, StartupState.RUNNING, "cloud-init still runs"),
        (
            {"cloud-init": "status: error\nextended_status: error - running"},
            StartupState.RUNNING,
            "cloud-init still runs",
        ),
        ({"cloud-init": "status: error", "systemctl": INACTIVE}, StartupState.CLOUD_INIT_FAILED, "cloud-init failed"),
        ({"systemctl": INACTIVE}, StartupState.DONE, ""),
        ({"systemctl": f"Job=17\n{INACTIVE}"}, StartupState.RUNNING, "the startup script still runs"),
        ({"systemctl": f"{INACTIVE}\nJob=17"}, StartupState.RUNNING, "the startup script still runs"),
        (
            {"cloud-init": "status: error", "systemctl": "LoadState=loaded\nActiveState=activating"},
            StartupState.RUNNING,
            "the startup script still runs",
        ),
        ({"systemctl": "LoadState=loaded\nActiveState=failed"}, StartupState.FAILED, "the startup script failed"),
        (
            {"systemctl": INACTIVE, "journalctl": 'Script "startup-script" failed with error: exit status 1'},
            StartupState.FAILED,
            "the startup script failed",
        ),
        ({"systemctl": INACTIVE, "journalctl": "startup-script: exit status 1, tried again"}, StartupState.DONE, ""),
    ],
)
def test_startup_is_read_from_cloud_init_and_systemd(
    machine: Machine, shell: str, programs: dict[str, str], startup: StartupState, detail: str
) -> None:
    for name, said in programs.items():
        machine.program(name, said, 2 if name == "cloud-init" else 0)

    assert machine.ask(shell) == InspectionReport(startup, 0, detail=detail)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("files", "chips"),
    [
        (("null",), 0),
        (("accel0", "accel1", "accel10", "accel1.old", "accelerate"), 3),
        (("vfio/0", "vfio/1", "vfio/vfio", "vfio/.tmp"), 2),
        (("accel0", "vfio/0", "vfio/1", "vfio/vfio"), 2),
    ],
)
def test_chips_are_counted_by_device_files_of_one_kind(
    machine: Machine, shell: str, files: tuple[str, ...], chips: int
) -> None:
    machine.device(*files)

    assert machine.ask(shell) == InspectionReport(StartupState.UNKNOWN, chips)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("attributes", "identity"),
    [
        ({}, WorkerIdentity("", "", "")),
        (
            {"agent-worker-number": "2\n", "accelerator-type": "v4-32", "tpu-env": "A: 'x'\nWORKER_ID: '2'\n"},
            WorkerIdentity("2", "v4-32", "A", "2"),
        ),
        (
            {"agent-worker-number": "3; true", "tpu-env": "ACCELERATOR_TYPE: 'v4-8'\n"},
            WorkerIdentity("3true", "", "A", "", "v4-8"),
        ),
    ],
    ids=["blank", "whole", "odd"],
)
def test_identity_is_read_from_the_tpu_metadata(
    machine: Machine, shell: str, attributes: dict[str, str], identity: WorkerIdentity
) -> None:
    folder = machine.metadata / "instance" / "attributes"
    folder.mkdir(parents=True)
    for name, text in attributes.items():
        (folder / name).write_text(text)

    assert machine.ask(shell) == InspectionReport(StartupState.UNKNOWN, 0, identity=identity)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not show what processes hold open")
@pytest.mark.parametrize("shell", SHELLS)
def test_processes_that_hold_a_device_are_named_up_to_eight(machine: Machine, shell: str) -> None:
    machine.device("accel0", "accel1")

    with holding(machine.root / "dev" / "accel1", 10) as holders:
        assert machine.ask(shell) == InspectionReport(StartupState.UNKNOWN, 2, tuple(holders[:8]))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("probe", "failed"),
    [
        ("true", None),
        ('echo "it\'s" $((6*7)) >&2; exit 3', "exit 3: it's 42"),
        ("no-such-program", "exit 127"),
        ("cat", None),  # its stdin is empty: it does not read the script
        ("yes | head -c 100000; exit 4", "exit 4: y"),
    ],
)
def test_probe_of_the_user_runs_last(machine: Machine, shell: str, probe: str, failed: str | None) -> None:
    (machine.programs / "yes").symlink_to(str(shutil.which("yes")))

    seen = machine.ask(shell, probe)

    assert seen is not None
    assert (seen.chips, (seen.failed or "")[: len(failed or "")]) == (0, failed or "")


@pytest.mark.parametrize(
    ("name", "chips"),
    [
        ("v4-8", 4),
        ("v4-16", 4),
        ("v2-32", 4),
        ("v5litepod-1", 1),
        ("v5litepod-8", 8),
        ("v5litepod-16", 4),
        ("v6e-8", 8),
    ],
)
def test_type_has_a_number_of_chips_for_each_worker(name: str, chips: int) -> None:
    assert accelerator(name).chips_per_worker == chips
