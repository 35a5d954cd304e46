"""`python -m tests.chaos PORT NAME -- COMMAND…`: be ssh's ProxyCommand, and let what passes go through a `Chaos`.

It imports nothing but the standard library: ssh starts it anywhere, by its file.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress

_PATIENCE = 60.0  # seconds
_CHUNK = 1 << 16
_GREETING, _ANSWER = 256, 16  # bytes


def main(port: str, name: str, *command: str) -> int:
    """Be the ProxyCommand: start the real one behind the proxy, and pass on what ssh and the proxy say."""
    try:
        ours = _connect(port, name)
        behind = _connect(port, int(ours.recv(_ANSWER, socket.MSG_WAITALL)))
    except (OSError, ValueError):
        sys.stderr.write(f"ssh: connect to host {name} port 22: Connection refused\n")
        return 255
    child = subprocess.Popen(command[1:], stdin=behind.fileno(), stdout=behind.fileno())  # the first word is `--`
    behind.close()
    threading.Thread(target=_send, args=(ours,), daemon=True).start()
    with suppress(OSError):
        while data := ours.recv(_CHUNK):
            _write(data)
    # As far as ssh can see its proxy command ends; the real one notices by itself.
    os._exit(child.poll() or 0)


def _send(ours: socket.socket) -> None:
    with suppress(OSError):
        while data := os.read(0, _CHUNK):
            ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _connect(port: str, word: str | int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(port)), _PATIENCE)
    connection.settimeout(None)
    connection.sendall(json.dumps(word).encode().ljust(_GREETING))
    return connection


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
