"""What `SRC... DST` say: which side is remote, which nodes and which paths. No IO."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from tpuctl.errors import InvalidInputError

# `a/b:c` is a local name for scp; here its first part must look like a zone. A drive letter is no node.
_REMOTE = re.compile(
    r"(?P<node>(?:[\w.-]+@)?(?:(?:[^:]*/)?projects/[^:]+/nodes/|[a-z]+(?:-[a-z0-9]+)+/)?[^/:@\s.][^/:@\s]*)?:(?P<path>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Address:
    """A place: a path here (`nodes` is nothing), or one on the workers of nodes; no nodes are those that labels choose."""

    text: str
    nodes: tuple[str, ...] | None
    path: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `PATH`, `NODE:PATH`, `USER@NODE:PATH`, `ZONE/NODE:PATH`, `NODE,NODE:PATH` or `:PATH`."""
        if match := _REMOTE.fullmatch(text):
            return cls(text, tuple(filter(None, (match["node"] or "").split(","))), match["path"])
        return cls(text, None, text)


@dataclass(frozen=True, slots=True)
class Route:
    """What is copied where. `nodes` are those of the remote side; none where labels choose them."""

    sources: tuple[str, ...]
    target: str
    nodes: tuple[str, ...]
    is_upload: bool


def route(texts: tuple[str, ...], *, has_labels: bool) -> Route:
    """Return what `SRC... DST` mean. Raises `InvalidInputError` where not exactly one side is remote."""
    if len(texts) < 2:
        raise InvalidInputError(
            "nothing says where to", hint="`tpuctl scp FILE NODE:PATH`, or `tpuctl scp NODE:PATH FOLDER`"
        )
    *sources, target = map(Address.parse, texts)
    remote = [source for source in sources if source.nodes is not None]
    if target.nodes is not None and remote:
        raise _two_steps(remote[0], target)
    if target.nodes is None and not remote:
        raise InvalidInputError(
            "nothing here is on a node",
            hint=f"put the node before a colon: `NODE:{target.path}`; a local name: `./NAME`",
        )
    if remote and len(remote) < len(sources):
        local = next(source for source in sources if source.nodes is None)
        raise InvalidInputError(
            f"`{local.text}` is here already", hint="all sources must be on the same node, or all here"
        )
    nodes = (target.nodes if target.nodes is not None else remote[0].nodes) or ()
    if any(source.nodes != remote[0].nodes for source in remote):
        hint = "\n".join(shlex.join(("tpuctl", "scp", source.text, target.text)) for source in remote)
        raise InvalidInputError("the sources are on several nodes", hint=f"fetch from one after the other:\n{hint}")
    _check_choice(nodes, target if target.nodes is not None else remote[0], has_labels=has_labels)
    return Route(tuple(source.path for source in sources), target.path, nodes, target.nodes is not None)


def _check_choice(nodes: tuple[str, ...], address: Address, *, has_labels: bool) -> None:
    if has_labels and nodes:
        raise InvalidInputError(
            "nodes are chosen in two ways", hint=f"with `-l` write `:{address.path}`; without it `{address.text}`"
        )
    if not has_labels and not nodes:
        raise InvalidInputError(
            f"`{address.text}` names no node", hint=f"`NODE:{address.path}`, or choose nodes with `-l KEY=VALUE`"
        )


def _two_steps(source: Address, target: Address) -> InvalidInputError:
    name = source.path.rstrip("/").rpartition("/")[2] or "."
    steps = (("tpuctl", "scp", source.text, f"./{name}"), ("tpuctl", "scp", f"./{name}", target.text))
    hint = "\n".join(map(shlex.join, steps))
    return InvalidInputError("both sides are on nodes", hint=f"copy it here first, and then there:\n{hint}")
