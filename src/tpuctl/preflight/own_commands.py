"""The tpuctl commands that findings advise, each complete. None of them is run from here."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.model.states import Tier

if TYPE_CHECKING:
    from tpuctl.preflight.wanted import Wanted


def again(
    wanted: Wanted,
    *,
    zone: str | None = None,
    accelerator_type: str | None = None,
    tier: Tier | None = None,
    more: tuple[str, ...] = (),
) -> str:
    """Return the command for the same node elsewhere, of another type or tier: to make it, or to check it without a name."""
    spec = wanted.spec
    words = ["tpuctl", "up", wanted.name.node_id] if wanted.name else ["tpuctl", "check"]
    words += [f"--project={wanted.project}", f"--zone={zone or wanted.zone}"]
    shape = spec.topology if accelerator_type in {None, spec.accelerator_type} else None
    accelerator = wanted.accelerator
    if shape and accelerator:
        words += [f"--type={accelerator.generation.name}", f"--topology={shape}"]
    else:
        words += [f"--type={accelerator_type or spec.accelerator_type}"]
    if tier := tier or spec.tier:
        words.append(f"--{tier}")
    return shlex.join([*words, *more])


def types_of(wanted: Wanted) -> str:
    """Show where a type is offered now."""
    return shlex.join(["tpuctl", "types", wanted.spec.accelerator_type, f"--project={wanted.project}"])


def delete(project: str, zone: str, node_id: str) -> str:
    """Delete a node, or the record that a dead one left."""
    return shlex.join(["tpuctl", "delete", f"{zone}/{node_id}", f"--project={project}"])


def take_down(project: str, zone: str, node_id: str, *, all_nodes: bool = False) -> str:
    """Delete the queued resource that a node belongs to, with it."""
    words = ["tpuctl", "down", f"{zone}/{node_id}", f"--project={project}"]
    return shlex.join([*words, *(["--all-nodes"] if all_nodes else [])])
