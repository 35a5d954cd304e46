"""What the tests of the lifecycle commands share: one node's address, and a clock at which others meddle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from tpuctl.clock import ManualClock

if TYPE_CHECKING:
    from tests.conftest import Sandbox

# The rules of a command do not depend on how the sandbox is reached: its story runs on both faces.
both_faces = pytest.mark.parametrize("face", ["in-process", "http"], indirect=True)

# For what needs a sandbox that outlives the state folder of one machine.
two_machines = pytest.mark.parametrize("face", ["http"], indirect=True)

ZONE = "us-central2-b"
UP = ("up", "demo", "--type", "v4-8", "--zone", ZONE)


class EventfulClock(ManualClock):
    """A clock that lets something happen at a time, once, to those who sleep beyond it."""

    def __init__(self) -> None:
        super().__init__()
        self._planned: list[tuple[timedelta, Callable[[], object]]] = []

    def after(self, duration: timedelta, happen: Callable[[], object]) -> None:
        """Let something happen when this much time has passed."""
        self._planned.append((self.monotonic() + duration, happen))

    def sleep(self, duration: timedelta) -> None:
        """Move the clock, then let happen what is due."""
        super().sleep(duration)
        due = [entry for entry in self._planned if entry[0] <= self.monotonic()]
        self._planned = [entry for entry in self._planned if entry not in due]
        for _, happen in due:
            happen()


def put(sandbox: Sandbox, name: str = "demo", **fields: Any) -> dict[str, Any]:
    """Put a node into the sandbox that has been as it is for an hour."""
    return sandbox.add_node(name, **{"zone": ZONE, "age": timedelta(hours=1), **fields})


# The user of the sandbox, as the label of an owner.
USER = "you_example-com"


def own(sandbox: Sandbox, name: str = "demo", *, owner: str = USER, **fields: Any) -> dict[str, Any]:
    """Put a node into the sandbox that the user has created with tpuctl."""
    return put(sandbox, name, **{**fields, "labels": {"tpuctl-owner": owner, **fields.get("labels", {})}})


def still(what: str, *minutes: int) -> list[str]:
    """Return the lines of a log about a wait, one every five minutes."""
    return [f"still {what}, {each}m" for each in minutes]


def told(err: str, name: str = "demo") -> list[str]:
    """Return the lines that a command told about a node, without its name."""
    return [line.removeprefix(f"{name}: ") for line in err.splitlines()]


def said(*lines: str) -> str:
    """Return lines as they stand on a stream."""
    return "".join(line + "\n" for line in lines)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that outlives this machine, which a journal must: the usual one may be in memory. Import it to use it."""
    with TemporaryDirectory(dir="/var/tmp", prefix="tpuctl-") as folder:
        yield Path(folder)
