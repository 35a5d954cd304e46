"""Environment variables of remote commands: precedence, variables of libraries, files and options."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tpuctl.app.app import App, Invocation
from tpuctl.app.options import cli_command, takes_options
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import Node
from tpuctl.output.terminal import StandardStreams
from tpuctl.workers.commands.run import EnvironmentFlags
from tpuctl.workers.commands.run_run import parse_environment
from tpuctl.workers.environment import (
    EnvironmentOptions,
    fish_exports,
    job_variables,
    parse_env_file,
    parse_variable,
    posix_exports,
    tpu_variables,
)

NAME = "projects/p/locations/us-central2-b/nodes/trainer"
OWN = {
    "TPUCTL_NODE": "trainer",
    "TPUCTL_ZONE": "us-central2-b",
    "TPUCTL_PROJECT": "p",
    "TPUCTL_WORKER_ID": "1",
    "TPUCTL_WORKER_COUNT": "2",
}
AWKWARD = {"A": "", "B": "a b", "C": "it's \"$HOME\" `id` \\ \\' !", "D": "two\nlines\n", "E": "grün"}


def node(*addresses: str | None, **fields: Any) -> Node:
    endpoints = [{"ipAddress": address} if address else {} for address in addresses]
    return Node.from_api({"name": NAME, "networkEndpoints": endpoints, **fields})


def test_user_variables_override_those_of_the_worker() -> None:
    slice_of_two = node("10.0.0.1", "10.0.0.2", acceleratorType="v4-16")

    assert job_variables(EnvironmentOptions(), slice_of_two, 1) == OWN
    assert job_variables(EnvironmentOptions({"TPU_NAME": "mine", "LR": "0.1"}, tpu=True), slice_of_two, 1) == {
        **OWN,
        "TPU_NAME": "mine",
        "TPU_CONFIG": '{"tpu_node_name": "trainer", "zone": "us-central2-b", "project": "p"}',
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2",
        "TPU_ACCELERATOR_TYPE": "v4-16",
        "TPU_TOPOLOGY": "2x2x2",
        "LR": "0.1",
    }


@pytest.mark.parametrize(
    ("found", "workers", "expected"),
    [
        (node("10.0.0.1", acceleratorType="v4-8"), 1, ("trainer", "10.0.0.1", "2x2x1")),
        (node("10.0.0.1", "10.0.0.2", acceleratorType="v4-16"), 2, ("trainer", "10.0.0.1,10.0.0.2", "2x2x2")),
        # An address that is missing would make it a smaller slice.
        (node("10.0.0.1", None, acceleratorType="v4-16"), 2, ("trainer", None, "2x2x2")),
        (node("10.0.0.1", acceleratorType="v4-16"), 2, ("trainer", None, "2x2x2")),
        (node(acceleratorType="v99-8"), 1, ("trainer", None, None)),
        (
            node("10.0.0.1", acceleratorConfig={"type": "V4", "topology": "1x2x2"}),
            1,
            ("trainer", "10.0.0.1", "1x2x2"),
        ),
    ],
)
def test_library_variables_come_from_the_api(
    found: Node, workers: int, expected: tuple[str, str | None, str | None]
) -> None:
    given = tpu_variables(found, 0)
    names = ("TPU_NAME", "TPU_WORKER_HOSTNAMES", "TPU_TOPOLOGY")

    assert (*map(given.get, names),) == expected
    assert found.workers == workers


def test_env_file_has_the_syntax_of_docker() -> None:
    text = '\ufeff# a comment\n\n  A=1\r\nB= kept as it is \nC="quotes stay"\n HOME\nD=a=b # no comment\nA=2\nE='

    assert parse_env_file(text, "job.env", {"HOME": "/home/ada"}) == {
        "A": "2",
        "B": " kept as it is ",
        "C": '"quotes stay"',
        "HOME": "/home/ada",
        "D": "a=b # no comment",
        "E": "",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\nsecret of two lines", "job.env, line 2: not a variable"),
        ("export A=secret", "job.env, line 1: invalid name of a variable: `export A`"),
        ("1A=secret", "job.env, line 1: invalid name of a variable: `1A`"),
        ("=secret", "job.env, line 1: not a variable"),
        ("TOKEN", "job.env, line 1: no local variable has that name"),
        ("A=secret\0", "job.env, line 1: the value of `A` contains a NUL"),
        ("TPUCTL_WORKER_ID=3", "job.env, line 1: tpuctl itself sets `TPUCTL_WORKER_ID`"),
        ("Ä=1", "job.env, line 1: invalid name of a variable: `Ä`"),
    ],
)
def test_env_file_error_has_file_and_line_and_no_value(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_env_file(text, "job.env", {})

    assert caught.value.message == message
    assert "secret" not in message + (caught.value.hint or "")


def test_name_without_a_value_passes_the_local_value() -> None:
    assert parse_variable("HOME", {"HOME": "/h=1"}) == ("HOME", "/h=1")
    assert parse_variable("HOME=", {"HOME": "/h"}) == ("HOME", "")
    with pytest.raises(InvalidInputError, match=r"^no local variable has that name$"):
        parse_variable("TOKEN", {})


@pytest.mark.parametrize(("shell", "lines"), [("sh", posix_exports), ("bash", posix_exports), ("fish", fish_exports)])
def test_env_output_is_valid_in_each_shell(shell: str, lines: Any) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = "\n".join([*lines(AWKWARD), "env -0"])
    printed = subprocess.run(
        [shell, "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True
    ).stdout.decode()
    found = dict(entry.split("=", 1) for entry in printed.split("\0") if entry)

    assert {name: found[name] for name in AWKWARD} == AWKWARD


def taken(tmp_path: Path, *arguments: str) -> EnvironmentOptions | InvalidInputError:
    """Return the environment that these options describe."""
    found: list[EnvironmentOptions] = []

    @cli_command("run")
    @takes_options(EnvironmentFlags, "flags")
    def command(app: App, *, flags: EnvironmentFlags) -> None:
        environment = parse_environment(app, flags)
        found.append(environment)

    stderr = io.StringIO()
    app = App(
        Invocation(arguments, {"HOME": "/home/ada"}, StandardStreams(io.StringIO(), io.StringIO(), stderr), tmp_path)
    )
    result = CliRunner().invoke(command, arguments, obj=app)
    if isinstance(result.exception, InvalidInputError):
        return result.exception
    assert (result.exit_code, stderr.getvalue()) == (0, "")
    return found[0]


def test_options_make_an_environment_request(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=file\nB=first\nTPU_MIN_LOG_LEVEL=3\n")
    (tmp_path / "b.env").write_text("B=later\n")
    files = ("--env-file", "a.env", "--env-file", str(tmp_path / "b.env"))
    logs = (
        *("--tpu-log-dir", "disabled", "--tpu-min-log-level", "warning"),
        *("--tpu-stderr-log-level", "0", "--tpu-max-log-size-mb", "64"),
    )

    assert taken(tmp_path) == EnvironmentOptions({})
    assert taken(tmp_path, "--env", "A=flag", *files, "--env", "HOME", "--tpu-env", *logs) == EnvironmentOptions(
        {
            "TPU_LOG_DIR": "disabled",
            "TPU_MIN_LOG_LEVEL": "3",
            "TPU_STDERR_LOG_LEVEL": "0",
            "TPU_MAX_LOG_SIZE_MB": "64",
            "A": "flag",
            "B": "later",
            "HOME": "/home/ada",
        },
        tpu=True,
    )
    # Values may be secrets.
    assert "later" not in repr(taken(tmp_path, *files))


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ("--tpu-log-dir", "deaktiviert"),
            "invalid directory for libtpu's log: `deaktiviert`",
            "give an absolute path on the workers, or `disabled`",
        ),
        (
            ("--tpu-min-log-level", "4"),
            "invalid log level of libtpu: `4`",
            "levels are 0 to 3, or INFO, WARNING, ERROR, FATAL",
        ),
        (("--env-file", "none.env"), "`--env-file none.env` cannot be read: No such file or directory", None),
        (
            ("--env-file", "latin.env"),
            "`--env-file latin.env` cannot be read: not UTF-8 text: line 2, byte 5 (0xfc)",
            None,
        ),
    ],
)
def test_invalid_environment_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], message: str, hint: str | None
) -> None:
    (tmp_path / "latin.env").write_bytes(b"A=1\nB=gr\xfcn\n")

    error = taken(tmp_path, *arguments)

    assert isinstance(error, InvalidInputError)
    assert (error.message, error.hint) == (message, hint)
