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

# Reservation.state [API v2alpha1]: ended or failed, and not active yet.
_OVER = frozenset({"EXPIRED", "FAILED", "DEPROVISIONING"})
_NOT_YET = frozenset({"APPROVED", "PROVISIONING"})


@rule("TPU407", "reservation for reserved capacity")
def reservation_is_there(facts: Facts) -> Iterator[Found]:
    """Check that the project has a reservation in the zone if reserved capacity is requested.

    A warning if no reservation is, or will be, active [API v2alpha1, reservations.list], if a reservation has too little left,
    or if it is not active yet. It is never an error: the list may lack reservations that another project shares (not
    documented), and a node that cannot be created costs nothing. The TPU type of a reservation is shown but not compared, as
    its format is not documented.
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
                names = ", ".join(f"`{one.name}` ({one.raw.get('state')})" for one in here)
                place = (f"--zone={wanted.zone}", f"--project={wanted.project}")
                listing = shlex.join(["gcloud", "alpha", "compute", "tpus", "reservations", "list", *place])
                yield Found(
                    level=Level.WARNING,
                    subject=wanted.zone,
                    text=f"the project has no {'active ' if names else ''}reservation in {wanted.zone}"
                    + (f"; ended: {names}" if names else ""),
                    why="reserved capacity needs a reservation; the list may lack one that another project shares",
                    remedies=(
                        Remedy("use another tier", own_commands.again(wanted, tier=Tier.ON_DEMAND)),
                        Remedy("list the reservations of the zone", listing),
                    ),
                    facts={"zone": wanted.zone, "over": [one.name for one in here]},
                )
        case Absent() | Unknown() as fact:
            what = f"the reservations in {wanted.zone}"
            yield unread(fact, wanted.zone, what, permission="tpu.nodes.list", project=wanted.project)


def _judged(wanted: Wanted, reservation: Reservation) -> Found:
    standard, state = reservation.raw.get("standard") or {}, reservation.raw.get("state")
    unit = {"CHIPS": "chips", "CORES": "cores"}.get(str(standard.get("capacityUnits")))
    size = whole_number(str(standard.get("size")))
    used = whole_number(str((standard.get("usage") or {}).get("total"))) or 0
    needed, accelerator = None, wanted.accelerator
    if accelerator is not None and unit is not None:
        # Generations that count chips have one core in each, by the table.
        needed = accelerator.chips * (1 if unit == "chips" else accelerator.generation.cores_per_chip)
    doubts = [f"its state is {state}"] if state in _NOT_YET else []
    if size is not None and needed is not None and size - used < needed:
        doubts.append(f"{needed} {unit} are needed")
    amount = f", {used} of {size}{f' {unit}' if unit else ''} used" if size is not None else ""
    kind = f" for {standard['resourceType']}" if standard.get("resourceType") else ""
    doubt = f": {', and '.join(doubts)}" if doubts else ""
    return Found(
        level=Level.WARNING if doubts else Level.OK,
        subject=reservation.name,
        text=f"`{reservation.name}` is a reservation in {wanted.zone}{kind}{amount}{doubt}",
        why="the service answers that there is not enough reserved capacity" if doubts else None,
        remedies=(Remedy("wait until it is active, request less, or use another tier"),) if doubts else (),
        facts={"reservation": reservation.name, "zone": wanted.zone, "state": state, "size": size, "held": used},
    )
