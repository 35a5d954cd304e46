"""The rule about reserved capacity."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.model.states import Tier
from tpuctl.names import whole_number
from tpuctl.preflight import own_commands
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.project import Reservation
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.wanted import Wanted

# Reservation.state [API v2alpha1]: over, or not to be.
_OVER = frozenset({"EXPIRED", "FAILED", "DEPROVISIONING"})
_NOT_YET = frozenset({"APPROVED", "PROVISIONING"})


@rule("TPU407", "reservation for reserved capacity")
def reservation_is_there(facts: Facts) -> Iterator[Found]:
    """Check that the project has a reservation in the zone, where reserved capacity is asked for.

    A warning where it has none that is or will be active [API v2alpha1, reservations.list], and where one says that less is
    left than is needed, or that it is not active yet. It is never an error: whether that list has what another project shares
    is not documented, and what cannot be made costs nothing. What kind of TPU it is for is shown and not compared: its words
    are not documented.
    """
    wanted = facts.wanted
    if not wanted.creates or wanted.spec.tier is not Tier.RESERVED or facts.reservations is None:
        return
    match facts.reservations:
        case Known(reservations):
            here = [one for one in reservations if one.zone in {wanted.zone, ""}]
            living = [one for one in here if one.raw.get("state") not in _OVER]
            yield from (_judged(wanted, one) for one in living)
            if not living:
                yield _none(wanted, here)
        case Absent() | Unknown() as fact:
            what = f"the reservations in {wanted.zone}"
            yield unread(fact, wanted.zone, what, permission="tpu.nodes.list", project=wanted.project)


def _judged(wanted: Wanted, reservation: Reservation) -> Found:
    standard, state = reservation.raw.get("standard") or {}, reservation.raw.get("state")
    unit = {"CHIPS": "chips", "CORES": "cores"}.get(str(standard.get("capacityUnits")))
    size, used = _number(standard.get("size")), _number((standard.get("usage") or {}).get("total")) or 0
    needed = _needed(wanted, unit)
    is_short = size is not None and needed is not None and size - used < needed
    doubts = [f"its state is {state}"] if state in _NOT_YET else []
    if is_short:
        doubts.append(f"{needed} {unit} are needed")
    amount = f", {used} of {size}{f' {unit}' if unit else ''} used" if size is not None else ""
    kind = f" for {standard['resourceType']}" if standard.get("resourceType") else ""
    doubt = f": {', and '.join(doubts)}" if doubts else ""
    return Found(
        level=Level.WARNING if doubts else Level.OK,
        subject=reservation.name,
        text=f"`{reservation.name}` is a reservation in {wanted.zone}{kind}{amount}{doubt}",
        why="the service answers that there is not enough reserved capacity" if doubts else None,
        remedies=(Remedy("wait until it is active, take less, or another tier"),) if doubts else (),
        facts={"reservation": reservation.name, "zone": wanted.zone, "state": state, "size": size, "held": used},
    )


def _none(wanted: Wanted, over: list[Reservation]) -> Found:
    names = ", ".join(f"`{one.name}` ({one.raw.get('state')})" for one in over)
    place = (f"--zone={wanted.zone}", f"--project={wanted.project}")
    listing = shlex.join(["gcloud", "alpha", "compute", "tpus", "reservations", "list", *place])
    return Found(
        level=Level.WARNING,
        subject=wanted.zone,
        text=f"the project has no reservation in {wanted.zone}"
        + (f" but those that are over: {names}" if names else ""),
        why="reserved capacity is made from a reservation only; one that another project shares may not be listed",
        remedies=(
            Remedy("take another tier", own_commands.again(wanted, tier=Tier.ON_DEMAND)),
            Remedy("see the reservations of the zone", listing),
        ),
        facts={"zone": wanted.zone, "over": [one.name for one in over]},
    )


def _needed(wanted: Wanted, unit: str | None) -> int | None:
    """Return what the node needs in the unit that a reservation counts; nothing where that cannot be told."""
    accelerator = wanted.accelerator
    if accelerator is None or unit is None:
        return None
    # Generations that count chips have one core in each, by the table.
    return accelerator.chips if unit == "chips" else accelerator.chips * accelerator.generation.cores_per_chip


def _number(value: object) -> int | None:
    return whole_number(str(value))
