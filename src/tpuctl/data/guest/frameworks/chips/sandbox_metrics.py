"""The metrics that libtpu serves in a program on a TPU, for the stand-ins of JAX and PyTorch on a sandbox worker.

The service, its messages and the names of the metrics are those of libtpu [tpu-info 0.14.2: tpu_metric_service.proto and
tpu_telemetry.proto]; the values are invented. gRPC over HTTP/2 with the standard library: one thread, small answers.
The port is any free one, because the workers of a sandbox share a machine; libtpu takes 8431.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SERVICE = "/tpu.monitoring.runtime.RuntimeMetricService/"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 4, 6, 8, 9
_END_STREAM, _END_HEADERS, _ACK, _PADDED, _PRIORITY = 1, 4, 1, 8, 32
_LONGEST_FRAME = 1 << 16
_OK, _NOT_FOUND, _UNIMPLEMENTED = 0, 5, 12
# HBM of a chip in GiB [Google's documentation of each generation].
_HBM = {"v2": 16, "v3": 32, "v4": 32, "v5litepod": 16, "v5p": 95, "v6e": 32}
_TOTAL, _USED = "tpu.runtime.hbm.memory.total.bytes", "tpu.runtime.hbm.memory.usage.bytes"
_DUTY, _IDLE = "tpu.runtime.tensorcore.dutycycle.percent", "tpu.runtime.tensorcore.idle_duration.seconds"
_VARIABLES = {"straggler": "TPUCTL_SANDBOX_STRAGGLER", "duty-zero": "TPUCTL_SANDBOX_DUTY_ZERO"}
# Seconds of one step of the program.
_STEP = 0.5
# The culprit touches its mark at each question.
_MARK_SECONDS = 30
_COLLECTIVE, _OWN_WORK = "all-reduce.17", "fusion.42"


def has_fault(word: str) -> bool:
    """Return whether the chips of this worker have a fault of the sandbox, since the session began or now."""
    if os.environ.get(_VARIABLES[word]) == "1":
        return True
    try:
        with open(os.path.join(os.environ["TPUCTL_SANDBOX_WORKER"], "chip-faults"), encoding="ascii") as file:
            return word in file.read().split()
    except OSError:
        return False


class ChipMetrics:
    """The values that the chips of a worker show."""

    def __init__(self, generation: str, chips: int, first: int) -> None:
        self.total = _HBM.get(generation, 16) << 30
        self.chips, self.first = chips, first
        self.began = time.monotonic()
        self.stopped: float | None = None
        self.launch_at_end = 0
        # The folder of the node: all of its workers show a hang of one.
        folder = os.path.dirname(os.environ["TPUCTL_SANDBOX_WORKER"])
        self.mark, self.late_mark = os.path.join(folder, "hangs"), os.path.join(folder, "is-late")

    def values(self, name: str) -> list[float] | None:
        """Return the value of each chip, None for an unknown name."""
        passed = time.monotonic() - self.began
        hangs = self.hangs()
        if name == _TOTAL:
            return [self.total] * self.chips
        if name == _USED:
            share = 0.55 + 0.2 * min(1.0, passed / 60) + 0.02 * (int(passed) % 3)
            return [int(self.total * (share + 0.005 * chip)) for chip in range(self.chips)]
        if name == _DUTY:
            slow = has_fault("straggler")
            wave = 4.0 * ((passed * 0.7) % 1)
            figures = [0.0 if hangs else 84.0 + wave + 0.5 * chip for chip in range(self.chips)]
            if slow and not hangs:
                figures[-1] /= 2
            return figures
        if name == _IDLE:
            idle = time.monotonic() - self.stopped if hangs and self.stopped is not None else 0.0
            return [idle] * self.chips
        return None

    def hangs(self) -> bool:
        """Return whether the program of the slice waits for a worker that will not come."""
        if has_fault("duty-zero"):
            if self.stopped is None:
                self.launch_at_end = _launch_now()
            with open(self.mark + "-new", "w", encoding="ascii") as file:
                file.write(str(self.launch_at_end))
            os.replace(self.mark + "-new", self.mark)  # another worker may read it now
        try:
            # A mark that is old is of a worker that has ended, or whose fault has.
            is_hanging = time.time() - os.stat(self.mark).st_mtime < _MARK_SECONDS
            if is_hanging and not has_fault("duty-zero"):
                # Each time: the mark may be of the program before this one.
                with open(self.mark, encoding="ascii") as file:
                    self.launch_at_end = int(file.read() or _launch_now())
        except OSError:
            is_hanging = False
        if not is_hanging:
            self.stopped = None
        elif self.stopped is None:
            self.stopped = time.monotonic()
        return is_hanging

    def waits(self) -> bool:
        """Return whether this worker waits in each step for another one with a slow chip."""
        if has_fault("straggler"):
            with open(self.late_mark, "w", encoding="ascii"):
                return False
        try:
            return time.time() - os.stat(self.late_mark).st_mtime < _MARK_SECONDS
        except OSError:
            return False

    def launch(self) -> tuple[int, str]:
        """Return the launch that runs now, and the place in its program."""
        if not self.hangs():
            if has_fault("straggler"):
                return _launch_now() - 2, _OWN_WORK
            return (_launch_now() + 1, _COLLECTIVE) if self.waits() else (_launch_now(), _OWN_WORK)
        if has_fault("duty-zero"):
            return self.launch_at_end, _OWN_WORK
        return self.launch_at_end + 1, _COLLECTIVE


def _launch_now() -> int:
    """Return the launch that all workers of a slice are at."""
    return int(time.time() / _STEP) % 1_000_000


def serve_metrics(metrics: ChipMetrics) -> int:
    """Serve the metrics on a loopback port until the program ends, and return the port."""
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(server, metrics), name="tpu-metrics", daemon=True).start()
    return int(server.getsockname()[1])


def _accept(server: socket.socket, metrics: ChipMetrics) -> None:
    connections: dict[socket.socket, _Connection] = {}
    while True:
        ready, _, _ = select.select([server, *connections], [], [], 1.0)
        metrics.hangs()  # the other workers learn of it without a question
        metrics.waits()
        for one in ready:
            if one is server:
                accepted = server.accept()[0]
                connections[accepted] = _Connection(accepted, metrics)
                continue
            try:
                connections[one].receive()
            except (OSError, ValueError, IndexError, struct.error):
                del connections[one]
                one.close()


class _Connection:
    """One client."""

    def __init__(self, client: socket.socket, metrics: ChipMetrics) -> None:
        client.settimeout(1.0)
        self._client, self._metrics = client, metrics
        self._waiting = b""
        self._has_begun = False
        self._headers = _HeaderTable()
        self._paths: dict[int, str] = {}
        self._bodies: dict[int, bytes] = {}

    def receive(self) -> None:
        """Read what has come, and answer whole requests. Raises `OSError` and `ValueError` at the end of the connection."""
        data = self._client.recv(_LONGEST_FRAME)
        if not data:
            raise ValueError
        self._waiting += data
        if not self._has_begun:
            if len(self._waiting) < len(_PREFACE):
                return
            if not self._waiting.startswith(_PREFACE):
                raise ValueError
            self._waiting, self._has_begun = self._waiting[len(_PREFACE) :], True
            self._send(_SETTINGS, 0, 0, b"")
        while len(self._waiting) >= 9:
            size = int.from_bytes(self._waiting[:3], "big")
            if size > _LONGEST_FRAME:
                raise ValueError
            if len(self._waiting) < 9 + size:
                return
            kind, flags = self._waiting[3], self._waiting[4]
            stream = int.from_bytes(self._waiting[5:9], "big") & 0x7FFFFFFF
            payload, self._waiting = self._waiting[9 : 9 + size], self._waiting[9 + size :]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._send(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and not flags & _ACK:
            self._send(_PING, _ACK, 0, payload)
        elif kind == _HEADERS:
            if flags & _PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            if flags & _PRIORITY:
                payload = payload[5:]
            self._paths[stream], self._bodies[stream] = self._headers.path_of(payload), b""
        elif kind == _DATA:
            self._bodies[stream] += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
            if payload:
                self._send(_WINDOW_UPDATE, 0, 0, struct.pack(">I", len(payload)))
        if kind in (_HEADERS, _DATA) and flags & _END_STREAM:
            self._answer(stream, self._paths.pop(stream), self._bodies.pop(stream)[5:])

    def _answer(self, stream: int, path: str, message: bytes) -> None:
        status, answer = _answer_call(self._metrics, path, message)
        self._send(_HEADERS, _END_HEADERS, stream, b"\x88" + _literal(b"content-type", b"application/grpc"))
        if status == _OK:
            self._send(_DATA, 0, stream, b"\0" + struct.pack(">I", len(answer)) + answer)
        self._send(_HEADERS, _END_HEADERS | _END_STREAM, stream, _literal(b"grpc-status", str(status).encode()))

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream)
        self._client.sendall(head + payload)


class _HeaderTable:
    """The headers that a client has sent before on its connection [RFC 7541], as far as the path needs them."""

    def __init__(self) -> None:
        self._entries: list[tuple[bytes, bytes]] = []

    def path_of(self, block: bytes) -> str:
        """Return the path of a request."""
        path, at = b"", 0
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                name, value = self._entry(index)
            elif first & 0xE0 == 0x20:  # the size of the table
                _, at = _integer(block, at, 5)
                continue
            else:
                is_kept = bool(first & 0x40)
                index, at = _integer(block, at, 6 if is_kept else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                if is_kept:
                    self._entries.insert(0, (name, value))
            if name == b":path":
                path = value
        return path.decode("ascii")

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if index > 61:
            return self._entries[index - 62]
        return (b":path", b"/") if index in (4, 5) else (b"", b"")


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    number = block[at] & (1 << bits) - 1
    at += 1
    if number < (1 << bits) - 1:
        return number, at
    shift = 0
    while True:
        number += (block[at] & 127) << shift
        shift += 7
        at += 1
        if block[at - 1] < 128:
            return number, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    if block[at] & 0x80:
        raise ValueError("Huffman coding")
    size, at = _integer(block, at, 7)
    return block[at : at + size], at + size


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _answer_call(metrics: ChipMetrics, path: str, message: bytes) -> tuple[int, bytes]:
    """Return the status and the message of a call."""
    method = path[len(_SERVICE) :] if path.startswith(_SERVICE) else ""
    if method == "ListSupportedMetrics":
        names = (_TOTAL, _USED, _DUTY, _IDLE)
        return _OK, b"".join(_field(1, _field(1, name.encode())) for name in names)
    if method == "GetRuntimeMetric":
        name = message[2 : 2 + message[1]].decode() if message[:1] == b"\x0a" else ""
        values = metrics.values(name)
        if values is None:
            return _NOT_FOUND, b""
        samples = b"".join(_field(3, _sample(device, value)) for device, value in enumerate(values))
        return _OK, _field(1, _field(1, name.encode()) + samples)
    if method == "GetTpuRuntimeStatus":
        launch, place = metrics.launch()
        states = [
            _field(2, _varint_field(1, core) + _field(2, _core(core, launch, place))) for core in range(metrics.chips)
        ]
        return _OK, b"".join(states)
    return _UNIMPLEMENTED, b""


def _sample(device: int, value: float) -> bytes:
    # What is 0 is left out, as proto3 does.
    attribute = _field(1, b"device-id") + _field(2, _varint_field(3, device) if device else b"")
    if isinstance(value, int):
        gauge = _varint_field(2, value) if value else b""
    else:
        gauge = b"\x09" + struct.pack("<d", value) if value else b""
    return _field(1, attribute) + _field(3, gauge)


def _core(core: int, launch: int, place: str) -> bytes:
    sequencer = _varint_field(1, 1) + _field(8, place.encode())
    return _field(2, sequencer) + _field(4, b"sandbox!") + _varint_field(5, launch)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(number: int) -> bytes:
    coded = b""
    while number > 127:
        coded += bytes([number & 127 | 128])
        number >>= 7
    return coded + bytes([number])
