"""The chips of a sandbox worker, for the stand-ins of JAX and PyTorch: device files, a clock, and the other workers.

Nothing is computed: a tensor is its shape and the one value of all its elements. An operation moves the clock of its device,
which `time.perf_counter` returns, by the time that a chip of this generation would take; so measurements do not depend on
this machine. Workers meet over a loopback port, which the first one writes into the folder of the node. The sandbox's faults
come as variables of the session.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import socket
import threading
import time
from contextlib import suppress

from sandbox_metrics import ChipMetrics, has_fault, serve_metrics

# Peak of a chip in TFLOP/s of bfloat16 [Google's documentation of each generation], and the share that a large product gets
# (the sandbox's choice).
_PEAK = {"v2": 45, "v3": 123, "v4": 275, "v5litepod": 197, "v5p": 459, "v6e": 918}
_SHARE = 0.9
# Between chips, in bytes a second: the sandbox's choice.
_LINK = 80e9
_SLOW = 0.5
_GREETING = b"tpuctl-sandbox-slice\n"
_START_TIMEOUT = 300.0


class _Clock(threading.local):
    """The time of the device of a thread, in seconds."""

    now = 0.0


_CLOCK = _Clock()


class Chips:
    """The chips of this worker, taken by this process until it ends. Raises `RuntimeError` as libtpu does."""

    def __init__(self) -> None:
        self.generation = os.environ["TPU_ACCELERATOR_TYPE"].partition("-")[0]
        sides = os.environ["TPU_CHIPS_PER_HOST_BOUNDS"].split(",")
        self.count = int(sides[0]) * int(sides[1]) * int(sides[2])
        self.cores = 2 if self.generation in {"v2", "v3"} else 1
        root = os.environ["TPUCTL_DEVICE_ROOT"]
        names = sorted(
            glob.glob(f"{glob.escape(root)}/dev/accel[0-9]*") + glob.glob(f"{glob.escape(root)}/dev/vfio/[0-9]*")
        )
        if len(names) < self.count:
            raise RuntimeError("Unable to initialize backend 'tpu': INTERNAL: Failed to get global TPU topology.")
        self._lock = open(os.path.join(root, "tmp", "libtpu_lockfile"), "a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = "The TPU is already in use by another process. Not attempting to load libtpu.so in this process."
            raise RuntimeError(f"Unable to initialize backend 'tpu': ABORTED: {text}") from None
        self._files = [open(name, "rb") for name in names]
        serve_metrics(ChipMetrics(self.generation, self.count * self.cores, self.worker))

    @property
    def is_alone(self) -> bool:
        """Whether this worker works without the others of its slice."""
        return os.environ.get("TPU_PROCESS_BOUNDS") == "1,1,1"

    @property
    def worker(self) -> int:
        """The index of this worker in what works together."""
        return 0 if self.is_alone else int(os.environ["TPU_WORKER_ID"])

    @property
    def workers(self) -> int:
        """The number of workers that work together."""
        return 1 if self.is_alone else len(os.environ["TPU_WORKER_HOSTNAMES"].split(","))

    def multiply(self, chip: int, operations: float) -> None:
        """Let a device of a chip compute."""
        slow = has_fault("straggler") and chip == self.count - 1
        _CLOCK.now += operations / (_PEAK[self.generation] / self.cores * 1e12 * _SHARE * (_SLOW if slow else 1))


class Group:
    """The processes that compute together. `rank` 0 waits for all others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._peers: list[socket.socket] = []
        path = os.path.join(os.path.dirname(os.environ["TPUCTL_SANDBOX_WORKER"]), "coordinator")
        if size == 1:
            return
        if rank == 0:
            self._await_others(path)
        else:
            self._peers = [_find_first(path)]

    def sum(self, value: float) -> float:
        """Return the sum of the values of all processes, when all have called it."""
        while has_fault("duty-zero"):
            time.sleep(1)
        if self.rank == 0:
            total = value + sum(map(_receive, self._peers))
            for peer in self._peers:
                peer.sendall(f"{total}\n".encode())
            return total
        self._peers[0].sendall(f"{value}\n".encode())
        return _receive(self._peers[0])

    def _await_others(self, path: str) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=self.size) as server:
            scratch = f"{path}.{os.getpid()}"
            with open(scratch, "w", encoding="ascii") as file:
                file.write(str(server.getsockname()[1]))
            os.replace(scratch, path)
            server.settimeout(_START_TIMEOUT)
            while len(self._peers) < self.size - 1:
                peer = server.accept()[0]
                peer.settimeout(None)
                peer.sendall(_GREETING)
                self._peers.append(peer)
        os.unlink(path)


def all_reduce_time(count: int, size: int) -> None:
    """Let a sum of so many bytes over so many devices take its time."""
    _CLOCK.now += 2 * (count - 1) / count * size / _LINK


def _find_first(path: str) -> socket.socket:
    until = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < until:
        with suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                port = int(re.sub(r"\D", "", file.read()))
            peer = socket.create_connection(("127.0.0.1", port), timeout=5)
            if peer.recv(len(_GREETING), socket.MSG_WAITALL) == _GREETING:
                peer.settimeout(None)
                return peer
            peer.close()
        time.sleep(0.02)
    raise RuntimeError("DEADLINE_EXCEEDED: Barrier timed out.")


def _receive(peer: socket.socket) -> float:
    data = b""
    while not data.endswith(b"\n"):
        block = peer.recv(64)
        if not block:
            raise RuntimeError("UNAVAILABLE: a worker of the slice has ended")
        data += block
    return float(data)


class Tensor:
    """A tensor whose elements all have one value. `device` is that of its chip, None if it is spread over devices."""

    def __init__(self, value: float, shape: tuple[int, ...], dtype: str, device: object = None) -> None:
        self.value, self.shape, self.dtype, self.device = value, shape, dtype, device

    def like(self, value: float) -> Tensor:
        """Return a tensor of the same form."""
        return type(self)(value, self.shape, self.dtype, self.device)

    def __add__(self, other: float) -> Tensor:
        return self.like(self.value + other)

    def __eq__(self, other: object) -> Tensor:
        return self.like(float(self.value == other))

    __hash__ = None

    def all(self) -> bool:
        """Return whether all elements are true."""
        return bool(self.value)


# What the device did, in place of what this machine does.
time.perf_counter = lambda: _CLOCK.now
