"""What `tpuctl version` prints about the installation, and what it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console
from tpuctl import __version__
from tpuctl.installation import DEPENDENCIES, find_installer, read_installation

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("files", "said", "expected"),
    [
        pytest.param((), "pip\n", "pip", id="pip"),
        pytest.param(("pipx_metadata.json",), "pip\n", "pipx", id="pipx"),
        pytest.param(("uv-receipt.toml",), "uv", "uv tool", id="uv-tool"),
        pytest.param((), "uv", "uv", id="uv"),
        pytest.param((), "debian\n", "debian", id="other"),
        pytest.param((), " \n", None, id="empty"),
        pytest.param((), "x" * 101, "x" * 100, id="too-long"),
    ],
)
def test_installer(files: tuple[str, ...], said: str, expected: str | None, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()

    assert find_installer(tmp_path, said) == expected


def test_dependencies_are_those_of_the_package_with_their_lowest_versions() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        lines = tomllib.load(file)["project"]["dependencies"]

    found = {package.name: package.least for package in read_installation().dependencies}

    assert found == dict(line.split(">=") for line in lines)


def test_version_json_names_this_installation(console: Console) -> None:
    stdout, stderr, code = console("version", "-o", "json")

    versions = {package.name: package.version for package in read_installation().dependencies}
    found = json.loads(stdout)
    assert (stderr, code, None in versions.values()) == ("", 0, False)
    assert found.pop("platform").startswith(("Linux-", "macOS-"))
    assert found.pop("installedBy") in {"pip", "uv"}
    assert found == {
        "tpuctl": __version__,
        "python": PYTHON,
        **versions,
        "implementation": "CPython",
        "executable": sys.executable,
        "prefix": sys.prefix,
        "package": str(ROOT / "src" / "tpuctl"),
        "editable": True,
        "dependencies": versions,
    }


def test_version_verbose_prints_a_line_for_each_fact(console: Console) -> None:
    short, verbose = console("version"), console("version", "-v")

    first, *lines = verbose[0].splitlines()
    assert short == (f"{first}\n", "", 0) == (f"tpuctl {__version__}\n", "", 0)
    assert [line.split()[0] for line in lines] == ["python", "platform", "installed", *DEPENDENCIES]
    assert f"CPython {PYTHON}, {sys.executable}" in lines[0]
    assert f"{ROOT / 'src' / 'tpuctl'}, editable, by " in lines[2]


def test_version_json_without_metadata_has_null(tmp_path: Path) -> None:
    """The packages are found, as on PYTHONPATH, but nothing says how they were installed; the metadata of one is broken."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix not in {".dist-info", ".pth"}:
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "rich-1.dist-info").mkdir()
    environ = {"HOME": str(tmp_path), "PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}", "PATH": os.environ["PATH"]}

    # Without its site module Python does not look into the environment.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tpuctl", "version", "-o", "json"],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.stderr, done.returncode) == ("", 0)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["dependencies"] == dict.fromkeys(DEPENDENCIES)
    assert (found["tpuctl"], found["installedBy"], found["editable"]) == (__version__, None, False)


@pytest.fixture
def console(tmp_path: Path) -> Console:
    """Return the program in an empty folder; nothing is set."""
    return Console({"HOME": str(tmp_path)}, tmp_path)
