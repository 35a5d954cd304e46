"""Parse `SRC... DST` of a copy: which side is remote, the nodes and the paths. No I/O."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from tpuctl.errors import InvalidInputError

# scp treats `a/b:c` as local; here the first part must look like a zone. A drive letter is not a node.
_REMOTE = re.compile(
    r"(?P<node>(?:[\w.-]+@)?(?:(?:[^:]*/)?projects/[^:]+/nodes/|[a-z]+(?:-[a-z0-9]+)+/)?[^/:@\s.][^/:@\s]*)?:(?P<path>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Address:
    """A local path (`nodes` is None), or a path on the workers of nodes; `nodes` is empty if labels choose them."""

    text: str
    nodes: tuple[str, ...] | None
    path: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `PATH`, `NODE:PATH`, `USER@NODE:PATH`, `ZONE/NODE:PATH`, `NODE,NODE:PATH` or `:PATH`."""
        if match := _REMOTE.fullmatch(text):
            return cls(text, tuple(filter(None, (match["node"] or "").split(","))), match["path"])
        return cls(text, None, text)


@dataclass(frozen=True, slots=True)
class Route:
    """Sources, target, and the nodes of the remote side; `nodes` is empty if labels choose them."""

    sources: tuple[str, ...]
    target: str
    nodes: tuple[str, ...]
    is_upload: bool


def route(texts: tuple[str, ...], *, has_labels: bool) -> Route:
    """Parse `SRC... DST`. Raises `InvalidInputError` unless exactly one side is remote."""
    if len(texts) < 2:
        raise InvalidInputError(
            "the destination is missing", hint="use `tpuctl scp FILE NODE:PATH` or `tpuctl scp NODE:PATH FOLDER`"
        )
    *sources, target = map(Address.parse, texts)
    remote = [source for source in sources if source.nodes is not None]
    if target.nodes is not None and remote:
        name = remote[0].path.rstrip("/").rpartition("/")[2] or "."
        steps = (("tpuctl", "scp", remote[0].text, f"./{name}"), ("tpuctl", "scp", f"./{name}", target.text))
        hint = "\n".join(map(shlex.join, steps))
        raise InvalidInputError("both sides are on nodes", hint=f"copy to this machine first:\n{hint}")
    if target.nodes is None and not remote:
        raise InvalidInputError(
            "no path is on a node",
            hint=f"write the node before a colon: `NODE:{target.path}`; write a local name as `./NAME`",
        )
    if remote and len(remote) < len(sources):
        local = next(source for source in sources if source.nodes is None)
        raise InvalidInputError(
            f"`{local.text}` is already on this machine", hint="all sources must be on the same node, or all local"
        )
    nodes = (target.nodes if target.nodes is not None else remote[0].nodes) or ()
    if any(source.nodes != remote[0].nodes for source in remote):
        hint = "\n".join(shlex.join(("tpuctl", "scp", source.text, target.text)) for source in remote)
        raise InvalidInputError("the sources are on several nodes", hint=f"copy from one node at a time:\n{hint}")
    address = target if target.nodes is not None else remote[0]
    if has_labels and nodes:
        raise InvalidInputError(
            "cannot combine node names with `-l`",
            hint=f"use `:{address.path}` with `-l`, or `{address.text}` without it",
        )
    if not has_labels and not nodes:
        raise InvalidInputError(
            f"`{address.text}` names no node", hint=f"use `NODE:{address.path}`, or choose nodes with `-l KEY=VALUE`"
        )
    return Route(tuple(source.path for source in sources), target.path, nodes, target.nodes is not None)
