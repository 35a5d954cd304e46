"""`tpuctl run --up --rm --ttl` as a process that SIGKILL ends, and who ends its node when the time of that has passed.

The API is a server of this process: it kills its client when a request arrives, or when that was carried out and before the
answer leaves. On the worker a moment is the one at which a file appears. The processes live in the sandbox's time, which runs
fast. `prove` is one life; `python -m benchmarks.killed_runs` has all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from threading import Lock

from tests.lifecycle import ZONE
from tests.tpuctl_process import TpuctlProcess
from tpuctl.nodes.expiry import expiry_label, owner_label
from tpuctl.platforms import find_processes_with_variable
from tpuctl.sandbox import administration
from tpuctl.sandbox.api_calls import DroppedConnection, Request, Response
from tpuctl.sandbox.http_server import SandboxServer
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.shims import record_served_address
from tpuctl.sandbox.sshd.worker_home import WORKER_MARK
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.state_session import QueuedRecord
from tpuctl.sandbox.worker_lookup import OS_LOGIN_ACCOUNT

NAME = "ci"
SPEED = 200.0
# Much more than a life takes at ten times that speed, also on a busy machine.
TTL = timedelta(hours=100)
# Real time in which a life reaches its moment, and in which a guard ends its node.
PATIENCE = 90.0
GUARD_PATIENCE = 30.0
# Real time after which a guard that has not begun does not begin any more, and in which one would have acted.
GUARD_START = 4.0
GUARD_LOOKS = 3.0
# Without the scope cloud-platform the guard of a node cannot delete it: `gc` and `watch` are alone.
SCOPES = ("--scopes", "https://www.googleapis.com/auth/devstorage.read_only")
COMMAND = "touch started; sleep 0.5; touch ended; sleep 0.2"

# The program in a process, in the time of the sandbox that it reaches over HTTP.
_PROGRAM = """
import os
from dataclasses import replace
from pathlib import Path
from tpuctl.cli.main import main
from tpuctl.cli.program import invocation_of_process
from tpuctl.sandbox.state import SandboxState

with SandboxState.open(Path({state_file!r})) as sandbox:
    invocation = replace(invocation_of_process(), clock=sandbox.clock)
    code = main(invocation)
    invocation.streams.stdout.flush()
    invocation.streams.stderr.flush()
    os._exit(code)
"""


class Enforcer(StrEnum):
    """Who ends an expired node."""

    GC = "gc"
    WATCH = "watch"
    GUARD = "guard"


class Left(StrEnum):
    """What a killed run leaves in the cloud."""

    NOTHING = "no node"
    REQUEST = "a request without a node"
    WITHOUT_GUARD = "a node without a guard"
    WITH_GUARD = "a node with a guard"
    DELETING = "a node that is being deleted"


@dataclass(frozen=True, slots=True)
class KillMoment:
    """A moment in the life of a run: a request, the `number`-th of its kind, or a file of worker 0; the start without either.

    `is_carried_out`: the service has carried the request out, and the client never reads the answer. `leaves`: what may be
    left then. The kinds of requests are those of `_kinds`.
    """

    phase: str
    text: str
    leaves: tuple[Left, ...]
    request: str = ""
    number: int = 1
    is_carried_out: bool = False
    file: str = ""


_GUARD = "0/.tpu/var/lib/tpuctl/guard"
_BARE, _GUARDED = (Left.WITHOUT_GUARD,), (Left.WITH_GUARD,)
MOMENTS = (
    KillMoment("before the create", "the process begins", (Left.NOTHING,)),
    KillMoment("before the create", "its first request", (Left.NOTHING,), "any"),
    KillMoment("before the create", "its third request, answered", (Left.NOTHING,), "any", 3, is_carried_out=True),
    KillMoment("before the create", "the create is sent", (Left.NOTHING,), "create"),
    KillMoment("creation", "the create is accepted", _BARE, "create", is_carried_out=True),
    KillMoment("creation", "the first look at CREATING", _BARE, "read CREATING"),
    KillMoment("creation", "the fifth look at CREATING", _BARE, "read CREATING", 5, is_carried_out=True),
    KillMoment("creation", "the first look at READY", _BARE, "read READY", is_carried_out=True),
    KillMoment("start of the guard", "the host key is fetched", _BARE, "guest attributes"),
    KillMoment("start of the guard", "the first connection", (*_BARE, *_GUARDED), file="0.sshd"),
    KillMoment("start of the guard", "its settings are written", (*_BARE, *_GUARDED), file=f"{_GUARD}/settings"),
    KillMoment(
        "start of the guard",
        "its service is installed",
        (*_BARE, *_GUARDED),
        file="0/.tpu/etc/systemd/system/tpuctl-guard.service",
    ),
    KillMoment("start of the guard", "its program runs", _GUARDED, file=f"{_GUARD}/lock"),
    KillMoment("start of the guard", "its first look", _GUARDED, file=f"{_GUARD}/status"),
    KillMoment("run", "the job is made", _GUARDED, file="0/.tpuctl/jobs/*"),
    KillMoment("run", "the command runs", _GUARDED, file="0/started"),
    KillMoment("run", "the command ends", _GUARDED, file="0/ended"),
    KillMoment("deletion", "the delete is sent", _GUARDED, "delete"),
    KillMoment("deletion", "the delete is accepted", (Left.DELETING,), "delete", is_carried_out=True),
    KillMoment("deletion", "the first look at DELETING", (Left.DELETING,), "read DELETING"),
)


@dataclass(frozen=True, slots=True)
class LifeResult:
    """What one life left, who ended it (None if nothing had to be), and each claim that did not hold."""

    moment: KillMoment
    enforcer: Enforcer
    left: Left
    ended_by: Enforcer | None
    faults: tuple[str, ...]


def prove(
    folder: Path,
    moment: KillMoment,
    enforcer: Enforcer,
    *,
    elsewhere: bool = False,
    is_queued: bool = False,
    speed: float = SPEED,
) -> LifeResult:
    """Kill a run at the moment, let the time of its node pass, and let the enforcer act, `elsewhere` on another machine.

    `is_queued`: the node is requested through the queue.
    """
    life = _Life(folder, moment, enforcer, elsewhere=elsewhere, is_queued=is_queued, speed=speed)
    with life.serving():
        left = life.kill_run()
        life.state.advance(TTL + timedelta(hours=1))
        ended_by = life.enforce(left)
        life.state.advance(timedelta(hours=1))
        life.check_rest()
    return LifeResult(moment, enforcer, left, ended_by, tuple(life.faults))


@dataclass
class _Life:
    """One sandbox, with nodes that must stay, and the runs of tpuctl on it."""

    folder: Path
    moment: KillMoment
    enforcer: Enforcer
    elsewhere: bool
    is_queued: bool
    speed: float
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        path = self.folder / "state" / "sandbox" / "world.sqlite3"
        path.parent.mkdir(parents=True)
        self.state = SandboxState.open(path, speed=self.speed)
        self.bystanders = _add_bystanders(self.state, self._now())
        self.server = KillingServer(self.state, self.moment)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve the API; at the end nothing of this life runs any more."""
        try:
            with self.server:
                self.server.start()
                record_served_address(self.state.path, self.server.url)
                yield
        finally:
            for control in self.folder.glob("state/sandbox/workers/*/*/*/*.sshd"):
                for process in find_processes_with_variable(WORKER_MARK, str(control)):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            self.state.close()

    def start(self, *arguments: str, elsewhere: bool = False) -> TpuctlProcess:
        """Start `tpuctl` in a process of its own. Its output goes to a file."""
        machine = self.folder / "elsewhere" if elsewhere else self.folder
        (machine / "home").mkdir(parents=True, exist_ok=True)
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(machine / "home"),
            "CLOUDSDK_CORE_ACCOUNT": OS_LOGIN_ACCOUNT,
            "TPUCTL_STATE_DIR": str(machine / "state"),
            "TPUCTL_ENDPOINT": self.server.url,
            "TPUCTL_PROJECT": "sandbox",
            # A connection that is kept would outlive the process for minutes.
            "TPUCTL_SSH_KEEP": "0",
        }
        with (self.folder / f"{arguments[0]}.log").open("ab") as log:
            return TpuctlProcess(
                arguments,
                env=environ,
                cwd=machine / "home",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                program=_PROGRAM.format(state_file=str(self.state.path)),
            )

    def kill_run(self) -> Left:
        """Run until the moment of the kill, and return what is left once everything that goes on without the run is done."""
        scopes = () if self.enforcer is Enforcer.GUARD else SCOPES
        queue = ("--queue",) if self.is_queued else ()
        limit = ("--ttl", f"{TTL // timedelta(hours=1)}h", "--timeout", "1h")
        run = self.start(
            "run", NAME, "--up", "v4-8", "--zone", ZONE, "--no-sync", "--rm", *limit, *scopes, *queue, "--", COMMAND
        )
        self.server.client.set_result(run.pid)
        end = time.monotonic() + PATIENCE
        while run.poll() is None:
            is_start = not self.moment.file and not self.moment.request
            if is_start or (self.moment.file and any(self._on_worker(self.moment.file))):
                self.server.kill()
            elif time.monotonic() > end:
                self.fault(f"the moment did not come within {PATIENCE:.0f} s: {self.output('run')}")
                self.server.kill()
            time.sleep(0.002 if self.moment.file else 0.02)
        if run.returncode != -signal.SIGKILL:
            self.fault(f"the run ended with {run.returncode}, not by the kill: {self.output('run')}")
        self.server.moment = None
        self._wait(GUARD_START if any(self._on_worker("0.sshd")) else 0.0, lambda: self.has_guard)
        left = self._left()
        is_request = left is Left.REQUEST and self.is_queued and self.moment.leaves == _BARE
        if left not in self.moment.leaves and not is_request:
            self.fault(f"it left {left}: {self.output('run')}")
        if left not in {Left.NOTHING, Left.DELETING} and "tpuctl-expires" not in self._labels():
            self.fault("what it left has no label `tpuctl-expires`")
        return left

    def enforce(self, left: Left) -> Enforcer | None:
        """Let the enforcer act after the expiry; return who had to end the node."""
        if left is Left.DELETING and self.node_state() is not None:
            self.fault("its node, which was being deleted, is still there")
        if self.enforcer is Enforcer.GUARD:
            if left is Left.WITH_GUARD:
                self._wait(GUARD_PATIENCE, lambda: self.node_state() in {None, "DELETING"})
                if self.node_state() not in {None, "DELETING"}:
                    self.fault(f"the guard left the node {self.node_state()}: {self.guard_log()}")
                if self.is_queued:  # its record, which bills nothing, outlives the guard and its machine
                    self._wait(GUARD_PATIENCE, lambda: self.node_state() is None)
                    self._enforce("gc", "--expired", "--yes")
                return Enforcer.GUARD
            if left not in {Left.WITHOUT_GUARD, Left.REQUEST}:
                return None
            time.sleep(GUARD_LOOKS if any(self._on_worker("0.sshd")) else 0.0)
            if self.node_state() != "READY":
                self.fault(f"the node without a guard is {self.node_state()}")
        if "was accepted" in self.guard_log():
            self.fault(f"the guard without the scope deleted the node: {self.guard_log()}")
        if self.enforcer is Enforcer.WATCH and self.node_state() is not None:
            self._enforce("watch", NAME, "--zone", ZONE, "--type", "v4-8", *SCOPES, "--for", "healthy")
        elif self.enforcer is not Enforcer.WATCH:
            self._enforce("gc", "--expired", "--yes")
        has_acted = left in {Left.REQUEST, Left.WITHOUT_GUARD, Left.WITH_GUARD}
        return (Enforcer.WATCH if self.enforcer is Enforcer.WATCH else Enforcer.GC) if has_acted else None

    def check_rest(self) -> None:
        """Check that no node and no request of the run is left, that the others are, and that no deletion of these was sent."""
        with self.state.read() as session:
            nodes = {node.node_id for node in session.nodes() if node.phase(session.now)}
            requests = {request.queued_resource_id for request in session.queued_resources()}
        if nodes != self.bystanders:
            self.fault(
                f"left are the nodes {sorted(nodes)}; {self.output('gc')}{self.output('watch')}{self.guard_log()}"
            )
        if requests != {"waiting"}:
            self.fault(f"left are the requests {sorted(requests)}")
        if others := self._deleted() & {*self.bystanders, "waiting"}:
            self.fault(f"deletions of others were sent: {sorted(others)}")

    def _enforce(self, *arguments: str) -> None:
        process = self.start(*arguments, elsewhere=self.elsewhere)
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code != 0:
            self.fault(f"`tpuctl {arguments[0]}` ended with {code}: {self.output(arguments[0])}")

    def node_state(self) -> str | None:
        """Return the state of the run's node, None without one."""
        return _node_state(self.state)

    @property
    def has_guard(self) -> bool:
        """Whether a guard runs on worker 0."""
        return " started for " in self.guard_log()

    def guard_log(self) -> str:
        """Return the log of the guard, empty without one."""
        return "".join(path.read_text("utf-8") for path in self._on_worker(f"{_GUARD}/log"))

    def output(self, name: str) -> str:
        """Return what a command printed."""
        path = self.folder / f"{name}.log"
        return path.read_text("utf-8") if path.exists() else ""

    def fault(self, text: str) -> None:
        """Note a claim that does not hold."""
        self.faults.append(text)

    def _left(self) -> Left:
        # Its deletion takes a blink of real time.
        if self._deleted():
            return Left.DELETING
        if self.node_state() is None:
            return Left.NOTHING if self._request() is None else Left.REQUEST
        return Left.WITH_GUARD if self.has_guard else Left.WITHOUT_GUARD

    def _deleted(self) -> set[str]:
        """Return the names of the nodes and requests whose deletion the service has accepted."""
        sent = (entry for entry in read_log(self.state.path) if entry.call.endswith(".delete"))
        return {entry.path.partition("?")[0].rpartition("/")[2] for entry in sent}

    def _request(self) -> QueuedRecord | None:
        with self.state.read() as session:
            return next((one for one in session.queued_resources() if NAME in one.node_ids), None)

    def _now(self) -> datetime:
        with self.state.read() as session:
            return session.now

    def _labels(self) -> dict[str, str]:
        request = self._request()
        if request is not None:
            return dict(request.document["tpu"]["nodeSpec"][0]["node"].get("labels") or {})
        with self.state.read() as session:
            node = session.node("sandbox", ZONE, NAME)
            return dict(node.document.get("labels") or {}) if node else {}

    def _on_worker(self, pattern: str) -> Iterator[Path]:
        return (self.folder / "state" / "sandbox" / "workers" / "sandbox" / ZONE).glob(f"{NAME}-*/{pattern}")

    @staticmethod
    def _wait(seconds: float, is_done: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not is_done():
            time.sleep(0.02)


class KillingServer(SandboxServer):
    """The API, which kills its client, a process, at a moment: before or after it carries a request out."""

    def __init__(self, sandbox: SandboxState, moment: KillMoment) -> None:
        self.moment: KillMoment | None = moment
        self.client: Future[int] = Future()
        self._counts: Counter[str] = Counter()
        self._counting = Lock()
        super().__init__(sandbox, 0, log=lambda _line: None)

    def answer(self, request: Request) -> Response | DroppedConnection:
        """Return the response, or none to a client that is dead."""
        with self._counting:
            moment = self.moment
            kinds = self._kinds(request) if moment else set()
            self._counts.update(kinds)
            is_due = moment is not None and moment.request in kinds and self._counts[moment.request] == moment.number
        if moment is None or not is_due:
            return super().answer(request)
        if moment.is_carried_out:
            super().answer(request)
        self.kill()
        return DroppedConnection()

    def kill(self) -> None:
        """Kill the client."""
        with suppress(ProcessLookupError):
            os.kill(self.client.result(PATIENCE), signal.SIGKILL)

    def _kinds(self, request: Request) -> set[str]:
        """Return the kinds of a request: `any`, and what it is about."""
        path = request.path
        if request.method == "POST" and path.endswith(("/nodes", "/queuedResources")):
            return {"any", "create"}
        if request.method == "DELETE" and ("/nodes/" in path or "/queuedResources/" in path):
            return {"any", "delete"}
        if path.endswith(":getGuestAttributes"):
            return {"any", "guest attributes"}
        if request.method == "GET" and "/nodes" in path:
            return {"any", f"read {_node_state(self.state)}"}
        return {"any"}


def _node_state(state: SandboxState) -> str | None:
    with state.read() as session:
        node = session.node("sandbox", ZONE, NAME)
        phase = node.phase(session.now) if node else None
        return phase.state if phase else None


def _add_bystanders(state: SandboxState, now: datetime) -> set[str]:
    """Add what no enforcer may touch, and return the names of its nodes."""
    own = {"tpuctl-owner": owner_label(OS_LOGIN_ACCOUNT)}
    past, future = expiry_label(now - timedelta(hours=1)), expiry_label(now + timedelta(days=9))
    nodes = {
        "unlimited": own,
        "later": {**own, "tpuctl-expires": future},
        "kept": {**own, "tpuctl-expires": past, "tpuctl-keep": ""},
        "nonsense": {**own, "tpuctl-expires": "tomorrow"},
        "of-others": {"tpuctl-expires": past, "tpuctl-owner": "bob_example-com"},
    }
    for name, labels in nodes.items():
        administration.add_node(state, name, zone=ZONE, age=timedelta(hours=2), labels=labels)
    administration.add_queued_resource(state, "waiting", state="WAITING_FOR_RESOURCES", node_ids=("wanted",))
    return set(nodes)
