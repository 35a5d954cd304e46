"""Send the single changes of a node. Each is first announced in the lease, written to the journal and reported."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.errors import AlreadyExistsError, ConflictError, RemoteCommandError
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import Node
from tpuctl.models.operation import Operation
from tpuctl.models.spec import NodeSpec
from tpuctl.nodes.conditions import Verb
from tpuctl.ssh.keys import add_metadata_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpuctl.names import NodeName
    from tpuctl.nodes.context import ActionContext

# A guest needs this long to shut down after `sudo reboot`; before that, the old system would still answer.
REBOOT_PAUSE = timedelta(seconds=30)
# A set-up installs packages. The limit ends one that hangs.
_SETUP_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class RequestedChange:
    """A change that was requested and may not have ended."""

    verb: Verb
    operation: Operation
    # The id of the node that is changed; None for a node that is being created.
    node_id: str | None = None


class LeaseLostError(ConflictError):
    """Another client holds the lease of the node. Nothing was done."""

    def __init__(self, name: NodeName) -> None:
        super().__init__(f"`{name.node_id}` is being repaired by another client")


class Actuator:
    """Sends the changes of one node. Each raises `LeaseLostError` if another process holds the lease."""

    def __init__(self, context: ActionContext, name: NodeName) -> None:
        self._context, self._name = context, name

    def create(self, spec: NodeSpec, reason: str) -> RequestedChange | None:
        """Create the node. Return None if another client has just created it."""
        with self._changing(Verb.CREATE) as check:
            self._write_to_journal("create", reason=reason, spec=spec.to_json())
            chosen = describe_file_choices(self._context, self._name, spec)
            self.report(f"creating {describe_spec(spec)}{chosen}: {reason}", Verb.CREATE)
            check()
            try:
                return RequestedChange(Verb.CREATE, self._context.cloud.create_node(self._name, spec))
            except AlreadyExistsError:
                # The next snapshot shows their node: it is adopted, or the difference is reported.
                text = "another client has just created it"
                event = NodeEvent(EventKind.NOTE, self._context.clock.now(), self._name, text, {"exists": True})
                self._context.emit(event)
                return None

    def start(self, node: Node, reason: str) -> RequestedChange:
        """Start the stopped node."""
        with self._changing(Verb.START) as check:
            self._write_to_journal("start", reason=reason, id=node.id)
            self.report(f"starting it: {reason}", Verb.START)
            check()
            return RequestedChange(Verb.START, self._context.cloud.start_node(self._name), node.id)

    def restart(self, node: Node, reason: str) -> RequestedChange:
        """Stop the node, so that it can be started again. Raises `ConflictError` if the service refuses to stop it."""
        with self._changing(Verb.STOP) as check:
            self._write_to_journal("restart", reason=reason, id=node.id)
            self.report(f"restarting it: {reason}", Verb.STOP)
            check()
            return RequestedChange(Verb.STOP, self._context.cloud.stop_node(self._name), node.id)

    def reboot(self, node: Node, reason: str) -> None:
        """Reboot every worker from inside. Raises `RemoteCommandError` if that is not possible."""
        with self._changing(Verb.REBOOT) as check:
            self._write_to_journal("reboot", reason=reason, id=node.id)
            self.report(f"rebooting every worker: {reason}", Verb.REBOOT)
            check()
            self._context.workers.reboot(node)

    def delete(self, node: Node, spec: NodeSpec, reason: str, *, is_repair: bool) -> RequestedChange | None:
        """Delete the node that was observed, and no other. Its spec is written to the journal first; its id is checked again.

        Return None if another node has its name by now.
        """
        with self._changing(Verb.DELETE) as check:
            self._write_to_journal("delete", reason=reason, id=node.id, spec=spec.to_json(), repair=is_repair)
            current = self._context.cloud.find_node(self._name)
            if current is not None and current.id != node.id:
                return None
            self.report(f"deleting it: {reason}", Verb.DELETE, id=node.id)
            check()
            operation = self._context.cloud.delete_node(self._name, expected_id=node.id)
            return RequestedChange(Verb.DELETE, operation, node.id)

    def add_key(self, node: Node, entry: str) -> None:
        """Add a line to the `ssh-keys` metadata of the node if it is missing. Other metadata is kept."""
        present = node.metadata.get("ssh-keys", "")
        if add_metadata_key(present, entry) == present:
            return
        self.report("adding our ssh key to its metadata", Verb.UPDATE)
        self._context.cloud.change_metadata(
            self._name, lambda found: {**found, "ssh-keys": add_metadata_key(found.get("ssh-keys", ""), entry)}
        )

    def set_up(self, node: Node, script: str) -> None:
        """Run the set-up of the spec on every worker. Raises `RemoteCommandError` naming the workers on which it failed."""
        self.report(f"running its set-up on {node.workers} worker{'s' * (node.workers > 1)}", Verb.UPDATE)
        results = self._context.workers.set_up(node, script, timeout=_SETUP_TIMEOUT)
        failed = [result for result in results if result.code != 0]
        if not failed:
            return
        named = ", ".join(f"{result.worker} (exit {result.code})" for result in failed[:8])
        more = f" and {len(failed) - 8} more" if len(failed) > 8 else ""
        raise RemoteCommandError(
            f"the set-up of `{self._name.node_id}` failed on worker {named}{more}",
            details=[f"  {line}" for line in failed[0].tail.splitlines()[-5:]],
            hint=f"the node is usable; fix the set-up, then run `tpuctl up {self._name.node_id}` to run it again",
        )

    def report(self, text: str, verb: Verb, **data: object) -> None:
        """Report a change that is about to be sent."""
        event = NodeEvent(EventKind.ACTION, self._context.clock.now(), self._name, text, {"verb": str(verb), **data})
        self._context.emit(event)

    def _write_to_journal(self, event: str, **data: Any) -> None:
        self._context.journal.append(self._name, event, self._context.clock.now(), **data)

    @contextmanager
    def _changing(self, verb: Verb) -> Iterator[Callable[[], None]]:
        """Announce a change in the lease. The yielded function checks, right before the request, that it is still ours."""

        def check() -> None:
            if not self._context.leases.begin(self._name, str(verb)):
                raise LeaseLostError(self._name)

        check()
        try:
            yield check
        finally:
            self._context.leases.done(self._name)


def check_same_node(context: ActionContext, node: Node) -> None:
    """Check a node right before its deletion. Raises `ConflictError` if another node has its name."""
    current = context.cloud.find_node(node.name)
    if current is not None and current.id != node.id:
        raise ConflictError(
            f"`{node.name.node_id}` changed meanwhile: another client recreated the node",
            hint=f"see the new node with `tpuctl status {node.name.node_id}`",
        )


def describe_file_choices(context: ActionContext, name: NodeName, spec: NodeSpec) -> str:
    """Return the settings of the node that come from a project file, in parentheses; empty if there are none."""
    settings = {
        "project": name.project,
        "zone": name.zone,
        "type": spec.accelerator_type,
        "version": spec.runtime_version,
        "tier": spec.tier,
        "network": spec.network,
        "subnetwork": spec.subnetwork,
        "service_account": spec.service_account,
    }
    chosen = [f"{key} {value}" for key, value in context.chosen_by_file.items() if settings.get(key) == value]
    return f" ({', '.join(chosen)}: from {context.project_file})" if chosen else ""


def describe_spec(spec: NodeSpec) -> str:
    """Describe a spec in a few words: `v4-8 with tpu-ubuntu2204-base, spot`."""
    shape = f" ({spec.topology})" if spec.topology else ""
    tier = f", {spec.tier}" if spec.tier else ""
    return f"{spec.accelerator_type}{shape} with {spec.runtime_version}{tier}"
