"""Fast commands import nothing heavy: Google's libraries cost 150 ms, rich 40 ms, the checks 100 ms, yaml 12 ms."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import io, os, sys
from pathlib import Path
from tpuctl.app.app import Invocation
from tpuctl.cli.main import main
from tpuctl.output.terminal import StandardStreams

streams = StandardStreams(io.StringIO(), sys.stdout, io.StringIO(), stdout_is_terminal=True, stderr_is_terminal=True)
code = main(Invocation(tuple(sys.argv[2:]), os.environ, streams, Path.cwd()))
print(code, *(name for name in sys.argv[1].split() if name in sys.modules), file=sys.stderr)
"""
HEAVY = (
    "googleapiclient google.auth httplib2 rich sqlite3 asyncio concurrent.futures yaml "
    "tpuctl.check.gathering tpuctl.check.gate tpuctl.check.rules"
)
# Only completion, and only commands that read a setting or a file need these.
UNUSED = "click.shell_completion tpuctl.app.seen_jobs"
UNUSED_BY_HELP = f"{UNUSED} tpuctl.files tpuctl.decoding tpuctl.config.settings"
OF_ALL_COMMANDS = ("", "--help", "--version")
# The options of the checks are parsed before the type is looked up.
LOADED = {"up demo --type v5e-16": " yaml tpuctl.check.gathering tpuctl.check.gate tpuctl.check.rules"}
CHECKS = ("tpuctl.check.gathering", "tpuctl.check.gate", "tpuctl.check.rules")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--version", 0),
        ("version", 0),
        ("schema --help", 0),
        ("--help", 0),
        ("up --help", 0),
        ("check --help", 0),
        ("scp --help", 0),
        ("explain --help", 0),
        ("config set --help", 0),
        ("sandbox fault --help", 0),
        ("completion bash", 0),
        ("config path", 0),
        ("config show", 0),
        ("", 2),
        ("lst", 2),
        ("up", 2),
        ("up demo --tpye v4-8", 2),
        ("up demo --timeout soon", 2),
        ("up demo --type v5e-16", 2),
        ("list", 2),  # no project
    ],
)
def test_light_command_imports_nothing_heavy(line: str, code: int, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    unwanted = f"{HEAVY} {UNUSED_BY_HELP if line in OF_ALL_COMMANDS else UNUSED}"

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, unwanted, *line.split()],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stderr == f"{code}{LOADED.get(line, '')}\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("list", 0),
        ("status nobody", 3),
        ("delete nobody --zone us-central2-b --yes", 3),
    ],
)
def test_checks_are_imported_only_for_a_creation(line: str, code: int, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_SANDBOX": "1"}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, HEAVY, *line.split()],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    ended, *seen = done.stderr.split()
    assert (int(ended), tuple(name for name in CHECKS if name in seen)) == (code, ())


@pytest.mark.parametrize(
    "line",
    [
        "tpuctl ",
        "tpuctl up de",
        "tpuctl up demo --ty",
        "tpuctl logs demo ",
        "tpuctl list --output ",
        "tpuctl list --columns ",
        "tpuctl list -l ",
        "tpuctl scp ",
        "tpuctl check --for ",
        "tpuctl config set ",
    ],
)
def test_completion_imports_nothing_heavy(line: str, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "_TPUCTL_COMPLETE": "line", "COMP_LINE": line}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, HEAVY], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.stderr == "0\n"
