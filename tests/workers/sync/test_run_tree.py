"""`tpuctl run` in a tree: what is synced first, where the command runs, and what is not sent unasked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import said
from tests.workers.sync.trees import files, git

TWO = ("slice", "--worker", "0,1")
SHOW = ("--", "cat src/train.py; pwd")


@pytest.fixture
def inside(tpuctl: Console, workers: list[Path], tree: Path) -> Console:
    """The program in the tree, with a key that the node knows."""
    tpuctl("ssh", "slice", "--worker", "0", "--", "true")
    return replace(tpuctl, folder=tree)


def lines_of(out: str) -> list[str]:
    return sorted(out.splitlines())


def test_run_in_a_git_tree_syncs_it_and_runs_there(inside: Console, workers: list[Path], tree: Path) -> None:
    shown = [*(f"[{worker}] {workers[worker]}/code" for worker in (0, 1)), "[0] print(1)", "[1] print(1)"]

    out, err, code = inside("run", *TWO, *SHOW)

    assert (lines_of(out), code) == (sorted(shown), 0)
    assert err == said(
        f"sending `{tree}` to `~/code` on 2 workers: 6 files, 45 B; `--no-sync` sends nothing",
        "  largest: `.gitignore` 12 B, `run me.sh` 10 B, `new\\nline` 9 B",
        "  left out: 1 file or folder that git ignores",
        "synced 6 files (45 B) to `~/code` on 2 workers in 0.0s",
    )
    assert not (workers[0] / "code/id.key").exists()
    assert not (workers[2] / "code").exists()


def test_run_sends_only_what_has_changed_since(inside: Console, workers: list[Path], tree: Path) -> None:
    inside("run", *TWO, *SHOW)

    unchanged = inside("run", *TWO, *SHOW)
    (tree / "src/train.py").write_text("print(20)\n")
    (tree / "run me.sh").unlink()
    changed = inside("run", *TWO, *SHOW)
    shutil.rmtree(workers[1] / "code")
    lost = inside("run", *TWO, *SHOW)

    assert (unchanged[1], unchanged[2]) == ("", 0)
    assert changed[1] == said("synced 1 file (10 B) to `~/code` on 2 workers, deleted 1 file in 0.0s")
    assert changed[0].count("print(20)") == 2
    assert lost[1] == said("synced 5 files (36 B) to `~/code` on 2 workers in 0.0s")
    assert files(workers[1] / "code") == files(workers[0] / "code")


@pytest.mark.parametrize(
    ("folder", "there"),
    [
        pytest.param("src", "code/src", id="subfolder"),
        pytest.param("out/deep", "code", id="ignored-subfolder"),
    ],
)
def test_run_in_a_subfolder_runs_in_the_same_folder(
    inside: Console, workers: list[Path], tree: Path, folder: str, there: str
) -> None:
    (tree / folder).mkdir(parents=True, exist_ok=True)

    out, err, code = replace(inside, folder=tree / folder)("run", "slice", "--worker", "0", "--", "pwd")

    assert (out, code) == (said(str(workers[0] / there)), 0)
    assert (f"  the command runs in `~/{there}`\n" in err) is (there != "code")


def test_run_below_a_project_file_syncs_its_folder(inside: Console, workers: list[Path], tree: Path) -> None:
    shutil.rmtree(tree / ".git")
    (tree / "tpuctl.yaml").write_text("zone: us-central1-a\n")

    out, err, code = replace(inside, folder=tree / "src")("run", "slice", "--worker", "0", "--", "pwd")

    assert (out, code) == (said(str(workers[0] / "code/src")), 0)
    assert "id.key" in files(workers[0] / "code")
    assert "is not in a git tree: sending all its files; run `git init` to use .gitignore\n" in err


def in_tree(_: Path) -> None:
    """Leave the tree as it is."""


def without_git(tree: Path) -> None:
    shutil.rmtree(tree / ".git")


def with_git_at_home(tree: Path) -> None:
    without_git(tree)
    git(tree, "init", "-q")


@pytest.mark.parametrize(
    ("options", "change", "home", "note"),
    [
        pytest.param(("--no-sync",), in_tree, "home", "", id="no-sync"),
        pytest.param(("--workdir", "."), in_tree, "home", "", id="workdir"),
        pytest.param((), without_git, "home", "", id="no-tree"),
        pytest.param(
            (),
            with_git_at_home,
            "project/code",
            "`{}` is a git tree and not synced as a whole: name a folder in it with `--sync DIR`\n",
            id="home-folder",
        ),
    ],
)
def test_run_without_a_tree_sends_nothing(
    inside: Console,
    workers: list[Path],
    tree: Path,
    *,
    options: tuple[str, ...],
    change: Callable[[Path], None],
    home: str,
    note: str,
) -> None:
    change(tree)

    out, err, code = inside("run", "slice", "--worker", "0", *options, "--", "pwd", HOME=str(tree.parent.parent / home))

    assert (out, err.removeprefix("adding our ssh key to the metadata of `slice`\n"), code) == (
        said(str(workers[0])),
        note.format(tree),
        0,
    )
    assert not (workers[0] / "code").exists()


def test_run_with_sync_names_another_folder(inside: Console, workers: list[Path], tree: Path) -> None:
    out, _, code = inside("run", "slice", "--worker", "0", "--sync", "src", "--", "pwd; ls")

    assert (out, code) == (said(str(workers[0] / "src"), "train.py"), 0)
    assert inside("run", "slice", "--sync", "src", "--no-sync", "--", "pwd")[1:] == (
        said("error: `--sync` and `--no-sync` exclude each other", "  hint: leave one of them out"),
        2,
    )


@pytest.mark.parametrize(
    ("stdin", "error", "code"),
    [
        pytest.param(None, "error: `{}` has 1.0 GB to send, and at most 1.0 GB is sent unasked", 2, id="script"),
        pytest.param("n\n", "send 1.0 GB of `{}` to each worker? [y/N] error: nothing was sent", 1, id="person"),
    ],
)
def test_run_asks_before_it_sends_a_large_tree(
    inside: Console, workers: list[Path], tree: Path, *, stdin: str | None, error: str, code: int
) -> None:
    with (tree / "weights").open("wb") as file:
        file.truncate(10**9)

    ended = inside("run", "slice", "--worker", "0", *SHOW, stdin=stdin)

    hint = "  hint: leave data out with .gitignore, name the folder with `--sync DIR`, or send nothing with `--no-sync`"
    assert ended == ("", said(error.format(tree), hint), code)
    assert files(workers[0] / "code") == {}


def test_run_in_an_empty_tree_says_how_to_run_without_it(tpuctl: Console, workers: list[Path]) -> None:
    git(tpuctl.folder, "init", "-q")

    err = tpuctl("run", "slice", "--worker", "0", "--", "touch ~/ran")[1]

    assert err.endswith(
        said(
            f"error: `{tpuctl.folder}` has no files to send: git tracks no file in it, and ignores the others",
            "  hint: run without the files of this tree: add `--no-sync`",
        )
    )
    assert not (workers[0] / "ran").exists()


def test_run_starts_nowhere_if_a_worker_has_not_got_the_tree(inside: Console, workers: list[Path]) -> None:
    (workers[1] / "code").write_text("in the way")

    out, err, code = inside("run", *TWO, "--", "touch ~/ran")

    assert (out, code) == ("", 11)
    assert err.splitlines()[-4:-1] == [
        "synced 6 files (45 B) to `~/code` on 1 worker in 0.0s",
        f"error: worker 1 of `slice` was not synced: `{workers[1]}/code` is a file on the worker",
        "  hint: the command was not started on any worker",
    ]
    assert not (workers[0] / "ran").exists()


@pytest.mark.parametrize(
    ("selection", "ran"),
    [
        pytest.param(("slice", "--worker", "0,1", "--allow-unreachable"), [True, False], id="allow-unreachable"),
        pytest.param(("slice", "other", "--worker", "1"), [False, False], id="named-nodes"),
        pytest.param(("-l", "team=vision", "--worker", "1"), [False, True], id="selected-nodes"),
    ],
)
def test_run_goes_on_where_workers_do_not_depend_on_one_another(
    inside: Console, sandbox: Sandbox, workers: list[Path], selection: tuple[str, ...], ran: list[bool]
) -> None:
    sandbox.add_node("other", zone="us-central1-a", acceleratorType="v5litepod-16", labels={"team": "vision"})
    inside("update", "slice", "--labels", "team=vision")
    (workers[1] / "code").write_text("in the way")
    homes = [workers[0], workers[0].parent / "198.18.0.6"]

    _, err, code = inside("run", *selection, "--", "touch ~/ran")

    assert [(home / "ran").exists() for home in homes] == ran
    assert (code, "was not synced: `" in err) == (11, True)


def test_run_in_a_tree_prints_one_document(inside: Console, workers: list[Path]) -> None:
    out, err, code = inside("run", "slice", "--worker", "0", "-o", "json", *SHOW)

    assert ([one["outcome"] for one in json.loads(out)["workers"]], code) == (["exited"], 0)
    assert err.splitlines()[-3:] == [
        "synced 6 files (45 B) to `~/code` on 1 worker in 0.0s", "print(1)", str(workers[0] / "code")
    ]  # fmt: skip


def test_detached_script_runs_in_the_tree(inside: Console, workers: list[Path], tree: Path) -> None:
    script = tree.parent / "job.sh"
    script.write_text("#!/bin/sh\ncat src/train.py >$HOME/read\n")

    out, _, code = inside("run", "slice", "--worker", "0", "--detach", "--name", "job", "--script", str(script))
    inside("logs", "slice", "job", "-f")

    assert (out, code) == (said("job"), 0)
    assert (workers[0] / "read").read_text() == "print(1)\n"


def test_diagnosis_of_a_missing_file_names_another_command(inside: Console, workers: list[Path]) -> None:
    err = inside("run", "slice", "--worker", "0", "--", "python3", "nope.py")[1]

    assert "`tpuctl run slice --sync DIR -- COMMAND`" in err
    assert "`tpuctl sync slice`" not in err
