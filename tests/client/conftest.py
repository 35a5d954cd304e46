"""A client of the sandbox whose waits take no time, and whose workers are this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Sandbox
from tests.lifecycle import ZONE
from tpuctl import Client, ManualClock

ClientMaker = Callable[..., Client]


@pytest.fixture
def make_client(
    tmp_path: Path, clock: ManualClock, fake_ssh: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> Iterator[ClientMaker]:
    """Return a function that makes clients; none of them may write to stdout or stderr."""
    (tmp_path / "home").mkdir()
    made: list[Client] = []

    def make(**arguments: object) -> Client:
        environ = {"HOME": str(tmp_path / "home"), "LOGNAME": "ada", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
        defaults = {"sandbox": True, "zone": ZONE, "state_dir": tmp_path / "state", "environ": environ, "clock": clock}
        made.append(Client(**{**defaults, **arguments}))  # type: ignore[arg-type]  # each test names its own
        return made[-1]

    yield make
    for client in made:
        client.close()
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "summary").exists()


@pytest.fixture
def client(make_client: ClientMaker, sandbox: Sandbox) -> Client:
    """Return a client of the sandbox that the test prepares."""
    return make_client()
