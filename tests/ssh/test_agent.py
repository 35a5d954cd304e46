"""Programs that run on workers: under an old Python, and started on many at once."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from tpuctl.ssh.channel import bootstrap

_PROGRAMS = sorted(
    path.name.removesuffix(".py")
    for path in resources.files("tpuctl.ssh.agent").iterdir()
    if path.name.endswith(".py") and path.name != "__init__.py"
)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_program_for_workers_any_is_python_3_8(name: str) -> None:
    _, source = bootstrap(name, "pass")

    ast.parse(source, feature_version=(3, 8))


@pytest.mark.parametrize("name", _PROGRAMS)
def test_program_defines_each_name_once(name: str) -> None:
    """The files of a program are sent as one text: a name that two of them define would have one value in both."""
    tree = ast.parse(bootstrap(name, "pass")[1])
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.Assign):
            defined += [one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    repeated = {one for one in defined if defined.count(one) > 1}

    assert repeated <= {"TYPE_CHECKING"}


@pytest.mark.parametrize("name", ["job", "job_queries"])
def test_program_of_every_run_imports_little(name: str) -> None:
    tree = ast.parse(bootstrap(name, "pass")[1])
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}

    assert imported <= {"__future__", "os", "sys", "time", "fcntl", "select", "_signal"}


def test_program_cached_is_compiled_once_and_replaces_other_versions(tmp_path: Path) -> None:
    line, first = bootstrap("job", "print(serve_job.__name__)", is_kept=True)
    folder = tmp_path / ".tpuctl" / "programs"
    folder.mkdir(parents=True)
    (folder / "job-0123456789abcdef.cpython-311").write_bytes(b"of another version")

    def run() -> str:
        return subprocess.run(
            ["sh", "-c", line],
            input=first,
            env={"HOME": str(tmp_path), "PATH": os.defpath},
            capture_output=True,
            check=True,
        ).stdout.decode()

    assert run() == "serve_job\n"
    (kept,) = folder.iterdir()
    before = kept.stat()
    assert (kept.name.partition("-")[0], stat.S_IMODE(before.st_mode)) == ("job", 0o600)
    assert run() == "serve_job\n"
    assert kept.stat().st_mtime_ns == before.st_mtime_ns
    # An incomplete file is compiled again.
    kept.write_bytes(kept.read_bytes()[:1000])
    assert run() == "serve_job\n"
    assert kept.stat().st_size == before.st_size
