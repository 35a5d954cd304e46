"""The product as its tests see it: the real program, the sandbox under it on either face, a clock that obeys, a fake `ssh`."""

from __future__ import annotations

import gc
import io
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import none

from tests.instant_exit import write_instant_exit
from tests.json_contract import SEEN, check_output, own_properties
from tests.lifecycle import EventfulClock
from tests.row_ids import row_id
from tests.sandbox.response_schema import schema_errors_of_all
from tpuctl.app.app import Invocation
from tpuctl.cli.main import main
from tpuctl.clock import ManualClock
from tpuctl.errors import ExitCode
from tpuctl.explain.lookup import look_up_id
from tpuctl.output.terminal import StandardStreams
from tpuctl.sandbox import administration, faults
from tpuctl.sandbox.faults import Fault, FaultKind
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.state import SandboxState

PROGRAM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
Result = tuple[str, str, int]
# Lines of progress without the time of day: `tests/nodes/test_log.py` asserts it.
QUIET_LINES = {"TPUCTL_TIMESTAMPS": "off"}
# The last line of every error: `tests/explain/test_error_ids.py` asserts it, elsewhere it is left out.
MORE = re.compile(r"^(?:\x1b\[2m)?  more: (?:\x1b\[0m)?tpuctl explain (?P<id>\S+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Sandbox:
    """The sandbox that a test prepares and inspects; nothing here goes through the client."""

    state: SandboxState

    def add_node(self, name: str = "node", **fields: Any) -> dict[str, Any]:
        """Add a node, in any state."""
        return administration.add_node(self.state, name, **fields)

    def add_queued_resource(self, name: str = "queued", **fields: Any) -> dict[str, Any]:
        """Add a queued resource, in any state."""
        return administration.add_queued_resource(self.state, name, **fields)

    def fault(self, kind: str, **fields: Any) -> int:
        """Add a fault and return its id."""
        with self.state.write() as session:
            return faults.add_fault(session, Fault(FaultKind(kind), **fields))

    def advance(self, **duration: float) -> None:
        """Advance the clock."""
        self.state.clock.sleep(timedelta(**duration))

    def changes(self) -> list[str]:
        """Return the calls that requested a change, by the last word of their method: create, delete, stop, …"""
        return [entry.call.rpartition(".")[2] for entry in read_log(self.state.path) if entry.call]


class Steady(Random):
    """Chance that always falls in the middle, so that times can be foretold."""

    def random(self) -> float:
        return 0.5


@dataclass(frozen=True)
class Console:
    """Runs one command line in this process and returns stdout, stderr and the exit code.

    Unless `shows_ids`, the ids of errors are only checked: `tpuctl explain` knows each of them.
    """

    environ: Mapping[str, str]
    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    shows_ids: bool = False
    by_real_clock: bool = False

    def __call__(
        self,
        *arguments: str,
        terminal: bool = False,
        stdin: str | None = None,
        piped: str = "",
        width: int = 160,
        **environ: str,
    ) -> Result:
        """Run it; a person types `stdin` at a terminal, or a program has `piped` something into it."""
        stdout, stderr = io.StringIO(), io.StringIO()
        streams = StandardStreams(
            io.StringIO(stdin or piped),
            stdout,
            stderr,
            stdin_is_terminal=stdin is not None,
            stdout_is_terminal=terminal,
            stderr_is_terminal=terminal,
            width=width,
        )
        clock = None if self.by_real_clock else self.clock
        invocation = Invocation(
            arguments, {**QUIET_LINES, **self.environ, **environ}, streams, self.folder, clock, Steady()
        )
        code = main(invocation)
        if code == ExitCode.INTERRUPTED:
            _end_threads("fan-out")
        said = stderr.getvalue()
        check_output(arguments, {**self.environ, **environ}, self.folder, stdout.getvalue(), said)
        assert [one["id"] for one in MORE.finditer(said) if look_up_id(one["id"]) is None] == []
        return stdout.getvalue(), said if self.shows_ids else MORE.sub("", said), code


def _end_threads(name: str) -> None:
    """Wait for threads that an interrupted command left: they would end with its process, and here change what comes later."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(timeout=10)


@pytest.fixture
def clock() -> EventfulClock:
    """Return a clock that moves only by `sleep`, and lets planned events happen then."""
    return EventfulClock()


@pytest.fixture
def sandbox(tmp_path: Path, clock: ManualClock) -> Iterator[Sandbox]:
    """Yield an empty sandbox on the manual clock; at the end all resources must fit the discovery documents."""
    with SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3", clock=clock) as sandbox_state:
        yield Sandbox(sandbox_state)
        assert schema_errors_of_all(sandbox_state) == []


@pytest.fixture(scope="session")
def instant_exit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a program that exits with 0."""
    return write_instant_exit(tmp_path_factory.mktemp("instant-exit"))


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant_exit: Path) -> Callable[[str], None]:
    """Put a fake `ssh` on PATH; by default it accepts every connection. Call it with the shell lines that it runs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "ssh"

    def install(lines: str) -> None:
        program.unlink(missing_ok=True)
        # What it runs here as a worker has a home of its own.
        program.write_text(f"#!/bin/sh\nHOME='{tmp_path}/worker'\n{lines}\n")
        program.chmod(0o755)

    # As `exit 0`, in a tenth of the time: some tests connect hundreds of times.
    program.symlink_to(instant_exit)
    # The sandbox looks whether there is an sshd before it promises ssh; the fake ssh never starts it.
    (folder / "sshd").write_text("#!/bin/sh\nexit 1\n")
    (folder / "sshd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return install


@pytest.fixture
def face(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[dict[str, str]]:
    """The environment that points tpuctl at the sandbox: in this process, or on the face that is the parameter."""
    if getattr(request, "param", "in-process") == "in-process":
        yield {"TPUCTL_SANDBOX": "1"}
        return
    with open_server(sandbox.state) as server:
        server.start()
        yield {"TPUCTL_ENDPOINT": server.url, "TPUCTL_PROJECT": "sandbox"}


@pytest.fixture
def tpuctl(tmp_path: Path, clock: ManualClock, face: dict[str, str], fake_ssh: Callable[[str], None]) -> Console:
    """The program, on the sandbox, in an empty folder with an empty home."""
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    environ = {"HOME": str(home), "TPUCTL_STATE_DIR": str(tmp_path / "state"), "LOGNAME": "ada", **face}
    return Console(environ, folder, clock)


@pytest.fixture
def offline(tmp_path: Path) -> Console:
    """The program without a sandbox, an account or a configuration."""
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    environ = {"HOME": str(home), "TPUCTL_STATE_DIR": str(tmp_path / "state"), "NO_GCE_CHECK": "true"}
    return Console(environ, folder)


def pytest_collection() -> None:
    """Collect no garbage meanwhile: nearly all objects that collecting makes, stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what was collected, eight thousand tests, out of every later garbage collection."""
    # Hypothesis makes its generator of random numbers at the first example, and warns if no object that the
    # collector sees refers to it: a frozen module does not count.
    given(none())(lambda _: None)()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # xdist's
    """Collect the properties of JSON that the tests of a worker of xdist have seen."""
    SEEN.update(getattr(node, "workeroutput", {}).get("json_properties", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run of the whole suite if a property of the schemas was in no output: it would be invented."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["json_properties"] = sorted(SEEN)
        return
    option, is_selected = config.option, config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if (
        is_selected
        or option.keyword
        or option.markexpr
        or option.collectonly
        or session.exitstatus != pytest.ExitCode.OK
    ):
        return
    unseen = sorted(own_properties() - SEEN)
    if unseen and shutil.which("sshd", path=PROGRAM_PATH):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        config.get_terminal_writer().line(f"\nin `tpuctl schema`, and in no output: {', '.join(unseen)}", red=True)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name each row of a table by its values."""
    return row_id(val)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a program that is not here, naming it; in CI a missing sshd is a failure."""
    for mark, programs in (("sshd", ("ssh", "ssh-keygen", "sshd")), ("gcloud", ("gcloud",))):
        if item.get_closest_marker(mark) is None:
            continue
        for program in programs:
            if shutil.which(program, path=PROGRAM_PATH) is None:
                if mark == "sshd" and os.environ.get("CI") == "true":
                    pytest.fail(f"{program} is missing: install Debian's openssh-client and openssh-server")
                pytest.skip(f"{program} is not installed")
