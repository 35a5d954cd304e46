"""A slice some of whose workers are hostile: a fake `ssh` that, for each connection, plays what the worker at its end does.

What a worker does is a list of steps, one list for each connection; the last is for all later ones. A worker without steps is
honest: it runs what it is sent, in a home folder of its own. All that a hostile worker receives is kept: `received` returns it.
"""

from __future__ import annotations

import ast
import base64
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.conftest import Console, Sandbox
from tests.lifecycle import put

Step = list[str | float]
Steps = Sequence[Step]

WORKERS = 4
# What programs on workers send first.
MARK = b"\n\0tpuctl-agent\n"

_SSH = """
import _thread, binascii, os, sys, time  # json, base64 and threading would cost as long again as all of this
root, words = {root!r}, sys.argv[1:]
# Of the words only the host begins so, with or without a login; a ProxyCommand may name it, too.
at = next(at for at, word in enumerate(words) if word.rpartition("@")[2].startswith("198.18.0."))
worker = str(int(words[at].rpartition(".")[2]) - 1)
line = " ".join(words[at + 1:]).removeprefix("-- ")
plan = eval(open(root + "/plan").read()).get(worker)
if plan is None:
    home = root + "/home-" + worker
    os.makedirs(home, exist_ok=True)
    os.chdir(home)
    environ = {{"HOME": home, "SHELL": "/bin/sh", "PATH": os.environ["PATH"], "USER": "ada"}}
    os.execve("/bin/sh", ["sh", "-c", line], environ)

with open(root + "/connections-" + worker, "a") as log:
    log.write(repr(words) + "\\n")
number = len(open(root + "/connections-" + worker).readlines()) - 1
received, lock = bytearray(), _thread.allocate_lock()
ended = False

def receive():
    global ended
    with open(root + "/received-" + worker, "ab", 0) as kept:
        while True:
            try:
                data = os.read(0, 65536)
            except OSError:
                data = b""
            kept.write(data)
            with lock:
                received.extend(data)
                del received[: -(1 << 20)]
            ended = not data
            if not data:
                return

_thread.start_new_thread(receive, ())

def wait_for(is_so, seconds):
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.005)

def write(data, file=1):
    try:
        while data:
            data = data[os.write(file, data):]
    except OSError:
        os._exit(0)

for kind, *values in plan[min(number, len(plan) - 1)]:
    data = binascii.a2b_base64(values[0]) if values and isinstance(values[0], str) else b""
    if kind == "send":
        write(data)
    elif kind == "err":
        write(data, 2)
    elif kind == "repeat":
        block, left = data * max(1, 65536 // len(data)), values[1]
        while left > 0:
            write(block)
            left -= len(block)
    elif kind == "drip":
        until = time.monotonic() + values[1]
        while time.monotonic() < until:
            write(data)
            time.sleep(values[2])
    elif kind == "until":
        wait_for(lambda: data in received or ended, 20)
        with lock:
            if data in received:
                del received[: received.index(data) + len(data)]
    elif kind == "wait":
        time.sleep(values[0])
    elif kind == "hold":
        wait_for(lambda: ended, values[0])
    elif kind == "leave":
        os._exit(values[0])
os._exit(0)
"""


def send(*pieces: bytes) -> Step:
    """Write these bytes to the client."""
    return ["send", _text(b"".join(pieces))]


def err(data: bytes) -> Step:
    """Write to ssh's stderr."""
    return ["err", _text(data)]


def repeat(data: bytes, size: int) -> Step:
    """Write the same bytes again and again, about `size` of them in all, as fast as they are taken."""
    return ["repeat", _text(data), size]


def drip(data: bytes, *, seconds: float = 20, every: float = 0.05) -> Step:
    """Write the same bytes from time to time."""
    return ["drip", _text(data), seconds, every]


def until(data: bytes) -> Step:
    """Wait until the client has sent these bytes, for 20 seconds at most."""
    return ["until", _text(data)]


def wait(seconds: float) -> Step:
    """Do nothing for a while."""
    return ["wait", seconds]


def hold(seconds: float = 20) -> Step:
    """Keep the connection until the client closes its side, or the time is over."""
    return ["hold", seconds]


def leave(code: int) -> Step:
    """End ssh with this exit code; without this it ends with 0 after the last step."""
    return ["leave", code]


def frame(kind: bytes, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """Return a frame: one letter, four bytes of length (which may lie), the payload."""
    return kind + (len(payload) if length is None else length).to_bytes(4, "big") + payload


class HostileSlice:
    """A node `pod` with four workers; `play` says what some of them do."""

    def __init__(self, tpuctl: Console, fake_ssh: Callable[[str], None], root: Path) -> None:
        self.tpuctl, self.root = tpuctl, root
        root.mkdir()
        self._program = root / "ssh.py"
        self._program.write_text(_SSH.format(root=str(root)))
        self._fake_ssh = fake_ssh

    def put(self, sandbox: Sandbox, accelerator_type: str = "v4-32") -> None:
        """Make the node, which then knows our key."""
        put(sandbox, "pod", acceleratorType=accelerator_type)
        self.tpuctl("ssh", "pod", "--worker", "0", "--", "true")
        self._fake_ssh(f"exec '{sys.executable}' -ISc 'exec(open(\"{self._program}\").read())' \"$@\"")
        self.play({})

    def play(self, plan: dict[int, Sequence[Steps]]) -> None:
        """Let workers do this: for each worker a list of connections, each a list of steps. Counting begins at 0 again."""
        (self.root / "plan").write_text(json.dumps(plan))
        for path in [*self.root.glob("connections-*"), *self.root.glob("received-*")]:
            path.unlink()

    def home(self, worker: int) -> Path:
        """Return the home folder of an honest worker."""
        return self.root / f"home-{worker}"

    def connections(self, worker: int) -> list[list[str]]:
        """Return the argv of each ssh to a hostile worker."""
        path = self.root / f"connections-{worker}"
        return [ast.literal_eval(line) for line in path.read_text().splitlines()] if path.exists() else []

    def received(self, worker: int) -> bytes:
        """Return all that a hostile worker was sent, over all its connections."""
        path = self.root / f"received-{worker}"
        return path.read_bytes() if path.exists() else b""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
