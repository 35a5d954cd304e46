"""The program as a process among others: closed pipes, full disks, streams that are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpuctl.sandbox import admin
from tpuctl.sandbox.world import World

TPUCTL = f"'{sys.executable}' -m tpuctl"
FULL = "error: cannot write to stdout: no space left on device\n  more: tpuctl explain failure\n"
CLOSED = "error: cannot write to stdout: it is closed\n  more: tpuctl explain failure\n"


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An embedded sandbox with more nodes than a pipe's buffer holds."""
    folder = tmp_path_factory.mktemp("pipes")
    with World.open(folder / "state" / "sandbox" / "world.sqlite3") as world:
        for number in range(60):
            admin.add_node(world, f"node-{number:03}", acceleratorType="v4-64", description="x" * 2000)
    state = {"HOME": str(folder), "TPUCTL_STATE_DIR": str(folder / "state"), "TPUCTL_SANDBOX": "1"}
    return {"PATH": os.environ["PATH"], **state}


def shell(line: str, environ: dict[str, str]) -> tuple[str, str, int]:
    done = subprocess.run(
        ["bash", "-c", line.replace("tpuctl", TPUCTL)],
        env=environ, cwd=environ["HOME"], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout, done.stderr, done.returncode


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_a_reader_that_has_had_enough_is_no_error(environ: dict[str, str], form: str) -> None:
    out, err, _ = shell(f"tpuctl list -o {form} | head -c 20; echo; echo ${{PIPESTATUS[0]}}", environ)

    assert (err, out.splitlines()[-1]) in [("", "0"), ("", "141")]


def test_a_full_disk_is_an_error_in_words(environ: dict[str, str]) -> None:
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


def test_streams_that_are_closed_are_nowhere_but_data_is_not_lost_in_silence(environ: dict[str, str]) -> None:
    assert shell("tpuctl list >&-", environ) == ("", CLOSED, 1)
    assert shell("tpuctl list -o name <&- 2>&- | wc -l", environ)[0].strip() == "60"
    assert shell("tpuctl lst 2>&-", environ) == ("", "", 2)


def test_nobody_is_asked_where_nobody_can_answer(environ: dict[str, str]) -> None:
    out, err, code = shell("echo y | tpuctl down node-000", environ)

    assert (out, code) == ("", 2)
    assert err.splitlines()[-2].startswith("  hint: add `--yes` if you mean it; nothing was done")
    assert shell("tpuctl status node-000 -o name", environ)[0] == "node-000\n"


def test_a_folder_that_was_removed_is_said(environ: dict[str, str]) -> None:
    line = 'mkdir gone && cd gone && rmdir "$PWD" && tpuctl list'
    removed = "error: the working directory was removed\n  hint: change to one that is there, and try again\n"

    assert shell(line, environ) == ("", removed, 1)
