"""Which cloud `tpuctl doctor` calls: no real host for a sandbox, and gcloud only with a login."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.doctor.doctor_console import run_doctor
from tests.doctor.environment_cases import GOOD, problems, remedies
from tpuctl.clock import ManualClock
from tpuctl.config.sources import gcloud_may_have_login
from tpuctl.doctor.doctor_facts import AccessFailure
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.state import SandboxState

# Runs the program with an audit hook that prints and refuses every name lookup and every connection.
WATCHED = """
import sys

def watch(event, arguments):
    if event in {"socket.getaddrinfo", "socket.connect"}:
        sys.stderr.write("CALLED\\n")
        raise OSError("no host may be called here")

sys.addaudithook(watch)
from tpuctl.cli.main import entry_point
entry_point()
"""
RESET = "run `tpuctl sandbox reset` to start with an empty sandbox"
ELSEWHERE = "move the file away, or set `TPUCTL_STATE_DIR` to another folder"


def garbage(state: Path) -> None:
    (state / "sandbox").mkdir(parents=True)
    (state / "sandbox" / "world.sqlite3").write_text("garbage " * 1000)


def damaged(state: Path) -> None:
    path = state / "sandbox" / "world.sqlite3"
    with SandboxState.open(path):
        pass
    path.write_bytes(path.read_bytes()[:4096].ljust(20000, b"\xff"))


def damaged_within(state: Path) -> None:
    """The sandbox can be opened and its settings read, but not its tables of resources."""
    path = state / "sandbox" / "world.sqlite3"
    with SandboxState.open(path):
        pass
    sound = path.read_bytes()
    path.write_bytes(sound[: 8 * 4096].ljust(len(sound), b"\xff"))


def no_folder(state: Path) -> None:
    state.write_text("")


BROKEN: list[tuple[Callable[[Path], None], str, str]] = [
    (garbage, "is not a file of the sandbox: file is not a database", ELSEWHERE),
    (damaged, "is damaged: database disk image is malformed", RESET),
    (damaged_within, "is damaged: database disk image is malformed", RESET),
    (no_folder, ": Not a directory", "check the path and its permissions"),
]


def watched(tmp_path: Path, *arguments: str, **environ: str) -> tuple[str, str, int]:
    """Run the program in its own process, which prints and refuses every call to another host."""
    paths = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "NO_GCE_CHECK": "true"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments],
        env={**paths, "TPUCTL_STATE_DIR": str(tmp_path / "state"), **environ},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout, done.stderr, done.returncode


@pytest.mark.parametrize(("break_it", "text", "hint"), BROKEN)
def test_doctor_unusable_sandbox_calls_no_real_host(
    tmp_path: Path, break_it: Callable[[Path], None], text: str, hint: str
) -> None:
    break_it(tmp_path / "state")

    out, err, code = watched(tmp_path, "doctor", "demo", "-o", "json", TPUCTL_SANDBOX="1")

    errors = [one for one in json.loads(out)["findings"] if one["level"] == "error" and one["id"] > "TPU930"]
    assert (code, "CALLED" in err, [one["id"] for one in errors]) == (9, False, ["TPU933"])
    assert text in errors[0]["text"]
    assert [(one["text"], one["command"]) for one in errors[0]["remedies"]] == [
        (hint, None),
        ("see other solutions", "tpuctl explain sandbox"),
    ]
    assert "`demo` was not checked: the sandbox cannot be opened" in err


@pytest.mark.parametrize(
    ("environ", "arguments", "is_called", "id_"),
    [
        ({"TPUCTL_SANDBOX": "perhaps"}, (), False, "TPU945"),
        ({"TPUCTL_SANDBOX": "1", "TPUCTL_SANDBOX_SPEED": "fast"}, (), False, "TPU945"),
        ({}, ("--sandbox", "--endpoint", "https://tpu.example"), False, "TPU945"),
        # The hook works: it prints the calls of a program that makes some.
        ({}, (), True, "TPU932"),
    ],
)
def test_doctor_invalid_settings_call_no_host(
    tmp_path: Path,
    environ: dict[str, str],
    arguments: tuple[str, ...],
    is_called: bool,
    id_: str,
) -> None:
    out, err, code = watched(tmp_path, *arguments, "doctor", **environ)

    assert (code, "CALLED" in err) == (9, is_called)
    assert id_ in {line.split()[1] for line in out.splitlines() if line.startswith("error")}


def test_doctor_unusable_sandbox_is_reported_once_with_a_remedy() -> None:
    seen = replace(
        GOOD, network=replace(GOOD.network, hosts=(), sandbox_failure=AccessFailure("it is damaged", ("fix it",)))
    )

    assert [row for row in problems(seen) if row[0] != "TPU934"] == [("TPU933", "error", "it is damaged")]
    assert remedies(seen, "TPU933") == [("fix it", None), ("see other solutions", "tpuctl explain sandbox")]


@pytest.mark.parametrize("environ", [{}, {"TPUCTL_SSH_KEY": "/nowhere/key"}])
def test_doctor_node_without_project_is_an_error(
    alone: Console, sandbox: Sandbox, clock: ManualClock, environ: dict[str, str]
) -> None:
    """The reason why the node cannot be found is one of the findings, so the command has no other error."""
    with open_server(sandbox.state) as server:
        server.start()
        console = replace(alone, clock=clock)
        found, code = run_doctor(console, "demo", TPUCTL_ENDPOINT=server.url, **environ)
        _, err, _ = console("doctor", "demo", TPUCTL_ENDPOINT=server.url)
        without, fine = run_doctor(console, TPUCTL_ENDPOINT=server.url)

    assert (code, found["TPU940"]) == (9, ("error", "no project is set"))
    assert any(line.startswith("warning: `demo` was not checked: no project is set") for line in err.splitlines())
    assert (fine, without["TPU940"]) == (0, ("warning", "no project is set"))


def test_doctor_starts_gcloud_only_with_a_login(alone: Console, tmp_path: Path) -> None:
    """Starting gcloud takes a second, and creates its folder."""
    program, folder = tmp_path / "programs" / "gcloud", Path(alone.environ["HOME"]) / ".config" / "gcloud"
    program.write_text('#!/bin/sh\n: >"$0.started"\necho token\n')
    program.chmod(0o755)
    started = program.with_name("gcloud.started")

    before, _ = run_doctor(alone)
    was_started = started.exists()
    folder.mkdir(parents=True)
    (folder / "credentials.db").touch()
    after, _ = run_doctor(alone)

    assert (was_started, started.exists()) == (False, True)
    assert before["TPU921"] == ("error", "not logged in: there are no credentials on this machine")
    assert "TPU921" not in after


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, False),
        ({"config/active_config": "default", "config/configurations/config_default": "[core]\n"}, {}, False),
        ({"config/credentials.db": ""}, {}, True),
        ({"config/access_tokens.db": ""}, {}, True),
        ({"config/legacy_credentials/a@b/adc.json": "{}"}, {}, True),
        ({"config/credentials": "{}"}, {}, True),
        ({"config/configurations/config_default": "[auth]\naccess_token_file = /t\n"}, {}, True),
        ({"config/configurations/config_other": "[auth]\naccess_token_file = /t\n"}, {}, False),
        ({"config/properties": "[auth]\nCredential_File_Override: /k\n"}, {}, True),
        ({"sdk/properties": "[auth]\ncredential_file_override=/k\n"}, {}, True),
        ({}, {"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": "/t"}, True),
        ({}, {"CLOUD_SHELL": "true"}, True),
        # A file in place of the folder: gcloud is started, and reports the problem itself.
        ({"config": ""}, {}, True),
    ],
)
def test_may_have_login_of_each_folder(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], expected: object
) -> None:
    for name, text in {"sdk/bin/gcloud": "", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "sdk" / "bin" / "gcloud").chmod(0o755)
    paths = {"CLOUDSDK_CONFIG": str(tmp_path / "config"), "PATH": str(tmp_path / "sdk" / "bin")}

    assert gcloud_may_have_login({**paths, **environ}) is expected
