"""Logs of any size like those of training programs: the same few kinds of lines with different numbers."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_WORDS = """step loss train eval accuracy learning rate tokens per second checkpoint saving restored device tpu hbm memory
compile finished global batch size epoch dataset shard pipeline gs bucket data model params layer attention worker process
initialized error retry preempted connection closed"""
WORKERS, _WIDTH = 8, 80


def jax_style(random_: random.Random) -> Iterator[str]:
    """Yield lines like those of a JAX program: absl, Python's logging, plain prints."""
    for step in itertools.count():
        clock = f"{step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}"
        loss, rate = random_.uniform(1, 9), random_.uniform(1, 9) * 1e-4
        yield f"2025-01-10 {clock},{step % 1000:03} - trainer.loop - INFO - step {step} loss {loss:.4f} lr {rate:.2e}"
        yield f"completed step: {step}, seconds: {loss:.3f}, TFLOP/s/device: {rate * 1e6:.3f}, total_weights: {step * 8}"
        if step % 10 == 0:
            header = f"I0110 {clock}.275101 1234 checkpointer.py:{step % 900}]"
            yield f"{header} Saving checkpoint at step {step} to gs://ckpt/run/{step}"
            yield f"{header} Finished saving checkpoint at step {step} in {loss:.2f} s"
        if step % 50 == 0:
            yield f"eval metrics after step: {step}, loss={loss:.3f}, total_weights=8192.0, error rate {rate:.4f}"


def tensorflow_style(random_: random.Random) -> Iterator[str]:
    """Yield lines like those of TensorFlow's TPUEstimator."""
    for step in itertools.count():
        yield f"INFO:tensorflow:loss = {random_.uniform(1, 9)}, step = {step * 100} (8.{step % 1000} sec)"
        yield f"INFO:tensorflow:global_step/sec: {random_.uniform(1, 9)}"
        yield "INFO:tensorflow:Enqueue next (1251) batch(es) of data to infeed."
        yield "INFO:tensorflow:Dequeue next (1251) batch(es) of data from outfeed."
        header = (
            f"2025-01-10 15:{step // 60 % 60:02}:{step % 60:02}.904944: I tensorflow/core/platform/a.cc:{step % 900}]"
        )
        yield f"{header} Outfeed finished for iteration ({step % 7}, {step})"


def different(random_: random.Random) -> Iterator[str]:
    """Yield lines that all differ: the worst case."""
    words = _WORDS.split()
    while True:
        yield " ".join(random_.choices(words, k=14))


def in_json(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as Cloud Logging exports them."""
    for count, line in enumerate(lines):
        labels = {"node_id": "trainer", "worker_id": str(count % WORKERS), "zone": "us-central2-b"}
        yield json.dumps(
            {
                "insertId": f"{count:x}",
                "severity": "INFO",
                "timestamp": f"2025-01-10T10:{count // 60 % 60:02}:{count % 60:02}.123456Z",
                "resource": {"type": "tpu_worker", "labels": labels},
                "jsonPayload": {"message": line},
            }
        )


def wrapped(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines cut as a terminal cuts them."""
    for line in lines:
        for start in range(0, len(line), _WIDTH):
            yield line[start : start + _WIDTH]


def of_workers(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as `tpuctl run` marks them, of several workers at once."""
    random_ = random.Random(7)  # noqa: S311  # always the same
    for line in lines:
        yield f"[{random_.randrange(WORKERS)}] {line}"


def repeats(_: random.Random) -> Iterator[str]:
    """Yield only one known message."""
    for count in itertools.count():
        yield f"WARNING:tensorflow:Retrying ({count % 120}/120)."


LOGS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "JAX": jax_style,
    "TensorFlow": tensorflow_style,
    "JAX, Cloud Logging's JSON": lambda random_: in_json(jax_style(random_)),
    "JAX, wrapped at 80": lambda random_: wrapped(jax_style(random_)),
    "JAX, 8 workers at once": lambda random_: of_workers(jax_style(random_)),
    "no two lines alike": different,
    "no two lines alike, wrapped at 80": lambda random_: wrapped(different(random_)),
    "only `Retrying (12/120)`": repeats,
}


def log(name: str, size: int) -> bytes:
    """Return a log of about `size` bytes."""
    found: list[str] = []
    for line in LOGS[name](random.Random(1)):  # noqa: S311  # always the same
        found.append(line)
        size -= len(line) + 1
        if size < 0:
            break
    return "\n".join(found).encode() + b"\n"
