"""A slice of four workers, honest until a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.hostile import HostileSlice
from tests.ssh.guarded import Guarded, guarded_node


@pytest.fixture
def pod(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> HostileSlice:
    """A node `pod` with four workers that know our key."""
    made = HostileSlice(tpuctl, fake_ssh, tmp_path / "workers")
    made.put(sandbox)
    return made


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """A node in a sandbox, and the program that guards it."""
    with guarded_node(tmp_path) as found:
        yield found
