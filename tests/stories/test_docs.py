"""The examples of the README and the docs run as they are written, and the reference pages say what the code says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# `<!-- story: NAME -->`, then an indented block: what a reader would paste into a shell.
_STORY = re.compile(r"<!-- story: (?P<name>\S+) -->\n(?P<block>(?:    .*\n|\n)+)")
# A command that is meant to fail, and says how.
_FAILS = re.compile(r"^(?P<command>.*\S) +# exit code (?P<code>\d+)$", re.MULTILINE)


def _stories() -> list[Any]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [(page, match) for page in pages for match in _STORY.finditer(page.read_text("utf-8"))]
    return [pytest.param(match["block"], id=f"{page.stem}-{match['name']}") for page, match in found]


@pytest.mark.sshd
@pytest.mark.parametrize("block", _stories())
def test_story_runs_as_it_is_written(block: str, tmp_path: Path) -> None:
    """Every command ends with 0 or with the code that stands behind it, in order, in a fresh home."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    script = "set -e\n" + _FAILS.sub(_ends_with, re.sub(r"^    ", "", block, flags=re.MULTILINE))
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("TPUCTL_", "CLOUDSDK_"))}
    environ |= {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TPUCTL_SANDBOX": "1",
        "TPUCTL_SANDBOX_SPEED": "300",
    }

    done = subprocess.run(
        ["sh", "-c", script],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def _ends_with(line: re.Match[str]) -> str:
    """Return the shell line that goes on only if the command ends with its code: `! command` would always go on."""
    return f"code=0; {line['command']} || code=$?; test $code -eq {line['code']}"


def test_there_are_stories() -> None:
    """The pattern that finds them is not broken."""
    assert len(_stories()) >= 5


def test_reference_pages_are_up_to_date() -> None:
    """`python docs/reference/generate.py` would change nothing."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/reference/generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
