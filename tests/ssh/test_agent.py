"""Programs that run on workers: under an old Python, and started on many at once."""

from __future__ import annotations

import ast
from importlib import resources

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


def test_program_of_every_run_imports_little() -> None:
    tree = ast.parse(bootstrap("job", "pass")[1])
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}

    assert imported <= {"__future__", "os", "sys", "time", "fcntl", "select", "_signal"}
