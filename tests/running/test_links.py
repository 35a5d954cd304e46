"""Links that break: the command runs at most once, and what it prints is neither lost nor doubled."""

from __future__ import annotations

import hashlib
import time

import pytest

from tests.running import GOOD, NO_KEY, REFUSED, Slice, lines

COUNT = "echo x >>count; "
# From the worker: a mark of 13 bytes, `h` and three of payload, `s`, then the frame of a line of two, then that of the end.
SHOWN = [0, 13, 20, 21, 25, 26, 32, 33, 40, 45]


@pytest.mark.parametrize("way", ["received", "sent"])
def test_a_command_runs_once_wherever_its_link_is_cut(pod: Slice, way: str) -> None:
    pod.run("--worker", "0", "--", "true")
    source = len(_source(pod))
    cuts = SHOWN if way == "received" else [1, source - 1, source, source + 1, source + 5, source + 6, source + 9, source + 10]
    for some in (cuts[:8], cuts[8:]):
        pod.plan({worker: [{way: cut}, GOOD] for worker, cut in enumerate(some)})

        out, err, code = pod.run("--", f"{COUNT}echo $TPUCTL_WORKER_ID")

        assert (sorted(out.splitlines()), code) == ([f"[{worker}] {worker}" for worker in range(8)], 0), err
        assert pod.texts("count") == dict.fromkeys(range(8), "x\n")
        for path in pod.root.glob("*/count"):
            path.unlink()


def _source(pod: Slice) -> bytes:
    return b""
