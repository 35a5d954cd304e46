"""`tpuctl history` where a journal is there and cannot be read: that is not one in which nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Console
from tests.lifecycle import ZONE, one_face
from tpuctl.errors import ExitCode


@one_face
@pytest.mark.parametrize("broken", ["", f"sandbox/{ZONE}/trainer.jsonl"])
def test_a_journal_that_cannot_be_read_is_not_an_empty_one(tpuctl: Console, broken: str) -> None:
    tpuctl("list")
    path = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal" / broken
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path.name)  # for ever: nobody can open it, not even root

    out, err, code = tpuctl("history", "trainer")

    assert (out, err.splitlines()[0], code) == (
        "",
        f"error: cannot read the journal: {path}: Too many levels of symbolic links",
        ExitCode.FAILURE,
    )
