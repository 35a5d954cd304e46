"""`tpuctl sync` with faults: unreachable or broken workers, lost connections; and `--watch`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console
from tests.lifecycle import EventfulClock, said
from tests.others import interrupt
from tests.workers.sync.trees import files, git


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda work: (work / "src").symlink_to("/etc"),
            "`src` is a symlink on the worker, and no sync put it there: move it away",
        ),
        (
            lambda work: (work / "src").write_text(""),
            "`src` is a file on the worker, and no sync put it there: move it away",
        ),
        (
            lambda work: (work / "link/x").mkdir(parents=True),
            "`link` is a folder on the worker, with files that no sync put there",
        ),
    ],
)
def test_foreign_symlink_or_folder_is_not_followed(
    tpuctl: Console, workers: list[Path], tree: Path, *, make: Callable[[Path], object], why: str
) -> None:
    (workers[1] / "code").mkdir()
    make(workers[1] / "code")

    out, err, code = tpuctl("sync", "slice", "code", "--worker", "0,1")

    assert (out, code) == (said("0\t6\t45\t0\t", f"1\t-\t-\t-\t{why}"), 11)
    assert err.splitlines()[1:] == [
        "synced 6 files (45 B) to `~/code` on 1 worker in 0.0s",
        f"error: worker 1 of `slice` was not synced: {why}",
        "  hint: repeat the command: files that are already there are not sent again; on a full disk free some space first",
    ]


def test_unreachable_worker_does_not_affect_others(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    Path(f"{workers[2]}.fault").write_text("down")

    out, err, code = tpuctl("sync", "slice", "code", "-o", "name")

    assert (out, code) == (said("0", "1", "3"), 11)
    assert "synced 6 files (45 B) to `~/code` on 3 workers" in err
    assert "error: worker 2 of `slice`" in err
    assert [(home / "code").exists() for home in workers] == [True, True, False, True]


def test_worker_without_python_is_reported(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    Path(f"{workers[0]}.fault").write_text("bare")

    out, err, code = tpuctl("sync", "slice", "code", "--worker", "0,1", "-o", "yaml")

    assert out.startswith("- nodeId: slice\n  zone: us-central1-a\n  worker: 0\n  error:\n    kind: remote_failed\n")
    assert json.loads(err.splitlines()[-1])["error"]["message"] == (
        "worker 0 of `slice` was not synced: `python3` is not installed there"
    )
    assert code == 11


def test_git_tree_without_git_is_not_sent(
    tpuctl: Console, workers: list[Path], tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert tpuctl("sync", "slice", "code") == (
        "",
        f"error: `{tree}` is in a git tree, and `git` is not on PATH\n  hint: install git: it lists the files to send\n",
        1,
    )


def test_broken_connection_is_retried_without_partial_files(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    (tree / "big").write_bytes(os.urandom(700_000))
    Path(f"{workers[0]}.fault").write_text("cut")

    out, _, code = tpuctl("sync", "slice", "code", "--worker", "0")

    assert (out, code) == (said("0\t7\t700045\t0\t"), 0)
    assert (workers[0] / "code/big").read_bytes() == (tree / "big").read_bytes()
    assert not list((workers[0] / "code").glob(".tpuctl*"))


def test_full_disk_names_the_file_and_leaves_no_part(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    (tree / "big").write_bytes(os.urandom(100_000))
    Path(f"{workers[0]}.fault").write_text("full")

    out, _, code = tpuctl("sync", "slice", "code", "--worker", "0")

    assert (out, code) == (said("0\t-\t-\t-\t`big` cannot be written on the worker: file too large"), 11)
    assert not [path for path in (workers[0] / "code").rglob("*") if path.name in {"big", ".tpuctl-sync"}]


def test_watch_sends_each_change_once_and_survives_an_unreachable_worker(
    tpuctl: Console, workers: list[Path], tree: Path, clock: EventfulClock
) -> None:
    fault = Path(f"{workers[1]}.fault")

    tpuctl("sync", "slice", "code", "--worker", "0,1")
    clock.after(timedelta(seconds=5), lambda: (tree / "src/train.py").write_text("print(22)\n"))
    clock.after(timedelta(seconds=20), lambda: fault.write_text("down"))
    clock.after(timedelta(seconds=20), lambda: (tree / "src/train.py").write_text("print(333)\n"))
    clock.after(timedelta(seconds=60), fault.unlink)
    clock.after(timedelta(seconds=90), interrupt)

    out, err, code = tpuctl("sync", "slice", "code", "--worker", "0,1", "--watch", TZ="UTC")

    lines = [line.partition(" ")[2] if line[0].isdigit() else line for line in err.splitlines()]
    assert (out, code) == ("", 130)
    assert lines[:3] == [
        "no changes: `~/code` on 2 workers, up to date",
        "synced 1 file (10 B) to `~/code` on 2 workers in 0.0s",
        "synced 1 file (11 B) to `~/code` on 1 worker in 1.0s",
    ]
    assert lines[3].startswith("warning: worker 1 of `slice`: ")
    assert lines[4:6] == [
        "synced 1 file (11 B) to `~/code` on 1 worker in 0.0s",
        "warning: interrupted: changes are no longer synced",
    ]
    assert [(home / "code/src/train.py").read_text() for home in workers[:2]] == ["print(333)\n"] * 2


def test_folder_without_git_is_sent_completely_with_a_note(tpuctl: Console, workers: list[Path]) -> None:
    plain = tpuctl.folder / "plain"
    (plain / "inner/.git").mkdir(parents=True)
    (plain / "empty").mkdir()
    shutil.rmtree(plain / "inner/.git")
    git(plain, "init", "-q", "inner")
    for name in ("a", "inner/b", "inner/secret"):
        (plain / name).write_text(name)
    (plain / "inner/.gitignore").write_text("secret\n")
    os.mkfifo(plain / "pipe")

    _, err, code = tpuctl("sync", "slice", "plain", "--worker", "0", "--to", f"{tpuctl.environ['HOME']}/x")

    assert code == 0
    assert err.splitlines()[:2] == [
        f"`{plain}` is not in a git tree: sending all its files; run `git init` to use .gitignore",
        "`pipe` is neither a file nor a symlink: skipped",
    ]
    assert files(workers[0] / "x") == {"a": "a", "inner/b": "inner/b", "inner/.gitignore": "secret\n"}
