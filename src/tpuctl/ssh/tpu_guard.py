"""The guard of a node on its worker 0, which deletes the node at the end of its time: start it, and read its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from tpuctl.command_text import fitting, join_command
from tpuctl.decoding import Line, Most, OneOf, Range
from tpuctl.durations import format_duration
from tpuctl.ssh.answers import decode_answer
from tpuctl.ssh.channel import open_agent, standalone_program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.models.node import Node
    from tpuctl.ssh.connection import Target

# All that the guard sends, but for `tpu.nodes.stop` where the limit of idleness stops the node.
_PERMISSIONS: Final = ("tpu.nodes.get", "tpu.nodes.delete")
_START_TIMEOUT = timedelta(seconds=90)
_REPORT_TIMEOUT = timedelta(seconds=30)
_GOOGLE_ENDPOINT = "https://tpu.googleapis.com"
_MOST_LOG_LINES = 40
_LATEST_SECOND = 10**11
_LONGEST_IDLE = 366 * 24 * 3600
_PROBLEMS = ("permission", "scope", "account", "api", "refused")
_CLOCK_TOLERANCE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """The result of the guard's last look at its node.

    `at`: the time of the service then, None before its first answer. `due`: when the node ends if nothing changes.
    `problem`: why its last request failed (`permission`, `scope`, `account`, `api`, `refused`), None if it succeeded; `text`
    says it in words.
    `clock_offset`: how much the worker's clock is ahead of the service's.
    """

    node: Annotated[str, Line(500)]
    node_id: Annotated[str, Line(100)] = field(metadata={"key": "id"})
    at: Annotated[datetime | None, Range(0, _LATEST_SECOND)]
    due: Annotated[datetime | None, Range(0, _LATEST_SECOND)]
    text: str
    problem: Annotated[str | None, OneOf(_PROBLEMS)]
    failures: Annotated[int, Range(0, _LATEST_SECOND)]
    has_ended: bool
    clock_offset: Annotated[timedelta | None, Range(-_LATEST_SECOND, _LATEST_SECOND)]


@dataclass(frozen=True, slots=True)
class GuardReport:
    """The report of worker 0.

    `mode`: how the guard was just started (`service`, `process`), or that it was `removed`; else None.
    `idle`: how long the node may be idle, None without a limit; `on_idle`: what happens then (`delete`, `stop`).
    """

    mode: Annotated[str | None, OneOf(("service", "process", "removed"))]
    is_installed: bool
    is_running: bool
    status: GuardStatus | None
    log: Annotated[tuple[str, ...], Most(_MOST_LOG_LINES)]
    idle: Annotated[timedelta | None, Range(0, _LONGEST_IDLE)] = None
    on_idle: Annotated[str | None, OneOf(("delete", "stop"))] = None

    def problem(self) -> str | None:
        """Return why the guard does not do its work, None if it does or if there is none."""
        if not self.is_installed or (self.status and self.status.has_ended):
            return None
        if not self.is_running:
            return "the guard does not run: after a reboot only a service of systemd starts again"
        if self.status is None:
            return "the guard has not looked at its node yet"
        match self.status.problem:
            case None:
                return None
            case "permission":
                return f"the guard cannot delete the node: the worker's service account is not allowed to ({self.status.text})"
            case "scope":
                return "the guard cannot delete the node: the node's scopes lack cloud-platform"
            case "account":
                return "the guard cannot delete the node: it has no service account"
        return f"the guard's request failed {self.status.failures} times: {self.status.text}"

    def grant_command(self, node: Node) -> str:
        """Return the command that gives the worker's service account a role with what the guard needs, and nothing else."""
        stops = self.idle is not None and self.on_idle == "stop"
        role = "tpuctlGuardStop" if stops else "tpuctlGuard"
        permissions = [*_PERMISSIONS, *["tpu.nodes.stop"] * stops]
        account = fitting("service_account", node.service_account)
        project = node.name.project
        create = ["gcloud", "iam", "roles", "create", role, f"--project={project}", "--stage=GA"]
        create.append(f"--permissions={','.join(permissions)}")
        bind = ["gcloud", "projects", "add-iam-policy-binding", project, f"--member=serviceAccount:{account}"]
        bind += [f"--role=projects/{project}/roles/{role}", "--condition=None"]
        return f"{join_command(create)} && {join_command(bind)}"

    def clock_note(self) -> str | None:
        """Return how wrong the worker's clock is, None below a minute. The service's time decides in any case."""
        offset = self.status.clock_offset if self.status else None
        if offset is None or abs(offset) <= _CLOCK_TOLERANCE:
            return None
        return f"the worker's clock is {format_duration(abs(offset))} {'ahead' if offset > timedelta() else 'behind'}"


def start_guard(target: Target, *, idle: tuple[timedelta, str] | None = None, keeps_idle: bool = False) -> GuardReport:
    """Start a guard on a worker, replacing an earlier one, and return its report after its first look at the node.

    `idle`: how long the node may be idle, and what happens then (`delete`, `stop`). With `keeps_idle` it is that of an earlier
    guard of the node, if there was one. Raises `AgentError`, `UnexpectedAnswerError` and `SshProgramMissingError`.
    """
    node = target.node
    settings = {
        "node": str(node.name),
        "id": node.id,
        "endpoint": _GOOGLE_ENDPOINT,
        "idle": int(idle[0].total_seconds()) if idle else None,
        "onIdle": idle[1] if idle else None,
    }
    request = {"program": standalone_program("guard", "guard_main()"), "settings": settings, "keepsIdle": keeps_idle}
    return _ask(target, request, _START_TIMEOUT)


def remove_guard(target: Target) -> bool:
    """End and remove the guard of a worker. Return whether there was one. Raises as `start_guard`."""
    return _ask(target, {"remove": True}, _REPORT_TIMEOUT).mode == "removed"


def _ask(target: Target, request: Mapping[str, Any], timeout: timedelta) -> GuardReport:
    with open_agent(target, "guard_setup", request, as_root=True, connect_within=timeout) as channel:
        return decode_answer(GuardReport, channel.read(timeout))
