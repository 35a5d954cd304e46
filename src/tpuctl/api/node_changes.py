"""Changes of a node that is there: delete, start, stop, update. Each is checked by a look when its answer was lost."""

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
    """Sends changes of nodes. `find` reads a node, and returns nothing only for one that is absent."""

    def __init__(self, caller: Caller, requests: Requests, find: Callable[[NodeName], Node | None]) -> None:
        self._caller = caller
        self._requests = requests
        self._find = find

    def delete(self, name: NodeName, *, expected_id: str | None = None) -> Operation:
        """Delete; what is gone already is deleted. A node of the name with another id is not sent a second delete."""
        gone = Operation(None, done=True)

        def send() -> Operation:
            try:
                return self._caller.attempt(self._requests.delete_node(name), Operation.from_api, is_safe=False)
            except RefusedError as error:
                if error.refusal.is_not_found:
                    return gone
                raise

        def look() -> Effect:
            node = self._find(name)
            if node is None or node.state is NodeState.DELETING:
                return Effect.DONE
            # The node that was meant is gone, and somebody has already created another of its name.
            return Effect.NOT_YET if expected_id in {None, node.id} else Effect.DONE

        return carry_out(self._caller, Change("delete", name.node_id, send, look))

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
        with node_of(name):
            return self._patch(name, changes)

    def change_metadata(self, name: NodeName, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Operation:
        """Set the metadata to what `change` makes of it; read again and repeated when somebody else changed the node."""
        attempt = 1
        while True:
            before = self._existing(name).metadata
            after = dict(change(before))
            if after == before:
                return Operation(None, done=True)
            try:
                return self.update(name, {"metadata": after})
            # Two changes at once are answered with 409 [gcloud 528 source: tpu_vm/ssh.py].
            except ConflictError:
                if attempt == _METADATA_ATTEMPTS:
                    raise
            self._caller.clock.sleep(backoff(self._caller.policy, attempt, self._caller.random))
            attempt += 1

    def _switch(self, verb: str, name: NodeName, build: Callable[[NodeName], Any], done: set[NodeState]) -> Operation:
        def send() -> Operation:
            with node_of(name):
                return self._caller.attempt(build(name), Operation.from_api, is_safe=False)

        def look() -> Effect:
            return Effect.DONE if self._existing(name).state in done else Effect.NOT_YET

        return carry_out(self._caller, Change(verb, name.node_id, send, look))

    def _patch(self, name: NodeName, changes: Mapping[str, Any]) -> Operation:
        def send() -> Operation:
            with node_of(name):
                request = self._requests.patch_node(name, changes)
                return self._caller.attempt(request, Operation.from_api, is_safe=False)

        def look() -> Effect:
            return Effect.DONE if _holds(self._existing(name).raw, changes) else Effect.NOT_YET

        return carry_out(self._caller, Change("update", name.node_id, send, look))

    def _existing(self, name: NodeName) -> Node:
        node = self._find(name)
        if node is None:
            raise NodeNotFoundError(name.node_id, name.zone)
        return node


@contextmanager
def node_of(name: NodeName) -> Iterator[None]:
    """Raise `NodeNotFoundError` where the API says that the node is absent."""
    try:
        yield
    except RefusedError as error:
        if error.refusal.is_not_found:
            raise NodeNotFoundError(name.node_id, name.zone) from translate(error)
        raise


def _holds(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Tell whether the fields are as wanted. Maps are replaced as a whole, but for networkConfig; empty equals absent."""
    for key, value in wanted.items():
        there = found.get(key)
        if key == "networkConfig" and isinstance(value, Mapping):
            if not _holds(there or {}, value):
                return False
        elif there != value and (there or value):
            return False
    return True
