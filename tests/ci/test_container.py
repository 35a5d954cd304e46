"""The image: what the Dockerfile holds, and, where an engine has the base image, the image itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.ci.ci_files import ROOT
from tpuctl import __version__

_BASE = "python:3.13-slim"
_TAG = "tpuctl-under-test"
_STAGES = re.findall(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", (ROOT / "Dockerfile").read_text("utf-8"), re.M | re.S)


def test_stages_begin_with_the_base_image_or_an_earlier_stage() -> None:
    names = [name for _, name, _ in _STAGES]

    assert names == ["build", "base", "sandbox", "tpuctl"]
    for number, (base, _, _) in enumerate(_STAGES):
        assert base in {_BASE, *names[:number]}


def test_no_stage_ends_as_root() -> None:
    """The stage that builds is not part of an image."""
    users = {name: re.findall(r"^USER (\S+)$", body, re.MULTILINE) for _, name, body in _STAGES}

    assert (users["base"][-1], users["sandbox"][-1], users["tpuctl"]) == ("1000", "1000", [])


def test_image_is_built_from_named_files_only() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if not line.startswith("#")]

    assert lines[0] == "*"
    assert {line for line in lines[1:] if line.startswith("!")} == {
        "!pyproject.toml",
        "!README.md",
        "!LICENSE",
        "!src",
        "!docs/man",
        "!dist/*.whl",
    }


def test_function_of_the_docs_passes_settings_and_identity_on(tmp_path: Path) -> None:
    """Without the user's settings a limit such as `max_price` would silently not hold."""
    page = (ROOT / "docs/how-to/a-container.md").read_text("utf-8")
    (function,) = re.findall(r"^    tpuctl\(\) \{\n.*?^    \}\n", page, re.MULTILINE | re.DOTALL)
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o700)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": "/h", "TPUCTL_MAX_PRICE": "5", "TPUCTL_ZONE": "a b"}

    done = subprocess.run(
        ["bash", "-c", f"{function}\ntpuctl list 'x y'"],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip

    words = done.stdout.splitlines()
    assert {"--env=TPUCTL_MAX_PRICE", "--env=TPUCTL_ZONE", f"{os.getuid()}:{os.getgid()}"} < {*words}
    assert "/h/.config/tpuctl:/home/tpuctl/.config/tpuctl" in words
    assert words[-3:] == [f"ghcr.io/tpuctl/tpuctl:{__version__}", "list", "x y"]


def _engine(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def engine() -> str:
    """Return the container engine of this machine, with an image of this checkout."""
    reasons = []
    for program in ("docker", "podman"):
        if shutil.which(program) is None:
            reasons.append(f"{program} is not installed")
        elif _engine(program, "version").returncode != 0:
            reasons.append(f"{program} does not answer")
        elif (tried := _engine(program, "run", "--rm", "--pull", "never", _BASE, "true")).returncode != 0:
            reasons.append(f"{program} cannot run {_BASE}: {tried.stderr.strip().splitlines()[-1]}")
        else:
            done = _engine(program, "build", "--tag", _TAG, "--target", "sandbox", ".")
            assert done.returncode == 0, done.stderr
            return program
    pytest.skip("; ".join(reasons))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("user", "arguments", "last_line"),
    [
        pytest.param((), ("version",), f"tpuctl {__version__}", id="version"),
        pytest.param(("--user", "1234"), ("version",), f"tpuctl {__version__}", id="a user without an account"),
        pytest.param(
            (),
            ("run", "ci", "--up", "v4-8", "--zone", "us-central2-b", "--rm", "--no-sync", "--", "whoami"),
            "tpuctl",
            id="a node of the sandbox",
        ),
    ],
)
def test_image_runs(engine: str, user: Sequence[str], arguments: Sequence[str], last_line: str) -> None:
    done = _engine(engine, "run", "--rm", "--env", "TPUCTL_SANDBOX_SPEED=300", *user, _TAG, *arguments)

    assert (done.stdout.splitlines()[-1:], done.returncode) == ([last_line], 0), done.stderr


@pytest.mark.timeout(900)
def test_image_runs_ssh_for_a_user_without_an_account(engine: str) -> None:
    """Without an account ssh says `No user exists for uid 1234`, and ends with 255."""
    done = _engine(engine, "run", "--rm", "--user", "1234", "--entrypoint", "ssh", _TAG, "-G", "host")

    assert (done.returncode, "user uid-1234\n" in done.stdout) == (0, True), done.stderr
