"""Jobs on a slice of two workers: folders, into which a fake ssh logs in."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import Console

ADDRESS = "198.18.0."
_SSH = """
for word; do case $word in *@{address}*) host=${{word##*@}};; esac; done
home='{homes}'/$host; mkdir -p "$home"; cd "$home"
{before}
exec env GCE_METADATA_HOST=127.0.0.1:1 HOME="$home" SHELL=/bin/sh sh -c "$word"
"""


class Slice:
    """A slice of two workers: folders, into which a fake ssh logs in."""

    def __init__(self, tpuctl: Console, fake_ssh: Callable[[str], None], homes: Path) -> None:
        self._tpuctl, self._fake_ssh, self._homes = tpuctl, fake_ssh, homes
        self.ssh()

    def ssh(self, before: str = "") -> None:
        """Let ssh do these shell lines first; `$host` is the worker's address."""
        self._fake_ssh(_SSH.format(address=ADDRESS, homes=self._homes, before=before))

    def jobs(self, worker: int) -> Path:
        """Return the folder of a worker's jobs."""
        return self._homes / f"{ADDRESS}{worker + 1}" / ".tpuctl" / "jobs"

    def run(self, job: str, line: str, *options: str) -> None:
        """Start a detached job."""
        assert self._tpuctl("run", "demo", "--detach", "--name", job, *options, "--", line) == (f"{job}\n", "", 0)

    def until_ended(self, job: str, *workers: int) -> None:
        """Wait until a job has ended."""
        until(lambda: all((self.jobs(one) / f"{job}.{one}" / "exit").exists() for one in workers or (0, 1)))

    def until_printed(self, job: str, text: str, *workers: int) -> None:
        """Wait until a job has printed something."""
        until(lambda: all((self.jobs(one) / f"{job}.{one}" / "out").read_text().endswith(text) for one in workers))


def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition that another process fulfils."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def timeless(text: str) -> Any:
    """Return the printed JSON, without values that differ each time."""
    steady = re.sub(r'"(started|seconds)": (?!null)("[^"]+"|[\d.]+)', r'"\1": "…"', text)
    return json.loads(steady)
