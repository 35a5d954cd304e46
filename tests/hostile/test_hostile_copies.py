"""What workers may do to `scp`, `sync` and `bundle`: they write and read only what was requested, and each attack is one error.

The workers of one slice each try another attack, so one command meets a whole table of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.hostile import MARK, HostileSlice, Steps, frame, hold, leave, send, until
from tests.hostile.copies import (
    DEEP,
    FILES,
    STOLEN,
    Crowd,
    content,
    entry,
    flood,
    gives,
    line,
    overview,
    plan,
    sending,
    takes,
    told,
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
    "a symlink": gives("results.txt", target="/etc/passwd"),
    "the rest of a file that is not here": gives("results.txt", offset=3),
}


WHOLE_FIRST = {"the same name twice"}


def first(**fields: Any) -> Steps:
    """Send what was requested, but for one field."""
    return sending(overview(), entry("results.txt", **fields), content())


FRAMES = {
    "no hello": [send(FILES[:-9], line(7)), hold()],
    "a file before the overview": sending(entry("results.txt"), content()),
    "two overviews": sending(overview(), overview()),
    "overviews without end": flood(block=overview()),
    "no file": sending(overview(), line(None)),
    "bytes without a file": sending(overview(), content()),
    "more bytes than announced": sending(overview(), entry("results.txt"), content(b"x" * 8)),
    "a file without end": flood(overview(), entry("results.txt"), block=frame(b"o", b"x")),
    "empty blocks without end": flood(overview(), entry("results.txt"), block=frame(b"o")),
    "a value in place of bytes": sending(overview(), entry("results.txt"), line("planted")),
    "a frame without end": flood(overview(), frame(b"x", length=2**31), block=b"x"),
    "a frame of a job": sending(overview(), frame(b"s")),
    "an unknown frame": sending(overview(), frame(b"?")),
    "an end that is a number": sending(overview(), entry("results.txt"), content(problem=7)),
    "an end that is a list": sending(overview(), entry("results.txt"), content(problem=[])),
    "noise without end": [*flood(block=b"x")[1:]],
    "deep JSON": sending(line(DEEP)),
    "no JSON": sending(line(b"{")),
    "no UTF-8": sending(line(b'"\xff"')),
    "an object for a list": sending(line({"named": 1})),
    "a short list": sending(line([1])),
    "a refusal that is a number": sending(line({"refused": 3})),
    "a refusal of an unknown kind": sending(line({"refused": ["worse", "it is"]})),
    "a refusal without words": sending(line({"refused": []})),
    "a negative count": sending(overview(count=-1)),
    "a count of 10**400": sending(line(b"[1,false,1" + b"0" * 400 + b",0,[],[]]")),
    "a NaN for a size": sending(line(b"[1,false,1,NaN,[],[]]")),
    "true for a count": sending(overview(count=True)),
    "a number for a tree": sending(overview(tree=0)),
    "a tree without -r": sending(overview(tree=True), entry("results.txt", folder=True)),
    "a note that is a list": sending(overview(notes=[[]])),
    "a negative size": first(size=-1),
    "a fraction for a size": first(size=1.5),
    "a size of 2**64": first(size=2**64),
    "a time of 10**400": sending(overview(), line(b'["results.txt",33188,7,1' + b"0" * 400 + b",null,0,null]")),
    "a negative mode": first(mode=-1),
    "true for a mode": first(mode=True),
    "a negative offset": first(offset=-1),
    "an offset past the end": first(offset=8),
    "a problem that is a number": first(problem=7),
}


@pytest.mark.parametrize("attacks", [NAMES, FRAMES], ids=["names", "frames"])
def test_scp_of_a_file_accepts_only_the_requested_file(pod: HostileSlice, attacks: dict[str, Steps]) -> None:
    (pod.tpuctl.folder / "results.txt").write_text(SECRET)
    before = files(Path(pod.tpuctl.environ["HOME"])), files(pod.tpuctl.folder)

    said, err, code = attack(pod, attacks, "scp", "pod:results.txt", "got")

    assert unexpected(said) == dict.fromkeys(attacks, True), said
    assert (code, "Traceback" in err) == (11, False)
    # A file that was requested gets its name when it is whole, and nothing else does.
    got = {path: data for path, data in files(pod.tpuctl.folder).items() if "/.tpuctl-parts-tpu." not in path}
    whole = {f"got/{worker}/results.txt": STOLEN for worker, name in enumerate(attacks) if name in WHOLE_FIRST}
    assert (files(Path(pod.tpuctl.environ["HOME"])), got) == (before[0], {**before[1], **whole})
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
    "a file for a tree": sending(overview(tree=True), entry("a"), content()),
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
    assert {path: text for path, text in files(pod.tpuctl.folder).items() if ".tpuctl-parts-" not in path} == before


def test_scp_without_a_requested_name_fails(pod: HostileSlice) -> None:
    attacks = {
        "none": sending(overview(named=0, count=0)),
        "the first": gives("results.txt"),
        "the second": gives("b"),
        "the first twice": gives("results.txt", "results.txt", named=2),
        "both": gives("b", "results.txt", named=2),
        "many notes": sending(overview(named=0, count=0, notes=["x"] * 1000)),
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
    guesses = [entry("results.txt", size=number + 1) for number in range(len(SECRET))]
    asked = [send(FILES), until(b"g\0\0\0")]
    pod.play({
        1: [[*asked, send(overview(named=7, count=7), *guesses), hold()]],
        2: [[*asked, send(overview(), entry("results.txt"), frame(b"o", STOLEN[:3])), leave(255)], [*asked, leave(1)]],
        3: [[*asked, send(overview(), entry("results.txt", mode=0o106777), content()), hold()]],
    })  # fmt: skip

    said = [pod.tpuctl("scp", "-p", "pod:results.*", ".", "--worker", str(worker)) for worker in (1, 2, 3)]

    # What comes after the program, which they are sent as well.
    its_digest = hashlib.blake2b(STOLEN[:3], digest_size=16).hexdigest()
    no_bytes = hashlib.blake2b(digest_size=16).hexdigest()
    heard = [pod.received(worker).rpartition(b"'worker': %d})\n" % worker)[2] for worker in (1, 2, 3)]
    assert [code for _, _, code in said] == [11, 11, 0], said
    (part,) = here.glob(".tpuctl-parts-*-2/*")
    nothing, its_own = (
        told(b"g", json.dumps(parts, separators=(",", ":")).encode())
        for parts in ({}, {part.name: [3, no_bytes, its_digest]})
    )
    assert heard == [nothing, its_own, nothing]
    assert (here / "results.txt").read_bytes() == STOLEN
    assert (here / "results.txt").stat().st_mode & 0o7000 == 0


NUMBERS = {"negative": -1, "unknown": 2, "huge": 10**400, "true": True, "a fraction": 0.0, "text": "0", "none": None}
LENGTHS = {"negative": -1, "none": 0, "too much": 8, "text": "7"}
PLACE, NONE = ["/r", True, "/p", None], "0" * 32
BEGIN = json.dumps([PLACE]).encode()[:-1] + b","
UPLOADS = {
    "a plan that is a number": takes(line(7)),
    "a plan that is too short": takes(line([PLACE, [], []])),
    **{f"a part of a file: {one}": takes(line([PLACE, [[NUMBERS[one], 7, NONE]], [], []])) for one in NUMBERS if one != "huge"},
    "a part of a file: huge": takes(line(BEGIN + b"[[1" + b"0" * 400 + b',7,"' + NONE.encode() + b'"]],[],[]]')),
    **{f"a part of a length: {name}": takes(line([PLACE, [[0, length, NONE]], [], []])) for name, length in LENGTHS.items()},
    "a part twice": takes(line([PLACE, [[0, 7, NONE], [0, 7, NONE]], [], []])),
    "a part with an offset": takes(line([PLACE, [[0, 7, NONE, 0]], [], []])),
    "a part and a digest": takes(line([PLACE, [[0, 7, NONE]], [[0, NONE]], []])),
    "a digest that is none": takes(line([PLACE, [], [[0, "?"]], []])),
    "a part and refused": takes(line([PLACE, [[0, 7, NONE]], [], [0]])),
    "a part without a digest": takes(line([PLACE, [[0, 7]], [], []])),
    "a part with a digest that is none": takes(line([PLACE, [[0, 7, "?"]], [], []])),
    "no place": takes(line([[], [], [], []])),
    "a place that is a number": takes(line([1, [], [], []])),
    "a place without a path": takes(line([["", True, "/p", None], [], [], []])),
    "a tree that is a number": takes(line([["/r", True, "/p", 3], [], [], []])),
    "a report of an unknown file": takes(line([PLACE, [], [], []]), line([["three", "no"]])),
    "a report that is a number": takes(line([PLACE, [], [], []]), line([["one", 5]])),
    "a report that is no list": takes(line([PLACE, [], [], []]), line(None)),
    "an end at once": takes(line(None)),
    "answers without end": flood(block=line([])),
    "a frame without end": flood(frame(b"x", length=2**31), block=b"x"),
    "bytes of a file": takes(frame(b"o", STOLEN)),
    "an overview": takes(overview()),
    "deep JSON": takes(line(DEEP)),
    "no JSON": takes(line(b"nope")),
    "a refusal without words": takes(line({"refused": []})),
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


def planned(*parts: bytes, **fields: object) -> Steps:
    """Answer a sync of two files and a symlink with this plan, and then with these lines."""
    return sending(line(plan(**fields)), *parts)


ODD = {
    "unknown": 3,
    "a link": 2,
    **{name: NUMBERS[name] for name in ("negative", "true", "a fraction", "none", "text")},
}
SYNCS = {
    **{f"to send: {name}": planned(send=[number]) for name, number in ODD.items()},
    **{f"a digest of: {name}": planned(send=[], digests=[[number, "0" * 32]]) for name, number in ODD.items()},
    **{f"a part of: {name}": planned(parts=[[number, 1, NONE]]) for name, number in ODD.items()},
    "a part of a file that is not sent": planned(send=[1], parts=[[0, 1, NONE]]),
    "a part that is too long": planned(parts=[[0, 9, NONE]]),
    "a part without a digest": planned(parts=[[0, 1]]),
    "a link that is a file": planned(link=[0]),
    "to send twice": planned(send=[0, 0]),
    "to send and to touch": planned(touch=[0]),
    "foreign and not planned": planned(send=[0], foreign=[1]),
    "a digest that is none": planned(send=[], digests=[[0, "?"]]),
    "a relative folder": planned(folder="code"),
    "an option for a folder": planned(folder="--rsync-path=x"),
    "a NUL in the folder": planned(folder="/x\0"),
    "half a surrogate in the folder": planned(folder="/\ud800"),
    "to delete unasked": planned(delete=["x"]),
    "a name that is a number": planned(kept=[5]),
    "a list for a plan": sending(line([])),
    "no plan": sending(line({})),
    "a report that is no number": planned(line({"bytes": "9", "deleted": [], "replaced": []})),
    "a report of 10**400 bytes": planned(line(b'{"bytes": 1' + b"0" * 400 + b', "deleted": [], "replaced": []}')),
    "a report of what was not deleted": planned(line({"bytes": 9, "deleted": ["x"], "replaced": []})),
    "a report of what was not replaced": planned(line({"bytes": 9, "deleted": [], "replaced": ["x"]})),
    "no report": planned(line({})),
    "a refusal that is a list": sending(line({"refused": []})),
    "deep JSON": sending(line(DEEP)),
    "no JSON": sending(line(b"nope")),
    "no UTF-8": sending(line(b'"\xff"')),
    "NaN": sending(line(b'{"send": NaN}')),
    "noise without end": flood(block=b"\n")[1:],
}  # fmt: skip


RSYNCS = {
    "missing: unknown": planned(line([2]), rsync=True),
    "missing: twice": planned(line([1, 1]), rsync=True),
    "missing: a number": planned(line(1), rsync=True),
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
