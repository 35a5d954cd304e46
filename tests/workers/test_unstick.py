"""`tpuctl unstick`: real processes hold the files that stand for a TPU; what is shown of them, ended, and left alone."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from getpass import getuser
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put, said
from tests.tpu_files import Machine, running
from tests.tpuctl_process import run_tpuctl
from tests.workers.holding import holding
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState

USER = getuser()
# A signal that is ignored stays so in what takes the shell's place.
STUBBORN = ("sh", "-c", "trap '' TERM; exec sleep 61")


@pytest.fixture
def machines(tmp_path: Path, fake_ssh: Callable[[str], None]) -> list[Machine]:
    """Two workers, whose commands run on this machine with their root. There is no third."""
    found = [Machine(tmp_path / f"root {number}") for number in range(2)]
    cases = "".join(f"*@198.18.0.{number + 1}' '*) root='{one.root}' ;; " for number, one in enumerate(found))
    fake_ssh(
        f"for line; do :; done; case \"$*\" in {cases} *) echo 'ssh: no route' >&2; exit 255 ;; esac\n"
        'TPUCTL_DEVICE_ROOT=$root exec sh -c "$line"'
    )
    return found


def ageless(text: str) -> str:
    """Return lines of a table in a pipe without the ages."""
    return re.sub(r"(?m)^(\d+\t[\d-]+\t\w+\t)\d+\t", r"\1AGE\t", text)


def test_unstick_terminates_holders_and_removes_the_lock_file(
    tpuctl: Console, sandbox: Sandbox, machines: list[Machine]
) -> None:
    put(sandbox, acceleratorType="v4-16")
    tpuctl("unstick", "demo")  # our key is in the node's metadata from here on
    first, second = machines
    second.lock_file.touch()

    with (
        holding(first.root / "dev" / "accel1") as (sleeper,),
        running(*STUBBORN, path=first.root / "dev" / "accel0") as stubborn,
        first.locked() as locker,
        holding(first.root / "dev" / "vfio" / "vfio"),
    ):
        out, err, code = tpuctl("unstick", "demo", "--yes", "--grace", "1s")

    pid = sleeper.split()[0]
    rows = [
        (int(pid), f"0\t{pid}\t{USER}\tAGE\taccel1\tsleep 60"),
        (stubborn.pid, f"0\t{stubborn.pid}\t{USER}\tAGE\taccel0\tsleep 61"),
        (locker, f"0\t{locker}\t{USER}\tAGE\tlock file\t"),
    ]
    lines = ageless(out).splitlines()
    assert [line.rpartition("\t")[0] if "lock file" in line else line for line in lines] == [
        *(row.removesuffix("\t") for _, row in sorted(rows)),
        f"1\t-\t{USER}\tAGE\tlock file",
    ]
    assert (sorted(err.splitlines()), code) == (
        sorted(
            (
                f"terminated {pid} sleep on worker 0",
                f"killed {stubborn.pid} sleep on worker 0: it ignored TERM",
                f"terminated {locker} {Path(sys.executable).name[:15]} on worker 0",
                "removed the lock file on worker 0",
                "removed the lock file on worker 1",
            )
        ),
        0,
    )
    assert stubborn.returncode == -SIGKILL
    assert not first.lock_file.exists()
    assert not second.lock_file.exists()
    assert tpuctl("unstick", "demo") == ("", "no process holds the TPU of `demo`\n", 0)


def test_unstick_with_pid_terminates_only_that_process(
    tpuctl: Console, sandbox: Sandbox, machines: list[Machine]
) -> None:
    put(sandbox, acceleratorType="v4-8")
    tpuctl("unstick", "demo")
    devices = machines[0].root / "dev"

    with (
        running("sleep", "60", path=devices / "accel0") as named,
        running("sleep", "60", path=devices / "accel1") as other,
    ):
        only = ("unstick", "demo", "--pid", str(named.pid), "--yes")
        absent = tpuctl("unstick", "demo", "--pid", "999999", "--yes")
        later = tpuctl(*only, "--started-before", "2026-01-01T00:00:00Z")
        assert (named.poll(), other.poll()) == (None, None)
        before = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
        out, err, code = tpuctl(*only, "--started-before", before, "-o", "json")
        assert (named.wait(10), other.poll()) == (-SIGTERM, None)

    assert absent[1:] == (
        (
            "error: process 999999 does not hold the TPU of `demo`\n"
            "  hint: list what holds it: `tpuctl unstick demo --dry-run`; no process was terminated\n"
        ),
        8,
    )
    assert later[1:] == (
        (
            f"left {named.pid} sleep on worker 0 alone: it started later\n"
            f"error: {named.pid} sleep of {USER} on worker 0 started later\n"
            "  hint: list what holds it: `tpuctl unstick demo --dry-run`; no process was terminated\n"
        ),
        8,
    )
    assert (err, code) == (f"terminated {named.pid} sleep on worker 0\n", 0)
    (worker,) = json.loads(out)["workers"]
    assert {one["pid"]: one.get("outcome") for one in worker["holders"]} == {named.pid: "ended", other.pid: None}


def test_unstick_without_confirmation_changes_nothing(
    tpuctl: Console, sandbox: Sandbox, machines: list[Machine]
) -> None:
    put(sandbox, acceleratorType="v4-8")
    tpuctl("unstick", "demo")
    machines[0].lock_file.touch()
    in_use = f"`demo` is in use: process `sleep 60` of {USER} on the TPU, for AGE"
    question = f"{in_use}; terminate the process on a worker of `demo`, and remove the lock file?"

    with running("sleep", "60", path=machines[0].root / "dev" / "accel0") as process:
        shown = tpuctl("unstick", "demo", "--dry-run")
        refused = tpuctl("unstick", "demo")
        not_idle = tpuctl("unstick", "demo", "--if-idle", "--yes")
        declined = tpuctl("unstick", "demo", terminal=True, stdin="no\n", NO_COLOR="1")
        told = json.loads(tpuctl("unstick", "demo", "-o", "json")[0])
        assert process.poll() is None

    assert shown[1:] == ("", 0)
    assert (ageless(refused[0]), re.sub(r"for \d+s", "for AGE", refused[1]), refused[2]) == (
        ageless(shown[0]),
        said(
            f"error: cannot ask for confirmation ({question}): stdin is not a terminal",
            "  hint: nothing was done; pass `--yes` to confirm (`--quiet` does not)",
        ),
        2,
    )
    assert declined[0].splitlines()[0].split() == ["WORKER", "PID", "USER", "AGE", "HOLDS", "COMMAND"]
    assert (
        f"{question.replace('; ', chr(10), 1)} [y/N]" in re.sub(r"for \d+s", "for AGE", declined[1]),
        declined[2],
    ) == (True, 1)
    assert (re.sub(r"for \d+s", "for AGE", not_idle[1]).splitlines()[0], not_idle[2]) == (f"error: {in_use}", 8)
    lock, (holder,) = told["workers"][0].pop("lockFile"), told["workers"][0].pop("holders")
    assert (lock.pop("age") < 60, holder.pop("age") < 60, holder.pop("state")) == (True, True, "S")
    assert lock == {"path": str(machines[0].lock_file), "user": USER}
    assert holder == {
        "pid": process.pid,
        "user": USER,
        "command": "sleep 60",
        "devices": ["/dev/accel0"],
        "lockFile": False,
        "library": False,
        "container": None,
    }
    assert machines[0].lock_file.exists()


def test_unstick_with_silent_worker_names_it_and_handles_the_others(
    tpuctl: Console, sandbox: Sandbox, machines: list[Machine]
) -> None:
    put(sandbox, acceleratorType="v4-32")
    machines[1].lock_file.touch()
    tpuctl("unstick", "demo", "--worker", "0")

    out, err, code = tpuctl("unstick", "demo", "--worker", "1-2", "--yes", "-o", "json")

    first, second = json.loads(out)["workers"]
    assert (first["worker"], first["lockFile"]["outcome"], second) == (
        1,
        "removed",
        {"worker": 2, "error": "ssh: no route"},
    )
    error = json.loads(err.splitlines()[-1])["error"]
    assert (error["kind"], "ssh: no route" in error["message"], code) == ("remote_failed", True, 11)
    assert not machines[1].lock_file.exists()


@pytest.mark.sshd
def test_unstick_over_real_sshd_works(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with SandboxState.open(folder / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        administration.add_node(sandbox_state, "demo", zone="us-central1-a", acceleratorType="v5litepod-4")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(folder),
        "TPUCTL_SANDBOX": "1",
    }

    def run(*arguments: str) -> tuple[str, str, int]:
        done = run_tpuctl(["unstick", "demo", *arguments], env=environ, cwd=tmp_path, text=True)
        return done.stdout, done.stderr, done.returncode

    assert run()[2] == 0
    (root,) = folder.glob("sandbox/workers/**/0/.tpu")
    (root / "tmp" / "libtpu_lockfile").touch()
    with running("sleep", "60", path=root / "dev" / "vfio" / "0") as process:
        out, err, code = run("--yes")

    assert (ageless(out), err, code) == (
        f"0\t{process.pid}\t{USER}\tAGE\tvfio/0\tsleep 60\n0\t-\t{USER}\tAGE\tlock file\t{root}/tmp/libtpu_lockfile\n",
        said(f"terminated {process.pid} sleep on worker 0", "removed the lock file on worker 0"),
        0,
    )
    assert (process.returncode, (root / "tmp" / "libtpu_lockfile").exists()) == (-SIGTERM, False)
