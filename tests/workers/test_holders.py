"""What looks on a worker for what holds its TPU, and ends it: run here, on real processes and locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from signal import SIGTERM

from tests.tpu_files import MAPPING, Machine
from tpuctl.ssh.agent import holders
from tpuctl.ssh.agent.holders import find_holders


def test_holder_with_mapped_device_or_library_is_found(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "libtpu.so").write_text("x")
    (tmp_path / "dev" / "accel0").write_text("x")
    for path, devices, has_library in (("libtpu.so", [], True), ("dev/accel0", ["accel0"], False)):
        words = [sys.executable, "-ISc", MAPPING, str(machine.root / path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            # The kernel goes on to name what has been removed.
            (machine.root / path).unlink()
            seen, _ = find_holders(str(machine.root))
            process.kill()

        (one,) = [one for one in seen if one["pid"] == process.pid]
        assert (one["devices"], one["mapsLibrary"], one["hasLockFile"]) == (devices, has_library, False)


def test_holder_with_reused_pid_is_not_signaled() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        status = holders.status(process.pid)
        assert status is not None
        start = status["start"]

        order = {"processes": [[process.pid, start - 1], [1, 1], [os.getpid(), 1]], "grace": 0.1}
        outcomes = [one["outcome"] for one in holders.end(order)]
        assert (outcomes, process.poll()) == (["gone", "gone", "gone"], None)

        order = {"processes": [[process.pid, start]], "grace": 5.0}
        assert holders.end(order) == [{"pid": process.pid, "start": start, "outcome": "ended"}]
    assert process.returncode == -SIGTERM


def test_lock_file_is_removed_only_without_holder(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    path = machine.lock_file
    for how in ("lockf", "flock"):
        with machine.locked(how):
            assert (holders.remove_lock_file(str(path)), path.exists()) == ("held", True)

    assert (holders.remove_lock_file(str(path)), holders.remove_lock_file(str(path))) == ("removed", "absent")
    # In /tmp anybody may have put what is no lock file.
    (tmp_path / "precious").touch()
    path.symlink_to(tmp_path / "precious")
    assert (holders.remove_lock_file(str(path)), path.is_symlink()) == ("refused", True)
    path.unlink()
    os.mkfifo(path)
    assert holders.remove_lock_file(str(path)) == "refused"
