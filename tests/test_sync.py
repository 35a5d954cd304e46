"""`tpuctl sync`: what reaches the workers, what never does, what is deleted there, and what becomes of it when links break."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import EventfulClock, said
from tpuctl.sandbox import admin
from tpuctl.sandbox.world import World

needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")

# Runs what it is asked for on this machine, in a home for each address. A file beside the home says what goes wrong.
_SSH = r"""
for word do
    case $word in *@198.18.0.* | 198.18.0.*) [ "${address-}" ] || address=${word##*@} ;; esac
    last=$word
done
home='WORKERS'/$address
case $(cat "$home.fault" 2>/dev/null) in
    down) echo "ssh: connect to host $address port 22: Connection refused" >&2; exit 255 ;;
    cut) rm "$home.fault"; head -c 200000 | HOME=$home sh -c "$last"
         echo "client_loop: send disconnect: Broken pipe" >&2; exit 255 ;;
    bare) exit 127 ;;
    full) ulimit -f 20 ;;
    noisy) echo Welcome; case $* in *"rsync --server"*) exit 12 ;; esac ;;
esac
mkdir -p "$home"
cd "$home"
export HOME=$home
case $* in *"rsync --server"*) exec sh -c "rsync --server${*##*rsync --server}" ;; esac
exec sh -c "$last"
"""


@pytest.fixture
def face() -> dict[str, str]:
    """The embedded sandbox: how it is reached makes no difference here."""
    return {"TPUCTL_SANDBOX": "1"}


@pytest.fixture
def clock() -> EventfulClock:
    return EventfulClock()


@pytest.fixture
def workers(tmp_path: Path, fake_ssh: Callable[[str], None], sandbox: Sandbox) -> list[Path]:
    """The homes of a slice's four workers."""
    fake_ssh(_SSH.replace("WORKERS", str(tmp_path / "workers")))
    sandbox.add_node("slice", zone="us-central1-a", acceleratorType="v5litepod-16")
    homes = [tmp_path / "workers" / f"198.18.0.{number}" for number in (1, 2, 3, 4)]
    for home in homes:
        home.mkdir(parents=True)
    return homes


@pytest.fixture
def tree(tpuctl: Console) -> Path:
    """A git tree with what git trees have."""
    folder = tpuctl.folder / "work"
    (folder / "src").mkdir(parents=True)
    git(folder, "init", "-q")
    for name, text in {
        "src/train.py": "print(1)\n",
        "run me.sh": "#!/bin/sh\n",
        "gone": "",
        ".gitignore": "*.key\n/out/\n",
        "id.key": "secret",
    }.items():
        (folder / name).write_text(text)
    (folder / "run me.sh").chmod(0o755)
    (folder / "link").symlink_to("/etc/passwd")
    git(folder, "add", ".")
    (folder / "gone").unlink()
    (folder / "new\nline").write_text("untracked")
    Path(os.fsdecode(bytes(folder) + b"/\xff")).write_text("bytes")
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def files(folder: Path) -> dict[str, str]:
    """Return what a folder holds: contents, targets of symlinks, and a star for what can be run."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_text() + ("*" if path.stat().st_mode & 0o100 else "")
    return found


def test_what_git_has_or_would_take_arrives_everywhere_and_only_once(
    tpuctl: Console, workers: list[Path], tree: Path
) -> None:
    expected = {
        ".gitignore": "*.key\n/out/\n",
        "link": "-> /etc/passwd",
        "new\nline": "untracked",
        "run me.sh": "#!/bin/sh\n*",
        "src/train.py": "print(1)\n",
        "\udcff": "bytes",
    }

    out, err, code = tpuctl("sync", "slice", "work")

    assert (out, code) == (said(*(f"{number}\t6\t45\t0\t" for number in range(4))), 0)
    assert err == said("adding our ssh key to the metadata of `slice`", "synced 6 files (45 B) to 4 workers in 0.0s")
    assert [files(home / "work") for home in workers] == [expected] * 4
    sent, here = (workers[3] / "work/src/train.py").stat(), (tree / "src/train.py").stat()
    assert (sent.st_mtime_ns, sent.st_mode) == (here.st_mtime_ns, here.st_mode)
    assert tpuctl("sync", "slice", "work") == (
        said(*(f"{number}\t0\t0\t0\t" for number in range(4))),
        said("nothing changed: 4 workers had it all"),
        0,
    )


def test_only_what_differs_goes_and_a_new_time_alone_is_but_set(
    tpuctl: Console, workers: list[Path], tree: Path
) -> None:
    tpuctl("sync", "slice", "work", "--worker", "0")
    (tree / "src/train.py").write_text("print(2)\n")
    os.utime(tree / "run me.sh")
    (tree / ".gitignore").chmod(0o600)

    out, err, code = tpuctl("sync", "slice", "work", "--worker", "0", "-o", "json")

    assert (err, code) == (said("synced 1 file (9 B) to 1 worker in 0.0s"), 0)
    assert json.loads(out) == [
        {
            "nodeId": "slice", "zone": "us-central1-a", "worker": 0, "folder": str(workers[0] / "work"),
            "sent": ["src/train.py"], "bytes": 9, "adjusted": 2, "deleted": [], "kept": [], "replaced": [],
            "via": "ssh", "sandbox": True,
        }
    ]  # fmt: skip
    assert tpuctl("sync", "slice", "work", "--worker", "0")[1] == said("nothing changed: 1 worker had it all")


def test_delete_takes_away_what_a_sync_put_there_and_nothing_else(
    tpuctl: Console, workers: list[Path], tree: Path
) -> None:
    (tree / "data").mkdir()
    for name in ("data/old", "mine"):
        (tree / name).write_text("v1")
    tpuctl("sync", "slice", "work", "--worker", "0,1")
    for home in workers[:2]:
        (home / "work/checkpoint").write_text("hours of work")
    (workers[1] / "work/mine").write_text("edited there")
    shutil.rmtree(tree / "data")
    (tree / "mine").unlink()

    assert tpuctl("sync", "slice", "work", "--worker", "0,1")[1] == said("nothing changed: 2 workers had it all")
    before = files(workers[0])
    out, err, code = tpuctl("sync", "slice", "work", "--worker", "0,1", "--delete", "--dry-run")
    kept = "changed on worker 1 since a sync put it there, so not deleted: `mine`"
    assert (out, err, code) == (
        said("delete\tdata/old\tall", "delete\tmine\t0"),
        said(kept, "would delete 2 files"),
        0,
    )
    assert files(workers[0]) == before

    out, err, code = tpuctl("sync", "slice", "work", "--worker", "0,1", "--delete")

    assert (out, code) == (said("0\t0\t0\t2\t", "1\t0\t0\t1\t1 kept"), 0)
    assert err == said(kept, "deleted 2 files in 0.0s")
    assert [sorted(path.name for path in (home / "work").iterdir()) for home in workers[:2]] == [
        sorted([".gitignore", "checkpoint", "link", "new\nline", "run me.sh", "src", "\udcff"]),
        sorted([".gitignore", "checkpoint", "link", "mine", "new\nline", "run me.sh", "src", "\udcff"]),
    ]


def test_a_copy_is_kept_of_what_a_worker_had_of_its_own(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    (workers[0] / "work/src").mkdir(parents=True)
    (workers[0] / "work/src/train.py").write_text("written there")

    _, err, code = tpuctl("sync", "slice", "work", "--worker", "0,1")

    assert code == 0
    assert err.splitlines()[1:] == [
        "replaced on worker 0, where no sync had put it or it was changed since: `src/train.py`",
        "  copies of what was there are kept on the worker, below ~/.tpuctl/sync",
        "synced 6 files (45 B) to 2 workers in 0.0s",
    ]
    assert (workers[0] / "work/src/train.py").read_text() == "print(1)\n"
    copies = (workers[0] / ".tpuctl/sync").glob("*.replaced/src/train.py")
    assert [copy.read_text() for copy in copies] == ["written there"]


def test_files_folders_and_symlinks_take_each_others_places(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    for name in ("one/a", "one/deep/b"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    (tree / "two").write_text("two")
    (tree / "three").symlink_to("/nowhere")
    tpuctl("sync", "slice", "work", "--worker", "0")
    shutil.rmtree(tree / "one")
    (tree / "one").write_text("a file now")
    for name in ("two", "three"):
        (tree / name).unlink()
        (tree / name).mkdir()
        (tree / name / "inside").write_text(name)

    assert tpuctl("sync", "slice", "work", "--worker", "0", "--delete")[2] == 0

    found = files(workers[0] / "work")
    assert {name: found[name] for name in found if name.startswith(("one", "t"))} == {
        "one": "a file now",
        "three/inside": "three",
        "two/inside": "two",
    }


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
def test_nothing_goes_through_what_no_sync_put_there(
    tpuctl: Console, workers: list[Path], tree: Path, *, make: Callable[[Path], object], why: str
) -> None:
    (workers[1] / "work").mkdir()
    make(workers[1] / "work")

    out, err, code = tpuctl("sync", "slice", "work", "--worker", "0,1")

    assert (out, code) == (said("0\t6\t45\t0\t", f"1\t-\t-\t-\t{why}"), 11)
    assert err.splitlines()[1:] == [
        "synced 6 files (45 B) to 1 worker in 0.0s",
        f"error: worker 1 of `slice` was not synced: {why}",
        "  hint: what has arrived is not sent again: give the command once more",
    ]


def test_a_worker_that_is_away_does_not_keep_the_others_from_theirs(
    tpuctl: Console, workers: list[Path], tree: Path
) -> None:
    Path(f"{workers[2]}.fault").write_text("down")

    out, err, code = tpuctl("sync", "slice", "work", "-o", "name")

    assert (out, code) == (said("0", "1", "3"), 11)
    assert "synced 6 files (45 B) to 3 workers" in err
    assert "error: worker 2 of `slice`" in err
    assert [(home / "work").exists() for home in workers] == [True, True, False, True]


def test_a_worker_without_python_is_named_as_such(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    Path(f"{workers[0]}.fault").write_text("bare")

    out, err, code = tpuctl("sync", "slice", "work", "--worker", "0,1", "-o", "yaml")

    assert out.startswith("- nodeId: slice\n  zone: us-central1-a\n  worker: 0\n  error:\n    kind: remote_failed\n")
    assert "\n  via: ssh\n" in out
    assert json.loads(err.splitlines()[-1])["error"]["message"] == (
        "worker 0 of `slice` was not synced: there is no `python3` on the worker"
    )
    assert code == 11


def test_without_git_a_git_tree_is_not_sent_for_it_may_hold_secrets(
    tpuctl: Console, workers: list[Path], tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert tpuctl("sync", "slice", "work") == (
        "",
        f"error: `{tree}` is in a git tree, and there is no `git` on PATH to ask what it ignores\n  hint: install git\n",
        1,
    )


@pytest.mark.parametrize("via", ["ssh", pytest.param("rsync", marks=needs_rsync)])
def test_a_link_that_breaks_is_tried_again_and_no_half_file_is_seen(
    tpuctl: Console, workers: list[Path], tree: Path, via: str
) -> None:
    (tree / "big").write_bytes(os.urandom(700_000))
    Path(f"{workers[0]}.fault").write_text("cut")

    out, _, code = tpuctl("sync", "slice", "work", "--worker", "0", "--via", via)

    assert (out, code) == (said("0\t7\t700045\t0\t"), 0)
    assert (workers[0] / "work/big").read_bytes() == (tree / "big").read_bytes()
    assert not list((workers[0] / "work").glob(".tpuctl*"))


def test_a_worker_whose_disk_is_full_says_which_file_and_keeps_no_part_of_it(
    tpuctl: Console, workers: list[Path], tree: Path
) -> None:
    (tree / "big").write_bytes(os.urandom(100_000))
    Path(f"{workers[0]}.fault").write_text("full")

    out, _, code = tpuctl("sync", "slice", "work", "--worker", "0")

    assert (out, code) == (said("0\t-\t-\t-\t`big` cannot be written on the worker: file too large"), 11)
    assert not [path for path in (workers[0] / "work").rglob("*") if path.name in {"big", ".tpuctl-sync"}]


def test_nodes_that_have_a_label_get_it_all_and_a_terminal_a_table(
    tpuctl: Console, workers: list[Path], tree: Path, sandbox: Sandbox
) -> None:
    for name in ("a", "b"):
        sandbox.add_node(name, labels={"team": "vision"}, metadata={})

    out, err, code = tpuctl(
        "sync", "-l", "team=vision", "work", "--to", "~/deep/er", terminal=True, stdin="", NO_COLOR="1"
    )

    assert (out, code) == (said("WORKER  SENT  SIZE  DELETED", "a-0     6     45 B  0", "b-0     6     45 B  0"), 0)
    assert err.splitlines()[-1] == "synced 6 files (45 B) to 2 workers in 0.0s"
    homes = (workers[0].parent / "198.18.0.5", workers[0].parent / "198.18.0.6")
    assert [(home / "deep/er/src/train.py").read_text() for home in homes] == ["print(1)\n"] * 2


@needs_rsync
def test_much_goes_by_rsync_and_through_ssh_where_rsync_fails(tpuctl: Console, workers: list[Path], tree: Path) -> None:
    big = tree / "a ' \" $x \\ big"
    big.write_bytes(os.urandom(2_000_000))
    Path(f"{workers[1]}.fault").write_text("noisy")

    out, err, code = tpuctl("sync", "slice", "work", "--worker", "0,1", "-o", "json", "--to", "a b/'c")

    assert [(one["via"], len(one["sent"]), one["bytes"]) for one in json.loads(out)] == [("rsync", 7, 2_000_045)] * 2
    assert "worker 1: rsync ended with " in err
    assert "; the rest went through ssh\n" in err
    assert code == 0
    expected = {path.relative_to(tree) for path in tree.rglob("*") if ".git/" not in f"{path}/"}
    for home in workers[:2]:
        target = home / "a b/'c"
        assert (target / big.name).read_bytes() == big.read_bytes()
        assert (target / big.name).stat().st_mtime_ns == big.stat().st_mtime_ns
        assert {path.relative_to(target) for path in target.rglob("*")} == expected - {Path("id.key")}
    again = tpuctl("sync", "slice", "work", "--worker", "0,1", "--to", "a b/'c")[1]
    assert again == said("nothing changed: 2 workers had it all")


def test_watch_sends_each_change_once_and_outlives_a_worker_that_is_away(
    tpuctl: Console, workers: list[Path], tree: Path, clock: EventfulClock
) -> None:
    fault = Path(f"{workers[1]}.fault")

    def interrupt() -> None:
        raise KeyboardInterrupt

    tpuctl("sync", "slice", "work", "--worker", "0,1")
    clock.after(timedelta(seconds=5), lambda: (tree / "src/train.py").write_text("print(22)\n"))
    clock.after(timedelta(seconds=20), lambda: fault.write_text("down"))
    clock.after(timedelta(seconds=20), lambda: (tree / "src/train.py").write_text("print(333)\n"))
    clock.after(timedelta(seconds=60), fault.unlink)
    clock.after(timedelta(seconds=90), interrupt)

    out, err, code = tpuctl("sync", "slice", "work", "--worker", "0,1", "--watch", TZ="UTC")

    lines = [line.partition(" ")[2] if line[0].isdigit() else line for line in err.splitlines()]
    assert (out, code) == ("", 130)
    assert lines[:3] == [
        "nothing changed: 2 workers had it all",
        "synced 1 file (10 B) to 2 workers in 0.0s",
        "synced 1 file (11 B) to 1 worker in 1.0s",
    ]
    assert lines[3].startswith("warning: worker 1 of `slice`: ")
    assert lines[4:6] == [
        "synced 1 file (11 B) to 1 worker in 0.0s",
        "warning: interrupted: nothing is synced any more",
    ]
    assert [(home / "work/src/train.py").read_text() for home in workers[:2]] == ["print(333)\n"] * 2


def test_a_folder_without_git_is_sent_whole_and_says_so(tpuctl: Console, workers: list[Path]) -> None:
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
        f"`{plain}` is in no git tree: all its files are sent; after `git init` .gitignore counts",
        "`pipe` is neither a file nor a symlink: it is not sent",
    ]
    assert files(workers[0] / "x") == {"a": "a", "inner/b": "inner/b", "inner/.gitignore": "secret\n"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "which node?\n  hint: name it, or use `-l KEY=VALUE` for several: `tpuctl sync NODE [DIR]`"),
        (("slice", "nope"), "there is no folder `FOLDER/nope`\n  hint: several nodes are chosen with `-l KEY=VALUE`"),
        (("slice", "work/run me.sh"), "`FOLDER/work/run me.sh` is no folder\n  hint: name the folder that it is in"),
        (("slice", "HOME"), "`HOME` is sent only as a git tree\n  hint: sync a folder below it"),
        (("slice", "work/out"), "`FOLDER/work/out` has no files to send: git tracks nothing there, and ignores the rest"),
        (
            ("slice", "work", "more"),
            (
                "`tpuctl sync` takes one folder\n  hint: it is `tpuctl sync NODE [DIR]`, or "
                "`tpuctl sync -l KEY=VALUE [DIR]` for several nodes"
            ),
        ),
        (
            ("slice", "work", "--watch", "--dry-run"),
            "`--watch` and `--dry-run` exclude each other\n  hint: leave one of them out",
        ),
        (("slice", "work", "--to", ""), "`--to` names no folder\n  hint: give a path on the workers, like `--to '~/work'`"),
        (("slice", "work", "--worker", "7"), "`slice` has no worker 7\n  hint: it has workers 0 to 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_said_before_anything_is_sent(
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
def test_a_tree_reaches_real_workers_through_real_ssh(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with World.open(state / "sandbox" / "world.sqlite3", speed=600) as world:
        admin.add_node(world, "demo", zone="us-central1-a", acceleratorType="v5litepod-16")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('trained')\n")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(state),
        "TPUCTL_SANDBOX": "1",
    }

    def run(*arguments: str) -> tuple[str, int]:
        done = subprocess.run(
            [sys.executable, "-m", "tpuctl", *arguments],
            env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout, done.returncode

    assert run("sync", "demo", "code", "--worker", "1,3") == ("1\t1\t17\t0\t\n3\t1\t17\t0\t\n", 0)
    there = sorted((state / "sandbox/workers").glob("**/code/train.py"))
    assert [(path.parts[-3], path.read_text()) for path in there] == [
        ("1", "print('trained')\n"),
        ("3", "print('trained')\n"),
    ]
