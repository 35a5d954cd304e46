"""`tpuctl unstick`: real processes hold the files that stand for a TPU; what is shown of them, ended, and left alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from getpass import getuser
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.holding import holding
from tests.lifecycle import one_face, put, said
from tpuctl.actions.unstick import Site, notes, problems
from tpuctl.errors import AccessError, BrokenNodeError, ConflictError, RemoteCommandError, TpuctlError
from tpuctl.model import Node
from tpuctl.remote.holders import Found, Holder, LockFile, Silence
from tpuctl.remote.member import Member
from tpuctl.remote.onboard import holders as program
from tpuctl.remote.ssh import Connection
from tpuctl.sandbox import admin
from tpuctl.sandbox.world import World

USER = getuser()
# A signal that is ignored stays so in what takes the shell's place.
STUBBORN = ("sh", "-c", "trap '' TERM; exec sleep 61")
LOCKING = """\
import fcntl, sys, time
file = open(sys.argv[1], 'a+')
fcntl.{how}(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


MAPPING = """\
import mmap, sys, time
with open(sys.argv[1], 'rb') as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(flush=True)
time.sleep(60)
"""


class Machine:
    """A folder that stands for a worker's root, with device files and perhaps a lock file."""

    def __init__(self, root: Path) -> None:
        self.root, self.lock_file = root.resolve(), root.resolve() / "tmp" / "libtpu_lockfile"
        for name in ("dev/accel0", "dev/accel1", "dev/vfio/vfio"):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.lock_file.parent.mkdir()

    @contextmanager
    def locked(self, how: str = "lockf") -> Iterator[int]:
        """Let a process take the lock, as libtpu does."""
        words = [sys.executable, "-ISc", LOCKING.format(how=how), str(self.lock_file)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                yield process.pid
            finally:
                process.kill()


@contextmanager
def running(*words: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Let a program hold a file open."""
    with path.open("rb") as file:
        process = subprocess.Popen(words, pass_fds=[file.fileno()])
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def machines(tmp_path: Path, fake_ssh: Callable[[str], None]) -> list[Machine]:
    """Two workers: what would go to them by ssh runs here, with their root. There is no third."""
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


@one_face
def test_what_holds_the_tpu_is_shown_and_ended_and_the_lock_file_removed(
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
                f"ended {pid} sleep on worker 0",
                f"killed {stubborn.pid} sleep on worker 0: it did not heed TERM",
                f"ended {locker} {Path(sys.executable).name[:15]} on worker 0",
                "removed the lock file on worker 0",
                "removed the lock file on worker 1",
            )
        ),
        0,
    )
    assert stubborn.returncode == -SIGKILL
    assert not first.lock_file.exists()
    assert not second.lock_file.exists()
    assert tpuctl("unstick", "demo") == ("", "nothing holds the TPU of `demo`\n", 0)


@one_face
def test_nothing_is_done_unasked(tpuctl: Console, sandbox: Sandbox, machines: list[Machine]) -> None:
    put(sandbox, acceleratorType="v4-8")
    tpuctl("unstick", "demo")
    machines[0].lock_file.touch()
    question = "end the process on a worker of `demo`, and remove the lock file?"

    with running("sleep", "60", path=machines[0].root / "dev" / "accel0") as process:
        shown = tpuctl("unstick", "demo", "--dry-run")
        refused = tpuctl("unstick", "demo")
        declined = tpuctl("unstick", "demo", terminal=True, stdin="no\n", NO_COLOR="1")
        told = json.loads(tpuctl("unstick", "demo", "-o", "json")[0])
        assert process.poll() is None

    assert shown[1:] == ("", 0)
    assert (ageless(refused[0]), *refused[1:]) == (
        ageless(shown[0]),
        said(
            f"error: {question} needs a confirmation, and nobody can be asked here",
            "  hint: add `--yes` if you mean it; nothing was done (`--quiet` is about output only)",
        ),
        2,
    )
    assert declined[0].splitlines()[0].split() == ["WORKER", "PID", "USER", "AGE", "HOLDS", "COMMAND"]
    assert (f"{question} [y/N]" in declined[1], declined[2]) == (True, 1)
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


@one_face
def test_a_worker_that_does_not_answer_is_named_and_the_others_are_seen_to(
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
    assert (error["kind"], error["message"], code) == ("remote_failed", "worker 2: ssh: no route", 11)
    assert not machines[1].lock_file.exists()


def test_what_has_mapped_a_device_or_the_library_is_found_without_an_open_file(tmp_path: Path) -> None:
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
            seen, _ = program.look(str(machine.root), [f"{machine.root}/dev/accel[0-9]*"], str(machine.lock_file))
            process.kill()

        (one,) = [one for one in seen if one["pid"] == process.pid]
        assert (one["devices"], one["mapsLibrary"], one["hasLockFile"]) == (devices, has_library, False)


def test_a_pid_that_means_another_process_now_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        status = program.status(process.pid)
        assert status is not None
        start = status["start"]

        order = {"processes": [[process.pid, start - 1], [1, 1], [os.getpid(), 1]], "signal": "KILL", "grace": 0.1}
        outcomes = [one["outcome"] for one in program.end(order)]
        assert (outcomes, process.poll()) == (["gone", "gone", "gone"], None)

        order = {"processes": [[process.pid, start]], "signal": "TERM", "grace": 5.0}
        assert program.end(order) == [{"pid": process.pid, "start": start, "outcome": "ended"}]
    assert process.returncode == -SIGTERM


def test_the_lock_file_is_removed_only_while_nobody_holds_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    path = machine.lock_file
    for how in ("lockf", "flock"):
        with machine.locked(how):
            assert (program.remove(str(path)), path.exists()) == ("held", True)

    assert (program.remove(str(path)), program.remove(str(path))) == ("removed", "absent")
    # In /tmp anybody may have put what is no lock file.
    (tmp_path / "precious").touch()
    path.symlink_to(tmp_path / "precious")
    assert (program.remove(str(path)), path.is_symlink()) == ("refused", True)
    path.unlink()
    os.mkfifo(path)
    assert program.remove(str(path)) == "refused"


def site(seen: Found | Silence, after: Found | Silence | None = None) -> Site:
    files = (Path("/k"), Path("/g"))
    way = Connection(login="ada", address="h", host_alias="a", known_hosts=files, identity=Path("/id"))
    return Site(Member(Node.from_api({"name": "projects/p/locations/z/nodes/demo"}), 3, way, "3"), seen, after)


def holder(pid: int, **fields: object) -> Holder:
    values: dict[str, Any] = {
        "start": 5,
        "user": "bob",
        "age": timedelta(hours=1),
        "state": "S",
        "name": "python3",
        "command": "python3 train.py",
        "devices": ("accel0",),
        "has_lock_file": False,
        "maps_library": True,
        "is_protected": False,
        "container": None,
    }
    return Holder(pid=pid, **(values | fields))


def found(*holders: Holder, lock: bool = False, **fields: object) -> Found:
    values: dict[str, Any] = {"hidden": 0, "is_root": True} | fields
    lock_file = LockFile("/tmp/libtpu_lockfile", "bob", timedelta(hours=2)) if lock else None
    return Found(holders, lock_file, **values)


REBOOT = "`tpuctl reset demo --mode reboot` reboots all workers"
SEVEN = holder(7)


@pytest.mark.parametrize(
    ("one", "kind", "message"),
    [
        (
            site(found(SEVEN), found(holder(7, state="D"), outcomes={(7, 5): "survives"}, lock_outcome="held")),
            BrokenNodeError,
            "no signal ends 7 python3 of bob on worker 3 (it waits inside the kernel)",
        ),
        (
            site(found(SEVEN), found(SEVEN, outcomes={(7, 5): "refused"}, lock_outcome="absent")),
            AccessError,
            "not yours to end, and `sudo -n` does not work: 7 python3 of bob on worker 3",
        ),
        (
            site(found(lock=True), found(lock=True, lock_outcome="refused")),
            AccessError,
            "the lock file is not yours to remove: worker 3",
        ),
        (
            site(found(SEVEN), found(holder(9), outcomes={(7, 5): "ended"}, lock_outcome="absent")),
            ConflictError,
            "the TPU was taken again by 9 python3 of bob on worker 3",
        ),
        (
            site(found(lock=True), found(lock=True, lock_outcome="held")),
            ConflictError,
            "the lock file is held, and stays: worker 3",
        ),
        (site(Silence("no answer within 30 s")), RemoteCommandError, "worker 3: no answer within 30 s"),
        (
            site(found(SEVEN), Silence("no answer within 40 s")),
            RemoteCommandError,
            "worker 3: what became of the order is unknown: no answer within 40 s",
        ),
    ],
)
def test_what_is_still_wrong_has_an_error_and_an_exit_code_of_its_own(
    one: Site, kind: type[TpuctlError], message: str
) -> None:
    (error,) = problems("demo", [one])

    assert (type(error), error.message) == (kind, message)
    if kind is BrokenNodeError:
        assert (error.exit_code, error.hint) == (10, REBOOT)


def test_who_is_protected_or_has_only_loaded_the_library_is_left_alone() -> None:
    init, loaded = holder(1, name="systemd", is_protected=True), holder(8, devices=())
    one = site(found(init, loaded))

    assert (one.to_end, one.is_stuck) == ((), False)
    assert list(notes("demo", [one], signal="TERM")) == ["left 1 systemd on worker 3 alone: the machine needs it"]
    assert list(notes("demo", [site(found(loaded, is_root=False, hidden=4))], signal="TERM")) == [
        "processes of others cannot be seen on worker 3: `sudo -n` does not work there",
        "nothing that can be seen holds the TPU of `demo`",
    ]


@pytest.mark.sshd
def test_on_a_real_sshd(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with World.open(folder / "sandbox" / "world.sqlite3", speed=600) as world:
        admin.add_node(world, "demo", zone="us-central1-a", acceleratorType="v5litepod-4")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(folder),
        "TPUCTL_SANDBOX": "1",
    }

    def run(*arguments: str) -> tuple[str, str, int]:
        words = [sys.executable, "-m", "tpuctl", "unstick", "demo", *arguments]
        done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout, done.stderr, done.returncode

    assert run()[2] == 0
    (root,) = folder.glob("sandbox/workers/**/0/.tpu")
    (root / "tmp" / "libtpu_lockfile").touch()
    with running("sleep", "60", path=root / "dev" / "vfio" / "0") as process:
        out, err, code = run("--yes")

    assert (ageless(out), err, code) == (
        f"0\t{process.pid}\t{USER}\tAGE\tvfio/0\tsleep 60\n0\t-\t{USER}\tAGE\tlock file\t{root}/tmp/libtpu_lockfile\n",
        said(f"ended {process.pid} sleep on worker 0", "removed the lock file on worker 0"),
        0,
    )
    assert (process.returncode, (root / "tmp" / "libtpu_lockfile").exists()) == (-SIGTERM, False)
