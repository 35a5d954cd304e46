"""A slice of eight workers for every test here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.running import Slice


@pytest.fixture
def face() -> dict[str, str]:
    """How the API is reached does not matter here."""
    return {"TPUCTL_SANDBOX": "1"}


@pytest.fixture
def pod(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> Iterator[Slice]:
    """Eight workers that know our key; what still runs there is ended afterwards."""
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    made.put(sandbox)
    made.log_in()
    yield made
    made.end_all()
