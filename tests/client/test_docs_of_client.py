"""docs/python.md: its examples run as they are written, have correct types, and it describes what there is to call."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tpuctl
from tpuctl import Client, NodeSpec

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
# Of the constructor of a `NodeSpec`: those that `up` refuses.
INTERNAL_FIELDS = {"asked", "expires", "flagged", "kept", "named", "slices", "ttl"}


@pytest.mark.sshd
def test_examples_of_the_page_run_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("TPUCTL_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shown: list[str] = []

    test = doctest.DocTestParser().get_doctest(PAGE, {}, "python.md", "docs/python.md", 0)
    done = doctest.DocTestRunner(optionflags=doctest.REPORT_ONLY_FIRST_FAILURE).run(test, out=shown.append)

    assert done.attempted > 10
    assert "".join(shown) == ""


def test_examples_of_the_page_have_correct_types(tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("".join(one.source for one in doctest.DocTestParser().get_examples(PAGE)))
    words = ["--strict", "--allow-redefinition", str(program)]

    done = subprocess.run([sys.executable, "-m", "mypy", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout == "Success: no issues found in 1 source file\n"


@pytest.mark.parametrize("name", ["up", "down", "list", "wait", "run"])
def test_page_has_the_arguments_of_each_function(name: str) -> None:
    heading = re.search(rf"^### `{name}\((.*)\) -> ", PAGE, re.MULTILINE)
    assert heading
    described = [word.partition("=")[0].strip() for word in heading[1].split(",")]
    given = [one for one in inspect.signature(getattr(Client, name)).parameters if one != "self"]
    assert [word for word in described if word != "*"] == given


@pytest.mark.parametrize(
    ("constructor", "internal"),
    [pytest.param(Client, set[str](), id="Client"), pytest.param(NodeSpec, INTERNAL_FIELDS, id="NodeSpec")],
)
def test_page_has_the_arguments_of_constructors(constructor: type, internal: set[str]) -> None:
    found = re.search(rf"`{constructor.__name__}\(\*, ([a-z_,\s]+)\)`", PAGE)
    assert found
    given = set(inspect.signature(constructor).parameters)
    assert {word.strip() for word in found[1].split(",")} == given - internal


def test_page_names_every_public_error() -> None:
    errors = {name for name in tpuctl.__all__ if name.endswith("Error")}
    assert {name for name in errors if f"`{name}`" not in PAGE} == set()


def test_every_public_name_is_lazy_and_exists() -> None:
    lazy = {name for names in tpuctl._MODULES.values() for name in names}
    assert {*tpuctl.__all__} == {*lazy, "__version__"}
    assert {name for name in tpuctl.__all__ if getattr(tpuctl, name, None) is None} == set()
    assert {*tpuctl.__all__} <= {*dir(tpuctl)}
    with pytest.raises(AttributeError, match="no attribute `Clients`"):
        tpuctl.Clients  # noqa: B018  # what it is about


USE = """
import sys
import tpuctl

print(sorted(name for name in sys.modules if name.startswith("tpuctl.")))
environ = {"HOME": sys.argv[1], "LOGNAME": "ada"}
with tpuctl.Client(sandbox=True, zone="us-central2-b", environ=environ, clock=tpuctl.ManualClock()) as client:
    client.up("trainer", tpuctl.NodeSpec(accelerator_type="v4-8"), wait_for="ready", ttl=None)
    client.wait("trainer", "healthy")
    print(len(client.list()), client.down("trainer", yes=True))
import tpuctl.workers.captured_run
print(sorted({"click", "rich", "googleapiclient.discovery", "tpuctl.cli"} & set(sys.modules)))
"""


def test_program_imports_the_package_alone_and_never_click(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("[]\n1 True\n[]\n", "")
