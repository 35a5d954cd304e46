"""Signals: the process ends at any time without a traceback, with the right exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tpuctl_process import TpuctlProcess

# Runs the program, and an action when one module is imported: send a signal, or report that the import has begun.
PROGRAM = """
import os, sys
def hook(event, arguments):
    if event == "import" and arguments[0] == {module!r}:
        {action}
sys.addaudithook(hook)
sys.argv = ["tpuctl", "list"]
from tpuctl.cli.main import entry_point
entry_point()
"""


def start(folder: Path, module: str, action: str) -> subprocess.Popen[str]:
    state = {"HOME": str(folder), "TPUCTL_STATE_DIR": str(folder / "state"), "TPUCTL_SANDBOX": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(module=module, action=action)],
        env={"PATH": os.environ["PATH"], **state},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("number", "word", "code"), [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143)]
)
@pytest.mark.parametrize("module", ["click", "tpuctl.cli.tree", "tpuctl.sandbox.in_process", "sqlite3"])
def test_signal_at_any_time_ends_the_process_without_a_traceback(
    tmp_path: Path, module: str, number: signal.Signals, word: str, code: int
) -> None:
    with start(tmp_path, module, f"os.kill(os.getpid(), {int(number)})") as process:
        out, err = process.communicate(timeout=60)

    # Before a command runs there is nothing to report.
    expected = [] if module == "click" else [word]
    assert (out, err.splitlines()[-1:], process.returncode) == ("", expected, code)
    assert "Traceback" not in err


def test_repeated_signals_print_no_traceback(tmp_path: Path) -> None:
    with start(tmp_path, "click", "os.write(1, b'here')") as process:
        assert process.stdout
        process.stdout.read(4)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)

    assert (err.strip(), process.returncode) in [("", 130), ("interrupted", 130)]


def test_failure_without_a_reader_keeps_its_exit_code(tmp_path: Path) -> None:
    """As in `tpuctl status x 2>&1 | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    environ = {**os.environ, "TPUCTL_SANDBOX": "1", "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with TpuctlProcess(["list"], env=environ, cwd=tmp_path, stderr=subprocess.DEVNULL) as first:
        assert first.wait(30) == 0  # it says that this is the sandbox
    with TpuctlProcess(["status", "absent"], env=environ, cwd=tmp_path, stdout=writer, stderr=writer) as program:
        os.close(writer)
        assert program.wait(30) == 3
