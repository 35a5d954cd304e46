"""A node with a guard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ssh.guarded import Guarded, guarded_node


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """A node in a sandbox, and the program that guards it."""
    with guarded_node(tmp_path) as found:
        yield found
