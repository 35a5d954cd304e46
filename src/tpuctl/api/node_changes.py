"""Delete, start, stop and update a node. If an answer is lost, the node is read to see whether the change took effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpuctl.api.errors import translate
from tpuctl.api.failures import RefusedError
from tpuctl.api.outcome import Change, Effect, carry_out
from tpuctl.api.retry import backoff
from tpuctl.errors import ConflictError, NodeNotFoundError
from tpuctl.model import Node, NodeState, Operation

if TYPE_CHECKING:
    from tpuctl.api.calls import Caller
    from tpuctl.api.requests import Requests
    from tpuctl.names import NodeName

_METADATA_ATTEMPTS = 6


class NodeChanges:
    """Sends changes of nodes. `find` reads a node, and returns None only after a 404 from the API."""

    def __init__(self, caller: Caller, requests: Requests, find: Callable[[NodeName], Node | None]) -> None:
        self._caller = caller
        self._requests = requests
        self._find = find

    def delete(self, name: NodeName, *, expected_id: str | None = None) -> Operation:
        """Delete a node; succeeds if it is gone. The request is not repeated for a node with another id."""
        gone = Operation(None, done=True)

        def send() -> Operation:
            try:
                return self._caller.attempt(self._requests.delete_node(name), Operation.from_api, is_safe=False)
            except RefusedError as error:
                if error.refusal.is_not_found:
                    return gone
                raise

        def check() -> Effect:
            node = self._find(name)
            if node is None or node.state is NodeState.DELETING:
                return Effect.DONE
            # Another id: the node is gone, and another client has already created one of the same name.
            return Effect.NOT_YET if expected_id in {None, node.id} else Effect.DONE

        return carry_out(self._caller, Change("delete", name.node_id, send, check))

    def start(self, name: NodeName) -> Operation:
        """Start a stopped node."""
        done = {NodeState.STARTING, NodeState.READY}
        return self._switch("start", name, self._requests.start_node, done)

    def stop(self, name: NodeName) -> Operation:
        """Stop a node, keeping its disk."""
        done = {NodeState.STOPPING, NodeState.STOPPED}
        return self._switch("stop", name, self._requests.stop_node, done)

    def update(self, name: NodeName, changes: Mapping[str, Any]) -> Operation:
        """Set fields of a node."""

        def send() -> Operation:
            with node_of(name):
                request = self._requests.patch_node(name, changes)
                return self._caller.attempt(request, Operation.from_api, is_safe=False)

        def check() -> Effect:
            return Effect.DONE if _holds(self._existing(name).raw, changes) else Effect.NOT_YET

        with node_of(name):
            return carry_out(self._caller, Change("update", name.node_id, send, check))

    def change_metadata(self, name: NodeName, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Operation:
        """Replace the metadata by the result of `change`. Retried if another client changed the node meanwhile."""
        attempt = 1
        while True:
            before = self._existing(name).metadata
            after = dict(change(before))
            if after == before:
                return Operation(None, done=True)
            try:
                return self.update(name, {"metadata": after})
            # The service answers simultaneous changes with 409 [gcloud 528 source: tpu_vm/ssh.py].
            except ConflictError:
                if attempt == _METADATA_ATTEMPTS:
                    raise
            self._caller.clock.sleep(backoff(self._caller.policy, attempt, self._caller.random))
            attempt += 1

    def _switch(self, verb: str, name: NodeName, build: Callable[[NodeName], Any], done: set[NodeState]) -> Operation:
        def send() -> Operation:
            with node_of(name):
                return self._caller.attempt(build(name), Operation.from_api, is_safe=False)

        def check() -> Effect:
            return Effect.DONE if self._existing(name).state in done else Effect.NOT_YET

        return carry_out(self._caller, Change(verb, name.node_id, send, check))

    def _existing(self, name: NodeName) -> Node:
        node = self._find(name)
        if node is None:
            raise NodeNotFoundError(name.node_id, name.zone)
        return node


@contextmanager
def node_of(name: NodeName) -> Iterator[None]:
    """Raise `NodeNotFoundError` if the API says that the node is absent."""
    try:
        yield
    except RefusedError as error:
        if error.refusal.is_not_found:
            raise NodeNotFoundError(name.node_id, name.zone) from translate(error)
        raise


def _holds(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether the fields have the wanted values. Only networkConfig is compared key by key; empty equals absent."""
    for key, value in wanted.items():
        current = found.get(key)
        if key == "networkConfig" and isinstance(value, Mapping):
            if not _holds(current or {}, value):
                return False
        elif current != value and (current or value):
            return False
    return True
