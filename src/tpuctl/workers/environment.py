"""The environment of a remote command: variables of tpuctl, of TPU libraries and of the user. Pure.

Which library reads which variable:

- TPU_NAME: Ray, as the name of the slice, which must differ between nodes and be the same on the workers of one [Ray source];
  TensorFlow's TPU client, before TPU_CONFIG. For `TPUClusterResolver`, `local` means TPUs attached to the machine itself, for
  which it sends no request to the API [TensorFlow source]; as a slice name it would make one slice of several nodes.
- TPU_CONFIG: JSON with `tpu_node_name`, `project` and `zone`; read if no name is given [TensorFlow source].
- TPU_WORKER_HOSTNAMES, TPU_WORKER_ID: libtpu with TPU_SKIP_MDS_QUERY. JAX asks the metadata server of a TPU VM first, and reads
  them in GKE [JAX source, cloud_tpu_cluster.py].
- TPU_ACCELERATOR_TYPE, TPU_TOPOLOGY: Ray, and torch_xla with TPU_SKIP_MDS_QUERY [their source]. The form of the topology is
  GKE's, `2x2x1`. libtpu probably ignores both on a TPU VM, where it asks the metadata server: unverified.

TPU_SKIP_MDS_QUERY and the bounds of chips are not set: on a TPU VM the metadata server has better values. Neither is
TPU_LOAD_LIBRARY: TensorFlow and JAX need different values.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.escaping import check_not_masked
from tpuctl.ssh.agent.container_run import CONTAINER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.models.node import Node
    from tpuctl.workers.multislice import SlicePlan

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
LOG_LEVELS = ("INFO", "WARNING", "ERROR", "FATAL")
_NO_LOG = "disabled"
OWN_NAMES = ("TPUCTL_NODE", "TPUCTL_ZONE", "TPUCTL_PROJECT", "TPUCTL_WORKER_ID", "TPUCTL_WORKER_COUNT")


@dataclass(frozen=True, slots=True)
class EnvironmentOptions:
    """The environment that the user requests.

    `given`: variables by name; they override all others and may hold secrets. `tpu`: add the variables of TPU libraries.
    `container_program`: the text of the program that runs the command in a container, and alone sees the variables. `slices`:
    add those of one job over several nodes.
    """

    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    tpu: bool = False
    container_program: str | None = None
    slices: SlicePlan | None = None


def job_variables(options: EnvironmentOptions, node: Node, worker: int) -> dict[str, str]:
    """Return the variables for a command on a worker; every command gets its node and its worker."""
    name = node.name
    values = (name.node_id, name.zone, name.project, str(worker), str(node.workers))
    return {
        **dict(zip(OWN_NAMES, values, strict=True)),
        **(tpu_variables(node, worker) if options.tpu else {}),
        **(options.slices.variables(name) if options.slices else {}),
        **options.given,
    }


def session_variables(options: EnvironmentOptions, node: Node, worker: int) -> dict[str, str]:
    """Return the variables of the session that runs a command: under other names if they are those of a container."""
    found = job_variables(options, node, worker)
    if options.container_program is None:
        return found
    renamed = {f"{CONTAINER_PREFIX}{name}": value for name, value in found.items()}
    return {"TPUCTL_PROGRAM": options.container_program, **renamed}


def tpu_variables(node: Node, worker: int) -> dict[str, str]:
    """Return the variables that TensorFlow, JAX, Ray and torch_xla read, without those that the API does not report."""
    name, workers = node.name, node.workers
    topology = (node.raw.get("acceleratorConfig") or {}).get("topology")
    if not topology and node.accelerator:
        topology = node.accelerator.topology
    addresses = [endpoint.internal for endpoint in node.endpoints]
    config = {"tpu_node_name": name.node_id, "zone": name.zone, "project": name.project}
    found = {
        "TPU_NAME": name.node_id,
        "TPU_CONFIG": json.dumps(config),
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": ",".join(address for address in addresses if address),
        "TPU_ACCELERATOR_TYPE": node.accelerator_type,
        "TPU_TOPOLOGY": str(topology or ""),
    }
    if len(addresses) != workers or not all(addresses):
        # Fewer addresses than workers would mean a smaller slice.
        found["TPU_WORKER_HOSTNAMES"] = ""
    return {key: value for key, value in found.items() if value}


def parse_variable(text: str, local: Mapping[str, str]) -> tuple[str, str]:
    """Parse `NAME=VALUE`, or `NAME`, whose value is the local one.

    Raises `InvalidInputError`, which never shows what may be a value; the caller adds the position.
    """
    name, equals, value = text.partition("=")
    if not equals and _NAME.fullmatch(name):
        if name not in local:
            # A text without `=` may be a value whose name was forgotten: show its position, not the text.
            raise InvalidInputError("no local variable has that name", hint="give its value: `NAME=VALUE`")
        value = local[name]
    if not _NAME.fullmatch(name):
        # A text without `=` may be a misplaced value.
        raise InvalidInputError(
            f"invalid name of a variable: `{name}`" if equals and name else "not a variable",
            hint="write `NAME=VALUE`; a name has letters, digits and `_`, and does not begin with a digit",
        )
    if name in OWN_NAMES:
        raise InvalidInputError(f"tpuctl itself sets `{name}`", hint="choose another name for the variable")
    check_not_masked(f"`{name}`", value)
    if "\0" in value:
        raise InvalidInputError(f"the value of `{name}` contains a NUL", hint="no variable can contain one")
    return name, value


def parse_env_file(text: str, path: str, local: Mapping[str, str]) -> dict[str, str]:
    """Parse a file in docker's form: `NAME=VALUE` or `NAME` on a line, `#` before a comment.

    A value is used unchanged, including quotes; of a repeated name the last value counts. `path` is for the
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
    """Return the variables that control libtpu's log [TPU documentation, debug logs].

    `directory`: on the workers, or `disabled`; libtpu creates it but not its parents, and does not log without it. `least`:
    the lowest severity on disk, `least_on_stderr`: on stderr too, 0 to 3 or INFO to FATAL. `megabytes`: the approximate size
    at which the next file begins. Raises `InvalidInputError`.
    """
    if directory is not None and directory != _NO_LOG and not directory.startswith("/"):
        raise InvalidInputError(
            f"invalid directory for libtpu's log: `{directory}`",
            hint=f"give an absolute path on the workers, or `{_NO_LOG}`",
        )
    found = {
        "TPU_LOG_DIR": directory,
        "TPU_MIN_LOG_LEVEL": _level(least),
        "TPU_STDERR_LOG_LEVEL": _level(least_on_stderr),
        "TPU_MAX_LOG_SIZE_MB": None if megabytes is None else str(megabytes),
    }
    return {key: value for key, value in found.items() if value is not None}


def posix_exports(found: Mapping[str, str]) -> Iterable[str]:
    """Yield the lines with which a POSIX shell sets and exports variables."""
    return (f"export {name}={shlex.quote(value)}" for name, value in found.items())


def fish_exports(found: Mapping[str, str]) -> Iterable[str]:
    """Yield the lines with which fish sets and exports variables."""
    # Within single quotes only these two characters are special in fish [fish documentation].
    quoted = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in found.items()}
    return (f"set -gx {name} '{value}'" for name, value in quoted.items())


def _level(text: str | None) -> str | None:
    if text is None:
        return None
    word = text.upper()
    if word in LOG_LEVELS:
        return str(LOG_LEVELS.index(word))
    if word in {"0", "1", "2", "3"}:
        return word
    raise InvalidInputError(
        f"invalid log level of libtpu: `{text}`", hint=f"levels are 0 to 3, or {', '.join(LOG_LEVELS)}"
    )
