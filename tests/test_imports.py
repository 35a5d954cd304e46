"""What must be quick imports nothing heavy: Google's libraries cost 150 ms, rich 40 ms."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import io, os, sys
from pathlib import Path
from tpuctl.cli.invocation import Invocation
from tpuctl.cli.main import main
from tpuctl.output.terminal import Streams

streams = Streams(io.StringIO(), sys.stdout, io.StringIO(), stdout_is_terminal=True, stderr_is_terminal=True)
code = main(Invocation(tuple(sys.argv[1:]), os.environ, streams, Path.cwd()))
heavy = ("googleapiclient", "google.auth", "httplib2", "rich", "sqlite3", "asyncio")
print(code, *(name for name in heavy if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--version", 0),
        ("version", 0),
        ("--help", 0),
        ("up --help", 0),
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
def test_nothing_heavy_is_imported_for(line: str, code: int, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line.split()],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stderr == f"{code}\n"


@pytest.mark.parametrize("words", ["tpuctl ", "tpuctl up de", "tpuctl up demo --ty", "tpuctl list --output "])
def test_completion_imports_nothing_heavy(words: str, tmp_path: Path) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "_TPUCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.stderr == "0\n"
