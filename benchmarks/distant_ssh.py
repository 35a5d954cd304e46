"""Stands for `ssh` to a worker far away that costs this machine only the client's part: `distant_ssh.py HANDSHAKE CPU WORDS…`.

It waits as long as a handshake over a long way takes, burns the CPU that OpenSSH's client needs for one, then answers as the
program that `tpuctl run` starts on a worker does, whose command ends at once with 0. It imports little: hundreds run at once.
"""

from __future__ import annotations

import os
import sys
import time

_MARK = b"\n\0tpuctl-job\n"
_READY, _STARTED, _EXIT = b"h\0\0\0\3new", b"s\0\0\0\0", b"x\0\0\0\x0bexit 0 0.00"
_GO, _BYE = b"g\0\0\0\0", b"b\0\0\0\0"


def main(handshake: float, cpu: float) -> None:
    """Be the connection, until the other side has said good-bye or is gone."""
    time.sleep(handshake)
    while time.process_time() < cpu:  # with what starting Python took
        pass
    _write(_MARK + _READY)
    if _hears(_GO):
        _write(_STARTED + _EXIT)
        _hears(_BYE)


def _hears(words: bytes) -> bool:
    """Read until these words come last; the text of the program, which comes first, is nothing to us."""
    heard = b""
    while not heard.endswith(words):
        data = os.read(0, 1 << 16)
        if not data:
            return False
        heard = (heard + data)[-len(words) :]
    return True


def _write(data: bytes) -> None:
    os.write(1, data)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
