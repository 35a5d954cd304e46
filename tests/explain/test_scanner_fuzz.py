"""The reader never fails on any bytes, and takes time that is linear in their number."""

from __future__ import annotations

import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.explain.synthetic import KNOWN
from tpuctl.explain.messages import known_messages
from tpuctl.explain.scanner import LogReader

_LOGS = (
    b"2019-01-13 03:15:46.904944: W tensorflow/core/rpc/grpc.cc:349] Retrying (10/120).\nINFO:tensorflow:step\n",
    b'{"textPayload": "Ran out of memory in memory space hbm. Used 19.46G of 15.48G", "time": "2025-01-10T10:00:00Z"}\n',
    b"[3] \x1b[31mRuntimeError: The TPU is already in use by process with pid 2718466.\x1b[0m\r\n[4] step\r\n",
    b'[\n  {\n    "textPayload": "Ran out of memory",\n    "labels": {}\n  }\n]\n',
    b"# Title\n\n```\nexit 137\n```\n| a | b |\n@@ -1 +1 @@\n+x\n",
)


def _read(data: bytes, *, piece: int = 1 << 16) -> None:
    reader = LogReader()
    for start in range(0, len(data), piece):
        reader.feed(data[start : start + piece])
    reader.so_far()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(1, 50))
def test_random_bytes_never_fail(data: bytes, piece: int) -> None:
    reader = LogReader(KNOWN)
    for start in range(0, len(data), piece):
        reader.feed(data[start : start + piece])
    result = reader.so_far()
    assert result.size == len(data)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(_LOGS), st.randoms(use_true_random=False))
def test_corrupted_log_never_fails(log: bytes, random: Random) -> None:
    spoiled = bytearray(log * 3)
    for _ in range(random.randrange(12)):
        at = random.randrange(len(spoiled))
        kind = random.randrange(3)
        if kind == 0:
            spoiled[at] = random.randrange(256)
        elif kind == 1:
            del spoiled[at : at + random.randrange(30)]
            spoiled += b"x"
        else:
            spoiled[at:at] = spoiled[at : at + random.randrange(60)]
    reader = LogReader(KNOWN)
    reader.feed(bytes(spoiled))
    reader.so_far()


_HOSTILE = {
    "no line end": b"Retrying (1/9) ran out of memory ",
    "brackets": b"[" * 60 + b"(" * 60,
    "braces": b'{"a":' * 40,
    "open records": b"{\n",
    "returns": b"\r",
    "escapes": b"\x1b[" + b"1;" * 30,
    "names": b"a-1-1-1-1-1-1-1-1-1-1-1-1-",
    "paths": b"a/b.c/a/b.c/a/b.c:1:1:1:",
    "colons": b"a::b::",
    "times": b"2025-01-10T10:00:00Z ",
    "blanks": b" \t",
    "fences": b"```\n",
    "words": b"the TPU is already in use by the TPU is already in use by process with pid \n",
    "dots": b"a.b.c.d.e.f.g.h.i.j.k.l.",
    "stars": b"The \xff\xfe quota limit metric in region operation failed permission denied on resource error: code ",
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_text_takes_linear_time(name: str) -> None:
    unit = _HOSTILE[name]
    known_messages()

    def seconds(size: int) -> float:
        data = unit * (size // len(unit))
        started = time.process_time()
        _read(data)
        return time.process_time() - started

    once = seconds(40_000)
    assert seconds(160_000) < 8 * once + 0.3


def test_repeated_message_beginnings_take_linear_time() -> None:
    """The literals of all messages, cut and repeated: much that nearly matches."""
    pieces = [
        anchor[: len(anchor) * 3 // 4] + " " + anchor for message in known_messages() for anchor in message.anchors
    ]

    def seconds(count: int) -> float:
        data = (" ".join(pieces) * count).encode()
        started = time.process_time()
        _read(data)
        return time.process_time() - started

    once = seconds(1)
    assert seconds(4) < 8 * once + 0.3
