"""Two workers of this machine, with the stand-ins that the sandbox gives to its workers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import tpuctl as package
from tests.conftest import Console, Sandbox
from tests.lifecycle import put
from tests.workers.running import Plan, Slice

GUEST = Path(package.__file__).parent / "data" / "guest"
ADDRESSES = ("10.0.0.1", "10.0.0.2")


class Pair:
    """The node `pair`, a v4-16 of two workers, into which a stand-in for ssh logs in."""

    def __init__(self, tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], root: Path) -> None:
        self.tpuctl = tpuctl
        self.slice = Slice(tpuctl, fake_ssh, root)
        put(sandbox, "pair", acceleratorType="v4-16")
        tpuctl("ssh", "pair", "--worker", "0", "--", "true")
        self.slice.log_in()
        self.root = root
        for worker in (0, 1):
            for folder in (f"{worker}.sshd", f"{worker}/tmp"):
                (root / folder).mkdir(parents=True)
            self.give_chips(worker, 4)

    def give_chips(self, worker: int, count: int) -> None:
        """Let a worker have this many device files."""
        devices = self.root / str(worker) / "dev"
        devices.mkdir(exist_ok=True)
        for path in devices.iterdir():
            path.unlink()
        for chip in range(count):
            (devices / f"accel{chip}").touch()

    def install_docker(self, **more: str) -> None:
        """Install docker on both workers."""
        found: dict[int, Plan] = {}
        for worker in (0, 1):
            program = self.root / f"{worker}.sshd" / "bin" / "docker"
            program.parent.mkdir()
            shutil.copy(GUEST / "bin" / "docker", program)
            program.chmod(0o755)
            (program.parent.parent / "environment").write_text(f"python={sys.executable}\n")
            path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
            found[worker] = [{"environ": self.environ(worker, PATH=path, **more)}]
        self.slice.plan(found)

    def containers(self) -> list[str]:
        """Return the names of the containers that exist."""
        return [path.name for path in self.root.glob("[01]/docker/*")]

    def environ(self, worker: int, **more: str) -> dict[str, str]:
        """Return the environment of a session."""
        return {
            "TPUCTL_SANDBOX_WORKER": str(self.root / f"{worker}.sshd"),
            "TPUCTL_DEVICE_ROOT": str(self.root / str(worker)),
            "TPUCTL_METADATA_ROOT": str(self.root / f"{worker}.sshd" / "metadata"),
            "TPU_ACCELERATOR_TYPE": "v4-16",
            "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
            "TPU_WORKER_HOSTNAMES": ",".join(ADDRESSES),
            "TPU_WORKER_ID": str(worker),
            **more,
        }

    def install(self, framework: str, *, faults: dict[int, str] | None = None) -> None:
        """Install a framework on both workers; `faults` are the faults of workers, by the sandbox's variables."""
        frameworks = GUEST / "frameworks"
        path = f"{frameworks / framework}{os.pathsep}{frameworks / 'chips'}" if framework else ""
        self.slice.plan(
            {
                worker: [
                    {"environ": self.environ(worker, PYTHONPATH=path, **{(faults or {}).get(worker, "NO_FAULT"): "1"})}
                ]
                for worker in (0, 1)
            }
        )
