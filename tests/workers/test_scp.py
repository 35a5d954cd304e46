"""`tpuctl scp`: destinations, broken connections, invalid arguments. A fake ssh runs the real copy program."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.tpuctl_process import run_tpuctl
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState

ZONE = "us-central1-a"
AWKWARD = "a  b$HOME'\"\n*é"


# Lets so many bytes through, each as soon as it comes: `head` would wait for more.
_CUT = "import os,sys\nleft=int(sys.argv[1])\nwhile left and (data:=os.read(0,min(left,65536))): left-=os.write(1,data)"


def cut_after(size: int) -> str:
    """Return the shell words for a pipe that ends after so many bytes."""
    return f"{sys.executable} -ISc '{_CUT}' {size}"


class Workers:
    """The homes of the workers: commands of `ssh` run locally, in the folder named by the address's last number less one."""

    def __init__(self, root: Path, install: Callable[[str], None]) -> None:
        self.root, self._install = root, install
        self.ssh('exec sh -c "$line"')

    def ssh(self, lines: str) -> None:
        """Let ssh run these shell lines, with `$line` what it was given and `$worker` the worker."""
        self._install(
            "for line; do :; done; worker=${*##*@198.18.0.}; worker=$((${worker%% *} - 1))\n"
            f'HOME="{self.root}/$worker"; export HOME; mkdir -p "$HOME" && cd "$HOME" || exit 255\n{lines}'
        )

    def home(self, worker: int = 0) -> Path:
        return self.root / str(worker)

    def files(self) -> dict[str, str]:
        return contents(self.root)


def contents(root: Path) -> dict[str, str]:
    """Return the text of each file below a folder, by path."""
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def workers(tmp_path: Path, sandbox: Sandbox, fake_ssh: Callable[[str], None], tpuctl: Console) -> Workers:
    """A slice of four workers, `pod`, with our key in its metadata."""
    sandbox.add_node("pod", zone=ZONE, acceleratorType="v5litepod-16", labels={"team": "a"})
    made = Workers(tmp_path / "workers", fake_ssh)
    tpuctl("ssh", "pod", "--", "true")
    return made


def test_upload_sends_files_and_folders_to_every_worker(tpuctl: Console, workers: Workers) -> None:
    here = tpuctl.folder
    (here / "data" / "in").mkdir(parents=True)
    (here / "data" / AWKWARD).write_text("awkward")
    (here / "data" / "in" / "empty").touch()
    (here / "data" / "link").symlink_to(AWKWARD)
    (here / "data" / "in" / "round").symlink_to("..")
    (here / "data" / "lost").symlink_to("nowhere")
    os.mkfifo(here / "data" / "pipe")

    first = tpuctl("scp", "-r", "data", f"pod:new {AWKWARD}")
    again = tpuctl("scp", "-r", "data", "pod:~", "--worker", "1,3")

    notes = [f"`{here}/data/{name}` is left out: {why}\n" for name, why in (
        ("in/round", "this link leads back to a folder that contains it"),
        ("lost", "this link leads nowhere"),
        ("pipe", "it is not a plain file"),
    )]  # fmt: skip
    assert first == ("", "".join(notes) + "copied 3 files, 14 B for each of 4 workers in 0s\n", 0)
    assert again == ("", "".join(notes) + "copied 3 files, 14 B for each of 2 workers in 0s\n", 0)
    tree = {AWKWARD: "awkward", "in/empty": "", "link": "awkward"}
    places = [f"{worker}/new {AWKWARD}" for worker in range(4)] + ["1/data", "3/data"]
    assert workers.files() == {f"{place}/{name}": text for place in places for name, text in tree.items()}


def test_download_from_several_workers_creates_a_folder_for_each(tpuctl: Console, workers: Workers) -> None:
    for worker in range(4):
        (workers.home(worker) / "logs").mkdir(parents=True)
        (workers.home(worker) / "logs" / "a.log").write_text(f"a of {worker}")
        (workers.home(worker) / "logs" / "[b].log").write_text(f"b of {worker}")

    several = tpuctl("scp", "pod:~/logs/*.log", "all")
    literal = tpuctl("scp", "pod:logs/[b].log", "one", "--worker", "2")
    tree = tpuctl("scp", "-r", "-l", "team=a", ":logs", ".", "--worker", "1", "-o", "json")

    assert several == ("", "copied 2 files, 12 B for each of 4 workers in 0s\n", 0)
    assert literal == ("", "copied 1 file, 6 B in 0s\n", 0)
    assert json.loads(tree[0]) == [
        {
            "node": "pod", "worker": 1, "ok": True, "files": 2, "bytes": 12, "bytesMoved": 12, "seconds": 0.0,
            "sandbox": True,
        }
    ]  # fmt: skip
    assert contents(tpuctl.folder) == {
        **{
            f"all/{worker}/{name}.log": f"{name[-1 if name == 'a' else 1]} of {worker}"
            for worker in range(4)
            for name in ("a", "[b]")
        },
        "one": "b of 2",
        "logs/a.log": "a of 1",
        "logs/[b].log": "b of 1",
    }


def test_preserve_keeps_times_and_modes(tpuctl: Console, workers: Workers) -> None:
    source = tpuctl.folder / "run.sh"
    source.write_text("#!")
    source.chmod(0o4750)
    os.utime(source, ns=(10**18 + 1, 10**18 + 1))

    tpuctl("scp", "-p", "run.sh", "pod:kept", "--worker", "0")
    tpuctl("scp", "run.sh", "pod:plain", "--worker", "0")
    (workers.home() / "plain").chmod(0o604)
    source.write_text("##")
    tpuctl("scp", "run.sh", "pod:plain", "--worker", "0")

    kept, plain = (workers.home() / "kept").stat(), (workers.home() / "plain").stat()
    assert (stat.S_IMODE(kept.st_mode), kept.st_mtime_ns) == (0o750, 10**18 + 1)
    assert (stat.S_IMODE(plain.st_mode), (workers.home() / "plain").read_text()) == (0o604, "##")


@pytest.mark.parametrize("is_upload", [True, False], ids=["upload", "download"])
@pytest.mark.parametrize(("upload", "download", "name"), [("pod:", ".", "big"), ("pod:new/", "new/", "new/big")])
def test_copy_begins_again_after_a_broken_connection(
    tpuctl: Console, workers: Workers, upload: str, download: str, name: str, *, is_upload: bool
) -> None:
    source, goal = (tpuctl.folder, workers.home()) if is_upload else (workers.home(), tpuctl.folder)
    words = ("big", upload) if is_upload else ("pod:big", download)
    source.mkdir(parents=True, exist_ok=True)
    (source / "big").write_bytes(os.urandom(4_000_000))
    cut = f'{cut_after(2_500_000)} | sh -c "$line"' if is_upload else f'sh -c "$line" | {cut_after(2_500_000)}'
    workers.ssh(f'echo >>links; [ $(wc -l <links) -gt 2 ] || {{ {cut}; exit 255; }}; exec sh -c "$line"')
    before = set(contents_by_name(goal))

    out, err, code = tpuctl("scp", *words, "--worker", "0", "-o", "json")

    (result,) = json.loads(out)
    assert (code, result["bytes"], 4_000_000 < result["bytesMoved"] < 12_500_000) == (0, 4_000_000, True), err
    assert (goal / name).read_bytes() == (source / "big").read_bytes()
    wait_until(lambda: set(contents_by_name(goal)) - before - {"links"} == {name, *(["new"] if "new" in name else [])})
    assert (workers.home() / "links").read_text() == "\n" * 3


def test_failed_upload_leaves_nothing(tpuctl: Console, workers: Workers) -> None:
    folder = tpuctl.folder / "set"
    folder.mkdir()
    (folder / "a").write_bytes(os.urandom(1_000_000))
    (folder / "b").write_bytes(os.urandom(6_000_000))
    workers.ssh(f'[ -e cut ] && exit 255; touch cut; {cut_after(5000000)} | sh -c "$line"; exit 255')

    failed = tpuctl("scp", "-r", "set", "pod:goal", "--worker", "0")

    assert failed == ("", "error: the connection was lost\n  hint: repeat the command\n", 11)
    wait_until(lambda: contents_by_name(workers.home()) == {"cut": 0})


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's /proc")
def test_file_is_read_once_for_all_workers(tpuctl: Console, workers: Workers) -> None:
    (tpuctl.folder / "big").write_bytes(os.urandom(8_000_000))
    before = _bytes_read()

    assert tpuctl("scp", "big", "pod:")[2] == 0

    # Once here, and once at each end of the four pipes behind the fake ssh.
    assert 40_000_000 <= _bytes_read() - before < 56_000_000
    assert [(workers.home(worker) / "big").stat().st_size for worker in range(4)] == [8_000_000] * 4


def _bytes_read() -> int:
    """Return how many bytes this process has read so far, and those that it waited for."""
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("rchar:") + 1])


def test_worker_that_takes_no_data_does_not_stop_the_others(tpuctl: Console, workers: Workers) -> None:
    (tpuctl.folder / "big").write_bytes(os.urandom(8_000_000))
    # Worker 2 stops in the middle, and goes on over another connection, which begins when the others have ended.
    workers.ssh(
        f"if [ $worker -eq 2 ]; then echo >>links; [ $(wc -l <links) -gt 1 ] || {{ {{ {cut_after(300_000)}; exec sleep 60; }} "
        '| sh -c "$line"; exit 255; }; ls ../0/big ../1/big ../3/big >seen; fi; exec sh -c "$line"'
    )

    out, err, code = tpuctl("scp", "big", "pod:", "-o", "json")

    assert (code, [one["ok"] for one in json.loads(out)]) == (0, [True] * 4), err
    assert (workers.home(2) / "seen").read_text() == "../0/big\n../1/big\n../3/big\n"
    assert [(workers.home(worker) / "big").stat().st_size for worker in range(4)] == [8_000_000] * 4


# Passes data on until a path exists.
_UNTIL = "import os,sys\nwhile (data:=os.read(0,65536)) and not os.path.exists(sys.argv[1]): os.write(1,data)"


def test_retry_after_a_lost_report_does_not_nest_the_folder(tpuctl: Console, workers: Workers) -> None:
    (tpuctl.folder / "src").mkdir()
    (tpuctl.folder / "src" / "m.bin").write_bytes(os.urandom(1_000_000))
    workers.ssh(
        f"[ -e cut ] || {{ touch cut; sh -c \"$line\" | {sys.executable} -ISc '{_UNTIL}' out; exit 255; }}; "
        'exec sh -c "$line"'
    )

    out, err, code = tpuctl("scp", "-r", "src", "pod:out", "--worker", "0", "-o", "json")

    assert (code, json.loads(out)[0]["files"]) == (0, 1), err
    assert sorted(contents_by_name(workers.home())) == ["cut", "out", "out/m.bin"]


@pytest.mark.parametrize("change", ["printf x >>{path}", "truncate -s 5000000 {path}"], ids=["longer", "shorter"])
def test_file_that_changes_while_it_is_sent_is_reported(tpuctl: Console, workers: Workers, change: str) -> None:
    source = tpuctl.folder / "big"
    source.write_bytes(bytes(8_000_000))
    # The pipes to the worker hold much less than the rest of the file.
    workers.ssh(f'{{ {cut_after(300_000)}; {change.format(path=source)}; cat; }} | sh -c "$line"')

    out, err, code = tpuctl("scp", "big", "pod:", "--worker", "0")

    assert (out, code) == ("", 11)
    assert err == (
        f"warning: `{source}`: it changed during the copy\n"
        "error: 1 file of `pod` was not copied\n"
        "  hint: fix this, then repeat the command\n"
    )
    assert contents_by_name(workers.home()) == {}


def contents_by_name(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*")}


def test_failed_worker_is_named_and_others_continue(tpuctl: Console, workers: Workers) -> None:
    (tpuctl.folder / "large").write_bytes(bytes(100_000))
    (tpuctl.folder / "small").write_text("s")
    (workers.home(3) / "large").mkdir(parents=True)
    workers.ssh('[ $worker -ne 1 ] || ulimit -f 40; [ $worker -ne 2 ] || exit 255; exec sh -c "$line"')

    out, err, code = tpuctl("scp", "large", "small", "pod:.", "-o", "json")

    assert code == 11
    *warnings, error = err.splitlines()
    assert warnings == [
        "warning: worker 1: `./large`: file too large",
        "warning: worker 2: the connection was lost",
        "warning: worker 3: `./large` is a folder there",
    ]
    assert json.loads(error)["error"] == {
        "kind": "remote_failed",
        "message": "the copy failed on 3 of 4 workers: 1, 2, 3",
        "exit_code": 11,
        "hint": "repeat the command",
        "id": "remote-failed",
    }
    assert [(one["worker"], one["ok"], one["files"]) for one in json.loads(out)] == [
        (0, True, 2), (1, False, 1), (2, False, 0), (3, False, 1),
    ]  # fmt: skip
    assert not (workers.home(1) / "large").exists()


def test_trailing_slash_creates_a_new_folder(tpuctl: Console, workers: Workers) -> None:
    for name in ("f1", "f2"):
        (workers.home() / name).write_text(name)

    refused = tpuctl("scp", "pod:f*", "new", "--worker", "0")
    fetched = tpuctl("scp", "pod:f*", "new/", "--worker", "0")
    sent = tpuctl("scp", "new/f1", "pod:other/", "--worker", "0")

    error = f"error: `{tpuctl.folder}/new` is not an existing folder\n  hint: add `/` at the end to create it\n"
    assert refused == ("", error, 2)
    assert (fetched[2], sent[2], contents(tpuctl.folder)) == (0, 0, {"new/f1": "f1", "new/f2": "f2"})
    assert (workers.home() / "other" / "f1").read_text() == "f1"


def test_hidden_files_are_skipped_in_an_existing_folder(tpuctl: Console, workers: Workers) -> None:
    """`.git` or `.envrc` would affect existing files; in a new folder, and below one, they are harmless."""
    for name in (".envrc", "a", "sub/.keep"):
        (workers.home() / name).parent.mkdir(parents=True, exist_ok=True)
        (workers.home() / name).write_text(name)
    (tpuctl.folder / "mine").touch()

    home = tpuctl("scp", "-r", "pod:~", "home", "--worker", "0")
    into = tpuctl("scp", "-r", "pod:.", ".", "--worker", "0")
    new = tpuctl("scp", "-r", "pod:.", "new", "--worker", "0")

    note = "`./.envrc` is left out: it is hidden, and the target is not empty: name it to copy it\n"
    assert home == new == ("", "copied 3 files, 16 B in 0s\n", 0)
    assert into == ("", f"{note}copied 2 files, 10 B in 0s\n", 0)
    everything = {".envrc": ".envrc", "a": "a", "sub/.keep": "sub/.keep"}
    assert contents(tpuctl.folder) == {
        "mine": "", "a": "a", "sub/.keep": "sub/.keep",
        **{f"{folder}/{name}": text for folder in ("home", "new") for name, text in everything.items()},
    }  # fmt: skip


def test_permanent_failure_suggests_no_retry(tpuctl: Console, workers: Workers) -> None:
    (workers.home() / "big").write_text("b")
    (tpuctl.folder / "there" / "big").mkdir(parents=True)

    assert tpuctl("scp", "pod:big", "there", "--worker", "0") == (
        "",
        (
            f"warning: `{tpuctl.folder}/there/big` is a folder there\n"
            "error: 1 file of `pod` was not copied\n"
            "  hint: fix this, then repeat the command\n"
        ),
        11,
    )


@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        (("gone", "pod:"), "nothing was copied: `{here}/gone`: no such file or directory", 2),
        (("loop", "pod:"), "nothing was copied: `{here}/loop`: too many levels of symbolic links", 2),
        (("folder", "pod:"), "nothing was copied: `{here}/folder` is a folder\n  hint: add `-r` to copy folders", 2),
        (
            ("file",),
            "the destination is missing\n  hint: use `tpuctl scp FILE NODE:PATH` or `tpuctl scp NODE:PATH FOLDER`",
            2,
        ),
        (
            ("file", "other"),
            (
                "no path is on a node\n  hint: a node ends with a colon: `other:` is the home folder of a node of that name, "
                "`NODE:other` a path on a node; write a local name as `./NAME`"
            ),
            2,
        ),
        (
            ("pod:x/it", "other:y"),
            (
                "both sides are on nodes\n  hint: copy to this machine first:\n"
                "  hint: tpuctl scp pod:x/it ./it\n  hint: tpuctl scp ./it other:y"
            ),
            2,
        ),
        (
            ("pod:x", "other:y", "."),
            (
                "the sources are on several nodes\n  hint: copy from one node at a time:\n"
                "  hint: tpuctl scp pod:x .\n  hint: tpuctl scp other:y ."
            ),
            2,
        ),
        (
            ("file", ":x"),
            "`:x` names no node\n  hint: use `NODE:x`, or choose nodes with `-l KEY=VALUE`",
            2,
        ),
        (
            ("-l", "team=a", "file", "pod:x"),
            "cannot combine node names with `-l`\n  hint: use `:x` with `-l`, or `pod:x` without it",
            2,
        ),
        (("file", "pod:", "--worker", "7"), "`pod` has no worker 7\n  hint: it has workers 0 to 3", 2),
        (
            ("pod:gone", ".", "--worker", "0"),
            (
                "`gone`: no such file or directory\n"
                "  hint: paths on a worker are relative to the login's home; the worker expands `~` and wildcards"
            ),
            3,
        ),
        (
            ("-r", "pod:data/..", "."),
            ("`data/..` does not determine a local name\n  hint: name the folder, or use `data/../.` for its contents"),
            2,
        ),
        (
            ("file", "pod:no/such", "--worker", "0"),
            "there is no folder `no`\n  hint: use an existing folder, or one new name in an existing folder",
            2,
        ),
        (
            ("file", "folder/file", "pod:"),
            "`{here}/folder/file` and `{here}/file` have the same name\n  hint: copy them to different folders",
            2,
        ),
    ],
)
def test_invalid_copy_raises(
    tpuctl: Console, workers: Workers, arguments: tuple[str, ...], error: str, code: int
) -> None:
    (tpuctl.folder / "file").touch()
    (tpuctl.folder / "loop").symlink_to("loop")
    (tpuctl.folder / "folder").mkdir()
    (tpuctl.folder / "folder" / "file").touch()

    assert tpuctl("scp", *arguments) == ("", f"error: {error}\n".format(here=tpuctl.folder), code)


@pytest.mark.parametrize("there", [pytest.param((), id="new"), pytest.param(("2",), id="one-existed")])
def test_failed_copy_leaves_no_empty_folders(tpuctl: Console, workers: Workers, there: tuple[str, ...]) -> None:
    for name in there:
        (tpuctl.folder / "got" / name).mkdir(parents=True)

    missing = tpuctl("scp", "pod:gone", "got")
    left = sorted(str(path.relative_to(tpuctl.folder)) for path in tpuctl.folder.rglob("*"))
    (workers.home(1) / "gone").write_text("here")
    tpuctl("scp", "pod:gone", "got")

    assert missing[2] == 3
    assert left == (["got", "got/2"] if there else [])
    assert contents(tpuctl.folder) == {"got/1/gone": "here"}
    assert sorted(path.name for path in (tpuctl.folder / "got").iterdir()) == sorted({"1", *there})


@pytest.mark.sshd
def test_copy_over_a_real_sshd_round_trips(tmp_path: Path) -> None:
    with SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        administration.add_node(sandbox_state, "demo", zone=ZONE, acceleratorType="v5litepod-16")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state")}
    sent = os.urandom(3_000_000)
    (tmp_path / AWKWARD).write_bytes(sent)

    def run(*arguments: str) -> tuple[str, int]:
        done = run_tpuctl(["--sandbox", "scp", *arguments], env=environ, cwd=tmp_path, text=True)
        return done.stderr, done.returncode

    up = run(AWKWARD, "demo:", "--worker", "1-2", "-q")
    down = run(f"demo:{AWKWARD}", "back", "--worker", "1-2", "-q")

    assert (up, down) == (("", 0), ("", 0))
    assert [(tmp_path / "back" / worker / AWKWARD).read_bytes() == sent for worker in ("1", "2")] == [True, True]
