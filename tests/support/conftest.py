"""A slice of two workers: folders, into which a fake ssh logs in, each with a root of its own."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put
from tests.workers.jobs import Slice

# A `python3` that is a wrapper of some version manager takes longer than everything else on the worker.
ROOT = (
    f'export PATH="{sys.base_prefix}/bin:/usr/bin:/bin" TPUCTL_DEVICE_ROOT="$home/root"; '
    'mkdir -p "$home/root/tmp/tpu_logs"'
)


@dataclass(frozen=True)
class Bundle:
    """A bundle, and the output of the command that wrote it."""

    files: dict[str, bytes]
    out: str
    err: str
    code: int

    def json(self, path: str) -> Any:
        return json.loads(self.files[path])

    @property
    def missing(self) -> dict[str, str]:
        return {one["path"]: one["why"] for one in self.json("manifest.json")["missing"]}


class Site:
    """A node with two workers, and bundles of it."""

    def __init__(self, tpuctl: Console, workers: Slice, homes: Path) -> None:
        self.tpuctl, self._workers, self._homes = tpuctl, workers, homes

    def ssh(self, before: str) -> None:
        """Run these shell lines in the fake ssh first, except for `ssh -V`."""
        self._workers.ssh(f'case $1 in -V) echo "OpenSSH_9.2" >&2; exit 0;; esac; {before}')

    def home(self, worker: int) -> Path:
        """Return a worker's home folder."""
        return self._homes / f"198.18.0.{worker + 1}"

    def logs(self, worker: int) -> Path:
        """Return the folder of libtpu's logs on a worker."""
        folder = self.home(worker) / "root" / "tmp" / "tpu_logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def job(self, worker: int, name: str, **files: str) -> None:
        """Write the folder of a job on a worker."""
        folder = self.home(worker) / ".tpuctl" / "jobs" / f"{name}.{worker}"
        folder.mkdir(parents=True)
        for part, text in {"token": "x", **files}.items():
            (folder / part).write_text(text)

    def bundle(self, *options: str, node: str = "demo") -> Bundle:
        """Make a bundle and open it."""
        path = self.tpuctl.folder / "made.tar.gz"
        path.unlink(missing_ok=True)
        out, err, code = self.tpuctl("bundle", node, "--file", str(path), *options)
        return Bundle(opened(path) if path.exists() else {}, out, err, code)


@pytest.fixture
def site(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> Site:
    """A slice of two workers."""
    return _site(tpuctl, sandbox, fake_ssh, tmp_path, accelerator_type="v4-16")


@pytest.fixture
def one_worker(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> Site:
    """A node with one worker, which takes half of the time."""
    return _site(tpuctl, sandbox, fake_ssh, tmp_path, accelerator_type="v4-8")


def _site(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], folder: Path, *, accelerator_type: str
) -> Site:
    put(sandbox, acceleratorType=accelerator_type, metadata={"enable-oslogin": "FALSE"})
    workers = Slice(tpuctl, fake_ssh, folder / "homes")
    site = Site(tpuctl, workers, folder / "homes")
    site.ssh(ROOT)
    return site


def opened(path: Path) -> dict[str, bytes]:
    """Return the files of a bundle, by their paths."""
    with tarfile.open(path) as archive:
        names = [member for member in archive if member.isfile()]
        return {one.name.partition("/")[2]: archive.extractfile(one).read() for one in names}  # type: ignore[union-attr]  # they are files
