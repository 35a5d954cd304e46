"""What a run knows about a node: conditions, policy, observed state, decisions, and which conditions the state meets. Pure.

The values are frozen, but for the observed state. `decide` and `repair` have the rules that turn them into a decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.accelerators import canonical_type
from tpuctl.errors import ConflictError
from tpuctl.models.node import Health, Node, NodeState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tpuctl.errors import TpuctlError
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import SpecDifference
    from tpuctl.names import NodeName
    from tpuctl.nodes.idle_limit import IdleAction


class Condition(StrEnum):
    """The goal for a node. The first five are levels of usability; each includes the ones before."""

    READY = "ready"
    HEALTHY = "healthy"
    SSH = "ssh"
    STARTUP = "startup"
    DEVICES = "devices"
    STOPPED = "stopped"
    GONE = "gone"
    PREEMPTED = "preempted"

    @property
    def is_usable(self) -> bool:
        """Return whether a node in this condition can be used."""
        return self in USABLE_CONDITIONS

    def includes(self, level: Condition) -> bool:
        """Return whether reaching this level requires the other."""
        return self.is_usable and USABLE_CONDITIONS.index(level) <= USABLE_CONDITIONS.index(self)


USABLE_CONDITIONS = (Condition.READY, Condition.HEALTHY, Condition.SSH, Condition.STARTUP, Condition.DEVICES)


class Repair(StrEnum):
    """The most disruptive repair that is allowed; each includes the ones before."""

    NONE = "none"
    REBOOT = "reboot"
    RESTART = "restart"
    RECREATE = "recreate"

    def allows(self, step: Repair) -> bool:
        """Return whether a repair step is allowed."""
        ladder = list(Repair)
        return ladder.index(step) <= ladder.index(self)


class SshAnswer(StrEnum):
    """How a worker answered ssh."""

    YES = "answers"
    KEY_REFUSED = "refuses the key"
    HOST_KEY_CHANGED = "has another host key"
    UNREACHABLE = "does not answer"


class StartupState(StrEnum):
    """The state of a worker's startup script and cloud-init."""

    UNKNOWN = "unknown"  # the worker has no record of it; counts as ended
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # the startup script ended with an error
    CLOUD_INIT_FAILED = "cloud-init-failed"  # cloud-init alone did

    @property
    def has_ended(self) -> bool:
        """Return whether the startup is no longer running."""
        return self is not StartupState.RUNNING


class WorkerIdentity(NamedTuple):
    """Who a worker is by its TPU metadata, which JAX, PyTorch/XLA and Ray read. A text is empty if the metadata have none."""

    number: str  # agent-worker-number
    accelerator_type: str  # accelerator-type
    environment: str  # tpu-env: only whether it is empty
    environment_number: str = ""  # WORKER_ID in it
    environment_type: str = ""  # ACCELERATOR_TYPE in it


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """The observed state of one worker. A field is None if it was not requested or could not be determined."""

    answer: SshAnswer
    startup: StartupState | None = None
    # The number of device files of TPU chips.
    chips: int | None = None
    # Why the user's probe did not pass.
    failed: str | None = None
    # Processes that hold the TPU, such as `1234 python3`.
    holders: tuple[str, ...] = ()
    # The message of ssh, or another explanation.
    detail: str = field(default="", compare=False)
    identity: WorkerIdentity | None = field(default=None, compare=False)
    # What is wrong with its identity, by those of the others: `says that it is worker 1`.
    misidentified: str = ""


class Verb(StrEnum):
    """The kind of a change or of a step of a plan."""

    CREATE = "create"
    DELETE = "delete"
    START = "start"
    STOP = "stop"
    REBOOT = "reboot"
    UPDATE = "update"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How long a condition may last before it counts as stuck. These are tpuctl's defaults; the service promises none."""

    unhealthy: timedelta = timedelta(minutes=5)
    unanswered: timedelta = timedelta(minutes=10)
    devices: timedelta = timedelta(minutes=5)
    starting: timedelta = timedelta(minutes=15)
    restarting: timedelta = timedelta(minutes=15)
    repairing: timedelta = timedelta(minutes=30)
    # A queued resource that is PROVISIONING for longer is reported, and never cancelled.
    provisioning: timedelta = timedelta(hours=2)
    # How long a repair has to take effect.
    recheck: timedelta = timedelta(minutes=3)
    # Added to each threshold for every worker beyond the first.
    per_worker: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The goal, and what may be done to reach it."""

    goal: Condition = Condition.SSH
    may_create: bool = False
    may_start: bool = False
    # Delete and recreate a node that differs from its spec.
    replace: bool = False
    # Cancel a queued resource that differs from its spec, and ask again: nothing is lost but its place.
    replace_request: bool = False
    # The run keeps the node usable: it repairs the node unless a process holds its TPU or that is unknown.
    watches: bool = False
    # Repair the node even if it may be in use.
    ignores_use: bool = False
    # Retry while there is no capacity or quota, with pauses that double from `backoff` to `longest_backoff`.
    retries_without_capacity: bool = False
    # Another zone is tried after this one: without capacity here, nothing may be left behind.
    leaves_no_record: bool = False
    # Create the node again after another client deleted it.
    recreate_deleted: bool = False
    # The user's command that decides whether devices work. None: the number of chips does.
    probe: str | None = None
    # The user named no goal: HEALTHY is enough if the workers cannot be reached from this machine.
    accepts_healthy: bool = False
    # Only wait for changes of others: a defect does not end the wait.
    is_read_only: bool = False
    # A node on which a startup script failed is not usable, if the goal includes the startup.
    refuses_failed_startup: bool = False
    repair: Repair = Repair.NONE
    max_reboots: int = 1
    max_restarts: int = 2
    max_recreates: int = 1
    # Retries of a creation that failed with an internal error of the service.
    internal_retries: int = 2
    # The repair budgets (`max_...`) are full again after the node was usable for this long.
    refill: timedelta = timedelta(hours=2)
    backoff: timedelta = timedelta(minutes=1)
    longest_backoff: timedelta = timedelta(minutes=15)
    # None: no deadline.
    timeout: timedelta | None = timedelta(minutes=30)
    # How long a queued resource may wait for capacity. None: until the deadline.
    queue_for: timedelta | None = None
    # Whether it waits until the deadline at most: its time is a share of that of the run.
    queue_ends_with_run: bool = False
    # The time before which a queued resource must not be provisioned.
    start_after: datetime | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True, slots=True)
class Now:
    """The present moment. Instants are by the monotonic clock, the ends of nodes and requests by the service's."""

    at: timedelta
    utc: datetime


@dataclass(frozen=True, slots=True)
class FailedChange:
    """A change that the service accepted and then did not carry out."""

    verb: Verb
    error: TpuctlError = field(compare=False)
    at: timedelta = timedelta()
    # Failures of this verb in a row.
    times: int = 1
    # The node that was changed, or that a failed creation left behind.
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class ApiOutage:
    """A time in which the API does not answer. It is no evidence about any node."""

    since: timedelta
    # Failed calls in a row, and the error of the last.
    times: int
    error: TpuctlError = field(compare=False)


@dataclass(frozen=True, slots=True)
class RepairAttempts:
    """The repairs since the budgets were last full."""

    reboots: int = 0
    restarts: int = 0
    recreates: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PollState:
    """The facts that determine the delay until the next poll."""

    # How long similar nodes were CREATING, if this one is.
    usual: timedelta | None = None
    # When this run last sent a change.
    acted_at: timedelta | None = None
    # How often the API has recently refused a call because of its rate limit.
    throttled: int = 0
    # Random, from 0 up to 1.
    jitter: float = 0.5


@dataclass(frozen=True, slots=True)
class SentEnd:
    """When this run sent the deletion that ends a node for good; `node_id` is empty for that of a request without a node."""

    node_id: str
    at: timedelta


@dataclass(slots=True, kw_only=True)
class ObservedState:
    """The observed state of a node, and what this run has done so far. The reconciler alone changes it.

    Instants are by the monotonic clock.
    """

    name: NodeName
    # None only after a 404 from the API.
    node: Node | None
    # The queued resource that owns, or owned, the node.
    request: QueuedResource | None = None
    # tpuctl requests, or requested, the node through the queue: its queued resource is a stage of its life.
    is_queued: bool = False
    # The slices that the queued resource is for, this node among them; none for the request of one node. The reconciler of the
    # first slice requests it and deletes its record.
    slices: tuple[NodeName, ...] = ()
    # There is no node, and the time limit of its queued resource has passed. False if the user named a new one.
    has_time_ended: bool = False
    # How a queued resource that has no node yet differs from the spec.
    request_differences: tuple[SpecDifference, ...] = ()
    # Since when the state of the queued resource has been unchanged.
    request_since: timedelta = timedelta()
    # How the node differs from its spec.
    differences: tuple[SpecDifference, ...] = ()
    # Since when state, health and worker answers have been unchanged.
    unchanged_since: timedelta = timedelta()
    # Since when state and health have been unchanged.
    reported_since: timedelta = timedelta()
    # When this run began to work on the node, moved on by the time of its set-ups, which have a limit of their own.
    started: timedelta = timedelta()
    # When the set-up began that runs now.
    set_up_since: timedelta | None = None
    # One entry for each worker; empty if no worker was probed.
    workers: tuple[WorkerSnapshot, ...] = ()
    # This run, or an earlier one that did not finish, created or started the node.
    is_ours: bool = False
    attempts: RepairAttempts = field(default_factory=RepairAttempts)
    # When the last repair took effect.
    repaired_at: timedelta | None = None
    # This run has observed a node of that name.
    was_there: bool = False
    # The node was deleted, but not by this run.
    has_vanished: bool = False
    # When the node was last observed, apart from deletions by this run.
    last_alive: datetime | None = None
    # The message of the service that refused to stop the node.
    refused_stop: str | None = None
    # A change that was requested and has not ended.
    pending: Verb | None = None
    # The pending change is one of the queued resource.
    is_request_pending: bool = False
    failure: FailedChange | None = None
    end_sent: SentEnd | None = None
    # The other process that holds the lease.
    held_by: str | None = None
    # Set while the API does not answer: all other fields are outdated.
    outage: ApiOutage | None = None
    poll_state: PollState = field(default_factory=PollState)

    @property
    def is_follower(self) -> bool:
        """Return whether the queued resource is requested, and its record deleted, for another slice of the group."""
        return bool(self.slices) and self.name != self.slices[0]

    def in_state(self, now: Now) -> timedelta:
        """Return how long state, health and worker answers have been unchanged."""
        return now.at - self.unchanged_since

    def in_request_state(self, now: Now) -> timedelta:
        """Return how long the state of the queued resource has been unchanged."""
        return now.at - self.request_since

    def waited(self, now: Now) -> timedelta:
        """Return how long this run has worked on the node, without its set-ups."""
        return (now.at if self.set_up_since is None else self.set_up_since) - self.started

    def time_left(self, policy: Policy, now: Now) -> timedelta | None:
        """Return the time until the deadline, negative after it; None without one."""
        return None if policy.timeout is None else policy.timeout - self.waited(now)


@dataclass(frozen=True, slots=True)
class Done:
    """The node has reached its goal."""

    level: Condition
    # A remark for the user.
    note: str | None = None


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next action if the state does not change, and the time until then."""

    what: str
    after: timedelta


@dataclass(frozen=True, slots=True)
class Requeue:
    """Fetch the node again after `delay`."""

    delay: timedelta
    reason: str
    next: NextStep | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """Create the node from its spec."""

    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start the stopped node."""

    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Stop the node. Once it is STOPPED, the next decision is to start it."""

    reason: str
    # Why less disruptive repairs are not possible.
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reboot:
    """Reboot every worker from inside."""

    reason: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the node with this id. Once it is gone, the next decision is to create it."""

    reason: str
    node_id: str
    # Counts against the budget. The record of a dead node or a failed creation does not.
    is_repair: bool = False


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """Delete the queued resource with this full name. Once it is gone, the next decision is to create it again."""

    reason: str
    request_name: str
    # Deletes its nodes first. Never used while it is SUSPENDING.
    force: bool = False
    # Counts against the budget.
    is_repair: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop with an error."""

    error: TpuctlError


class EndReason(StrEnum):
    """Why a run ends a node for good."""

    EXPIRED = "expired"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class End:
    """Stop or delete the node for good, or delete its queued resource if it has no node."""

    reason: EndReason
    action: IdleAction


Change = Create | Start | Restart | Reboot | Delete | DeleteRequest
Decision = Done | Requeue | Change | Fail


def first_missing_condition(policy: Policy, seen: ObservedState, node: Node) -> Condition | None:
    """Return the first level up to the goal that the node has not reached, or None."""
    wanted = USABLE_CONDITIONS[: USABLE_CONDITIONS.index(policy.goal) + 1]
    return next((level for level in wanted if not _node_meets(policy, seen, node, level)), None)


def short_workers(policy: Policy, seen: ObservedState, node: Node, level: Condition) -> tuple[int, ...]:
    """Return the workers that have not reached a level beyond `healthy`, or did not say."""
    promised = promised_chips(node)
    return tuple(
        index for index, worker in enumerate(seen.workers) if worker_meets(policy, worker, level, promised) is not True
    )


def worker_meets(policy: Policy, worker: WorkerSnapshot, level: Condition, promised: int | None) -> bool | None:
    """Return whether a worker has reached a level beyond `healthy`; None if that is unknown."""
    if level is Condition.SSH:
        return worker.answer is SshAnswer.YES
    if worker.answer is not SshAnswer.YES:
        return None
    if level is Condition.STARTUP:
        return worker.startup.has_ended if worker.startup is not None else None
    if policy.probe:
        # The probe runs after the script that reports the startup: without that report it did not run.
        return worker.failed is None if worker.failed or worker.startup is not None else None
    if worker.misidentified:
        return False
    if promised is None:
        return True
    return worker.chips == promised if worker.chips is not None else None


def promised_chips(node: Node) -> int | None:
    """Return the number of chips of each worker by the accelerator type; None for an unknown type."""
    return node.accelerator.chips_per_worker if node.accelerator else None


def find_misidentified(node: Node, identities: Mapping[int, WorkerIdentity]) -> dict[int, str]:
    """Return what is wrong with the TPU metadata of workers, by their numbers; without those on which they are right.

    Of two workers with the same number, the one that should have another is wrong.
    """
    found = {}
    for worker, one in identities.items():
        names = {
            "agent-worker-number": one.number,
            "accelerator-type": one.accelerator_type,
            "tpu-env": one.environment,
        }
        wrong_types = [
            text
            for text in (one.accelerator_type, one.environment_type)
            if text and node.accelerator and canonical_type(text) != node.accelerator.name
        ]
        if blank := [name for name, value in names.items() if not value]:
            found[worker] = f"has blank TPU metadata ({', '.join(blank)})"
        elif one.number != str(worker) and any(
            one.number == other.number for at, other in identities.items() if at != worker
        ):
            found[worker] = f"has the TPU metadata of worker {one.number}"
        elif one.environment_number not in {"", one.number}:
            found[worker] = f"has TPU metadata of two workers ({one.number} and, in tpu-env, {one.environment_number})"
        elif wrong_types:
            found[worker] = f"has the TPU metadata of a `{wrong_types[0]}`"
    return found


def all_answer(seen: ObservedState, node: Node) -> bool:
    """Return whether every worker answers ssh."""
    return len(seen.workers) >= node.workers and all(worker.answer is SshAnswer.YES for worker in seen.workers)


def is_alive(seen: ObservedState) -> bool:
    """Return whether the node may be in use: a worker answers or refuses our key, or none was probed."""
    return not seen.workers or any(worker.answer is not SshAnswer.UNREACHABLE for worker in seen.workers)


def is_idle(seen: ObservedState) -> bool:
    """Return whether every worker that answers was inspected and has no process that holds its TPU."""
    return bool(seen.workers) and all(
        worker.answer is SshAnswer.UNREACHABLE
        or (worker.answer is SshAnswer.YES and worker.startup is not None and not worker.holders)
        for worker in seen.workers
    )


def _node_meets(policy: Policy, seen: ObservedState, node: Node, level: Condition) -> bool:
    match level:
        case Condition.READY:
            return True
        case Condition.HEALTHY:
            # The health is unset for a while after the creation. It counts as healthy once every worker answers.
            is_healthy = node.health is Health.HEALTHY and len(node.endpoints) >= node.workers
            return is_healthy or (node.health is Health.HEALTH_UNSPECIFIED and all_answer(seen, node))
        case _:
            return len(seen.workers) >= node.workers and not short_workers(policy, seen, node, level)


# What one worker does, and what several do.
_SILENT_WORKERS = {
    SshAnswer.KEY_REFUSED: ("refuses the key", "refuse the key"),
    SshAnswer.HOST_KEY_CHANGED: ("has another host key", "have another host key"),
    SshAnswer.UNREACHABLE: ("does not answer ssh", "do not answer ssh"),
}
# Messages name at most this many workers and count the others.
_MOST_NAMED_WORKERS = 8


def describe_answers(answers: Sequence[SshAnswer]) -> str:
    """Describe which workers do not answer ssh; at most eight are named."""
    missing = {index: answer for index, answer in enumerate(answers) if answer is not SshAnswer.YES}
    if not missing:
        return "every worker answers ssh"
    if len(answers) == 1:
        return f"its worker {_SILENT_WORKERS[answers[0]][0]}"
    kinds = set(missing.values())
    what = _SILENT_WORKERS[kinds.pop()][1] if len(kinds) == 1 else "cannot be used by ssh"
    return f"{len(missing)} of {len(answers)} workers {what} ({named_workers(list(missing))})"


def explain_not_usable(policy: Policy, seen: ObservedState, node: Node) -> str:
    """Return why a READY node has not reached the goal."""
    if node.health is Health.HEALTHY and len(node.endpoints) < node.workers:
        return f"{len(node.endpoints)} of {node.workers} workers have an address"
    if node.health not in {Health.HEALTHY, Health.HEALTH_UNSPECIFIED}:
        return f"it is READY but {describe_health(node)}"
    level = first_missing_condition(policy, seen, node)
    if level in {Condition.STARTUP, Condition.DEVICES}:
        return explain_short_workers(policy, seen, node, level)
    if seen.workers:
        return describe_answers([worker.answer for worker in seen.workers])
    if node.health is Health.HEALTHY:
        return "it is READY, its workers have not been probed yet"
    return "it is READY, its health is not reported yet"


def describe_health(node: Node) -> str:
    """Return the health of a node, with the description of the service."""
    return f"{node.health} ({node.health_description})" if node.health_description else str(node.health)


def usable_note(policy: Policy, seen: ObservedState, node: Node) -> str | None:
    """Return a remark about a usable node, or None."""
    notes = []
    if node.health not in {Health.HEALTH_UNSPECIFIED, Health.HEALTHY}:
        notes.append(f"the service reports {describe_health(node)}")
    if policy.goal.includes(Condition.STARTUP) and failed_scripts(seen.workers):
        notes.append(describe_failed_scripts(seen.workers))
    elif policy.goal.includes(Condition.STARTUP) and any(
        worker.startup is StartupState.CLOUD_INIT_FAILED for worker in seen.workers
    ):
        notes.append("cloud-init has failed")
    if policy.goal is Condition.DEVICES and not policy.probe and promised_chips(node) is None:
        notes.append(f"the number of chips of `{node.accelerator_type}` is unknown, so it was not compared")
    return "; ".join(notes) or None


def failed_scripts(workers: Sequence[WorkerSnapshot]) -> tuple[int, ...]:
    """Return the workers on which the startup script failed."""
    return tuple(index for index, worker in enumerate(workers) if worker.startup is StartupState.FAILED)


def describe_failed_scripts(workers: Sequence[WorkerSnapshot]) -> str:
    """Return in words on which workers the startup script failed."""
    failed = failed_scripts(workers)
    which = "" if len(workers) == 1 else f" on worker{'s' * (len(failed) > 1)} {named_workers(failed)}"
    return f"its startup script has failed{which}"


def named_workers(indices: Sequence[int]) -> str:
    """Return the numbers of the first eight workers, and the count of the others."""
    more = f" and {len(indices) - _MOST_NAMED_WORKERS} more" if len(indices) > _MOST_NAMED_WORKERS else ""
    return ", ".join(map(str, indices[:_MOST_NAMED_WORKERS])) + more


def ssh_advice(seen: ObservedState) -> str | None:
    """Return a hint for workers that answer but refuse the login, or None."""
    name, answers = seen.name.node_id, {worker.answer for worker in seen.workers}
    if SshAnswer.HOST_KEY_CHANGED in answers:
        return (
            f"the host key has changed: if `{name}` was not reinstalled, the connection may be intercepted; "
            f"`tpuctl ssh {name}` shows the message of ssh"
        )
    if SshAnswer.KEY_REFUSED in answers:
        return f"`tpuctl up {name}` adds your key to a node of yours; `tpuctl ssh {name}` shows the message of ssh"
    return None


def worker_matrix(policy: Policy, seen: ObservedState) -> list[dict[str, Any]]:
    """Return a row for each worker: its number, whether each level is reached (None: unknown), and why the first is not."""
    node = seen.node
    if node is None or node.state is not NodeState.READY:
        return []
    promised = promised_chips(node)
    rows: list[dict[str, Any]] = []
    for index, worker in enumerate(seen.workers):
        is_healthy = node.health is Health.HEALTHY and index < len(node.endpoints)
        is_known = node.health is not Health.HEALTH_UNSPECIFIED
        row: dict[str, Any] = {"worker": index, "ready": True, "healthy": is_healthy if is_known else None}
        row |= {str(level): worker_meets(policy, worker, level, promised) for level in USABLE_CONDITIONS[2:]}
        if policy.goal is not Condition.DEVICES and worker.chips is None and not worker.failed:
            row[Condition.DEVICES] = None
        short = next(
            (level for level in USABLE_CONDITIONS[2:] if policy.goal.includes(level) and row[level] is not True), None
        )
        rows.append(row | {"why": _shortfall(policy, worker, short, promised) if short else None})
    return rows


def explain_short_workers(policy: Policy, seen: ObservedState, node: Node, level: Condition) -> str:
    """Describe which workers have not reached a level, each with its reason if there are few."""
    short, promised = short_workers(policy, seen, node, level), promised_chips(node)
    reasons = {index: _shortfall(policy, seen.workers[index], level, promised) for index in short}
    if not reasons:
        return f"{len(seen.workers)} of {node.workers} workers have been probed"
    if len(seen.workers) == 1:
        return f"its worker {reasons[0]}"
    if len(set(reasons.values())) == 1 and len(reasons) > 1:
        each = "each " if level is Condition.DEVICES and not policy.probe else ""
        return f"{len(short)} of {len(seen.workers)} workers: {each}{reasons[short[0]]} ({named_workers(short)})"
    named = ", ".join(f"worker {index} {reasons[index]}" for index in short[:_MOST_NAMED_WORKERS])
    return named + (f" and {len(short) - _MOST_NAMED_WORKERS} more" if len(short) > _MOST_NAMED_WORKERS else "")


def _shortfall(policy: Policy, worker: WorkerSnapshot, level: Condition, promised: int | None) -> str:
    if worker.answer is not SshAnswer.YES:
        return str(worker.answer)
    if level is Condition.STARTUP:
        return "has not ended its startup" if worker.startup is not None else "has not reported its startup"
    if policy.probe:
        return f"fails the probe ({worker.failed})" if worker.failed else "has not been probed yet"
    if worker.misidentified:
        return worker.misidentified
    return f"sees {worker.chips} of {promised} chips" if worker.chips is not None else "has not reported its chips"


# For these states gcloud at most warns, and tries [gcloud 528 source, tpu_vm/ssh.py].
_UNCERTAIN_STATES = {
    NodeState.REPAIRING: "the service is repairing it",
    NodeState.RESTARTING: "it is restarting",
    NodeState.UNHIDING: "the service is unhiding it",
    NodeState.UNKNOWN: "its repair failed",
    NodeState.STATE_UNSPECIFIED: "the service does not report its state",
}
_STATE_HINTS = {
    NodeState.CREATING: "`tpuctl wait {name}` waits until it is usable",
    NodeState.STARTING: "`tpuctl wait {name}` waits until it is usable",
    NodeState.REIMAGING: "`tpuctl wait {name}` waits until it is usable",
    NodeState.STOPPED: "`tpuctl up {name}` starts it",
    NodeState.STOPPING: "`tpuctl up {name}` waits until it has stopped, and starts it",
    NodeState.DELETING: "`tpuctl up {name}` waits until it is gone, and recreates it",
    NodeState.PREEMPTED: "the service preempted it, and its boot disk is lost; `tpuctl up {name}` recreates it",
    NodeState.TERMINATED: "the service terminated it, and its boot disk is lost; `tpuctl up {name}` recreates it",
    NodeState.HIDING: "the service is hiding it; see `tpuctl status {name}`",
    NodeState.HIDDEN: "the service has hidden it; see `tpuctl status {name}`",
}
# [API v2, Node.health]
_HEALTH_WARNINGS = {
    Health.TIMEOUT: "it does not respond to the service (health TIMEOUT)",
    Health.UNHEALTHY_TENSORFLOW: "its machine learning software is unhealthy (health UNHEALTHY_TENSORFLOW)",
    Health.UNHEALTHY_MAINTENANCE: "it is under maintenance and may be unavailable until the service has moved it",
}
_API_VERSIONS_WITHOUT_SSH = frozenset({"V1", "V1_ALPHA1"})


def check_login_state(node: Node) -> str | None:
    """Return a warning if ssh may fail, else None.

    Raises `ConflictError` if ssh would only time out: a state without running workers, or a TPU Node of the old
    architecture, whose workers belong to the service [gcloud 528 source].
    """
    name = node.name.node_id
    if str(node.raw.get("apiVersion", "")) in _API_VERSIONS_WITHOUT_SSH:
        raise ConflictError(
            f"`{name}` is a TPU Node of API v1, which does not support logins",
            hint="log in to the virtual machine that uses it, or create a node with `tpuctl up`",
        )
    if remedy := _STATE_HINTS.get(node.state):
        raise ConflictError(f"`{name}` is {node.state}: ssh cannot reach it", hint=remedy.format(name=name))
    if node.state is not NodeState.READY:
        why = _UNCERTAIN_STATES.get(node.state, "this version of tpuctl does not know that state")
        return f"`{name}` is {node.state}: {why}, and ssh may fail"
    return f"`{name}` is READY, but {_HEALTH_WARNINGS[node.health]}" if node.health in _HEALTH_WARNINGS else None
