"""What workers may do to `scp`, `sync` and `bundle`: they write and read only what was requested, and each attack is one error.

The workers of one slice each try another attack, so one command meets a whole table of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.hostile import MARK, HostileSlice, Steps, frame, hold, leave, send, until
from tests.hostile.copies import (
    COPY,
    DEEP,
    END,
    KEY,
    STOLEN,
    Crowd,
    content,
    copying,
    entries,
    entry,
    flood,
    gives,
    listing,
    plan,
    syncing,
    takes,
    told,
    tree_frame,
)
from tests.lifecycle import put
from tests.support.conftest import opened
from tests.workers.sync.test_sync_faults import needs_rsync

SECRET = "hunter2"
assert len(SECRET) == len(STOLEN)


@pytest.fixture
def pod(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> HostileSlice:
    """A node `pod` with 64 workers that know our key."""
    made = Crowd(tpuctl, fake_ssh, tmp_path / "workers")
    made.put(sandbox)
    return made


def attack(pod: HostileSlice, attacks: dict[str, Steps], *command: str) -> tuple[dict[str, str], str, int]:
    """Let each worker try one attack on a command. Return its result for each, the end of its stderr, and its exit code."""
    pod.play({worker: [steps] for worker, steps in enumerate(attacks.values())})
    out, err, code = pod.tpuctl(*command, "--worker", f"0-{len(attacks) - 1}", "-o", "json")
    said = [one.get("error", {}).get("message", "") for one in json.loads(out)]
    return dict(zip(attacks, said, strict=True)), err, code


def unexpected(said: dict[str, str]) -> dict[str, bool]:
    """Tell of each attack whether it ended as an unexpected answer of its own worker."""
    return {
        name: f"unexpected answer from worker {worker}: " in text and "\n" not in text
        for worker, (name, text) in enumerate(said.items())
    }


def files(root: Path) -> dict[str, bytes]:
    """Return what is in each file below a folder, by path; symlinks are not followed."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def good(*frames: bytes, path: str = "results.txt", **fields: object) -> Steps:
    """Send what was requested, up to the point where these frames follow."""
    return copying(listing(), entries(entry(path, **fields)), *frames)


NAMES = {
    "another name": gives("authorized_keys"),
    "above the target": gives("../results.txt"),
    "an absolute path": gives("/tmp/results.txt"),
    "in a folder": gives("x/results.txt"),
    "through itself": gives("results.txt/../../x"),
    "no name": gives(""),
    "the folder itself": gives("."),
    "the folder above": gives(".."),
    "a hidden name": gives(".git"),
    "a NUL": gives("results.txt\0"),
    "half a surrogate": gives("\ud800"),
    "a number for a name": gives(7),
    "a folder without -r": gives("results.txt/"),
    "a second name": gives("results.txt", ".bashrc", named=2),
    "the same name twice": gives("results.txt", "results.txt"),
    "a key that is a path": gives("results.txt", key="/../../../../../home/x"),
    "a key that is absolute": gives("results.txt", key="/etc/x"),
    "no key": gives("results.txt", key=""),
    "a tree key that is a path": copying(listing(tree="x/../../../home/x"), entries(entry("results.txt", folder=True)), END),
}  # fmt: skip

FRAMES = {
    "entries before the listing": copying(entries(entry("results.txt")), content()),
    "two listings": copying(listing(), listing()),
    "listings without end": flood(block=listing()),
    "an end at once": copying(END),
    "an end before the file": good(END),
    "a file that was not listed": good(content(1)),
    "a file twice": good(content(), content(), END),
    "the end of another file": good(told(b"F", 0), told(b"E", [1, None])),
    "an end without a file": good(told(b"E", [0, None]), END),
    "file data outside of a file": good(frame(b"D", STOLEN)),
    "more bytes than were listed": good(content(data=b"x" * 8)),
    "empty blocks without end": flood(listing(), entries(entry("results.txt")), told(b"F", 0), block=frame(b"D")),
    "digests without end": flood(listing(), entries(entry("results.txt")), block=told(b"K", [])),
    "a digest of another file": good(told(b"K", [[1, "0" * 40]])),
    "entries without end": flood(listing(count=9), block=entries()),
    "an unknown frame": good(told(b"?", None)),
    "a frame of the other end": good(told(b"R", [0, None])),
    "a length of 2**31": good(frame(b"E", length=2**31)),
    "a block of 2**31": good(told(b"F", 0), frame(b"D", length=2**31)),
    "noise without end": [*flood(block=b"x")[1:]],
    "deep JSON": copying(told(b"S", DEEP)),
    "no JSON": copying(told(b"S", b"{")),
    "no UTF-8": copying(told(b"S", b'"\xff"')),
    "an object for a list": copying(told(b"S", {"named": 1})),
    "a short list": copying(told(b"S", [1])),
    "a refusal that is a number": copying(told(b"X", 3)),
    "a refusal of an unknown kind": copying(told(b"X", ["worse", "it is"])),
    "a negative count": copying(listing(count=-1)),
    "a count of 10**400": copying(told(b"S", b"[1,null,1" + b"0" * 400 + b",0,[],[]]")),
    "a NaN for a size": copying(told(b"S", b"[1,null,1,NaN,[],[]]")),
    "true for a count": copying(listing(count=True)),
    "a note that is a list": copying(listing(notes=[[]])),
    "a negative size": good(size=-1),
    "a fraction for a size": good(size=1.5),
    "a size of 2**64": good(size=2**64),
    "a time of 10**400": good(mtime=10**400),
    "a negative mode": good(mode=-1),
    "a negative number": copying(listing(), entries(entry("results.txt", -1))),
    "true for a number": copying(listing(), entries(entry("results.txt", True))),
    "a number for a folder": good(folder=1),
    "a sample of a small file": good(sample="0" * 40),
}  # fmt: skip


@pytest.mark.parametrize("attacks", [NAMES, FRAMES], ids=["names", "frames"])
def test_scp_of_a_file_accepts_only_the_requested_file(pod: HostileSlice, attacks: dict[str, Steps]) -> None:
    (pod.tpuctl.folder / "results.txt").write_text(SECRET)
    before = files(Path(pod.tpuctl.environ["HOME"])), files(pod.tpuctl.folder)

    said, err, code = attack(pod, attacks, "scp", "pod:results.txt", "got")

    assert unexpected(said) == dict.fromkeys(attacks, True), said
    assert (code, "Traceback" in err) == (11, False)
    # What came before the attack, and was asked for, stays.
    got = {path: data for path, data in files(pod.tpuctl.folder).items() if ".tpuctl-" not in path}
    kept = {f"got/{worker}/results.txt": STOLEN for worker, name in enumerate(attacks) if name == "a file twice"}
    assert (files(Path(pod.tpuctl.environ["HOME"])), got) == (before[0], {**before[1], **kept})
    # Each was asked once: a worker that breaks the protocol is not tried again.
    assert {name: len(pod.connections(worker)) for worker, name in enumerate(attacks)} == dict.fromkeys(attacks, 1)


TREES = {
    "a hidden folder": gives(".git/", ".git/hooks/", ".git/hooks/pre-commit"),
    "hidden keys": gives(".ssh/", ".ssh/authorized_keys"),
    "a hidden file": gives(".envrc"),
    "the folder itself": gives("./", "./.git/"),
    "above a folder": gives("a/", "a/../x"),
    "far above": gives("a/", "a/../../../x"),
    "in no folder": gives("a/b"),
    "in a folder that is a file": gives("a", "a/b"),
    "in the folder of another": gives("a/", "b/", "a/x", named=2),
    "two trees for one": gives("a/", "b/"),
    "a file for a tree": copying(listing(tree=KEY), entries(entry("a")), content(), END),
    "twice a slash": gives("a/", "a//etc"),
    "a dot within": gives("a/", "a/./x"),
    "an empty last part": gives("a/", "a//"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "attacks"),
    [
        ("*", TREES),
        ("logs/*.log", {"another suffix": gives("a.txt"), "hidden": gives(".a.log"), "nested": gives("logs/", "logs/a.log")}),
        ("logs", {"another folder": gives("src/", "src/x"), "longer": gives("logs2/"), "its content": gives("logs/a.log")}),
        ("[!x]*", {"hidden by a class": gives(".git/")}),
        ("?git", {"hidden by a question mark": gives(".git/")}),
        ("~", {"another home": gives("src/"), "hidden home": gives(".git/"), "the name typed": gives("../")}),
        (".", {"a folder of its own": gives("src/"), "hidden": gives("./", "./.git/")}),
    ],
    ids=["all", "suffix", "folder", "class", "question-mark", "home", "dot"],
)  # fmt: skip
def test_scp_of_folders_accepts_only_names_that_match(
    pod: HostileSlice, pattern: str, attacks: dict[str, Steps]
) -> None:
    pod.tpuctl.folder.joinpath("mine").write_text(SECRET)
    before = files(pod.root.parent / "project")

    said = {}
    for name, steps in attacks.items():
        pod.play({0: [steps]})
        said[name] = pod.tpuctl("scp", "-r", f"pod:{pattern}", ".", "--worker", "0")

    assert {name: (err[: err.index(": ", 7) + 2], code) for name, (_, err, code) in said.items()} == dict.fromkeys(
        attacks, ("error: unexpected answer from worker 0: ", 11)
    )
    assert files(pod.tpuctl.folder) == before
    assert not [
        path for path in pod.tpuctl.folder.rglob("*") if path.name.startswith(".") and ".tpuctl-" not in path.name
    ]


def test_scp_without_a_requested_name_fails(pod: HostileSlice) -> None:
    attacks = {
        "none": copying(listing(named=0, count=0), END),
        "the first": gives("results.txt"),
        "the second": gives("b"),
        "the first twice": gives("results.txt", "results.txt", named=2),
        "both": gives("b", "results.txt", named=2),
        "many notes": copying(listing(named=0, count=0, notes=["x"] * 1000), END),
    }

    said, err, code = attack(pod, attacks, "scp", "pod:out/results.txt", "pod:*/b", "got")

    first, second = "`out/results.txt` was not received", "`*/b` was not received"
    assert said == {
        "none": f"{first}, and 1 more",
        "the first": second,
        "the second": first,
        "the first twice": "unexpected answer from worker 3: `results.txt` does not match the listing",
        "both": "",
        "many notes": f"{first}, and 1 more",
    }
    assert (err.count("worker 5: x\n"), "worker 5: and 950 more notes\n" in err, code) == (50, True, 11)


def test_scp_follows_no_link_out_of_the_target(pod: HostileSlice, tmp_path: Path) -> None:
    here, outside = pod.tpuctl.folder, tmp_path / "outside"
    outside.mkdir()
    (outside / "bashrc").write_text(SECRET)
    (here / "results.txt").symlink_to(outside / "bashrc")
    (here / "new.txt").symlink_to(outside / "new")
    (here / "logs").symlink_to(outside)
    (here / "named").symlink_to(outside / "asked-for")

    said = []
    for pattern, target, steps in (
        ("results.txt", ".", gives("results.txt")),
        ("new.txt", ".", gives("new.txt")),
        ("logs", ".", gives("logs/", "logs/bashrc")),
        ("x", "named", gives("x")),
    ):
        pod.play({0: [steps]})
        said.append(pod.tpuctl("scp", "-r", f"pod:{pattern}", target, "--worker", "0")[1:])

    leads = "is a symlink that leads out of the target"
    assert [(leads in err, code) for err, code in said] == [(True, 11), (True, 11), (True, 2), (False, 0)]
    # The last one was named by the user.
    assert files(outside) == {"bashrc": SECRET.encode(), "asked-for": STOLEN}


def test_scp_reveals_no_local_files_to_a_worker(pod: HostileSlice) -> None:
    """A worker with any claim gets no contents, digests or paths, and its modes do not apply to local files."""
    here = pod.tpuctl.folder
    (here / "results.txt").write_text(SECRET)
    (here / f".results.txt.tpuctl-{KEY}").write_text(SECRET * 2)
    guesses = [entry("results.txt", number, size=number + 1) for number in range(len(SECRET))]
    pod.play({
        1: [[send(COPY, listing(named=7, count=7), entries(*guesses), told(b"K", [])), until(b"A\0"), leave(1)]],
        2: [[send(COPY, listing(), entries(entry("results.txt", key="0" * 12))), until(b"H\0"), leave(1)]],
        3: [copying(listing(), entries(entry("results.txt", mode=0o106777)), content(), END)],
    })  # fmt: skip

    said = [pod.tpuctl("scp", "-p", "pod:results.*", ".", "--worker", str(worker)) for worker in (1, 2, 3)]

    # What comes after the program, which they are sent as well.
    heard = [pod.received(worker).rpartition(b"hidden=False)\n")[2] for worker in (1, 2, 3)]
    nothing = told(b"P", None)
    digests = [told(b"H", []) + told(b"A", []), frame(b"H", b"[[0,7]]"), told(b"H", []) + told(b"Z", None)]
    assert [code for _, _, code in said] == [11, 11, 0], said
    assert heard == [nothing + one for one in digests]
    assert (here / "results.txt").read_bytes() == STOLEN
    assert (here / "results.txt").stat().st_mode & 0o7000 == 0


NUMBERS = {"negative": -1, "unknown": 2, "huge": 10**400, "true": True, "a fraction": 0.0, "text": "0", "none": None}
LENGTHS = {"negative": -1, "none": 0, "too much": 8, "text": "7"}
UPLOADS = {
    "a place that is a number": takes(first=(7, True, None)),
    "a place that is no place": takes(first=("/x", 1, None)),
    "two places": takes(told(b"P", ["/home/ada", True, None])),
    "no place": [send(COPY, told(b"H", [])), *takes()[2:]],
    **{f"a part of a file: {name}": takes(told(b"H", [[number, 7]])) for name, number in list(NUMBERS.items())[:4]},
    **{f"a part of a length: {name}": takes(told(b"H", [[0, length]])) for name, length in LENGTHS.items()},
    "a part twice": takes(told(b"H", [[0, 7], [0, 7]])),
    "a part with an offset": takes(told(b"H", [[0, 7, 0]])),
    "a part that was not asked for is kept": takes(told(b"H", [[0, 7]]), told(b"A", [1])),
    "a report of an unknown file": takes(told(b"R", [9, None])),
    "a report of a file that was not sent": takes(told(b"R", [0, None])),
    "a report that is a number": takes(told(b"R", [0, 5])),
    "an end at once": takes(END),
    "an end without reports": takes(told(b"H", []), END),
    "an answer to no question": takes(told(b"A", [])),
    "answers without end": flood(block=told(b"P", ["/home/ada", True, None])),
    "bytes of a file": takes(frame(b"D", STOLEN)),
    "a listing": takes(listing()),
    "a length of 2**31": takes(frame(b"H", length=2**31)),
    "deep JSON": takes(told(b"H", DEEP)),
    "no JSON": takes(told(b"H", b"nope")),
    "a refusal without words": takes(told(b"X", [])),
}  # fmt: skip


def test_scp_to_workers_sends_only_listed_files(pod: HostileSlice) -> None:
    here = pod.tpuctl.folder
    for name in ("one", "two"):
        (here / name).write_text(f"of {name}!"[:7])
    (here / "key").write_text(SECRET)

    said, err, code = attack(pod, UPLOADS, "scp", "one", "two", "pod:")

    assert unexpected(said) == dict.fromkeys(UPLOADS, True), said
    assert (code, "Traceback" in err) == (11, False)
    assert [name for worker, name in enumerate(UPLOADS) if SECRET.encode() in pod.received(worker)] == []


def planned(*frames: bytes, **fields: object) -> Steps:
    """Answer a sync of two files and a symlink with this plan, and then with these frames."""
    return syncing(tree_frame(plan(**fields)), *frames)


ODD = {
    "unknown": 3,
    "a link": 2,
    **{name: NUMBERS[name] for name in ("negative", "huge", "true", "a fraction", "none", "text")},
}
SYNCS = {
    **{f"to send: {name}": planned(send=[number]) for name, number in ODD.items()},
    **{f"a digest of: {name}": planned(send=[], digests={f"{number}": "0" * 32}) for name, number in list(ODD.items())[:-1]},
    "a link that is a file": planned(link=[0]),
    "to send twice": planned(send=[0, 0]),
    "to send and to touch": planned(touch=[0]),
    "foreign and not planned": planned(send=[0], foreign=[1]),
    "a digest that is none": planned(send=[], digests={"0": "?"}),
    "a relative folder": planned(folder="code"),
    "an option for a folder": planned(folder="--rsync-path=x"),
    "a NUL in the folder": planned(folder="/x\0"),
    "half a surrogate in the folder": planned(folder="/\ud800"),
    "to delete unasked": planned(delete=["x"]),
    "a name that is a number": planned(kept=[5]),
    "a list for a plan": syncing(tree_frame([])),
    "no plan": syncing(tree_frame({})),
    "a report that is no number": planned(tree_frame({"put": 2, "bytes": "9", "deleted": [], "replaced": []})),
    "a report of 10**400 bytes": planned(tree_frame({"put": 2, "bytes": 10**400, "deleted": [], "replaced": []})),
    "a report of what was not deleted": planned(tree_frame({"put": 2, "bytes": 9, "deleted": ["x"], "replaced": []})),
    "a report of what was not replaced": planned(tree_frame({"put": 2, "bytes": 9, "deleted": [], "replaced": ["a.py"]})),
    "no report": planned(tree_frame({})),
    "an error that is a list": syncing(tree_frame({"error": []})),
    "a length of 2**62": syncing(tree_frame({}, length=2**62)),
    "deep JSON": syncing(tree_frame(DEEP)),
    "no JSON": syncing(tree_frame(b"nope")),
    "no UTF-8": syncing(tree_frame(b'"\xff"')),
    "NaN": syncing(tree_frame(b'{"send": NaN}')),
    "noise without end": flood(block=b"\n")[1:],
}  # fmt: skip


READY = tree_frame({"ready": True})
RSYNCS = {
    "missing: unknown": planned(READY, tree_frame({"missing": [2]}), rsync=True),
    "missing: twice": planned(READY, tree_frame({"missing": [1, 1]}), rsync=True),
    "ready for a number": planned(tree_frame({"ready": 1}), rsync=True),
}


@pytest.mark.parametrize("via", ["ssh", pytest.param("rsync", marks=needs_rsync)])
def test_sync_sends_only_files_of_the_tree(pod: HostileSlice, via: str) -> None:
    attacks = SYNCS if via == "ssh" else RSYNCS
    tree = pod.tpuctl.folder / "code"
    tree.mkdir()
    (tree / "a.py").write_text("print(1)")
    (tree / "b.py").write_text("print(2)")
    (tree / "link").symlink_to("../key")
    (pod.tpuctl.folder / "key").write_text(SECRET)

    said, err, code = attack(pod, attacks, "sync", "pod", "code", "--via", via)

    assert unexpected(said) == dict.fromkeys(attacks, True), said
    assert (code, "Traceback" in err) == (11, False)
    assert [name for worker, name in enumerate(attacks) if SECRET.encode() in pod.received(worker)] == []
    # Each was asked once, by ssh: a worker that breaks the protocol is not tried again.
    if via == "ssh":
        assert {name: len(pod.connections(worker)) for worker, name in enumerate(attacks)} == dict.fromkeys(attacks, 1)


def tells(*frames: bytes) -> Steps:
    """Answer a bundle with these frames."""
    return [send(MARK, *frames), hold()]


def begins(path: object = "a.log", source: object = "x", size: object = 1, modified: object = None) -> bytes:
    return told(b"f", {"path": path, "source": source, "size": size, "modified": modified})


BUNDLES = {
    "a long path": tells(begins("x" * 5000)),
    "a path that is a number": tells(begins(7)),
    "a long source": tells(begins(source="x" * 5000)),
    "a negative size": tells(begins(size=-1)),
    "a size of 10**400": tells(begins(size=10**400)),
    "true for a size": tells(begins(size=True)),
    "a time that is a list": tells(begins(modified=[])),
    "an infinite time": tells(told(b"f", b'{"path": "a", "source": "x", "size": 1, "modified": 1e999}')),
    "no path": tells(told(b"f", {})),
    "a list for a file": tells(told(b"f", [])),
    "deep JSON": tells(told(b"f", DEEP)),
    "deep JSON of what is missing": tells(told(b"m", DEEP)),
    "file data outside of a file": tells(frame(b"o", STOLEN)),
    "a gap of minus one": tells(begins(), frame(b"O", b"-1")),
    "a gap of no number": tells(begins(), frame(b"O", b"x")),
    "a length of 2**31": tells(frame(b"o", length=2**31)),
}  # fmt: skip


def test_bundle_notes_invalid_answers(pod: HostileSlice, sandbox: Sandbox) -> None:
    put(sandbox, "large", acceleratorType="v4-128")
    pod.play({64 + worker: [steps] for worker, steps in enumerate(BUNDLES.values())})

    out, err, code = pod.tpuctl("bundle", "large", "--file", "made.tar.gz")

    manifest = json.loads(opened(pod.tpuctl.folder / "made.tar.gz")["manifest.json"])
    missing = {one["path"]: one["why"] for one in manifest["missing"]}
    said = dict(zip(BUNDLES, (missing.get(f"workers/{worker}", "") for worker in range(len(BUNDLES))), strict=True))
    assert (code, "Traceback" in err) == (0, False), (out, err)
    assert unexpected(said) == dict.fromkeys(BUNDLES, True), said
