"""Rare cases of a sync: names outside of the folder, files that change meanwhile, the quoting of rsync."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import frame
from tests.workers.sync.trees import git
from tpuctl.errors import TpuctlError
from tpuctl.ssh.agent.link import AGENT_MARK
from tpuctl.ssh.agent.tar_stream import END_OF_TAR, FileEntry, member_head, pack
from tpuctl.ssh.channel import bootstrap
from tpuctl.workers.file_tree import read_tree


def start(home: Path, *names: str, size: int = 1) -> subprocess.Popen[bytes]:
    """Start the program of the worker, and ask it for these files."""
    request = {"folder": "x", "delete": False, "dry_run": False, "token": "t"}
    words, source = bootstrap("sync_tree", f"run_agent(serve_sync_tree, {request!r})")
    process = subprocess.Popen(
        ["sh", "-c", words],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(source)
    process.stdin.flush()
    assert process.stdout.read(len(AGENT_MARK)) == AGENT_MARK
    assert hear(process) is None
    say(process, [FileEntry(name, 0o100644, size, 1) for name in names])
    return process


def say(process: subprocess.Popen[bytes], *values: Any) -> None:
    """Send values; bytes are those of a tar stream."""
    assert process.stdin
    for value in values:
        process.stdin.write(value if isinstance(value, bytes) else frame(b"g", json.dumps(value).encode()))
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout
    head = process.stdout.read(5)
    return json.loads(process.stdout.read(int.from_bytes(head[1:], "big")))


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "a//b", "./a", "", "a\0b"])
def test_worker_rejects_a_name_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    with start(tmp_path, "fine", name) as process:
        assert hear(process) == {"refused": ["refused", f"`{name}` leads out of the folder"]}
    assert list((tmp_path / "x").iterdir()) == []


def test_retry_stops_the_program_of_the_first_attempt(tmp_path: Path) -> None:
    entry = FileEntry("a", 0o100600, 1000, 10**9)
    with start(tmp_path, "a", size=1000) as first:
        hear(first)
        say(first, [], member_head(entry) + b"x" * 500)
        while not (tmp_path / "x/.tpuctl-sync/0").exists():
            assert first.poll() is None
        with start(tmp_path, "a", size=1000) as second:
            hear(second)
            assert first.wait(5) < 0
            say(second, [], member_head(entry) + b"y" * 1000 + bytes(24) + END_OF_TAR, [])
            assert hear(second) == {"bytes": 1000, "deleted": [], "replaced": []}
    assert (tmp_path / "x/a").read_text() == "y" * 1000
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["a"]


def test_lost_client_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    with start(tmp_path, "a", "b") as process:
        hear(process)
        say(process, [], member_head(FileEntry("a", 0o100600, 1, 0)) + b"x" + bytes(511))
        assert process.stdin
        process.stdin.close()
        assert process.wait(5) == 0
    assert list((tmp_path / "x").iterdir()) == []


def test_changed_file_is_sent_as_it_is_now(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"a" * 1_000_000)
    tree = read_tree(tmp_path)
    (tmp_path / "big").write_bytes(b"b" * 500_000)
    problems: dict[str, str] = {}

    data = b"".join(data for data, _ in pack([(tree.path(0), tree.entries[0])], problems, follow=False, exact=True))

    status = (tmp_path / "big").stat()
    assert data == (
        member_head(FileEntry("big", status.st_mode, 500_000, status.st_mtime_ns), exact=True)
        + b"b" * 500_000
        + bytes(-500_000 % 512)
    )
    assert problems == {}


def test_new_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").write_text("link")
    tree = read_tree(tmp_path)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/etc/passwd")
    problems: dict[str, str] = {}

    assert list(pack([(tree.path(0), tree.entries[0])], problems, follow=False)) == []
    assert problems == {"link": f"`{tmp_path}/link`: too many levels of symbolic links"}


@pytest.mark.parametrize("place", ["the tree's own configuration", "a bare repository inside"])
def test_git_runs_no_program_named_by_a_tree(tmp_path: Path, place: str) -> None:
    """A clone brings no `.git/config`, but an archive does; and a folder of a clone may look like a bare repository."""
    tree, evil, trace = tmp_path / "tree", tmp_path / "evil", tmp_path / "trace"
    tree.mkdir()
    evil.write_text(f"#!/bin/sh\ntouch {trace}\n")
    evil.chmod(0o755)
    git(tree, "init")
    (tree / "train.py").write_text("x")
    if place.startswith("a bare"):
        inside = tree / "data"
        git(tree, "init", "--bare", str(inside))
        for key, value in (("core.bare", "false"), ("core.worktree", str(inside)), ("core.fsmonitor", str(evil))):
            git(tree, "config", "--file", str(inside / "config"), key, value)
        with pytest.raises(TpuctlError, match="cannot use bare repository"):
            read_tree(inside)
    else:
        git(tree, "config", "core.fsmonitor", str(evil))

    assert "train.py" in [entry.path for entry in read_tree(tree).entries]
    assert not trace.exists()


@pytest.mark.parametrize("is_git_tree", [True, False], ids=["a git tree", "no git tree"])
def test_credentials_of_this_machine_are_never_sent(tmp_path: Path, is_git_tree: bool) -> None:
    """google-github-actions/auth writes its file into the checkout; workers run what anyone put on them."""
    (tmp_path / "keys").mkdir()
    for name in ("train.py", "gha-creds-0123abc.json", "keys/gha-creds-f.json", "keys/ci.json", "keys/data.json"):
        (tmp_path / name).write_text("{}")
    if is_git_tree:
        git(tmp_path, "init")
        git(tmp_path, "add", "keys")

    tree = read_tree(tmp_path, {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "keys/ci.json")})

    assert sorted(entry.path for entry in tree.entries) == ["keys/data.json", "train.py"]
    assert sorted(note for note in tree.notes if "contains the credentials" in note) == [
        f"`{name}` contains the credentials of this machine: skipped"
        for name in ("gha-creds-0123abc.json", "keys/ci.json", "keys/gha-creds-f.json")
    ]
