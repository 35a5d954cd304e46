"""What workers may do to `scp`, `sync` and `bundle`: they write and read only what was requested, and each attack is one error.

The workers of one slice each try another attack, so one command meets a whole table of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.hostile import MARK, HostileSlice, Steps, frame, hold, leave, send
from tests.hostile.copies import (
    DEEP,
    END,
    FILES,
    SHORT,
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
    "a NUL": gives("results.txt\0x"),
    "no UTF-8": gives("\udcff"),
    "an empty name": gives("results.txt", records={"path": ""}),
    "a folder without -r": gives("results.txt/"),
    "a second name": gives("results.txt", ".bashrc", named=2),
    "the same name twice": gives("results.txt", "results.txt"),
    "a symlink": gives("results.txt", kind=b"2"),
    "a hard link": gives("results.txt", kind=b"1"),
    "a character device": gives("results.txt", kind=b"3"),
    "a block device": gives("results.txt", kind=b"4"),
    "a named pipe": gives("results.txt", kind=b"6"),
    "the rest of a file that is not here": gives("results.txt", kind=b"M"),
    "a file with holes": gives("results.txt", kind=b"S"),
    "a long name of GNU": gives("results.txt", kind=b"L"),
    "a long link of GNU": gives("results.txt", kind=b"K"),
    "an unknown type": gives("results.txt", kind=b"?"),
    "a file that has a link": gives("results.txt", raw={"link": b"/etc/passwd"}),
    "a file that has a prefix": gives("results.txt", raw={"prefix": b".."}),
    "a file that has an owner": gives("results.txt", raw={"owner": b"root"}),
    "another name in an extended header": gives("results.txt", records={"path": "../x"}),
    "a link in an extended header": gives("results.txt", records={"linkpath": "/etc/passwd"}),
    "a sparse file in an extended header": gives("results.txt", records={"GNU.sparse.name": "x"}),
}


def first(**fields: Any) -> Steps:
    """Send what was requested, but for one field."""
    return sending(overview(), entry("results.txt", **fields), content(), END, line([]))


def extended(data: bytes, *, length: int | None = None) -> Steps:
    """Send what was requested behind an extended header with this text."""
    size = len(data) if length is None else length
    head = entry("x", size=size, kind=b"x") + content(data)
    return sending(overview(), head, entry("results.txt"), content(), END, line([]))


def ends(*parts: bytes) -> Steps:
    """Send what was requested, and then this."""
    return sending(overview(), entry("results.txt"), content(), *parts)


FRAMES = {
    "no hello": [send(FILES[:-9], line(7)), hold()],
    "a file before the overview": sending(entry("results.txt"), content()),
    "two overviews": sending(overview(), overview(), SHORT),
    "overviews without end": flood(block=overview()),
    "no file": sending(overview(), END, line([])),
    "a value in place of files": sending(overview(), line(None), SHORT),
    "bytes without a file": sending(overview(), content()),
    "bytes of another tar stream": sending(overview(), entry("results.txt", raw={"magic": b"ustar  \0"}), content()),
    "a header of the oldest format": sending(overview(), entry("results.txt", raw={"magic": bytes(8)}), content()),
    "a header with a bit that fell over": sending(overview(), entry("results.txt").replace(b"res", b"rer"), content()),
    "more bytes than announced": sending(overview(), entry("results.txt"), content(b"x" * 513)),
    "a file without end": flood(overview(), entry("results.txt"), block=b"x"),
    "files without end": flood(overview(), block=entry("results.txt") + content()),
    "folders without end": flood(overview(), block=entry("results.txt", folder=True)),
    "extended headers without end": flood(overview(), block=entry("x", kind=b"x", size=0)),
    "two extended headers": sending(overview(), *[entry("x", kind=b"x", size=10) + content(b"10 size=7\n")] * 2),
    "an extended header at the end": sending(overview(), entry("x", kind=b"x", size=10) + content(b"10 size=7\n"), END),
    "an extended header for all files": sending(overview(), entry("x", kind=b"g", size=7), content()),
    "a long extended header": extended(b"x", length=2**30),
    "an extended header without a length": extended(b"size=7\n"),
    "an extended header with a long length": extended(b"99 size=7\n"),
    "an extended header with a short length": extended(b"2 size=7\n"),
    "an extended header with a length of zero": extended(b"0 size=7\n"),
    "an extended header with a negative length": extended(b"-9 size=7\n"),
    "an extended header with an endless length": extended(b"9" * 500),
    "an extended header without a value": extended(b"8 size7\n"),
    "an extended header without an end": extended(b"10 size=77"),
    "an extended header with an unknown record": extended(b"10 mode=7\n"),
    "an extended header with a record twice": extended(b"10 size=7\n10 size=7\n"),
    "an end that is cut": sending(overview(), entry("results.txt"), content(), bytes(512), SHORT),
    "a value in place of bytes": sending(overview(), entry("results.txt"), line("planted"), SHORT, SHORT),
    "a frame without end": flood(frame(b"x", length=2**31), block=b"x"),
    "a frame of a job": sending(frame(b"s")),
    "an unknown frame": sending(frame(b"?")),
    "an end that is a number": ends(END, line(7)),
    "an end that is null": ends(END, line(None)),
    "an end with a number for a file": ends(END, line([7])),
    "an end with a number for a reason": ends(END, line([["results.txt", 7]])),
    "an end without a reason": ends(END, line([["results.txt"]])),
    "an end with a number for a name": ends(END, line([[7, "x"]])),
    "an end with a long reason": ends(END, line([["results.txt", "x" * 20_000]])),
    "an end with too many files": ends(END, line([["x", "x"]] * 1001)),
    "an end that is a file": ends(END, entry("results.txt"), content()),
    "deep JSON at the end": ends(END, line(DEEP)),
    "noise without end": [*flood(block=b"x")[1:]],
    "deep JSON": sending(line(DEEP)),
    "no JSON": sending(line(b"{")),
    "no UTF-8": sending(line(b'"\xff"')),
    "an object for a list": sending(line({"named": 1})),
    "a short list": sending(line([1])),
    "a refusal that is a number": sending(line({"refused": 3})),
    "a refusal of an unknown kind": sending(line({"refused": ["worse", "it is"]})),
    "a refusal without words": sending(line({"refused": []})),
}
FIELDS = {
    "a negative count": sending(overview(count=-1)),
    "a count of 10**400": sending(line(b"[1,false,1" + b"0" * 400 + b",0,[],[]]")),
    "a NaN for a size": sending(line(b"[1,false,1,NaN,[],[]]")),
    "true for a count": sending(overview(count=True)),
    "a number for a tree": sending(overview(tree=0)),
    "a tree without -r": sending(overview(tree=True), entry("results.txt", folder=True)),
    "a note that is a list": sending(overview(notes=[[]])),
    "a negative size": first(size=-1),
    "a negative size in its field": first(raw={"size": b"-0000000001\0"}),
    "a size in the format of GNU": first(raw={"size": b"\x80" + bytes(10) + b"\x07"}),
    "a negative size in the format of GNU": first(raw={"size": b"\xff" * 12}),
    "a size with a digit that is not octal": first(raw={"size": b"00000000008\0"}),
    "a size with an underscore": first(raw={"size": b"0000000_007\0"}),
    "no size": first(raw={"size": bytes(12)}),
    "a fraction for a size": first(size=1.5),
    "a size of 2**64": first(size=2**64),
    "a size of 2**63": first(size=2**63),
    "a folder with a size": sending(
        overview(), entry("results.txt", folder=True, raw={"size": b"00000000007\0"}), content()
    ),
    "a time of 10**400": first(records={"mtime": "1" + "0" * 400}),
    "a time of 10**10 seconds": first(records={"mtime": "10000000000"}),
    "a time that is no number": first(records={"mtime": "x"}),
    "an infinite time": first(records={"mtime": "inf"}),
    "a time with an exponent": first(records={"mtime": "1e9"}),
    "a negative mode": first(raw={"mode": b"-000001\0"}),
    "a mode that is no number": first(raw={"mode": b"True\0\0\0\0"}),
    "no mode": first(raw={"mode": bytes(8)}),
}


@pytest.mark.parametrize("attacks", [NAMES, FRAMES, FIELDS], ids=["names", "frames", "fields"])
def test_scp_of_a_file_accepts_only_the_requested_file(pod: HostileSlice, attacks: dict[str, Steps]) -> None:
    (pod.tpuctl.folder / "results.txt").write_text(SECRET)
    before = files(Path(pod.tpuctl.environ["HOME"])), files(pod.tpuctl.folder)

    said, err, code = attack(pod, attacks, "scp", "pod:results.txt", "got")

    assert unexpected(said) == dict.fromkeys(attacks, True), said
    assert (code, "Traceback" in err) == (11, False)
    # No file gets its name before all are whole.
    assert (files(Path(pod.tpuctl.environ["HOME"])), files(pod.tpuctl.folder)) == before
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
    assert files(pod.tpuctl.folder) == before


def test_scp_without_a_requested_name_fails(pod: HostileSlice) -> None:
    attacks = {
        "none": sending(overview(named=0, count=0), END, line([])),
        "the first": gives("results.txt"),
        "the second": gives("b"),
        "the first twice": gives("results.txt", "results.txt", named=2),
        "both": gives("b", "results.txt", named=2),
        "many notes": sending(overview(named=0, count=0, notes=["x"] * 1000), END, line([])),
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
    guesses = [entry("results.txt", size=size) + content(b"x" * size) for size in range(1, len(SECRET) + 1)]
    pod.play({
        1: [[send(FILES, overview(named=7, count=7), *guesses, SHORT), hold()]],
        2: [[send(FILES, overview(), entry("results.txt"), STOLEN[:3]), leave(255)], [leave(1)]],
        3: [[send(FILES, overview(), entry("results.txt", mode=0o6777), content(), END, line([])), hold()]],
    })  # fmt: skip

    said = [pod.tpuctl("scp", "-p", "pod:results.*", ".", "--worker", str(worker)) for worker in (1, 2, 3)]

    # What comes after the program, which they are sent as well.
    heard = [pod.received(worker).rpartition(b"'worker': %d})\n" % worker)[2] for worker in (1, 2, 3)]
    assert [code for _, _, code in said] == [11, 11, 0], said
    assert heard == [b"", b"", b""]
    assert (here / "results.txt").read_bytes() == STOLEN
    assert (here / "results.txt").stat().st_mode & 0o7000 == 0
    assert files(here) == {"results.txt": STOLEN}


NUMBERS = {"negative": -1, "unknown": 2, "huge": 10**400, "true": True, "a fraction": 0.0, "text": "0", "none": None}
UPLOADS = {
    **{f"a device of a tree: {name}": takes(line([NUMBERS[name], 1])) for name in NUMBERS if name not in {"huge", "unknown"}},
    **{f"an inode of a tree: {name}": takes(line([1, NUMBERS[name]])) for name in NUMBERS if name not in {"huge", "unknown"}},
    "a huge inode of a tree": takes(line(b"[1, 1" + b"0" * 400 + b"]")),
    "an inode of 2**63": takes(line([1, 2**63])),
    "a tree that is a number": takes(line(7)),
    "a tree that is a text": takes(line("12")),
    "a tree that is an object": takes(line({"1": 2})),
    "a tree that is too short": takes(line([1])),
    "a tree that is too long": takes(line([1, 2, 3])),
    "a tree with a list": takes(line([1, [2]])),
    "two trees": takes(line([1, 2]), line([1, 2])),
    "a report of an unknown file": takes(line(None), then=[line([["three", "no"]])]),
    "a report that is a number": takes(line(None), then=[line([["one", 5]])]),
    "a report of a number": takes(line(None), then=[line([[1, "no"]])]),
    "a report of an empty name": takes(line(None), then=[line([["", "no"]])]),
    "a report with a NUL": takes(line(None), then=[line([["one\0", "no"]])]),
    "a report without a reason": takes(line(None), then=[line([["one"]])]),
    "a report with two reasons": takes(line(None), then=[line([["one", "no", "no"]])]),
    "a report with a long reason": takes(line(None), then=[line([["one", "x" * 20_000]])]),
    "a report of more files than were sent": takes(line(None), then=[line([["one", "no"]] * 3)]),
    "a report that is no list": takes(line(None), then=[line(None)]),
    "a report that is an object": takes(line(None), then=[line({"one": "no"})]),
    "a report that is a file": takes(line(None), then=[entry("one"), content()]),
    "a report that is deep": takes(line(None), then=[line(DEEP)]),
    "a report that is no JSON": takes(line(None), then=[line(b"nope")]),
    "a report without an end": takes(line(None), then=[frame(b"x", length=2**31)]),
    "answers without end": flood(block=line([])),
    "a frame without end": flood(frame(b"x", length=2**31), block=b"x"),
    "bytes of a file": takes(frame(b"o", STOLEN)),
    "a file": takes(entry("one"), content()),
    "an overview": takes(overview()),
    "deep JSON": takes(line(DEEP)),
    "no JSON": takes(line(b"nope")),
    "a refusal without words": takes(line({"refused": []})),
    "a late refusal without words": takes(line(None), then=[line({"refused": []})]),
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


def planned(*report: bytes, **fields: object) -> Steps:
    """Answer a sync of two files and a symlink with this plan, and then with this report."""
    return takes(line(plan(**fields)), then=report, lists=2 if report else 0)


ODD = {
    "unknown": 3,
    "a link": 2,
    **{name: NUMBERS[name] for name in ("negative", "true", "a fraction", "none", "text")},
}
SYNCS = {
    **{f"to send: {name}": planned(send=[number]) for name, number in ODD.items()},
    **{f"a digest of: {name}": planned(send=[], digests=[[number, "0" * 32]]) for name, number in ODD.items()},
    "a link that is a file": planned(link=[0]),
    **{f"to touch: {name}": planned(send=[], touch=[number]) for name, number in ODD.items()},
    "a link that is unknown": planned(link=[3]),
    "a link twice": planned(link=[2, 2]),
    "a digest twice": planned(send=[], digests=[[0, "0" * 32], [0, "0" * 32]]),
    "a digest and to send": planned(digests=[[0, "0" * 32]]),
    "a digest and to touch": planned(send=[], touch=[0], digests=[[0, "0" * 32]]),
    "a digest that is missing": planned(send=[], digests=[[0]]),
    "foreign that is unknown": planned(foreign=[3]),
    "foreign twice": planned(foreign=[0, 0]),
    "kept unasked": planned(kept=["x"]),
    "to send twice": planned(send=[0, 0]),
    "to send and to touch": planned(touch=[0]),
    "foreign and not planned": planned(send=[0], foreign=[1]),
    "a digest that is none": planned(send=[], digests=[[0, "?"]]),
    "a relative folder": planned(folder="code"),
    "an option for a folder": planned(folder="--delete"),
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


def test_sync_sends_only_files_of_the_tree(pod: HostileSlice) -> None:
    tree = pod.tpuctl.folder / "code"
    tree.mkdir()
    (tree / "a.py").write_text("print(1)")
    (tree / "b.py").write_text("print(2)")
    (tree / "link").symlink_to("../key")
    (pod.tpuctl.folder / "key").write_text(SECRET)

    said, err, code = attack(pod, SYNCS, "sync", "pod", "code")

    assert unexpected(said) == dict.fromkeys(SYNCS, True), said
    assert (code, "Traceback" in err) == (11, False)
    assert [name for worker, name in enumerate(SYNCS) if SECRET.encode() in pod.received(worker)] == []
    # Each was asked once: a worker that breaks the protocol is not tried again.
    assert {name: len(pod.connections(worker)) for worker, name in enumerate(SYNCS)} == dict.fromkeys(SYNCS, 1)


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
