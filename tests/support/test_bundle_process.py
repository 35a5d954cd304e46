"""`tpuctl bundle` as a process: bytes on stdout, an interrupt, a real sshd."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from tests.lifecycle import UP
from tests.support.conftest import Site
from tests.tpuctl_process import TpuctlProcess
from tpuctl.sandbox.state import SandboxState


def start(*arguments: str, environ: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    return TpuctlProcess(
        arguments,
        env={"PATH": os.environ["PATH"], **environ}, cwd=folder,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_interrupt_removes_all_files(site: Site, tmp_path: Path) -> None:
    site.ssh("echo $$ > $home/began; exec sleep 60")
    (tmp_path / "temporary").mkdir()
    environ = {**site.tpuctl.environ, "TMPDIR": str(tmp_path / "temporary")}
    with start("bundle", "demo", environ=environ, folder=site.tpuctl.folder) as process:
        while not all((site.home(worker) / "began").exists() for worker in (0, 1)):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (out, process.returncode) == (b"", 130)
    expected = "interrupted: no bundle was written, and the collected files are removed\n"
    expected += "  resume: tpuctl bundle us-central2-b/demo\n"
    assert expected in err.decode()
    assert [*site.tpuctl.folder.iterdir(), *(tmp_path / "temporary").iterdir()] == []


@pytest.mark.sshd
def test_bundle_of_real_workers_on_stdout(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state"), "TPUCTL_SANDBOX": "1"}
    SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3", speed=300).close()
    with start(*UP, environ=environ, folder=tmp_path) as up:
        assert up.communicate(timeout=60)[1] != b""
    (home,) = (tmp_path / "state" / "sandbox" / "workers").glob("*/*/demo-*/0")
    (home / ".tpu" / "tmp" / "tpu_logs").mkdir()
    (home / ".tpu" / "tmp" / "tpu_logs" / "a.log").write_text("HF_TOKEN=abc\n")

    with start("bundle", "demo", "--file", "-", environ=environ, folder=tmp_path) as process:
        out, err = process.communicate(timeout=60)

    with tarfile.open(fileobj=io.BytesIO(out)) as archive:
        names = {name.partition("/")[2]: name for name in archive.getnames()}
        log = archive.extractfile(names["workers/0/tpu_logs/a.log"])
        assert log is not None
        assert log.read() == b"HF_TOKEN=[redacted token]\n"
    assert {"journal.json", "operations.json", "workers/0/startup-script.log", "workers/0/cloud-init.txt"} < set(names)
    assert (process.returncode, b"1 secret removed" in err) == (0, True)
