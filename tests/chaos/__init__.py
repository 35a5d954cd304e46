"""A network that misbehaves on command: a proxy on loopback between ssh and an sshd, led by the test that made it.

To harm the way to a sandbox worker while the real program runs, put the shim of `ssh` and `scp` before PATH:

    with Chaos() as chaos:
        environ["PATH"] = f"{chaos.shims(tmp_path / 'shims')}:{environ['PATH']}"
        third = node["networkEndpoints"][3]["accessConfig"]["externalIp"]  # what `sandbox.add_node` returned
        chaos.cut_after(third, received=20_000)  # bytes from the worker, counted from the start of the connection; once
        program = subprocess.Popen([sys.executable, "-m", "tpuctl", "run", …], env=environ)
        chaos.wait_until(third, opened=2)  # it was cut, and somebody has connected again
        chaos.cut(third)  # now
        chaos.drop(third)  # nothing passes in either direction, and nobody is told
        chaos.heal(third)

The shim wraps each ProxyCommand: `python -m tests.chaos PORT NAME -- REAL PROXY COMMAND…`, where NAME is the address that ssh
was given. `forward` does the same for an sshd that listens somewhere: ssh is told the port that it returns.
"""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Way = Literal["sent", "received"]
_WRAPPER = Path(__file__).with_name("__main__.py")
_PATIENCE = 60.0  # seconds
_MOST_LINKS = 256
_CHUNK = 1 << 16
_GREETING, _ANSWER = 256, 16  # bytes, as in __main__.py
# A closed socket resets the connection instead of saying good-bye.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What happens to the connections of one name: bytes after which they are cut, and how many of them are."""

    refuses: bool = False
    drops: bool = False
    delay: float = 0.0
    sent: int | None = None
    received: int | None = None
    cuts: int = 0


class Link:
    """One connection that passes through: how many bytes were sent to the worker and received from it, and its end."""

    def __init__(self, name: str, client: socket.socket, worker: socket.socket) -> None:
        self.name = name
        self.sent = self.received = 0
        self.is_cut = threading.Event()
        self._ends = (client, worker)

    def passed(self, way: Way) -> int:
        return self.sent if way == "sent" else self.received

    def count(self, way: Way, size: int) -> None:
        if way == "sent":
            self.sent += size
        else:
            self.received += size

    def cut(self) -> None:
        """End the connection at once, for both sides."""
        self.is_cut.set()
        for end in self._ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)  # wakes who waits for it


class Chaos:
    """The proxy. Its threads and connections end with it; more than 256 connections are refused."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._troubles: dict[str, _Trouble] = {}
        self._links: list[Link] = []
        self._waiting: dict[int, tuple[str, socket.socket]] = {}
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port = self._listen(self._greet)

    def __enter__(self) -> Chaos:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            threads, listeners, self._listeners = list(self._threads), self._listeners, []
            waiting, self._waiting = list(self._waiting.values()), {}
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for _name, arrival in waiting:
            arrival.close()
        self.cut()
        with self._changed:
            self._changed.notify_all()
        for thread in threads:
            thread.join(_PATIENCE)

    def shims(self, folder: Path) -> Path:
        """Make an `ssh` and a `scp` whose ProxyCommand passes through here, and return their folder, for the front of PATH."""
        folder.mkdir(parents=True, exist_ok=True)
        wrapper = shlex.join([sys.executable, "-I", str(_WRAPPER), str(self.port), "%h", "--"])
        for name in ("ssh", "scp"):
            (folder / name).write_text(_SHIM.format(wrapper=wrapper, program=shlex.quote(shutil.which(name) or name)))
            (folder / name).chmod(0o755)
        return folder

    def forward(self, name: str, host: str, port: int) -> int:
        """Return a port on loopback that leads to an sshd, under this name."""

        def lead(client: socket.socket) -> None:
            if self._is_refused(name):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                client.close()
                return
            try:
                worker = socket.create_connection((host, port), _PATIENCE)
            except OSError:
                client.close()
                return
            worker.settimeout(None)
            self._join(name, client, worker)

        return self._listen(lead)

    def refuse(self, name: str) -> None:
        """Let no new connection in."""
        self._set(name, refuses=True)

    def drop(self, name: str) -> None:
        """Let nothing pass, in either direction, and tell nobody; what comes meanwhile passes after `heal`."""
        self._set(name, drops=True)

    def delay(self, name: str, seconds: float) -> None:
        """Let everything that passes wait, in either direction."""
        self._set(name, delay=seconds)

    def cut_after(self, name: str, *, sent: int | None = None, received: int | None = None, times: int = 1) -> None:
        """Cut so many connections when so many bytes have passed to, or from, the worker since they began."""
        self._set(name, sent=sent, received=received, cuts=times)

    def heal(self, name: str) -> None:
        """Let everything pass again."""
        with self._changed:
            self._troubles.pop(name, None)
            self._changed.notify_all()

    def cut(self, name: str | None = None) -> None:
        """Cut the connections of that name, or all, now."""
        for link in self.links(name):
            link.cut()

    def links(self, name: str | None = None) -> list[Link]:
        """Return the connections that there were and are, oldest first."""
        with self._changed:
            return [link for link in self._links if name in (None, link.name)]

    def wait_until(self, name: str, *, opened: int = 1, sent: int = 0, received: int = 0) -> None:
        """Wait until there were so many connections, and so many bytes have passed on the last. Raises `TimeoutError`."""

        def is_so() -> bool:
            links = [link for link in self._links if link.name == name]
            return len(links) >= opened and links[-1].sent >= sent and links[-1].received >= received

        with self._changed:
            if not self._changed.wait_for(is_so, _PATIENCE):
                seen = [(link.sent, link.received) for link in self._links if link.name == name]
                raise TimeoutError(f"{name}: sent and received on each connection: {seen}")

    def _set(self, name: str, **changes: float | bool | None) -> None:
        with self._changed:
            self._troubles[name] = replace(self._troubles.get(name, _Trouble()), **changes)  # type: ignore[arg-type]  # named above
            self._changed.notify_all()

    def _is_refused(self, name: str) -> bool:
        with self._changed:
            return self._troubles.get(name, _Trouble()).refuses or len(self._links) >= _MOST_LINKS

    def _listen(self, receive: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0), backlog=_MOST_LINKS)
        with self._changed:
            self._listeners.append(listener)

        def serve() -> None:
            with suppress(OSError):  # it was closed
                while True:
                    receive(listener.accept()[0])

        self._start(serve)
        return int(listener.getsockname()[1])

    def _greet(self, arrival: socket.socket) -> None:
        """Meet a wrapper, which comes twice: for ssh, by name, and for the real proxy command, by the number it was given."""
        with suppress(OSError, ValueError):
            said = json.loads(arrival.recv(_GREETING, socket.MSG_WAITALL))
            if isinstance(said, int):
                with self._changed:
                    name, client = self._waiting.pop(said)
                self._join(name, client, arrival)
                return
            if self._is_refused(said):
                arrival.close()
                return
            number = arrival.fileno()
            with self._changed:
                self._waiting[number] = (said, arrival)
            arrival.sendall(f"{number:{_ANSWER}}".encode())

    def _join(self, name: str, client: socket.socket, worker: socket.socket) -> None:
        link = Link(name, client, worker)
        with self._changed:
            self._links.append(link)
            self._changed.notify_all()
        for end in (client, worker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        halves = [threading.Event(), threading.Event()]

        def pump(way: Way, source: socket.socket, target: socket.socket, done: threading.Event) -> None:
            with suppress(OSError):  # it was cut
                while data := source.recv(_CHUNK):
                    self._pass(link, way, data, target)
                target.shutdown(socket.SHUT_WR)
            done.set()
            if all(half.is_set() for half in halves):
                client.close()
                worker.close()

        self._start(lambda: pump("sent", client, worker, halves[0]))
        self._start(lambda: pump("received", worker, client, halves[1]))

    def _pass(self, link: Link, way: Way, data: bytes, target: socket.socket) -> None:
        """Pass bytes on as the trouble of the moment allows."""

        def trouble() -> _Trouble:
            return self._troubles.get(link.name, _Trouble())

        with self._changed:
            self._changed.wait_for(lambda: link.is_cut.is_set() or not trouble().drops)
            now = trouble()
        if now.delay:
            link.is_cut.wait(now.delay)
        limit = now.sent if way == "sent" else now.received
        room = len(data) if limit is None or not now.cuts else max(0, limit - link.passed(way))
        target.sendall(data[:room])
        with self._changed:
            link.count(way, min(room, len(data)))
            if room <= len(data) and limit is not None and now.cuts and link.passed(way) >= limit:
                self._troubles[link.name] = replace(now, cuts=now.cuts - 1)
                link.cut()
            self._changed.notify_all()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        with self._changed:
            self._threads.append(thread)
        thread.start()


_SHIM = """\
#!/bin/sh
for word do
    shift
    case "$word" in ProxyCommand=*) word="ProxyCommand={wrapper} ${{word#ProxyCommand=}}" ;; esac
    set -- "$@" "$word"
done
exec {program} "$@"
"""
