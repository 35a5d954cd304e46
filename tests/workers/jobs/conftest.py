"""A slice of two workers that know our key, and jobs on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put
from tests.workers.jobs import Slice
from tpuctl.ssh.agent.job_files import is_locked


@pytest.fixture
def demo(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> Iterator[Slice]:
    """A slice of two workers that knows our key."""
    put(sandbox, acceleratorType="v4-16")
    found = Slice(tpuctl, fake_ssh, tmp_path / "homes")
    tpuctl("ssh", "demo", "--worker", "0", "--", "true")
    yield found
    for pid in (tmp_path / "homes").glob("*/.tpuctl/jobs/*/pid"):
        if is_locked(str(pid.parent / "lock")):
            os.killpg(int(pid.read_text().split()[0]), signal.SIGKILL)
