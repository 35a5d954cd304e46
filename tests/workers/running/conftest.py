"""A slice of eight workers for every test here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.workers.running import Slice


@pytest.fixture
def node_fields() -> dict[str, object]:
    """Fields of the API that the node has besides its type."""
    return {}


@pytest.fixture
def pod(
    tpuctl: Console,
    sandbox: Sandbox,
    fake_ssh: Callable[[str], None],
    tmp_path: Path,
    node_fields: dict[str, object],
) -> Iterator[Slice]:
    """Eight workers that know our key; processes left there are killed afterwards."""
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    made.put(sandbox, **node_fields)
    made.log_in()
    yield made
    made.end_all()
