"""ARCHITECTURE.md tells one command step by step: each module that it names has a part in that command."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Sandbox
from tests.lifecycle import UP
from tpuctl.app.lazy_import import load
from tpuctl.sandbox.state import SandboxState

ROOT = Path(__file__).resolve().parents[2]
# Runs tpuctl, and writes the file of each module whose functions are called; `<module>` is the import alone.
_DRIVER = """
import sys, threading
ran, out = set(), open(sys.argv.pop(1), "w", buffering=1)
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename not in ran:
        ran.add(code.co_filename)
        out.write(code.co_filename + "\\n")
threading.setprofile(note)
sys.setprofile(note)
from tpuctl.cli.main import entry_point
entry_point()
"""


def test_modules_of_the_step_by_step_tour_take_part(tmp_path: Path, fake_ssh: Callable[[str], None]) -> None:
    """The node comes up UNHEALTHY_TENSORFLOW, as in the tour, and is repaired."""
    tour = (ROOT / "ARCHITECTURE.md").read_text().partition("## One command, step by step")[2]
    named = set(re.findall(r"`([a-z_/]+\.py)`", tour.partition("\n## ")[0])) - {"sandbox/http_server.py"}
    with SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3", speed=1500.0) as state:
        Sandbox(state).fault("unhealthy")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_SANDBOX": "1",
        "TPUCTL_STATE_DIR": str(tmp_path / "state"),
    }
    command = [*UP, "--timeout", "forever", "--on-recover", "true"]

    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, tmp_path / "ran", *command],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    ran = (tmp_path / "ran").read_text().splitlines()
    parts = {path.rpartition("/tpuctl/")[2] for path in ran}
    assert (done.returncode, sorted(named - parts)) == (0, []), done.stderr
    assert len(named) > 15


def test_names_that_are_imported_when_they_are_used_exist() -> None:
    sources = [path.read_text() for path in (ROOT / "src" / "tpuctl").rglob("*.py")]
    bodies, constants = (
        [place for source in sources for place in re.findall(rf'{name}\("([^"]+)"\)', source)]
        for name in ("body_in", "constant_in")
    )

    assert len(set(bodies)) == len(bodies) > 30
    assert [place for place in bodies if next(iter(inspect.signature(load(place)).parameters)) != "app"] == []
    assert all(load(place) for place in constants)
