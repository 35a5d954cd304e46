"""What the tests of long runs share: somebody else who acts on the API itself, another machine, and what `--events` told."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.conftest import MORE, Console, Result, Sandbox, Steady
from tests.lifecycle import ZONE, EventfulClock
from tpuctl.app.app import Invocation
from tpuctl.cli.main import main
from tpuctl.output.terminal import StandardStreams
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.request_log import read_log

_NODES = f"https://tpu.googleapis.com/v2/projects/sandbox/locations/{ZONE}/nodes"


class KilledError(BaseException):
    """What ends the program where it stands, as SIGKILL does: nothing of it is caught."""


def kill() -> None:
    """End the program where it stands."""
    raise KilledError


def interrupt() -> None:
    """Press Ctrl-C."""
    raise KeyboardInterrupt


def somebody(sandbox: Sandbox, verb: str, name: str = "demo") -> None:
    """Let somebody who does not use tpuctl create (a v4-8), delete, stop or start a node."""
    method = {"delete": "DELETE"}.get(verb, "POST")
    place = {"create": f"?nodeId={name}", "delete": f"/{name}"}.get(verb, f"/{name}:{verb}")
    body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"} if verb == "create" else {}
    response, content = SandboxHttp(sandbox.state).request(
        _NODES + place, method=method, body=json.dumps(body).encode()
    )
    assert response.status == 200, content


def another_machine(tpuctl: Console, **environ: str) -> Console:
    """Return the program on another machine: with another home and state."""
    home = Path(tpuctl.environ["HOME"]).with_name("elsewhere")
    home.mkdir(exist_ok=True)
    elsewhere = {"HOME": str(home), "TPUCTL_STATE_DIR": str(home / "state")}
    return replace(tpuctl, environ={**tpuctl.environ, **elsewhere, **environ})


def events(text: str, *keys: str) -> list[Any]:
    """Return what was written by `--events`, without the waits: each event's kind and text, or what `keys` name of it."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    chosen = [event for event in found if event["event"] not in {"wait", "silent"}]
    return [tuple(event[key] for key in keys or ("event", "text")) for event in chosen]


def story(text: str) -> list[tuple[str, str]]:
    """Return what `--events` told, but for when a node became READY and HEALTHY: that hangs on when it was asked."""
    told = [(kind, said) for kind, said in events(text)]
    return [event for event in told if event not in {("state", "READY"), ("state", "READY HEALTHY")}]


def reads(sandbox: Sandbox) -> list[str]:
    """Return the paths that were read, without their queries, oldest first."""
    found = read_log(sandbox.state.path)
    return [entry.path.partition("?")[0] for entry in found if entry.method == "GET"]


def changes(sandbox: Sandbox) -> list[str]:
    """Return the calls that asked for a change of a node, by their verbs: nothing of what is in buckets."""
    methods = [entry.call for entry in read_log(sandbox.state.path)]
    return [method.rpartition(".")[2] for method in methods if ".nodes." in method]


def written(path: Path, lines: int) -> list[str]:
    """Return the lines that hooks write to a file, once there are as many: they may outlive the watch."""
    end = time.monotonic() + 60
    while not path.exists() or len(path.read_text().splitlines()) < lines:
        assert time.monotonic() < end, path
        time.sleep(0.01)
    return path.read_text().splitlines()


def errors(err: str) -> list[str]:
    """Return the lines of stderr that say why something failed."""
    return [line for line in err.splitlines() if line.startswith("error: ")]


def watching(tpuctl: Console, clock: EventfulClock) -> Callable[..., Result]:
    """Return what runs `tpuctl watch demo` for ten minutes, and lets something happen after two."""

    def run(*options: str, happens: Callable[[], object] | None = None, until: str = "10m", **environ: Any) -> Result:
        if happens:
            clock.after(timedelta(minutes=2), happens)
        return tpuctl("watch", "demo", "--until", until, "--events", "-", *options, **environ)

    return run


class Answer(io.StringIO):
    """Standard input of somebody who says yes after a colleague was faster."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__("y\n")
        self._meanwhile = meanwhile

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # typeshed confuses text and bytes
        self._meanwhile()
        return super().readline(size or -1)


def answer(tpuctl: Console, meanwhile: Callable[[], object], *words: str) -> Result:
    """Run a command whose question is answered after something has happened."""
    stdout, stderr = io.StringIO(), io.StringIO()
    streams = StandardStreams(Answer(meanwhile), stdout, stderr, stdin_is_terminal=True)
    code = main(Invocation(words, tpuctl.environ, streams, tpuctl.folder, tpuctl.clock, Steady()))
    return stdout.getvalue(), MORE.sub("", stderr.getvalue()), code
