"""Completion in real shells: installed as a user does it, then typed at a terminal."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.shell_session import ShellSession
from tests.conftest import Console
from tpuctl.app.seen_jobs import note_seen_jobs
from tpuctl.app.state_paths import journal_folder
from tpuctl.clock import ManualClock
from tpuctl.names import NodeName
from tpuctl.nodes.journal import Journal

# What is typed before Tab, and the line after it.
CASES = {
    "tpuctl up --ty": "tpuctl up --type ",
    "tpuctl up demo --zone=us-central2-": "tpuctl up demo --zone=us-central2-b ",
    "tpuctl scp tr": "tpuctl scp trainer:",
    "tpuctl logs trainer ni": "tpuctl logs trainer nightly ",
    "tpuctl run trainer --log-dir=lo": "tpuctl run trainer --log-dir=logs/",
}


# The startup file of Debian's users.
DEBIAN = "[ -r /usr/share/bash-completion/bash_completion ] && . /usr/share/bash-completion/bash_completion\n"


@pytest.mark.parametrize(
    ("shell", "bashrc"),
    [
        pytest.param("bash", DEBIAN, id="bash"),
        pytest.param("bash", "alias ll='ls -l'\n", id="bash that does not load bash-completion"),
        pytest.param("zsh", "", id="zsh"),
        pytest.param("fish", "", id="fish"),
    ],
)
def test_installed_completion_works_at_a_terminal(offline: Console, tmp_path: Path, shell: str, bashrc: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    node = NodeName("acme", "us-central2-b", "trainer")
    Journal(journal_folder(offline.environ, sandbox=False)).append(node, "create", ManualClock().now())
    note_seen_jobs(offline.environ, [node], ["nightly"])
    (tmp_path / "project" / "logs").mkdir()
    (tmp_path / "home" / ".bashrc").write_text(bashrc)
    assert offline("completion", "--install", shell)[2] == 0

    environ = {**offline.environ, "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}
    with ShellSession(shell, environ=environ, folder=tmp_path / "project") as session:
        assert {text: session.complete(text) for text in CASES} == CASES
