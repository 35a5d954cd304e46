"""`run --image`: a run in a docker container on each worker. Pure; the program is `ssh/agent/container_run.py`."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.ssh.agent.container_run import LONGEST_LINE, fits_line, may_pass_through_docker
from tpuctl.ssh.channel import standalone_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.workers.runner import RunRequest

# A reference of the OCI distribution specification, less strictly: docker checks it.
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,511}")
# docker splits the value at commas.
_PATH = r"/[^:,\"\x00-\x1f]{0,4095}"
_MOUNT = re.compile(rf"(?P<source>{_PATH})(?::(?P<target>{_PATH}))?(?::(?P<mode>ro|rw))?")
_LINE = """exec python3 -ISc 'import os; exec(os.environ.pop("TPUCTL_PROGRAM"))' tpuctl-run"""


def in_container(
    request: RunRequest, image: str, words: Sequence[str], *, mounts: Sequence[str] = (), tree: str | None = None
) -> RunRequest:
    """Return the request that runs its command in a container of `image`.

    `tree` is the synced folder on the workers: all of it is in the container, also if the command runs in a folder of it.

    Raises `InvalidInputError` for an invalid option, and for a variable that docker cannot pass on without reading it.

    One word, and `--command`, is a line for the shell of the container; several are the arguments of its image, none its own
    command.
    """
    if not _IMAGE.fullmatch(image):
        raise InvalidInputError(
            f"`{image}` is not the name of an image", hint="write REGISTRY/NAME:TAG, as for `docker pull`"
        )
    for name, value in request.environment.given.items():
        if not fits_line(os.fsencode(name), os.fsencode(value)) and not may_pass_through_docker(os.fsencode(name)):
            raise InvalidInputError(
                f"the value of `{name}` cannot reach a container: it has a line end, is not UTF-8, or is longer than"
                f" {LONGEST_LINE >> 10} KiB, and docker reads `{name}` itself",
                hint="set the variable in the command: `-- 'export NAME=VALUE; COMMAND'`",
            )
    order = {
        "image": image,
        "line": request.line if request.line and len(words) < 2 else None,
        "mounts": [_parse_mount(text) for text in mounts],
        "tree": tree,
        "words": [*words] if len(words) > 1 else [],
    }
    program = standalone_program("container_run", f"run_container({order!r})")
    return replace(
        request,
        line=_LINE,
        shown=f"{image}: {request.shown or request.line}" if request.line else image,
        environment=replace(request.environment, container_program=program),
    )


def _parse_mount(text: str) -> str:
    """Return the value of docker's `--mount` for `DIR[:PATH][:ro]`, both absolute. Raises `InvalidInputError`."""
    match = _MOUNT.fullmatch(text)
    if match is None:
        raise InvalidInputError(
            f"`--mount {text}` is not DIR, DIR:PATH or DIR:PATH:ro", hint="write it like `--mount /mnt/data:/data:ro`"
        )
    options = f"type=bind,source={match['source']},target={match['target'] or match['source']}"
    return f"{options},readonly" if match["mode"] == "ro" else options
