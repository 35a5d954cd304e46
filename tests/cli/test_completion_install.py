"""`tpuctl completion --install`: the line in the startup file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Console

FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/tpuctl.fish"}
INSTALLED = "bash completion is installed: open a new shell to use it\n"
LINE = 'command -v tpuctl >/dev/null && eval "$(tpuctl completion bash)"\n'


@pytest.fixture
def home(offline: Console) -> Path:
    """The user's home directory."""
    return Path(offline.environ["HOME"])


@pytest.mark.parametrize("shell", FILES)
def test_install_adds_one_line_and_only_once(offline: Console, home: Path, shell: str) -> None:
    path = home / FILES[shell]

    done = f"{shell} completion is installed: open a new shell to use it\n"
    assert offline("completion", "--install", shell) == (f"{path}\n", done, 0)
    content = path.read_text()
    assert (content.count("\n"), f"tpuctl completion {shell}" in content) == (1, True)

    assert offline("completion", shell, "--install") == (f"{path}\n", f"{shell} completion is already installed\n", 0)
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("alias ll='ls -l'\n", f"alias ll='ls -l'\n{LINE}", id="after-other-lines"),
        pytest.param("alias ll='ls -l'", f"alias ll='ls -l'\n{LINE}", id="after-a-line-without-end"),
        pytest.param(f"# {LINE}", f"# {LINE}{LINE}", id="a-comment-is-another-line"),
        pytest.param(f"  {LINE}x\n", f"  {LINE}x\n", id="it-is-there"),
    ],
)
def test_other_lines_stay(offline: Console, home: Path, before: str, after: str) -> None:
    (home / "dotfiles").write_text(before)
    (home / ".bashrc").symlink_to("dotfiles")

    assert offline("completion", "--install", "bash")[2] == 0

    assert (home / "dotfiles").read_text() == after
    assert (home / ".bashrc").is_symlink()


def test_folders_of_the_shells_are_respected(offline: Console, home: Path) -> None:
    assert offline("completion", "--install", "zsh", ZDOTDIR=f"{home}/z")[0] == f"{home}/z/.zshrc\n"
    out = offline("completion", "--install", "fish", XDG_CONFIG_HOME=f"{home}/c")[0]
    assert out == f"{home}/c/fish/completions/tpuctl.fish\n"


def test_file_that_cannot_be_written_is_an_error(offline: Console, home: Path) -> None:
    (home / ".config").touch()

    out, err, code = offline("completion", "--install", "fish")

    assert (out, code) == ("", 1)
    assert err.startswith(f"error: cannot write {home}/{FILES['fish']}: not a directory\n  hint: add the line ")


def test_startup_file_that_is_a_pipe_is_not_waited_for(offline: Console, home: Path) -> None:
    os.mkfifo(home / ".bashrc")

    assert offline("completion", "--install", "bash")[1:] == (
        f"error: {home}/.bashrc is not a file\n  hint: see what is there: `ls -ld {home}/.bashrc`\n",
        2,
    )


@pytest.mark.parametrize(
    ("words", "environ", "error"),
    [
        pytest.param((), {}, "`tpuctl completion` needs a shell", id="no-shell"),
        pytest.param(("--install", "bash"), {"HOME": ""}, "HOME is not set", id="no-home"),
        pytest.param(("--install", "bash"), {"HOME": "x"}, "HOME is not an absolute path", id="relative-home"),
        pytest.param(("--install",), {"SHELL": "/bin/tcsh"}, "your shell is unknown: `SHELL` is `/bin/tcsh`", id="other-shell"),
    ],
)  # fmt: skip
def test_wrong_command_line_is_refused(
    offline: Console, words: tuple[str, ...], environ: dict[str, str], error: str
) -> None:
    home = environ.get("HOME", offline.environ["HOME"])

    out, err, code = offline("completion", *words, HOME=home, SHELL=environ.get("SHELL", ""))

    assert (out, code) == ("", 2)
    assert error in err


def test_shell_is_that_of_the_login(offline: Console, home: Path) -> None:
    assert offline("completion", "--install", SHELL="/usr/bin/zsh")[0] == f"{home}/.zshrc\n"
