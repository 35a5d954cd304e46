"""Runs on a worker: reports every few seconds what its chips do, as libtpu measures it, and its memory, CPU and disk.

libtpu serves metrics by gRPC in the process that holds the chips [tpu-info 0.14.2 source]. The port is found by the sockets
that this process listens on; 8431 is only the usual one. Without such a program there are no metrics, which is no error.
It must run under Python 3.8, and ends when the client does.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import select
import struct
import time

from tpuctl.ssh.agent.grpc_call import (
    NOT_FOUND,
    GrpcError,
    encode_text,
    protobuf_fields,
    signed,
    unary_call,
)
from tpuctl.ssh.agent.holders import find_holders, is_alive
from tpuctl.ssh.agent.link import ClientLink
from tpuctl.ssh.agent.tpu_devices import device_files, device_root

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

SERVICE = "/tpu.monitoring.runtime.RuntimeMetricService/"
# By the key of the report [tpu-info 0.14.2 source: metrics.py].
METRICS = {
    "hbmTotal": "tpu.runtime.hbm.memory.total.bytes",
    "hbmUsed": "tpu.runtime.hbm.memory.usage.bytes",
    "duty": "tpu.runtime.tensorcore.dutycycle.percent",
    "idle": "tpu.runtime.tensorcore.idle_duration.seconds",
}
# Fields of a core's summary and of its sequencers [tpu-info 0.14.2: tpu_telemetry.proto].
SEQUENCERS, FINGERPRINT, LAUNCH, QUEUED, CORE_ERROR, HLO_LOCATION = 2, 4, 5, 6, 7, 8
CALL_TIMEOUT = 1.0
# All processes are examined this often, in seconds, if programs hold the chips, else sooner; in between only whether those that
# were found still run. An examination takes up to 50 ms.
EXAMINATION_INTERVAL, IDLE_EXAMINATION_INTERVAL = 30.0, 5.0
# The first is libtpu's own; with one process for each chip, each has one of its own.
USUAL_PORTS = (8431, 8432, 8433, 8434)
MOST_PROGRAMS, MOST_DEVICES, MOST_PORTS, MOST_CORES = 16, 64, 16, 64
LONGEST_TEXT = 200


def serve_tpu_metrics(link: ClientLink, request: dict[str, Any]) -> None:
    """Send a report at once, and then one in each interval, until the client goes; without an interval only one."""
    worker = WorkerMetrics(request)
    interval = request["interval"]
    due = time.monotonic()
    while True:
        link.send(b"x", json.dumps(worker.report()).encode("ascii"))
        if interval is None:
            return
        due = max(due + interval, time.monotonic())
        while link.is_open:
            ready, _, _ = select.select([0], [], [], max(0.0, due - time.monotonic()))
            if not ready:
                break
            link.frames()
        if not link.is_open:
            return


class WorkerMetrics:
    """What the reports of one session share."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.root = device_root()
        self.with_cores = request["cores"]
        self.programs: list[dict[str, Any]] = []
        self.hidden = 0
        self.ports: list[int] = []
        self.supported: dict[int, set[str]] = {}
        self.examined = -EXAMINATION_INTERVAL
        self.cpu = cpu_times()

    def report(self) -> dict[str, Any]:
        """Return what the worker does now."""
        self.find_programs()
        devices: list[dict[str, Any]] = []
        cores: list[dict[str, Any]] = []
        problem = None
        for port in self.ports[:MOST_PORTS]:
            try:
                devices += self.devices_of(port, len(devices))
                if self.with_cores:
                    cores += cores_of(port)  # NOT_FOUND and UNIMPLEMENTED of an older libtpu are its problem
            except (GrpcError, ValueError) as error:
                problem = "port %d: %s" % (port, error)
        if self.programs and not self.ports:
            problem = "the program listens on no port"
        before, self.cpu = self.cpu, cpu_times()
        return {
            "chips": len(device_files(self.root)),
            "programs": [
                {key: program[key] for key in ("pid", "user", "age", "command")}
                for program in self.programs[:MOST_PROGRAMS]
            ],
            "hidden": 0 if os.geteuid() == 0 else self.hidden,
            "devices": devices[:MOST_DEVICES],
            "cores": cores[:MOST_CORES],
            "problem": None if devices or problem is None else problem[:LONGEST_TEXT],
            "cpu": busy_share(before, self.cpu),
            "memory": memory(),
            "diskFree": disk_free(),
        }

    def find_programs(self) -> None:
        """Find the programs that hold the chips, and the ports that they listen on."""
        now = time.monotonic()
        is_same = all(is_alive(program["pid"], program["start"]) for program in self.programs)
        pause = EXAMINATION_INTERVAL if self.programs and self.ports else IDLE_EXAMINATION_INTERVAL
        if is_same and now < self.examined + pause:
            for program in self.programs:
                program["age"] += now - program["seen"]
                program["seen"] = now
            return
        holders, self.hidden = find_holders(self.root)
        self.programs = [
            {**holder, "seen": now}
            for holder in holders
            if (holder["devices"] or holder["hasLockFile"]) and not holder["isProtected"]
        ]
        ports = listening_ports([program["pid"] for program in self.programs])
        if ports != self.ports:
            self.supported = {}
        self.ports, self.examined = ports, now

    def devices_of(self, port: int, first: int) -> list[dict[str, Any]]:
        """Return the values of each device of a program; with one program for each chip, each calls its device 0."""
        if port not in self.supported:
            self.supported[port] = supported_metrics(port)
        found: dict[int, dict[str, Any]] = {}
        for key, name in METRICS.items():
            if name not in self.supported[port]:
                continue
            try:
                values = read_metric(port, name)
            except GrpcError as error:
                if error.status != NOT_FOUND:
                    raise
                continue
            for device, value in values.items():
                found.setdefault(device, dict.fromkeys(METRICS))[key] = int(value) if name.endswith("bytes") else value
        return [{"device": first + device, **found[device]} for device in sorted(found)]


def supported_metrics(port: int) -> set[str]:
    """Return the names of the metrics that a server has. Raises `GrpcError` and `ValueError`."""
    answer = unary_call(port, SERVICE + "ListSupportedMetrics", b"", CALL_TIMEOUT)
    return {
        part.decode("utf-8", "replace")
        for field, metric in protobuf_fields(answer)
        if field == 1 and isinstance(metric, bytes)
        for inner, part in protobuf_fields(metric)
        if inner == 1 and isinstance(part, bytes)
    }


def read_metric(port: int, name: str) -> dict[int, float]:
    """Return the value of a metric by device. Raises `GrpcError` and `ValueError`."""
    answer = unary_call(port, SERVICE + "GetRuntimeMetric", encode_text(1, name), CALL_TIMEOUT)
    found = {}
    for field, metric in protobuf_fields(answer):  # MetricResponse.metric
        if field == 1 and isinstance(metric, bytes):
            for inner, sample in protobuf_fields(metric):  # TPUMetric.metrics
                if inner == 3 and isinstance(sample, bytes):
                    device, value = read_sample(sample)
                    found[device] = value
    return found


def read_sample(sample: bytes) -> tuple[int, float]:
    """Return device and value of a `Metric` that is a gauge. What proto3 leaves out is 0."""
    device, value = 0, 0.0
    for field, part in protobuf_fields(sample):
        if field == 1 and isinstance(part, bytes):
            device = read_device(part)
        elif field == 3 and isinstance(part, bytes):
            for kind, number in protobuf_fields(part):
                if kind == 1 and isinstance(number, bytes):
                    value = float(struct.unpack("<d", number)[0])
                elif kind == 2 and isinstance(number, int):
                    value = float(signed(number))
    if not 0 <= device < 1 << 20 or math.isnan(value) or abs(value) > 1e18:
        raise ValueError("an impossible value")
    return device, value


def read_device(attribute: bytes) -> int:
    """Return the number of a device in an `Attribute`."""
    for field, value in protobuf_fields(attribute):
        if field == 2 and isinstance(value, bytes):
            for kind, number in protobuf_fields(value):
                if kind == 3 and isinstance(number, int):
                    return signed(number)
                if kind == 1 and isinstance(number, bytes) and number.isdigit() and len(number) < 7:
                    return int(number)
    return 0


def cores_of(port: int) -> list[dict[str, Any]]:
    """Return what each core runs [tpu-info 0.14.2 source: GetTpuRuntimeStatus]. Raises `GrpcError` and `ValueError`."""
    answer = unary_call(port, SERVICE + "GetTpuRuntimeStatus", b"\x08\x01", CALL_TIMEOUT)
    cores = []
    for field, entry in protobuf_fields(answer):
        if field == 2 and isinstance(entry, bytes):
            parts = dict(protobuf_fields(entry))
            summary = parts.get(2, b"")
            cores.append(read_core(int(parts.get(1, 0)), summary if isinstance(summary, bytes) else b""))
    return cores


def read_core(number: int, summary: bytes) -> dict[str, Any]:
    """Return the state of a core: its launch, its program, its place in it, and how many programs wait."""
    core: dict[str, Any] = {"core": number, "launch": None, "program": "", "place": "", "queued": 0, "error": ""}
    for field, part in protobuf_fields(summary):
        if field == QUEUED:
            core["queued"] += 1
        elif field == LAUNCH and isinstance(part, int):
            core["launch"] = signed(part)
        elif isinstance(part, bytes):
            if field == SEQUENCERS:
                places = [text for inner, text in protobuf_fields(part) if inner == HLO_LOCATION]
                core["place"] = core["place"] or "".join(map(plain_text, places))
            elif field == FINGERPRINT:
                core["program"] = part.hex()[:16]
            elif field == CORE_ERROR:
                core["error"] = plain_text(part)
    return core


def plain_text(value: int | bytes) -> str:
    """Return a text field, cut."""
    return value.decode("utf-8", "replace")[:LONGEST_TEXT] if isinstance(value, bytes) else ""


def listening_ports(pids: list[int]) -> list[int]:
    """Return the TCP ports that these processes listen on, the usual one first."""
    sockets = set()
    for pid in pids:
        try:
            for number in os.listdir("/proc/%d/fd" % pid):
                name = os.readlink("/proc/%d/fd/%s" % (pid, number))
                if name.startswith("socket:["):
                    sockets.add(name[len("socket:[") : -1])
        except OSError:  # it has ended, or belongs to another user
            continue
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                for line in lines:
                    parts = line.split()
                    if len(parts) > 9 and parts[3] == "0A" and parts[9] in sockets:
                        ports.add(int(parts[1].rpartition(":")[2], 16))
        except (OSError, ValueError):
            continue
    return sorted(ports, key=lambda port: (port not in USUAL_PORTS, port))


def cpu_times() -> tuple[int, int]:
    """Return the busy and all ticks of the CPUs since boot; zeros if the kernel does not say."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def busy_share(before: tuple[int, int], after: tuple[int, int]) -> float | None:
    """Return the percentage of time for which the CPUs were busy, None if no time has passed."""
    passed = after[1] - before[1]
    return 100.0 * max(0, after[0] - before[0]) / passed if passed > 0 else None


def memory() -> dict[str, int] | None:
    """Return the used and all memory in bytes."""
    found = {}
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                key, _, rest = line.partition(":")
                if key in ("MemTotal", "MemAvailable"):
                    found[key] = int(rest.split()[0]) * 1024
        return {"used": max(0, found["MemTotal"] - found["MemAvailable"]), "total": found["MemTotal"]}
    except (OSError, ValueError, KeyError):
        return None


def disk_free() -> int | None:
    """Return the bytes that the user who logged in can still write to the home directory."""
    try:
        home = pwd.getpwuid(int(os.environ["SUDO_UID"])).pw_dir if "SUDO_UID" in os.environ else os.path.expanduser("~")
        about = os.statvfs(home)
    except (OSError, KeyError, ValueError):
        return None
    return about.f_bavail * about.f_frsize
