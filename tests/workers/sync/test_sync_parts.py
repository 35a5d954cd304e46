"""Rare cases of a sync: names outside of the folder, files that change meanwhile, the quoting of rsync."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import frame
from tests.workers.sync.trees import git
from tpuctl.errors import TpuctlError
from tpuctl.ssh.agent.file_stream import BLOCK, REPEATED, FileEntry, Stream
from tpuctl.ssh.agent.link import AGENT_MARK
from tpuctl.ssh.channel import FrameDecoder, WorkerFrame, bootstrap
from tpuctl.ssh.connection import Connection
from tpuctl.workers.file_tree import FileTree, read_tree
from tpuctl.workers.syncing import rsync_argv


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
    """Send values; bytes are those of a file."""
    assert process.stdin
    for value in values:
        is_block = isinstance(value, bytes)
        process.stdin.write(frame(b"i" if is_block else b"g", value if is_block else json.dumps(value).encode()))
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


def test_retry_stops_the_program_of_the_first_attempt_and_resumes(tmp_path: Path) -> None:
    part = tmp_path / "x/.tpuctl-sync" / FileEntry("a", 0, BLOCK + 1, 1).part.decode()
    with start(tmp_path, "a", size=BLOCK + 1) as first:
        hear(first)
        say(first, [[], []])
        say(first, ["a", 0o100600, BLOCK + 1, 1, None, 0, None])
        say(first, b"x" * BLOCK)
        while not part.exists() or part.stat().st_size < BLOCK:
            assert first.poll() is None
        part.write_bytes(b"y" * BLOCK)
        kept = BLOCK - REPEATED
        with start(tmp_path, "a", size=BLOCK + 1) as second:
            assert hear(second)["parts"] == [[0, kept, hashlib.blake2b(b"y" * kept, digest_size=16).hexdigest()]]
            assert first.wait(5) < 0
            say(second, [[], []])
            say(second, ["a", 0o100600, BLOCK + 1, 1, None, kept, None])
            say(second, b"z" * REPEATED + b"!", None, None)
            assert hear(second) == {"bytes": BLOCK + 1, "deleted": [], "replaced": []}
    assert (tmp_path / "x/a").read_text() == "y" * kept + "z" * REPEATED + "!"
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["a"]


def sent(tree: FileTree, number: int, offset: int = 0) -> tuple[list[Any], bytes, str | None]:
    """Send a file; return what comes before its bytes, these bytes, and why it is not whole."""
    with tempfile.TemporaryFile() as output:
        stream = Stream(io.BufferedReader(io.BytesIO()), output.fileno())
        problem = stream.send_file(tree.path(number), tree.entries[number], offset, follow=False)
        output.seek(0)
        frames = FrameDecoder(2 << 20).feed(AGENT_MARK + output.read())
    head = json.loads(frames[0][1])
    return head, b"".join(data for kind, data in frames if kind is WorkerFrame.OUT), problem


def test_changed_file_is_sent_as_it_is_now(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"a" * 1_000_000)
    tree = read_tree(tmp_path)
    (tmp_path / "big").write_bytes(b"b" * 500_000)

    head, rest, problem = sent(tree, 0, 100)

    status = (tmp_path / "big").stat()
    assert head == ["big", status.st_mode, 500_000, status.st_mtime_ns, None, 0, None]
    assert (rest, problem) == (b"b" * 500_000, None)


def test_new_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").write_text("link")
    tree = read_tree(tmp_path)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/etc/passwd")

    head, rest, problem = sent(tree, 0)

    why = "too many levels of symbolic links"
    assert (head[5:], rest, problem) == ([0, f"`{tmp_path}/link`: {why}"], b"", why)


def test_rsync_argv_quotes_ssh_for_rsync() -> None:
    way = Connection("ada", "fd00::1", "tpu.1-0", (Path("/a b/k"), Path("/g")), Path("/key"), "it's 'so'")

    found = rsync_argv(way, FileTree(Path("/my tree"), ()), "/home/ada/x y", options=("-o", "ControlMaster=auto"))

    assert found[-2:] == ["/my tree/", "ada@[fd00::1]:/home/ada/x y/.tpuctl-sync/rsync/"]
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
