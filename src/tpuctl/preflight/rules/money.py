"""Rules about who pays: grants of free capacity, and reservations."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.model.states import Tier
from tpuctl.preflight import own_commands
from tpuctl.preflight.coverage import alternative, cover, differences, matching, nearest
from tpuctl.preflight.fact import known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.grants import pool_of
from tpuctl.preflight.holdings import holdings
from tpuctl.preflight.rules import reservations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.preflight.coverage import Coverage
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.grants import Grant
    from tpuctl.preflight.holdings import Holding

ENDS_SOON = timedelta(days=7)
_TURN_OFF = "or turn it off where it was set: a flag, the environment (`TPUCTL_NO_BILLING_OUTSIDE_GRANTS`) or a file"


@rule("TPU405", "covered by a grant")
def grant_covers(facts: Facts) -> Iterator[Found]:
    """Check that a grant in the settings (`grants`) covers what is to be made, with all that is held already.

    Zone, type, tier, count and the last day are compared; spot and preemptible are one pool, and the dead are not billed. A
    warning where none does: it will be billed. An error with `no_billing_outside_grants`, also where there is no grant at
    all, or where what is held of it is not known. The grants are what the user has written down; the service is not asked.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    is_strict = wanted.no_billing_outside_grants
    if not wanted.creates or not (wanted.grants or is_strict):
        return
    if not wanted.grants:
        yield _without_grants(facts)
    elif accelerator is None:
        yield _of_unknown_type(facts)
    else:
        coverage = cover(wanted, accelerator, _held(facts), facts.now.date())
        if not coverage.is_enough:
            yield _not_covered(facts, accelerator, coverage)
        elif _is_seen(facts):
            yield _covered(facts, coverage)
        elif is_strict:
            yield _not_seen(facts, coverage)


@rule("TPU406", "days that a grant has left")
def grant_lasts(facts: Facts) -> Iterator[Found]:
    """Tell of grants for the node that end within 7 days, and for a node that is there of one that has ended: warnings.

    What runs on after the last day is billed. A note for a zone of the TPU Research Cloud's own, where capacity is given to
    holders of grants only [reported by users; unverified].
    """
    wanted, accelerator, today = facts.wanted, facts.wanted.accelerator, facts.now.date()
    grants = matching(wanted, accelerator) if accelerator else ()
    lasting = [grant for grant in grants if not grant.has_ended(today)]
    ending = [grant for grant in lasting if grant.until and grant.until - today <= ENDS_SOON]
    if ending and len(ending) == len(lasting):
        yield from (_ends(grant, today) for grant in ending)
    if grants and not lasting and not wanted.creates:
        last = max(grants, key=lambda grant: grant.until or today)
        yield _has_ended(facts, last)
    if wanted.creates and wanted.zone == accelerators.load().research_zone:
        yield Found(
            level=Level.NOTE,
            subject=wanted.zone,
            text=f"{wanted.zone} is for grants of the TPU Research Cloud",
            why="its quota is there while a grant lasts, and gone after it",
            facts={"zone": wanted.zone, "isGranted": bool(lasting)},
        )


def _held(facts: Facts) -> tuple[Holding, ...]:
    held = known(facts.held)
    return holdings(held, facts.wanted) if held else ()


def _is_seen(facts: Facts) -> bool:
    """Tell whether everything in the zone is known."""
    held = known(facts.held)
    return held is not None and facts.wanted.zone not in held.unreachable


def _covered(facts: Facts, coverage: Coverage) -> Found:
    grants = " and ".join(f"`{grant}`" for grant in coverage.grants)
    return Found(
        level=Level.OK,
        subject=facts.wanted.zone,
        text=f"covered by the grant {grants}: {coverage.used + coverage.needed} of {coverage.granted} chips",
        facts=_facts(coverage),
    )


def _not_covered(facts: Facts, accelerator: AcceleratorType, coverage: Coverage) -> Found:
    wanted, today = facts.wanted, facts.now.date()
    grant = coverage.grants[0] if coverage.grants else nearest(wanted, accelerator, today)
    reasons = list(differences(grant, wanted, accelerator)) if grant else []
    if grant and grant.has_ended(today):
        reasons.append(f"it ended on {grant.until}")
    if coverage.grants:
        reasons.append(
            f"{coverage.needed} chips are needed, and {coverage.left} of {coverage.granted} are left"
            + (f" ({coverage.used} are held)" if coverage.used else "")
        )
    return Found(
        level=_level(facts),
        subject=wanted.zone,
        text=f"no grant covers {wanted.what}: it will be billed"
        + (f"; the nearest is `{grant}`: {', '.join(reasons)}" if grant else ""),
        why=_why(facts),
        remedies=tuple(_covered_instead(facts, accelerator, grant)) if grant else (),
        facts={**_facts(coverage), "nearest": str(grant) if grant else None, "differences": reasons},
    )


def _covered_instead(facts: Facts, accelerator: AcceleratorType, grant: Grant) -> Iterator[Remedy]:
    """Yield what the grant would cover. Where that is this very node, those made with it are what goes beyond it."""
    wanted = facts.wanted
    free = alternative(grant, accelerator, _held(facts), facts.now.date())
    if free is None:
        return
    tier = pool_of(wanted.spec.tier)
    if (free.zone, free.accelerator_type, pool_of(free.tier)) == (wanted.zone, accelerator.name, tier):
        if wanted.siblings:
            count = 1 + len(wanted.siblings)
            yield Remedy(f"the grant covers this node by itself, not all {count} of the command: make fewer at once")
        return
    command = own_commands.again(wanted, zone=free.zone, accelerator_type=free.accelerator_type, tier=free.tier)
    article = "an" if free.tier is Tier.ON_DEMAND else "a"
    yield Remedy(f"covered by that grant: {article} {free.tier} {free.accelerator_type} in {free.zone}", command)


def _without_grants(facts: Facts) -> Found:
    return Found(
        level=Level.ERROR,
        subject=facts.wanted.zone,
        text="`no_billing_outside_grants` is set and no grant is: nothing may be created",
        why="whatever is created without a grant is billed",
        remedies=(Remedy(_write_down(facts)), Remedy(f"{_TURN_OFF}; `tpuctl config show` says where")),
        facts={"grants": []},
    )


def _write_down(facts: Facts) -> str:
    """Return how a grant is written into the settings, in words: only its holder knows what was granted."""
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    kind = accelerator.generation.name if accelerator else wanted.spec.accelerator_type
    tier = wanted.spec.tier or Tier.ON_DEMAND
    grant = f"zone={wanted.zone},type={kind},tier={tier},count=COUNT,until=DATE"
    return (
        f"where you have a grant, write it into your own file of settings with `tpuctl config set grants '{grant}'`, with the "
        "chips and the last day that it names; that replaces the grants that are there"
    )


def _of_unknown_type(facts: Facts) -> Found:
    name = facts.wanted.spec.accelerator_type
    return Found(
        level=_level(facts),
        subject=facts.wanted.zone,
        text=f"whether a grant covers {name} cannot be told: tpuctl does not know the type",
        why=_why(facts),
        facts={"acceleratorType": name, "grants": [str(grant) for grant in facts.wanted.grants]},
    )


def _not_seen(facts: Facts, coverage: Coverage) -> Found:
    return Found(
        level=Level.ERROR,
        subject=facts.wanted.zone,
        text=f"what is held of the grant `{coverage.grants[0]}` is not known, so that it may be used up",
        why=_why(facts),
        remedies=(Remedy("check again once the nodes of the project can be listed"),),
        facts=_facts(coverage),
        is_passing=True,
    )


def _ends(grant: Grant, today: date) -> Found:
    days = (grant.until - today).days if grant.until else 0
    when = "today" if days == 0 else f"in {days} day{'' if days == 1 else 's'}"
    return Found(
        level=Level.WARNING,
        subject=grant.zone,
        text=f"the grant `{grant}` ends {when}",
        why="what runs on after its last day is billed",
        remedies=(Remedy(f"take the node down by the end of {grant.until}, or ask for a longer grant"),),
        facts={"grant": str(grant), "until": str(grant.until), "days": days},
    )


def _has_ended(facts: Facts, grant: Grant) -> Found:
    wanted = facts.wanted
    command = own_commands.take_down(wanted.project, wanted.zone, wanted.name.node_id) if wanted.name else None
    return Found(
        level=Level.WARNING,
        subject=grant.zone,
        text=f"the grant `{grant}` has ended, and {wanted.what} is billed since",
        why="what runs on after the last day of a grant is billed",
        remedies=(Remedy("take it down where nobody needs it", command),),
        facts={"grant": str(grant), "until": str(grant.until)},
    )


def _level(facts: Facts) -> Level:
    return Level.ERROR if facts.wanted.no_billing_outside_grants else Level.WARNING


def _why(facts: Facts) -> str:
    if facts.wanted.no_billing_outside_grants:
        return "`no_billing_outside_grants` is set: nothing that is billed may be created"
    return "what no grant covers is billed; `--no-billing-outside-grants` would stop it"


def _facts(coverage: Coverage) -> dict[str, object]:
    return {
        "grants": [str(grant) for grant in coverage.grants],
        "grantedChips": coverage.granted,
        "heldChips": coverage.used,
        "neededChips": coverage.needed,
    }


RULES = (grant_covers, grant_lasts, reservations.reservation_is_there)
