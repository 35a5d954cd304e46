"""`tpuctl history` of a journal that exists and cannot be read: it is not an empty one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Console
from tests.lifecycle import ZONE
from tpuctl.errors import ExitCode


@pytest.mark.parametrize("broken", ["", f"sandbox/{ZONE}/trainer.jsonl"])
def test_history_of_an_unreadable_journal_fails(tpuctl: Console, broken: str) -> None:
    tpuctl("list")
    path = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal" / broken
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path.name)  # endless: not even root can open it

    out, err, code = tpuctl("history", "trainer")

    assert (out, err.splitlines()[0], code) == (
        "",
        f"error: cannot read the journal: {path}: Too many levels of symbolic links",
        ExitCode.FAILURE,
    )
