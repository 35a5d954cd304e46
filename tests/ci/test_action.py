"""`action.yml`, its steps run as GitHub runs them: expressions first, then a script; actions of others are not run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ci.ci_files import ACTION, ROOT, load
from tpuctl import __version__

_PROVIDER = "projects/1/locations/global/workloadIdentityPools/p/providers/q"
_OWN_STEPS = ["Check the inputs", "Install tpuctl", "Set the defaults of tpuctl", "Print the version"]


@dataclass
class Runner:
    """A runner of GitHub, as far as the action uses it: contexts, conditions, and the files that collect what steps set."""

    folder: Path
    inputs: dict[str, str]

    def __post_init__(self) -> None:
        self.action = load(ACTION)
        inputs = {name: one["default"] for name, one in self.action["inputs"].items()} | self.inputs
        self.values = {
            **{f"inputs.{name}": value for name, value in inputs.items()},
            "runner.temp": str(self.folder / "temp"),
            "runner.os": "Linux",
            "runner.arch": "X64",
            "github.action_path": str(ROOT),
            "github.action_ref": "v1",
            "steps.python.outputs.python-path": sys.executable,
            "steps.python.outputs.python-version": "3.11.2",
        }
        (self.folder / "temp").mkdir()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression: names of contexts, texts, `==`, `!=`, `&&` and `||`, which Python has, too."""
        python = expression.replace("&&", " and ").replace("||", " or ")
        named = re.sub(
            r"'[^']*'|[a-z]+(?:\.[\w-]+)+",
            lambda one: one[0] if one[0][0] == "'" else repr(self.values[one[0]]),
            python,
        )
        return eval(named, {"__builtins__": {}})  # noqa: S307  # an expression of our own file

    def fill_in(self, text: str) -> str:
        """Replace the expressions of a text by their values."""
        return re.sub(r"\$\{\{(.*?)\}\}", lambda one: str(self.evaluate(one[1])), text)

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yield the steps whose conditions hold."""
        yield from (step for step in self.action["runs"]["steps"] if self.evaluate(step.get("if", "1 == 1")))

    def run(self, *names: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the scripts of the named steps until one fails, and return how the last one ended."""
        done = None
        for step in self.steps():
            if step["name"] in names:
                assert step["shell"] == "bash"
                (self.folder / "script").write_text(step["run"])
                done = subprocess.run(
                    ["bash", "--noprofile", "--norc", "-eo", "pipefail", self.folder / "script"],
                    cwd=self.folder,
                    env={
                        "PATH": os.environ["PATH"],
                        "HOME": str(self.folder),
                        "RUNNER_TEMP": self.values["runner.temp"],
                        **{name: str(self.folder / name) for name in ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT")},
                        **{name: self.fill_in(value) for name, value in step.get("env", {}).items()},
                        **environ,
                    },
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode != 0:
                    break
        assert done is not None
        return done

    def collected(self, name: str) -> str:
        """Return what the steps wrote into one of the files of the runner."""
        path = self.folder / name
        return path.read_text("utf-8") if path.exists() else ""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a wheel of this checkout, which imports it and its dependencies where they are."""
    folder = tmp_path_factory.mktemp("index")
    info = f"tpuctl-{__version__}.dist-info"
    with zipfile.ZipFile(folder / f"tpuctl-{__version__}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tpuctl.pth", f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tpuctl\nVersion: {__version__}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntpuctl = tpuctl.cli.main:entry_point\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder


def test_action_installs_tpuctl_and_nothing_else_on_path(tmp_path: Path, index: Path) -> None:
    runner = Runner(tmp_path, {"version": __version__, "zone": "us-central2-b"})

    done = runner.run(*_OWN_STEPS, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))

    assert (done.stdout, done.stderr, done.returncode) == (f"tpuctl {__version__}\n", "", 0)
    (folder,) = runner.collected("GITHUB_PATH").splitlines()
    assert [path.name for path in Path(folder).iterdir()] == ["tpuctl"]
    assert runner.collected("GITHUB_OUTPUT") == f"version={__version__}\n"
    assert runner.collected("GITHUB_ENV") == "TPUCTL_ZONE=us-central2-b\n"


@pytest.mark.parametrize(
    ("inputs", "lines"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param(
            {"project": "p", "zone": "z", "journal": "gs://b/j", "lease": "gs://b/l", "sandbox": "true"},
            [
                "TPUCTL_PROJECT=p",
                "TPUCTL_ZONE=z",
                "TPUCTL_JOURNAL=gs://b/j",
                "TPUCTL_LEASE=gs://b/l",
                "TPUCTL_SANDBOX=1",
            ],
            id="everything",
        ),
        pytest.param({"sandbox": "false"}, [], id="no sandbox"),
        pytest.param(
            {"zone": "$(touch here) `touch here` 'x' \"y\""},
            ["TPUCTL_ZONE=$(touch here) `touch here` 'x' \"y\""],
            id="code",
        ),
    ],
)
def test_action_sets_defaults(tmp_path: Path, inputs: dict[str, str], lines: list[str]) -> None:
    runner = Runner(tmp_path, inputs)

    done = runner.run("Set the defaults of tpuctl")

    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert (runner.collected("GITHUB_ENV").splitlines(), (tmp_path / "here").exists()) == (lines, False)


@pytest.mark.parametrize(
    "value", ["p\nLD_PRELOAD=/x.so", "p\r", "p\n"], ids=["a second line", "CR", "an empty second line"]
)
def test_action_refuses_a_value_that_sets_a_second_variable(tmp_path: Path, value: str) -> None:
    runner = Runner(tmp_path, {"project": value})

    done = runner.run("Set the defaults of tpuctl")

    assert (done.stdout, done.returncode) == ("::error::the input for TPUCTL_PROJECT has a control character\n", 2)
    assert runner.collected("GITHUB_ENV") == ""


@pytest.mark.parametrize("name", ["cache", "sandbox"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("1", "1", id="1"),
        pytest.param("yes", "yes", id="yes"),
        pytest.param("True", "True", id="capital"),
        pytest.param("", "''", id="empty"),
        pytest.param("true\n::set-env", r"$'true\n::set-env'", id="a second line"),
    ],
)
def test_action_refuses_what_is_neither_true_nor_false(tmp_path: Path, name: str, value: str, shown: str) -> None:
    runner = Runner(tmp_path, {name: value, "project": "p", "workload_identity_provider": _PROVIDER})

    done = runner.run(*(step["name"] for step in runner.steps() if "run" in step))

    error = f"::error::the input {name} is {shown}, not true or false\n"
    assert (next(runner.steps())["name"], done.stdout, done.returncode) == ("Check the inputs", error, 2)
    assert runner.collected("GITHUB_ENV") == ""


@pytest.mark.parametrize(
    ("inputs", "more"),
    [
        pytest.param({"cache": "false"}, [], id="least"),
        pytest.param({}, ["Take the version for the cache", "Restore downloaded packages"], id="defaults"),
        pytest.param(
            {"cache": "false", "workload_identity_provider": _PROVIDER},
            ["Authenticate to Google Cloud", "Keep credentials out of git trees"],
            id="with an identity",
        ),
        pytest.param(
            {"cache": "false", "workload_identity_provider": _PROVIDER, "sandbox": "true"},
            ["Install the ssh server of the sandbox"],
            id="in the sandbox",
        ),
    ],
)
def test_action_runs_only_the_steps_that_its_inputs_need(
    tmp_path: Path, inputs: dict[str, str], more: list[str]
) -> None:
    names = [step["name"] for step in Runner(tmp_path, inputs).steps()]

    assert [name for name in names if name not in {"Set up Python for tpuctl", *_OWN_STEPS}] == more


@pytest.mark.parametrize(
    ("inputs", "key"), [({}, __version__), ({"version": "0.0.9"}, "0.0.9")], ids=["of the action", "of the input"]
)
def test_action_caches_packages_by_version(tmp_path: Path, inputs: dict[str, str], key: str) -> None:
    runner = Runner(tmp_path, inputs)

    assert runner.run("Take the version for the cache").returncode == 0

    assert runner.collected("GITHUB_OUTPUT") == f"version={key}\n"
    (restore,) = (step for step in runner.steps() if step["name"] == "Restore downloaded packages")
    assert "steps.key.outputs.version" in restore["with"]["key"]


@pytest.mark.parametrize("kind", ["checkout", "checkout of another user", "no checkout"])
def test_action_keeps_credentials_out_of_git_trees(tmp_path: Path, kind: str) -> None:
    if kind != "no checkout":
        subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    if kind == "checkout of another user" and os.geteuid() == 0:
        os.chown(tmp_path / ".git", 65534, 65534)
        os.chown(tmp_path, 65534, 65534)
    (tmp_path / "gha-creds-0123.json").write_text("{}")
    (tmp_path / "train.py").write_text("")

    done = Runner(tmp_path, {"workload_identity_provider": _PROVIDER}).run(
        "Keep credentials out of git trees", GIT_CEILING_DIRECTORIES=str(tmp_path.parent)
    )

    warning = "::warning::no git checkout here: gha-creds-*.json has credentials, which must not be copied to workers\n"
    assert (done.stdout, done.stderr, done.returncode) == (warning if kind == "no checkout" else "", "", 0)
    if kind != "no checkout":
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "--others", "--exclude-standard"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert listed.stdout.split() == ["script", "train.py"]
