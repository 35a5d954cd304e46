"""The environment of a remote command: what tpuctl tells it, what TPU libraries read, what the user adds. Pure.

Who reads what:

- TPU_NAME: TensorFlow's TPU client, before TPU_CONFIG; scripts pass it on to `TPUClusterResolver`, which takes `local` for TPUs
  that are attached to the machine itself [TensorFlow source]. It is never asked of the API then.
- TPU_CONFIG: JSON with `tpu_node_name`, `project` and `zone`; read where no name is given [TensorFlow source].
- TPU_WORKER_HOSTNAMES, TPU_WORKER_ID: JAX, which takes the first for a sign of GKE: it divides by commas, the first address is
  the coordinator's, and every address stands for a process that is waited for [JAX source]; libtpu with TPU_SKIP_MDS_QUERY.
- TPU_ACCELERATOR_TYPE, TPU_TOPOLOGY: Ray, and torch_xla with TPU_SKIP_MDS_QUERY [their source]. The form of the topology is
  GKE's, `2x2x1`. That libtpu minds neither on a TPU VM, where it asks the metadata server: unverified.

TPU_SKIP_MDS_QUERY and the bounds of chips are left alone: on a TPU VM the metadata server knows them better. So is
TPU_LOAD_LIBRARY, with which TensorFlow's and JAX's wishes exclude each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.masking import check_not_hidden

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.model import Node

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LEVELS = ("INFO", "WARNING", "ERROR", "FATAL")
_NO_LOG = "disabled"
OWN_NAMES = ("TPUCTL_NODE", "TPUCTL_ZONE", "TPUCTL_PROJECT", "TPUCTL_WORKER_ID", "TPUCTL_WORKER_COUNT")


@dataclass(frozen=True, slots=True)
class EnvironmentWish:
    """What the user wants to have in the environment.

    `given` are variables by name; they win over all others and may hold secrets. `tpu` adds what TPU libraries read.
    """

    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    tpu: bool = False


def variables(wish: EnvironmentWish, node: Node, worker: int, workers: int) -> dict[str, str]:
    """Return the variables for a command on one worker of a node with so many workers."""
    found = own_variables(node, worker, workers)
    if wish.tpu:
        found |= tpu_variables(node, worker, workers)
    return {**found, **wish.given}


def own_variables(node: Node, worker: int, workers: int) -> dict[str, str]:
    """Return what every remote command is told: which worker it is on."""
    name = node.name
    values = (name.node_id, name.zone, name.project, str(worker), str(workers))
    return dict(zip(OWN_NAMES, values, strict=True))


def tpu_variables(node: Node, worker: int, workers: int) -> dict[str, str]:
    """Return what TensorFlow, JAX, Ray and torch_xla read. What the API does not tell of the node is left out.

    TPU_NAME is `local` for a node of one worker, whose TPU is attached to where the command runs.
    """
    name = node.name
    addresses = [endpoint.internal for endpoint in node.endpoints]
    config = {"tpu_node_name": name.node_id, "zone": name.zone, "project": name.project}
    found = {
        "TPU_NAME": name.node_id if workers > 1 else "local",
        "TPU_CONFIG": json.dumps(config),
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": ",".join(address for address in addresses if address),
        "TPU_ACCELERATOR_TYPE": node.accelerator_type,
        "TPU_TOPOLOGY": _topology(node),
    }
    if len(addresses) != workers or not all(addresses):
        # Fewer addresses than workers would stand for a smaller slice.
        found["TPU_WORKER_HOSTNAMES"] = ""
    return {key: value for key, value in found.items() if value}


def caution(found: Mapping[str, str], workers: int) -> str | None:
    """Return what to know of these variables before a command gets them; nothing where there is nothing to know."""
    if workers == 1 or "TPU_WORKER_HOSTNAMES" not in found:
        return None
    return (
        "TPU_WORKER_HOSTNAMES is set: JAX takes that for GKE, and waits until it has been started on all "
        f"{workers} workers"
    )


def parse_variable(text: str, local: Mapping[str, str]) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`, or of `NAME`, whose value is the local one.

    Raises `InvalidInputError`, which never shows what may be a value; the caller says where it stands.
    """
    name, equals, value = text.partition("=")
    if not equals and _NAME.fullmatch(name):
        if name not in local:
            # What has no `=` may be a value whose name was forgotten: where it stands is said, not what it is.
            raise InvalidInputError("no variable of that name is set here", hint="give its value: `NAME=VALUE`")
        value = local[name]
    _check(name if equals else None, name, value)
    return name, value


def parse_file(text: str, path: str, local: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a file in docker's form: `NAME=VALUE` or `NAME` on a line, `#` before a comment.

    A value is taken as it stands, quotes and all; of a name that comes twice the later counts. `path` is for the
    `InvalidInputError`, which names the line and never shows a value.
    """
    found = {}
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = raw.removesuffix("\r").lstrip()
        if not line or line.startswith("#"):
            continue
        try:
            name, value = parse_variable(line, local)
        except InvalidInputError as error:
            raise InvalidInputError(f"{path}, line {number}: {error.message}", hint=error.hint) from None
        found[name] = value
    return found


def logging_variables(
    *, directory: str | None, least: str | None, least_on_stderr: str | None, megabytes: int | None
) -> dict[str, str]:
    """Return what steers libtpu's log [TPU documentation, debug logs].

    `directory` is on the workers, or `disabled`; libtpu makes it, but not those above it, and without it does not log. `least`
    is the least severity on disk, `least_on_stderr` on stderr too: 0 to 3, or INFO to FATAL. `megabytes` is about where
    the next file begins. Raises `InvalidInputError`.
    """
    if directory is not None and directory != _NO_LOG and not directory.startswith("/"):
        raise InvalidInputError(
            f"`{directory}` is no place for libtpu's log", hint=f"give an absolute path on the workers, or `{_NO_LOG}`"
        )
    found = {
        "TPU_LOG_DIR": directory,
        "TPU_MIN_LOG_LEVEL": _level(least),
        "TPU_STDERR_LOG_LEVEL": _level(least_on_stderr),
        "TPU_MAX_LOG_SIZE_MB": None if megabytes is None else str(megabytes),
    }
    return {key: value for key, value in found.items() if value is not None}


def posix_exports(found: Mapping[str, str]) -> Iterable[str]:
    """Yield the lines by which a POSIX shell sets and exports variables."""
    import shlex  # noqa: PLC0415  # only for `tpuctl env`

    return (f"export {name}={shlex.quote(value)}" for name, value in found.items())


def fish_exports(found: Mapping[str, str]) -> Iterable[str]:
    """Yield the lines by which fish sets and exports variables."""
    # Between single quotes fish takes all but these two as it stands [fish documentation].
    quoted = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in found.items()}
    return (f"set -gx {name} '{value}'" for name, value in quoted.items())


def _topology(node: Node) -> str:
    config = node.raw.get("acceleratorConfig") or {}
    listed = node.accelerator.topology if node.accelerator else None
    return str(config.get("topology") or listed or "")


def _level(text: str | None) -> str | None:
    if text is None:
        return None
    word = text.upper()
    if word in _LEVELS:
        return str(_LEVELS.index(word))
    if word in {"0", "1", "2", "3"}:
        return word
    raise InvalidInputError(f"`{text}` is no log level of libtpu", hint=f"levels are 0 to 3, or {', '.join(_LEVELS)}")


def _check(shown: str | None, name: str, value: str) -> None:
    """Raise `InvalidInputError` for what cannot be a variable. What may be a value gone astray is not shown."""
    if not _NAME.fullmatch(name):
        what = f"`{shown}` cannot be the name of a variable" if shown else "this is no variable"
        raise InvalidInputError(
            what, hint="write `NAME=VALUE`; a name has letters, digits and `_`, and begins with no digit"
        )
    if name in OWN_NAMES:
        raise InvalidInputError(f"`{name}` is told by tpuctl itself", hint="choose another name for the variable")
    check_not_hidden(f"`{name}`", value)
    if "\0" in value:
        raise InvalidInputError(f"the value of `{name}` has a NUL in it", hint="no variable can hold one")
