"""A Ray cluster on the workers of nodes: what runs where, and whether Ray itself has what it should. Pure.

Sources: Ray's `_private/accelerators/tpu.py` (a worker joins with the labels of its slice only if it has the resource `TPU`;
worker 0 of a slice also has `TPU-<type>-head`; `TPU_NAME` is the name of the slice); a run of Ray 2.60 [observed]. Ray asks the
metadata server for what is not in the environment; the values here are those of the API.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tpuctl.decoding import Line, Most, Range
from tpuctl.errors import ConflictError, InvalidInputError, NotFoundError
from tpuctl.names import natural_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.models.node import Node
    from tpuctl.ssh.connection import Target

HEAD_JOB, WORKER_JOB = "ray-head", "ray-worker"
DEFAULT_PORT, DASHBOARD_PORT = 6379, 8265
# Where `--install` puts Ray; without it the login shell's PATH decides.
OWN_RAY = "~/.tpuctl/ray"
_FIND = f'ray={OWN_RAY}/bin/ray; [ -x "$ray" ] || ray=$(command -v ray)'
# Beside `ray` in its environment, else the one that `ray` itself names.
_PYTHON = 'python=${ray%/*}/python3; [ -x "$python" ] || python=$(sed -n "1s/^#! *//p" "$ray")'
_OWN_ADDRESS = 'ip=$(printf %s "$TPU_WORKER_HOSTNAMES" | cut -d, -f$((TPU_WORKER_ID + 1)))'
_VERSION = re.compile(r"[0-9A-Za-z.+!-]{1,40}", re.ASCII)
_PATH = re.compile(r"[\w./~+-]{1,200}", re.ASCII)
_REPORT = re.compile(
    r"^tpuctl-ray ray=(?P<ray>[0-9A-Za-z.+-]{1,40}) python=(?P<python>[0-9]{1,2}\.[0-9]{1,3}) listens=(?P<listens>[01])\r?$",
    re.MULTILINE | re.ASCII,
)
_ASK = """
import os, socket, sys
import ray
with socket.socket() as one:
    one.settimeout(5)
    taken = one.connect_ex((sys.argv[1], int(sys.argv[2]))) == 0
os.write(1, b"\\ntpuctl-ray ray=%s python=%d.%d listens=%d\\n" % (ray.__version__.encode(), *sys.version_info[:2], taken))
"""
# Waits until Ray has all hosts with their chips, then says what it has.
_WATCH = """
import json, os, sys, time
import ray
address, chips, seconds, *hosts = sys.argv[1:]
end = time.monotonic() + float(seconds)
while True:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        break
    except Exception as error:
        if time.monotonic() > end:
            sys.exit("tpuctl-ray: no answer at %s: %s" % (address, str(error)[:200]))
        time.sleep(1)
while True:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    ready = {node["NodeManagerAddress"] for node in nodes if node["Resources"].get("TPU", 0) >= float(chips)}
    if ready.issuperset(hosts) or time.monotonic() > end:
        break
    time.sleep(1)
found = json.dumps([
    {
        "address": node["NodeManagerAddress"],
        "chips": node["Resources"].get("TPU", 0),
        "heads": [name for name in node["Resources"] if name.startswith("TPU-") and name.endswith("-head")],
        "slice": node.get("Labels", {}).get("ray.io/tpu-slice-name", ""),
    }
    for node in nodes
])
os.write(1, b"\\ntpuctl-cluster %s\\n" % found.encode())
"""


@dataclass(frozen=True, slots=True)
class RayHost:
    """A host as Ray itself reports it."""

    address: Annotated[str, Line(64)]
    chips: Annotated[float, Range(0, 1024)]
    heads: Annotated[tuple[Annotated[str, Line(64)], ...], Most(16)]
    slice: Annotated[str, Line(80)]


@dataclass(frozen=True, slots=True)
class InstalledRay:
    """The Ray of one worker. `listens`: a program answers at the cluster's port on its address."""

    ray: str
    python: str
    listens: bool

    def __str__(self) -> str:
        return f"Ray {self.ray} with Python {self.python}"


@dataclass(frozen=True, slots=True)
class RayMember:
    """A worker of the cluster."""

    target: Target
    address: str  # internal
    chips: int | None  # None: of a type that is not in the table; Ray counts them itself
    head_resource: str  # of worker 0 of a slice; empty for the others


@dataclass(frozen=True, slots=True)
class RayPlan:
    """The workers of a cluster, the head first."""

    members: tuple[RayMember, ...]
    port: int = DEFAULT_PORT
    program: str | None = None  # `ray` on the workers

    @property
    def head(self) -> RayMember:
        """The worker that runs the head."""
        return self.members[0]

    @property
    def address(self) -> str:
        """The address of the cluster, as workers reach it."""
        return f"{self.head.address}:{self.port}"

    @property
    def chips(self) -> int:
        """The number of chips of all workers, as far as it is known."""
        return sum(member.chips or 0 for member in self.members)

    @property
    def slices(self) -> list[str]:
        """The nodes, in the order of the members."""
        return list(dict.fromkeys(member.target.node.name.node_id for member in self.members))

    def line(self, member: RayMember) -> str:
        """Return the shell line of a worker's job. `TPU_…` of the environment say which host of which slice it is."""
        common = f"--disable-usage-stats{self._resources(member)}"
        if member is self.head:
            start = f"--head --port={self.port} --dashboard-host=127.0.0.1 --dashboard-port={DASHBOARD_PORT}"
            return f'{self._find()}; {_OWN_ADDRESS}; exec "$ray" start --block {start} --node-ip-address="$ip" {common}'
        # The head may need longer to start than this worker; and a busy machine may not join at once.
        answers = f'"$ray" health-check --address {self.address} >/dev/null 2>&1'
        wait = f"n=0; until {answers} || [ $((n += 1)) -gt 60 ]; do sleep 1; done"
        start = f'"$ray" start --block --address={self.address} --node-ip-address="$ip" {common}'
        tries = f"for _ in 1 2 3 4 5; do {wait}; {start} && exit; sleep 2; done; exit 1"
        return f"{self._find()}; {_OWN_ADDRESS}; {tries}"

    def _resources(self, member: RayMember) -> str:
        if member.chips is None:
            return ""
        return f" --resources={shlex.quote(json.dumps({'TPU': member.chips}))}"

    def _find(self) -> str:
        # The shell of the worker expands `~`.
        return f"ray={self.program}" if self.program is not None else _FIND

    def ask_line(self) -> str:
        """Return the shell line that reports the Ray of a worker, and whether its port is taken."""
        missing = '{ echo "tpuctl-ray missing"; exit 0; }'
        ask = f'"$python" -c {shlex.quote(_ASK)} "$ip" {self.port}'
        return f'{self._find()}; [ -x "$ray" ] || {missing}; {_PYTHON}; {_OWN_ADDRESS}; exec {ask}'

    def watch_line(self, seconds: float) -> str:
        """Return the shell line that waits on the head until Ray has all hosts, and reports them."""
        least = min((member.chips or 0 for member in self.members), default=0)
        hosts = " ".join(member.address for member in self.members)
        watch = f'"$python" -c {shlex.quote(_WATCH)} {self.address} {least} {seconds:g} {hosts}'
        return f"{self._find()}; {_PYTHON}; exec {watch}"


def install_line(version: str) -> str:
    """Return the shell line that installs `ray==VERSION` below `~/.tpuctl/ray`. Raises `InvalidInputError`."""
    name, _, number = version.partition("==")
    if name != "ray" or not _VERSION.fullmatch(number):
        raise InvalidInputError(
            f"`--install {version}` is not a version of Ray", hint="write it like `--install ray==2.60.0`"
        )
    package = shlex.quote(f"ray[default]=={number}")
    return f"python3 -m venv {OWN_RAY} && {OWN_RAY}/bin/python3 -m pip install --quiet {package}"


def plan_ray(
    nodes: Sequence[Node],
    targets: Sequence[Target],
    *,
    head: str | None,
    port: int = DEFAULT_PORT,
    program: str | None = None,
) -> RayPlan:
    """Return the plan of a cluster over all workers of these nodes; the head is worker 0 of `head`, or of the first by name.

    Raises `InvalidInputError` and `ConflictError`.
    """
    if program is not None and not _PATH.fullmatch(program):
        raise InvalidInputError(
            f"`--ray {program}` is not a path", hint="give its path on the workers: `--ray ~/venv/bin/ray`"
        )
    names = sorted((node.name.node_id for node in nodes), key=natural_key)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInputError(
            f"two nodes are named `{twice}`: Ray would take them for one slice", hint="name other nodes"
        )
    if head is not None and head not in names:
        raise InvalidInputError(
            f"`--head {head}` is none of the nodes", hint=f"name one of {', '.join(f'`{one}`' for one in names[:5])}"
        )
    first = head or names[0]
    members = []
    for target in targets:
        node = target.node
        address = node.endpoints[target.worker].internal if target.worker < len(node.endpoints) else None
        if address is None:
            raise ConflictError(f"worker {target.label} has no internal address for the others")
        chips = node.accelerator.chips_per_worker if node.accelerator else None
        resource = f"TPU-{node.accelerator_type}-head" if target.worker == 0 else ""
        members.append(RayMember(target, address, chips, resource))
    members.sort(
        key=lambda one: (
            one.target.node.name.node_id != first,
            natural_key(one.target.node.name.node_id),
            one.target.worker,
        )
    )
    return RayPlan(tuple(members), port, program)


def parse_installed(output: str) -> InstalledRay | None:
    """Return the Ray of a worker from its output, None if it has none."""
    match = _REPORT.search(output)
    return InstalledRay(match["ray"], match["python"], match["listens"] == "1") if match else None


def check_installed(found: Sequence[tuple[RayMember, InstalledRay | None]]) -> InstalledRay:
    """Return the Ray that all workers have.

    Raises `NotFoundError` if a worker has none, and `ConflictError` if they differ: Ray refuses to join another version, and
    another minor version of Python.
    """
    without = [member.target.label for member, ray in found if ray is None]
    if without:
        raise NotFoundError(
            f"Ray is not installed on worker {', '.join(without[:4])}{' and others' if len(without) > 4 else ''}",
            hint="install it on all: `tpuctl ray up NODE… --install ray==VERSION`\n"
            "name the one of an environment: `--ray PATH`",
        )
    groups: dict[str, list[str]] = {}
    for member, ray in found:
        groups.setdefault(str(ray), []).append(member.target.label)
    if len(groups) > 1:
        texts = [
            f"{text} on {', '.join(labels[:3])}{' and others' if len(labels) > 3 else ''}"
            for text, labels in groups.items()
        ]
        raise ConflictError(
            f"workers have different versions: {'; '.join(texts)}",
            hint="install one on all: `tpuctl ray up NODE… --install ray==VERSION`",
        )
    return next(ray for _, ray in found if ray is not None)


def describe_problems(plan: RayPlan, hosts: Sequence[RayHost]) -> dict[str, str]:
    """Return what is wrong with each worker, by its label, as Ray reports it."""
    seen = {host.address: host for host in hosts}
    found = {}
    for member in plan.members:
        host = seen.get(member.address)
        if host is None:
            found[member.target.label] = "has not joined"
        elif member.chips is not None and host.chips < member.chips:
            found[member.target.label] = f"joined with {host.chips:g} of {member.chips} chips"
        elif host.slice != member.target.node.name.node_id:
            found[member.target.label] = f"is of slice `{host.slice}` for Ray: set by TPU_NAME there"
        elif member.head_resource and member.head_resource not in host.heads:
            found[member.target.label] = f"has no resource {member.head_resource}"
    return found
