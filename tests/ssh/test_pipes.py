"""The process: closed pipes, full disks, closed streams, low limits."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState

TPUCTL = f"'{sys.executable}' -m tpuctl"
FULL = "error: cannot write to stdout: no space left on device\n  more: tpuctl explain failure\n"
CLOSED = "error: cannot write to stdout: it is closed\n  more: tpuctl explain failure\n"


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An embedded sandbox with more nodes than a pipe's buffer holds."""
    folder = tmp_path_factory.mktemp("pipes")
    with SandboxState.open(folder / "state" / "sandbox" / "world.sqlite3") as sandbox_state:
        for number in range(60):
            administration.add_node(sandbox_state, f"node-{number:03}", acceleratorType="v4-64", description="x" * 2000)
    state = {"HOME": str(folder), "TPUCTL_STATE_DIR": str(folder / "state"), "TPUCTL_SANDBOX": "1"}
    return {"PATH": os.environ["PATH"], **state}


def shell(line: str, environ: dict[str, str]) -> tuple[str, str, int]:
    done = subprocess.run(
        ["bash", "-c", line.replace("tpuctl", TPUCTL)],
        env=environ, cwd=environ["HOME"], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout, done.stderr, done.returncode


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_closed_pipe_is_not_an_error(environ: dict[str, str], form: str) -> None:
    out, err, _ = shell(f"tpuctl list -o {form} | head -c 20; echo; echo ${{PIPESTATUS[0]}}", environ)

    assert (err, out.splitlines()[-1]) in [("", "0"), ("", "141")]


def test_full_disk_is_an_error_without_a_traceback(environ: dict[str, str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")

    assert shell("tpuctl list >/dev/full", environ) == ("", FULL, 1)
    assert shell("tpuctl --help >/dev/full", environ) == ("", FULL, 1)
    assert shell("tpuctl list -o json >/dev/full", environ)[1:] == (
        (
            '{"error": {"kind": "failure", "message": "cannot write to stdout: no space left on device", "exit_code": 1, '
            '"id": "failure"}, "sandbox": true}\n'
        ),
        1,
    )


def test_closed_streams_are_ignored_except_for_data(environ: dict[str, str]) -> None:
    assert shell("tpuctl list >&-", environ) == ("", CLOSED, 1)
    assert shell("tpuctl list -o name <&- 2>&- | wc -l", environ)[0].strip() == "60"
    assert shell("tpuctl lst 2>&-", environ) == ("", "", 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_full_stderr_does_not_change_the_exit_code(environ: dict[str, str]) -> None:
    line = "tpuctl {} 2>/dev/full >{}; echo $?"

    codes = [shell(line.format(*words), environ)[0] for words in (("lst", "/dev/null"), ("status node-000 -v", "out"))]

    assert codes == ["2\n", "0\n"]
    assert shell("tpuctl list >/dev/full 2>&1", environ) == ("", "", 1)


def test_low_file_limit_is_an_error_with_the_limit(environ: dict[str, str]) -> None:
    few = "error: too few open files: the limit is 16 (`ulimit -n`), and 64 are needed"
    out, err, code = shell("ulimit -n 16; tpuctl list", environ)

    assert (out, err.splitlines()[0], code) == ("", few, 1)


def test_folders_are_private_with_any_umask(environ: dict[str, str]) -> None:
    home = Path(environ["HOME"]) / "open"
    home.mkdir()
    places = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "TPUCTL_STATE_DIR": str(home / "a" / "state")}

    done = shell("umask 0; tpuctl config set zone us-central2-b; tpuctl list", environ | places)

    folders = [path for path in home.rglob("*") if path.is_dir()]
    assert (done[0], done[2], len(folders)) == ("", 0, 5)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


@pytest.mark.sshd
def test_process_substitution_is_accepted_as_a_file(environ: dict[str, str]) -> None:
    up = "tpuctl up new --type v4-8 --zone us-central2-b --dry-run"
    out, err, code = shell(f"{up} --startup-script <(sleep 0.1; echo '#!/bin/sh') -o json", environ)

    assert (code, err) == (0, "")
    assert "startup-script" in out


def test_question_without_a_terminal_is_refused(environ: dict[str, str]) -> None:
    out, err, code = shell("echo y | tpuctl down node-000", environ)

    assert (out, code) == ("", 2)
    assert err.splitlines()[-2].startswith("  hint: nothing was done; pass `--yes` to confirm")
    assert shell("tpuctl status node-000 -o name", environ)[0] == "us-central2-b/node-000\n"


def test_removed_working_directory_is_reported(environ: dict[str, str]) -> None:
    line = 'mkdir gone && cd gone && rmdir "$PWD" && tpuctl list'
    removed = "error: the working directory was removed\n  hint: change to an existing directory and try again\n"

    assert shell(line, environ) == ("", removed, 1)
