"""Rare cases of a sync: names outside of the folder, files that change meanwhile, the quoting of rsync."""

from __future__ import annotations

import json
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.workers.sync.trees import git
from tpuctl.errors import TpuctlError
from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.agent.sync_tree import END, HEAD, SIZE, TREE_MARK
from tpuctl.ssh.connection import Connection
from tpuctl.workers.file_tree import FileTree, TreeContents, TreeEntry, read_tree
from tpuctl.workers.syncing import rsync_argv


def start(home: Path, *names: str) -> subprocess.Popen[bytes]:
    """Start the program of the worker, and ask it for these files."""
    line, source = bootstrap("sync_tree", "main()")
    process = subprocess.Popen(
        ["sh", "-c", line],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    request = {"folder": "x", "delete": False, "dry_run": False, "token": "t"}
    say(process, request | {"entries": [TreeEntry(name, 0o644, 1, 1, None) for name in names]}, before=source)
    return process


def say(process: subprocess.Popen[bytes], value: dict[str, Any], *, before: bytes = b"") -> None:
    text = zlib.compress(json.dumps(value).encode())
    assert process.stdin
    process.stdin.write(before + struct.pack(">Q", len(text)) + text)
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout
    return json.loads(process.stdout.read(struct.unpack(">Q", process.stdout.read(8))[0]))


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "a//b", "./a", "", "a\0b"])
def test_worker_rejects_a_name_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    with start(tmp_path, "fine", name) as process:
        assert process.stdout
        assert process.stdout.read(len(TREE_MARK)) == TREE_MARK
        assert hear(process) == {"error": f"`{name}` leads out of the folder"}
    assert list((tmp_path / "x").iterdir()) == []


def test_retry_stops_the_program_of_the_first_attempt(tmp_path: Path) -> None:
    with start(tmp_path, "a") as first:
        assert first.stdout
        first.stdout.read(len(TREE_MARK))
        hear(first)
        with start(tmp_path, "a") as second:
            assert second.stdout
            second.stdout.read(len(TREE_MARK))
            assert hear(second)["send"] == [0]
            assert first.wait(5) < 0
            say(second, {"send": [0], "link": [], "touch": [], "foreign": [], "rsync": False})
            second.communicate(
                HEAD.pack(0, 0o600, 7) + SIZE.pack(1) + b"!" + SIZE.pack(0) + b"\1" + HEAD.pack(END, 0, 0)
            )
    assert (tmp_path / "x/a").read_text() == "!"


def test_changing_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"a" * 1_000_000)
    contents = TreeContents(read_tree(tmp_path))

    pieces = contents.stream([0])
    read = next(pieces)
    (tmp_path / "big").write_bytes(b"b" * 500_000)
    read += b"".join(pieces)

    # The last of it is the new file and its end.
    blocks = [SIZE.pack(size) + b"b" * size for size in (262144, 500_000 - 262144)]
    status = (tmp_path / "big").stat()
    head = HEAD.pack(0, status.st_mode & 0o777, status.st_mtime_ns)
    assert read.endswith(SIZE.pack(0) + b"\0" + head + b"".join(blocks) + SIZE.pack(0) + b"\1" + HEAD.pack(END, 0, 0))
    assert contents.unreadable == {}


def test_new_symlink_is_not_followed_and_deleted_file_is_skipped(tmp_path: Path) -> None:
    for name in ("gone", "link"):
        (tmp_path / name).write_text(name)
    contents = TreeContents(read_tree(tmp_path))
    for name in ("gone", "link"):
        (tmp_path / name).unlink()
    (tmp_path / "link").symlink_to("/etc/passwd")

    assert b"".join(contents.stream([0, 1])) == HEAD.pack(END, 0, 0)
    assert contents.unreadable == {"link": "too many levels of symbolic links"}


def test_rsync_argv_quotes_ssh_for_rsync() -> None:
    way = Connection("ada", "fd00::1", "tpu.1-0", (Path("/a b/k"), Path("/g")), Path("/key"), "it's 'so'")

    found = rsync_argv(way, FileTree(Path("/my tree"), ()), "/home/ada/x y", options=("-o", "ControlMaster=auto"))

    assert found[-2:] == ["/my tree/", "ada@[fd00::1]:/home/ada/x y/"]
    shell = found[found.index("-e") + 1]
    assert shell.startswith("'ssh' '-T' '-o' 'IdentityFile=\"/key\"'")
    assert '\'UserKnownHostsFile="/a b/k" "/g"\'' in shell
    assert "'ProxyCommand=it''s ''so'''" in shell
    assert "'BatchMode=yes' '-o' 'ControlMaster=auto'" in shell


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
