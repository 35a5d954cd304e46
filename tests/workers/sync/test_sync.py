"""`tpuctl sync`: which files are sent, skipped and deleted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import said
from tests.tpuctl_process import run_tpuctl
from tests.workers.sync.trees import files
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState


def test_sync_sends_tracked_and_untracked_files_once(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    expected = {
        ".gitignore": "*.key\n/out/\n",
        "link": "-> /etc/passwd",
        "new\nline": "untracked",
        "run me.sh": "#!/bin/sh\n*",
        "src/train.py": "print(1)\n",
        "\udcff": "bytes",
    }

    out, err, code = tpuctl("sync", "slice", "code")

    assert (out, code) == (said(*(f"{number}\t6\t45\t0\t" for number in range(4))), 0)
    assert err == said(
        "adding our ssh key to the metadata of `slice`", "synced 6 files (45 B) to `~/code` on 4 workers in 0.0s"
    )
    assert [files(home / "code") for home in workers] == [expected] * 4
    sent, here = (workers[3] / "code/src/train.py").stat(), (tree / "src/train.py").stat()
    assert (sent.st_mtime_ns, sent.st_mode) == (here.st_mtime_ns, here.st_mode)
    assert tpuctl("sync", "slice", "code") == (
        said(*(f"{number}\t0\t0\t0\t" for number in range(4))),
        said("no changes: `~/code` on 4 workers, up to date"),
        0,
    )


def test_sync_sends_only_changes_and_sets_new_times(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    tpuctl("sync", "slice", "code", "--worker", "0")
    (tree / "src/train.py").write_text("print(2)\n")
    os.utime(tree / "run me.sh")
    (tree / ".gitignore").chmod(0o600)

    out, err, code = tpuctl("sync", "slice", "code", "--worker", "0", "-o", "json")

    assert (err, code) == (said("synced 1 file (9 B) to `~/code` on 1 worker in 0.0s"), 0)
    assert json.loads(out) == [
        {
            "nodeId": "slice", "zone": "us-central1-a", "worker": 0, "folder": str(workers[0] / "code"),
            "sent": ["src/train.py"], "bytes": 9, "adjusted": 2, "deleted": [], "kept": [], "replaced": [],
            "sandbox": True,
        }
    ]  # fmt: skip
    assert tpuctl("sync", "slice", "code", "--worker", "0")[1] == said("no changes: `~/code` on 1 worker, up to date")


def test_delete_removes_only_synced_files(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    (tree / "data").mkdir()
    for name in ("data/old", "mine"):
        (tree / name).write_text("v1")
    tpuctl("sync", "slice", "code", "--worker", "0,1")
    for home in workers[:2]:
        (home / "code/checkpoint").write_text("hours of work")
    (workers[1] / "code/mine").write_text("edited there")
    shutil.rmtree(tree / "data")
    (tree / "mine").unlink()

    assert tpuctl("sync", "slice", "code", "--worker", "0,1")[1] == said(
        "no changes: `~/code` on 2 workers, up to date"
    )
    before = files(workers[0])
    out, err, code = tpuctl("sync", "slice", "code", "--worker", "0,1", "--delete", "--dry-run")
    kept = "not deleted on worker 1, because changed there since the last sync: `mine`"
    assert (out, err, code) == (
        said("delete\tdata/old\tall", "delete\tmine\t0"),
        said(kept, "would delete 2 files"),
        0,
    )
    planned = json.loads(tpuctl("sync", "slice", "code", "--worker", "0,1", "--delete", "--dry-run", "-o", "json")[0])
    assert [(one["deleted"], one["kept"], one["dryRun"]) for one in planned] == [
        (["data/old", "mine"], [], True), (["data/old"], ["mine"], True)
    ]  # fmt: skip
    assert files(workers[0]) == before

    out, err, code = tpuctl("sync", "slice", "code", "--worker", "0,1", "--delete")

    assert (out, code) == (said("0\t0\t0\t2\t", "1\t0\t0\t1\t1 kept"), 0)
    assert err == said(kept, "deleted 2 files in 0.0s")
    assert [sorted(path.name for path in (home / "code").iterdir()) for home in workers[:2]] == [
        sorted([".gitignore", "checkpoint", "link", "new\nline", "run me.sh", "src", "\udcff"]),
        sorted([".gitignore", "checkpoint", "link", "mine", "new\nline", "run me.sh", "src", "\udcff"]),
    ]


def test_replaced_foreign_file_is_backed_up(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    (workers[0] / "code/src").mkdir(parents=True)
    (workers[0] / "code/src/train.py").write_text("written there")

    _, err, code = tpuctl("sync", "slice", "code", "--worker", "0,1")

    assert code == 0
    assert err.splitlines()[1:] == [
        "replaced on worker 0, though not from a sync or changed since: `src/train.py`",
        "  the old files are kept on the worker, below ~/.tpuctl/sync",
        "synced 6 files (45 B) to `~/code` on 2 workers in 0.0s",
    ]
    assert (workers[0] / "code/src/train.py").read_text() == "print(1)\n"
    copies = (workers[0] / ".tpuctl/sync").glob("*.replaced/src/train.py")
    assert [copy.read_text() for copy in copies] == ["written there"]

    # A later copy may need the place of an older one for its folder.
    for folder in (workers[0] / "code", tree):
        (folder / "src/train.py").unlink()
        (folder / "src/train.py").mkdir()
        (folder / "src/train.py/x").write_text(f"in {folder.parent.name}")
    assert tpuctl("sync", "slice", "code", "--worker", "0")[2] == 0
    copies = (workers[0] / ".tpuctl/sync").glob("*.replaced*/src/train.py*")
    assert sorted(path.read_text() if path.is_file() else (path / "x").read_text() for path in copies) == [
        "in 198.18.0.1",
        "written there",
    ]


def test_files_folders_and_symlinks_replace_each_other(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    for name in ("one/a", "one/deep/b"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    (tree / "two").write_text("two")
    (tree / "three").symlink_to("/nowhere")
    tpuctl("sync", "slice", "code", "--worker", "0")
    shutil.rmtree(tree / "one")
    (tree / "one").write_text("a file now")
    for name in ("two", "three"):
        (tree / name).unlink()
        (tree / name).mkdir()
        (tree / name / "inside").write_text(name)

    assert tpuctl("sync", "slice", "code", "--worker", "0", "--delete")[2] == 0

    found = files(workers[0] / "code")
    assert {name: found[name] for name in found if name.startswith(("one", "t"))} == {
        "one": "a file now",
        "three/inside": "three",
        "two/inside": "two",
    }


def test_sync_by_label_syncs_all_nodes_and_prints_a_table(
    tpuctl: Console, workers: list[Path], tree: Path, sandbox: Sandbox
) -> None:
    for name in ("a", "b"):
        sandbox.add_node(name, labels={"team": "vision"}, metadata={})

    out, err, code = tpuctl(
        "sync", "-l", "team=vision", "code", "--to", "~/deep/er", terminal=True, stdin="", NO_COLOR="1"
    )

    assert (out, code) == (
        said("WORKER  SENT  SIZE  DELETED  NOTE", "a-0     6     45 B  0", "b-0     6     45 B  0"),
        0,
    )
    assert err.splitlines()[-2:] == [
        "synced 6 files (45 B) to `~/deep/er` on 2 workers in 0.0s",
        "  run there: `tpuctl run -l team=vision --workdir '~/deep/er' -- COMMAND`",
    ]
    homes = (workers[0].parent / "198.18.0.5", workers[0].parent / "198.18.0.6")
    assert [(home / "deep/er/src/train.py").read_text() for home in homes] == ["print(1)\n"] * 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "no node is named\n  hint: use `tpuctl sync NODE [DIR]`, or `-l KEY=VALUE` for several nodes"),
        (("slice", "nope"), "no such folder: `FOLDER/nope`\n  hint: choose several nodes with `-l KEY=VALUE`"),
        (("slice", "code/run me.sh"), "`FOLDER/code/run me.sh` is not a folder\n  hint: use the folder that contains it"),
        (("slice", "HOME"), "`HOME` is not a git tree, so it is not synced as a whole\n  hint: sync a folder in it"),
        (("slice", "code/out"), "`FOLDER/code/out` has no files to send: git tracks no file in it, and ignores the others"),
        (
            ("slice", "code", "more"),
            (
                "`tpuctl sync` takes one folder\n  hint: use `tpuctl sync NODE [DIR]`, or "
                "`tpuctl sync -l KEY=VALUE [DIR]` for several nodes"
            ),
        ),
        (
            ("slice", "code", "--watch", "--dry-run"),
            "`--watch` and `--dry-run` exclude each other\n  hint: remove one of them",
        ),
        (("slice", "code", "--to", " "), "`--to` is empty\n  hint: use a path on the workers: `--to '~/code'`"),
        (("slice", "code", "--worker", "7"), "`slice` has no worker 7\n  hint: it has workers 0 to 3"),
    ],
)  # fmt: skip
def test_invalid_arguments_raise_before_sending(
    tpuctl: Console, workers: list[Path], tree: Path, *, arguments: tuple[str, ...], error: str
) -> None:
    (tree / "out").mkdir()
    (tree / "out/x").write_text("")
    home = tpuctl.environ["HOME"]
    words = [home if word == "HOME" else word for word in arguments]

    assert tpuctl("sync", *words) == (
        "",
        f"error: {error.replace('FOLDER', str(tpuctl.folder)).replace('HOME', home)}\n",
        2,
    )
    assert [list(home.iterdir()) for home in workers] == [[]] * 4


@pytest.mark.sshd
def test_tree_reaches_real_workers_through_real_ssh(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with SandboxState.open(state / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        administration.add_node(sandbox_state, "demo", zone="us-central1-a", acceleratorType="v5litepod-16")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('trained')\n")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(state),
        "TPUCTL_SANDBOX": "1",
    }

    def run(*arguments: str) -> tuple[str, int]:
        done = run_tpuctl(arguments, env=environ, cwd=tmp_path, text=True)
        return done.stdout, done.returncode

    assert run("sync", "demo", "code", "--worker", "1,3") == ("1\t1\t17\t0\t\n3\t1\t17\t0\t\n", 0)
    there = sorted((state / "sandbox/workers").glob("**/code/train.py"))
    assert [(path.parts[-3], path.read_text()) for path in there] == [
        ("1", "print('trained')\n"),
        ("3", "print('trained')\n"),
    ]
