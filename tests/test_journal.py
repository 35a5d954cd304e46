"""The journal: what was written is there, whatever else goes wrong."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tpuctl.errors import ExitCode
from tpuctl.journal import Journal, JournalError, Remembered
from tpuctl.model import NodeSpec
from tpuctl.names import NodeName

NAME = NodeName("p", "us-central2-b", "trainer")
AT = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="img", metadata={"note": "line\nsep\u2028arator é"})
_FILE = "p/us-central2-b/trainer.jsonl"


def test_the_last_spec_is_remembered_with_its_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(NAME, "create", AT, spec=NodeSpec(accelerator_type="v4-16", runtime_version="old").to_json())
    journal.append(NAME, "delete", AT, spec=SPEC.to_json(), id="7")
    journal.append(NAME, "restart", AT, reason="stuck")

    assert journal.last_spec(NAME) == Remembered(SPEC, AT)
    assert [entry["event"] for entry in journal.entries(NAME)] == ["create", "delete", "restart"]
    assert list(journal.entries(NAME))[2] == {"at": "2026-01-02T00:00:00Z", "event": "restart", "reason": "stuck"}


def test_of_what_was_never_written_nothing_is_remembered(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "none")

    assert (list(journal.entries(NAME)), journal.last_spec(NAME), journal.names()) == ([], None, [])


def test_a_line_torn_by_a_crash_takes_neither_its_neighbours_with_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(NAME, "first", AT)
    with (tmp_path / _FILE).open("ab") as file:
        file.write(b'{"event": "torn\xff')
    journal.append(NAME, "last", AT)

    assert [entry["event"] for entry in journal.entries(NAME)] == ["first", "last"]


_WRITER = """
import sys
from datetime import datetime, timezone
from pathlib import Path
from tpuctl.journal import Journal
from tpuctl.names import NodeName
for index in range(50):
    name, now = NodeName("p", "us-central2-b", "trainer"), datetime.now(timezone.utc)
    Journal(Path(sys.argv[1])).append(name, "note", now, by=sys.argv[2], index=index, pad="x" * 3000)
"""


def test_several_writers_lose_and_tear_nothing(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(by)]) for by in range(4)]
    codes = [writer.wait(timeout=60) for writer in writers]

    written = [(entry["by"], entry["index"]) for entry in Journal(tmp_path).entries(NAME)]
    assert codes == [0] * 4
    assert sorted(written) == [(str(by), index) for by in range(4) for index in range(50)]


def test_only_the_owner_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Journal(tmp_path / "state" / "journal").append(NAME, "create", AT)
    finally:
        os.umask(before)

    paths = sorted((tmp_path / "state").rglob("*"))
    modes = {
        str(path.relative_to(tmp_path)): oct(stat.S_IMODE(path.stat().st_mode)) for path in (tmp_path / "state", *paths)
    }
    assert modes == {
        "state": "0o700",
        "state/journal": "0o700",
        "state/journal/p": "0o700",
        "state/journal/p/us-central2-b": "0o700",
        f"state/journal/{_FILE}": "0o600",
    }


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_a_full_disk_is_a_reason_not_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / _FILE
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")

    with pytest.raises(JournalError) as refused:
        Journal(tmp_path).append(NAME, "delete", AT)

    assert str(refused.value) == f"the journal cannot be written: {path}: No space left on device"


def test_a_journal_that_cannot_be_written_says_so_before_anything_is_destroyed(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a file where the folder should be")

    with pytest.raises(JournalError) as refused:
        Journal(tmp_path).append(NAME, "delete", AT)

    assert (str(refused.value), refused.value.kind, refused.value.exit_code, refused.value.hint) == (
        f"the journal cannot be written: {tmp_path / _FILE}: Not a directory",
        "journal",
        ExitCode.FAILURE,
        "nothing was changed in the cloud; free some space or make the folder writable, or set TPUCTL_STATE_DIR",
    )


def test_the_nodes_of_past_commands_are_listed_as_they_were_named(tmp_path: Path) -> None:
    old = NodeName("example.com:old-project", "us-central2-b", "a")
    for name in (NAME, old):
        Journal(tmp_path).append(name, "create", AT)

    assert Journal(tmp_path).names() == [old, NAME]
