"""What runs on workers: under an old Python, and started at once on many."""

from __future__ import annotations

import ast
from importlib import resources

import pytest

from tpuctl.remote.onboard import bootstrap

_PROGRAMS = sorted(
    path.name.removesuffix(".py")
    for path in resources.files("tpuctl.remote.onboard").iterdir()
    if path.name.endswith(".py") and path.name != "__init__.py"
)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_what_runs_on_workers_is_python_3_8(name: str) -> None:
    _, source = bootstrap(name, "pass")

    ast.parse(source, feature_version=(3, 8))


@pytest.mark.parametrize("name", ["job", "jobs"])
def test_what_every_run_starts_on_workers_imports_little(name: str) -> None:
    tree = ast.parse(bootstrap(name, "pass")[1])
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}

    assert imported <= {"__future__", "os", "sys", "time", "fcntl", "select", "_signal"}
