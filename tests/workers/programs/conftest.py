"""The node of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.workers.programs import Pair


@pytest.fixture
def pair(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> Iterator[Pair]:
    """Two workers that know our key; processes left there are killed afterwards."""
    made = Pair(tpuctl, sandbox, fake_ssh, tmp_path / "workers")
    yield made
    made.slice.end_all()
