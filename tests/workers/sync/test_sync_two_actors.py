"""A sync and another program change one folder on a worker: nothing that the other program wrote is lost, in any order."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpuctl.ssh.agent.sync_tree import STAGE, sync
from tpuctl.ssh.agent.tar_stream import END_OF_TAR, FileEntry, RefusedError, Stream, member_head

NAMES = ("a", "d", "d/x", "d/y")
# What a tree may hold at once: a name is either a file or a folder.
TREES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["1", "22", "->a"])).filter(
    lambda tree: "d" not in tree or not {"d/x", "d/y"} & tree.keys()
)
CHANGES = st.tuples(st.sampled_from(["write", "save", "remove", "mkdir"]), st.sampled_from(NAMES))
TOKENS = count()
# After how many calls of the system by the sync the other program acts; 0: before.
MOMENTS = st.one_of(st.just(0), st.integers(1, 160))
SYNCS = st.tuples(TREES, st.booleans(), st.lists(st.tuples(MOMENTS, CHANGES), max_size=3))


class LocalClient(Stream):
    """The client's end of the protocol, in this process: sends all that the worker wants."""

    def __init__(self, tree: dict[str, str]) -> None:
        super().__init__(io.BufferedReader(io.BytesIO()), -1)
        self.entries = [
            FileEntry(name, 0o100644, len(text), 10**18 + len(text), text[2:] if text.startswith("->") else None)
            for name, text in sorted(tree.items())
        ]
        self.tree = tree
        self.waiting: Iterator[Any] = iter([self.entries])

    def send(self, value: Any) -> None:
        if "send" in value:
            wanted = sorted([*value["send"], *(number for number, _ in value["digests"])])
            files = [self.entries[number] for number in wanted]
            data = b"".join(member_head(entry) + self.tree[entry.path].encode().ljust(512, b"\0") for entry in files)
            self._reader = io.BufferedReader(io.BytesIO(data + END_OF_TAR))
            self.waiting = iter([[], []])

    def receive(self) -> Any:
        return next(self.waiting)


class OtherProgram:
    """Writes files with texts that occur once, and knows which of them it has not given up itself."""

    texts = count(1)

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept = folder, set[str]()

    def act(self, what: str, name: str) -> None:
        path, text = self.folder / name, f"theirs {next(self.texts)}"
        with suppress(OSError):
            if what == "mkdir":
                path.mkdir(parents=True)
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            before = path.read_text() if path.is_file() and not path.is_symlink() else ""
            if what == "remove":
                path.unlink()
            elif what == "save" or path.is_symlink():
                (self.folder / "draft").write_text(text)
                (self.folder / "draft").replace(path)
                self.kept.add(text)
            else:
                path.write_text(text)
                self.kept.add(text)
            self.kept.discard(before)


@contextmanager
def after_calls(acts: dict[int, Callable[[], None]]) -> Iterator[None]:
    """Act between two calls that the block makes of the system."""
    calls = count(1)

    def profile(_: Any, event: str, function: Any) -> None:
        is_call = event == "c_call" and getattr(function, "__module__", "") in {"posix", "io", "_io"}
        is_exchange = event == "c_call" and getattr(function, "__name__", "") == "dlsym"
        if (is_call or is_exchange) and (act := acts.pop(next(calls), None)):
            sys.setprofile(None)
            act()
            sys.setprofile(profile)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def texts_below(*folders: Path) -> set[str]:
    """Return the texts of all files, without the unfinished ones of a sync."""
    paths = [path for folder in folders for path in folder.rglob("*") if STAGE not in path.parts]
    return {path.read_text() for path in paths if path.is_file() and not path.is_symlink()}


def synced(home: str, tree: dict[str, str], acts: Mapping[int, Callable[[], None]], *, delete: bool) -> int:
    """Sync a tree, and return how many calls of the system were made before all acts were done."""
    request = {"folder": f"{home}/code", "delete": delete, "dry_run": False, "token": str(next(TOKENS))}
    left = dict(acts)
    with suppress(RefusedError, OSError), after_calls(left):
        sync(LocalClient(tree), request)
    return len(left)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(syncs=st.lists(SYNCS, min_size=1, max_size=4))
def test_no_text_of_the_other_program_is_lost(
    syncs: list[tuple[dict[str, str], bool, list[tuple[int, tuple[str, str]]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory() as home:
        monkeypatch.setenv("HOME", home)
        folder = Path(home, "code")
        folder.mkdir()
        other = OtherProgram(folder)
        for tree, delete, changes in syncs:
            acts = {moment: partial(other.act, *change) for moment, change in changes}
            if first := acts.pop(0, None):
                first()
            synced(home, tree, acts, delete=delete)
            assert other.kept <= texts_below(folder, Path(home, ".tpuctl/sync"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges two names")
@pytest.mark.parametrize("what", ["write", "save"])
@pytest.mark.parametrize("name", ["a", "d/x", "gone"])
def test_text_written_between_any_two_calls_of_a_sync_is_kept(
    what: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for moment in count(1):
        with TemporaryDirectory() as home:
            monkeypatch.setenv("HOME", home)
            folder = Path(home, "code")
            other = OtherProgram(folder)
            synced(home, {"a": "1", "d/x": "1", "gone": "1"}, {}, delete=False)
            is_over = synced(home, {"a": "22", "d": "22"}, {moment: partial(other.act, what, name)}, delete=True)
            assert other.kept <= texts_below(folder, Path(home, ".tpuctl/sync"))
        if is_over:
            return
