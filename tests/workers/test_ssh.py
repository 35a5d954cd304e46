"""`tpuctl ssh`: the argv of ssh, invalid options, and a real shell on a sandbox worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from getpass import getuser
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import both_faces
from tests.tpuctl_process import run_tpuctl
from tpuctl.sandbox import administration
from tpuctl.sandbox.shims import record_served_address
from tpuctl.sandbox.sshd import proxy_command
from tpuctl.sandbox.state import SandboxState

FakeSsh = Callable[[str], None]


@pytest.fixture
def argv(tmp_path: Path, fake_ssh: FakeSsh) -> Callable[[], list[str]]:
    """An ssh that stores its arguments and exits with 7; the call returns them."""
    written = tmp_path / "argv"
    fake_ssh(f"printf '%s\\n' \"$@\" > '{written}'; exit 7")
    return lambda: written.read_text().splitlines() if written.exists() else []


@both_faces
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--", "ls", "-l", "a b"), ["ls -l 'a b'"]),
        (("--", "ls -l $HOME | wc"), ["ls -l $HOME | wc"]),
        (("--command", "ls -l $HOME | wc"), ["ls -l $HOME | wc"]),
        (("--", "tpuctl", "--help"), ["tpuctl --help"]),
        ((), []),
    ],
)
def test_command_is_passed_unchanged_and_returns_its_exit_code(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]], arguments: tuple[str, ...], expected: list[str]
) -> None:
    sandbox.add_node("trainer")

    out, err, code = tpuctl("exec", "trainer", *arguments)

    words = argv()
    assert (out, code) == ("", 7)
    assert err == "adding our ssh key to the metadata of `trainer`\n"
    assert words[0] == "-T"
    assert [word.rpartition("@")[2] for word in words[words.index("ServerAliveInterval=15") + 1 :]] == [
        "198.18.0.1",
        *(["--", *expected] if expected else []),
    ]
    # The key is there now: the next time nothing is changed.
    assert tpuctl("ssh", "trainer", *arguments)[1] == ""
    assert sandbox.changes() == ["patch"]


@pytest.mark.parametrize("face", ["http"], indirect=True)
def test_workers_of_a_served_sandbox_are_found(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]], face: dict[str, str]
) -> None:
    sandbox.add_node("trainer")
    url = face["TPUCTL_ENDPOINT"]

    tpuctl("ssh", "trainer", "--", "true")
    assert "ProxyCommand" not in " ".join(argv())

    # What `tpuctl sandbox serve` does when it begins.
    record_served_address(sandbox.state.path, url)
    tpuctl("ssh", "trainer", "--endpoint", url.replace("127.0.0.1", "localhost"), "--", "true")

    assert f"ProxyCommand={proxy_command(sandbox.state.path, '198.18.0.1')}" in argv()
    assert f"{getuser()}@198.18.0.1" in argv()


def test_ssh_options_and_worker_are_passed_on(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]], face: dict[str, str]
) -> None:
    sandbox.add_node("slice", zone="us-central1-a", acceleratorType="v5litepod-16")

    _, _, code = tpuctl(
        *("ssh", "ada@slice", "--worker", "2", "-L", "6006:localhost:6006", "-R", "9:h:9", "-D", "1080", "-A"),
        *("-o", "LogLevel=ERROR", "-o", "stricthostkeychecking=no", "--ssh-flag=-C", "-t", "--", "htop"),
    )

    words = argv()
    assert code == 7
    assert "-t" in words
    given = [
        "-o",
        "LogLevel=ERROR",
        "-o",
        "stricthostkeychecking=no",
        "-C",
        "-L",
        "6006:localhost:6006",
        "-R",
        "9:h:9",
        "-D",
        "1080",
        "-A",
    ]
    assert given in [words[at : at + len(given)] for at in range(len(words))]
    # ssh uses the first value of an option.
    checks = [word for word in words if word.lower().startswith("stricthostkeychecking")]
    assert checks == ["StrictHostKeyChecking=yes", "stricthostkeychecking=no"]
    # The sandbox's own sshd accepts only the user who runs it.
    login = getuser() if "TPUCTL_SANDBOX" in face else "ada"
    assert words[-3:] == [f"{login}@198.18.0.3", "--", "htop"]


@pytest.mark.parametrize(
    ("arguments", "message", "hint", "code"),
    [
        (
            ("trainer", "--worker", "1"),
            "`trainer` has no worker 1",
            "it has one worker, number 0",
            2,
        ),
        (
            ("slice", "--worker", "9"),
            "`slice` has no worker 9",
            "it has workers 0 to 3",
            2,
        ),
        (
            ("trainer", "--", "-L", "1:h:2"),
            "`-L` after `--` is not a command",
            "put options of ssh before `--`: `tpuctl ssh trainer -L 1:h:2`",
            2,
        ),
        (
            ("trainer", "--", "-vv"),
            "`-vv` after `--` is not a command",
            "put options of ssh before `--`: `tpuctl ssh trainer --ssh-flag=-vv`",
            2,
        ),
        (
            ("slice", "--worker", "all"),
            "a shell needs a single worker",
            "choose a worker from 0 to 3 with `--worker`, or add a command: `-- COMMAND`",
            2,
        ),
        (
            ("slice", "--worker", "0,2", "-L1:h:2", "--", "ls"),
            "options of ssh, `--tmux` and `--plain` need a single worker",
            "choose a worker from 0 to 3 with `--worker`",
            2,
        ),
        (
            ("slice", "--worker", "3-", "--", "ls"),
            "`3-` is not a set of workers",
            "use worker numbers like `0` or `1,3-5`, or `all`",
            2,
        ),
        (
            ("trainer", "--ssh-flag", "other-host"),
            "`other-host` in `--ssh-flag` is not an option of ssh",
            "put the command after `--`: `-- COMMAND`",
            2,
        ),
        (
            ("trainer", "--tmux"),
            "`--tmux` needs a terminal",
            "start a job without a terminal: `tpuctl run trainer --detach -- COMMAND`",
            2,
        ),
        (
            ("trainer", "-N", "--", "ls"),
            "`-N` runs no command",
            "remove `-N`, or the command and `--tmux`",
            2,
        ),
        (
            ("trainer", "--batch-size", "none", "--", "ls"),
            "invalid value for `--batch-size`: `none` is neither a number of workers nor `all`",
            "see `tpuctl ssh --help`",
            2,
        ),
        (
            ("trainer", "--command", "ls", "--", "ls"),
            "the command is given twice",
            "use `--command LINE` or `-- COMMAND…`, not both",
            2,
        ),
        (
            ("stopped", "--", "ls"),
            "`stopped` is STOPPED: ssh cannot reach it",
            "`tpuctl up stopped` starts it",
            8,
        ),
        (
            ("nope", "--", "ls"),
            "no node `nope` in any zone of project sandbox",
            "run `tpuctl list` to see the nodes of all zones",
            3,
        ),
    ],
)
def test_invalid_options_raise_before_ssh_starts(
    tpuctl: Console,
    sandbox: Sandbox,
    argv: Callable[[], list[str]],
    *,
    arguments: tuple[str, ...],
    message: str,
    hint: str,
    code: int,
) -> None:
    sandbox.add_node("trainer")
    sandbox.add_node("slice", zone="us-central1-a", acceleratorType="v5litepod-16")
    sandbox.add_node("stopped", state="STOPPED")

    assert tpuctl("ssh", *arguments) == ("", f"error: {message}\n  hint: {hint}\n", code)
    assert (argv(), sandbox.changes()) == ([], [])


@pytest.fixture
def real(tmp_path: Path) -> Callable[..., tuple[str, str, int]]:
    """The program in a process of its own, on an embedded sandbox with one node, with the machine's own ssh."""
    folder = tmp_path / "state"
    with SandboxState.open(folder / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        administration.add_node(sandbox_state, "demo", zone="us-central1-a", acceleratorType="v5litepod-16")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(folder),
        "TPUCTL_SANDBOX": "1",
    }

    def run(*arguments: str, stdin: str = "") -> tuple[str, str, int]:
        done = run_tpuctl(arguments, env=environ, cwd=tmp_path, input=stdin, text=True)
        return done.stdout, done.stderr, done.returncode

    return run


@pytest.mark.sshd
def test_command_runs_on_a_real_sshd(real: Callable[..., tuple[str, str, int]]) -> None:
    first = real("ssh", "demo", "--", "echo hello; exit 3")
    assert first == ("hello\n", "adding our ssh key to the metadata of `demo`\n", 3)

    assert real("ssh", "demo", "--worker", "1", "--", "sh", "-c", "cat; echo 'a  b' >&2", stdin="in\n") == (
        "in\n",
        "a  b\n",
        0,
    )
    assert real("ssh", "demo", "--worker", "3", "--", "hostname")[0].endswith("-w-3\n")


@pytest.mark.sshd
def test_shell_reads_commands_from_a_pipe(real: Callable[..., tuple[str, str, int]]) -> None:
    out, err, code = real("ssh", "demo", stdin="echo in the shell\nexit 4\n")

    assert ("in the shell\n" in out, code) == (True, 4), err
