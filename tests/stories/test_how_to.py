"""The Python examples of the guides run as they are written: each is a test file of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = re.compile(r"<!-- test: (?P<name>\S+) -->\n```python\n(?P<code>.*?)```\n", re.DOTALL)


def _examples() -> list[Any]:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    found = [(page, match) for page in pages for match in _EXAMPLE.finditer(page.read_text("utf-8"))]
    return [pytest.param(match["name"], match["code"], id=f"{page.stem}-{match['name']}") for page, match in found]


@pytest.mark.parametrize(("name", "code"), _examples())
def test_example_passes_as_it_is_written(name: str, code: str, tmp_path: Path) -> None:
    if "gcloud" in name and shutil.which("gcloud") is None:
        pytest.skip("gcloud is not installed")
    (tmp_path / name).write_text(code)
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("TPUCTL_", "CLOUDSDK_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]

    done = subprocess.run(
        command, cwd=tmp_path, env={**environ, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_examples() -> None:
    assert len(_examples()) >= 3
