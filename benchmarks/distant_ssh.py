"""Replaces `ssh` to a distant worker; this machine pays only the client's part: `distant_ssh.py HANDSHAKE CPU WORDS…`.

It waits as long as a handshake over a long distance takes, uses the CPU that OpenSSH's client needs for one, then answers like
the program that `tpuctl run` starts on a worker, whose command exits at once with 0. It imports little: hundreds run at once.
"""

from __future__ import annotations

import os
import sys
import time

_MARK = b"\n\0tpuctl-agent\n"
_READY, _STARTED, _EXIT = b"h\0\0\0\3new", b"s\0\0\0\0", b"x\0\0\0\x0bexit 0 0.00"
_GO, _BYE = b"g\0\0\0\0", b"b\0\0\0\0"


def main(handshake: float, cpu: float) -> None:
    """Act as the connection until the other side ends it."""
    time.sleep(handshake)
    while time.process_time() < cpu:  # the start of Python included
        pass
    _write(_MARK + _READY)
    if _wait_for(_GO):
        _write(_STARTED + _EXIT)
        _wait_for(_BYE)


def _wait_for(words: bytes) -> bool:
    """Read until the input ends with these bytes; False at its end. The text of the program comes first and is ignored."""
    received = b""
    while not received.endswith(words):
        data = os.read(0, 1 << 16)
        if not data:
            return False
        received = (received + data)[-len(words) :]
    return True


def _write(data: bytes) -> None:
    os.write(1, data)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
