"""Rules about grants of free capacity and what is billed."""

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

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.preflight.coverage import Coverage
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.grants import Grant
    from tpuctl.preflight.holdings import Holding

ENDS_SOON = timedelta(days=7)


@rule("TPU405", "covered by a grant")
def grant_covers(facts: Facts) -> Iterator[Found]:
    """Check that a grant in the settings (`grants`) covers the new node in addition to everything that is held.

    Zone, type, tier, count and last day are compared. Spot and preemptible are one pool; dead resources are not billed. If no
    grant covers the node, it will be billed: a warning. With `no_billing_outside_grants` it is an error, also if no grant is
    configured or the current usage of the grant is unknown. Grants are what the user has entered; the service is not asked.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    is_strict = wanted.no_billing_outside_grants
    if not wanted.creates or not (wanted.grants or is_strict):
        return
    if not wanted.grants:
        yield _without_grants(facts)
        return
    level = Level.ERROR if is_strict else Level.WARNING
    why = (
        "`no_billing_outside_grants` is set: nothing that is billed may be created"
        if is_strict
        else "what no grant covers is billed; `--no-billing-outside-grants` prevents that"
    )
    if accelerator is None:
        name = wanted.spec.accelerator_type
        yield Found(
            level=level,
            subject=wanted.zone,
            text=f"unknown whether a grant covers {name}: tpuctl does not know the type",
            why=why,
            facts={"acceleratorType": name, "grants": [str(grant) for grant in wanted.grants]},
        )
        return
    coverage = cover(wanted, accelerator, _held(facts), facts.now.date())
    held = known(facts.held)
    if not coverage.is_enough:
        yield _not_covered(facts, accelerator, coverage, level=level, why=why)
    elif held is not None and wanted.zone not in held.unreachable:
        grants = " and ".join(f"`{grant}`" for grant in coverage.grants)
        yield Found(
            level=Level.OK,
            subject=wanted.zone,
            text=f"covered by the grant {grants}: {coverage.used + coverage.needed} of {coverage.granted} chips",
            facts=_facts(coverage),
        )
    elif is_strict:
        yield Found(
            level=Level.ERROR,
            subject=wanted.zone,
            text=f"the current usage of the grant `{coverage.grants[0]}` is unknown; it may be used up",
            why=why,
            remedies=(Remedy("check again when the nodes of the project can be listed"),),
            facts=_facts(coverage),
            is_passing=True,
        )


@rule("TPU406", "days that a grant has left")
def grant_lasts(facts: Facts) -> Iterator[Found]:
    """Warn about grants for the node that end within 7 days and, for an existing node, about a grant that has ended.

    What runs after the last day is billed. A note for the zone of the TPU Research Cloud, where only holders of grants get
    capacity [reported by users; unverified].
    """
    wanted, accelerator, today = facts.wanted, facts.wanted.accelerator, facts.now.date()
    grants = matching(wanted, accelerator) if accelerator else ()
    lasting = [grant for grant in grants if not grant.has_ended(today)]
    ending = [grant for grant in lasting if grant.until and grant.until - today <= ENDS_SOON]
    for grant in ending if len(ending) == len(lasting) else ():
        days = (grant.until - today).days if grant.until else 0
        when = "today" if days == 0 else f"in {days} day{'' if days == 1 else 's'}"
        yield Found(
            level=Level.WARNING,
            subject=grant.zone,
            text=f"the grant `{grant}` ends {when}",
            why="what runs after its last day is billed",
            remedies=(Remedy(f"delete the node by the end of {grant.until}, or ask for a longer grant"),),
            facts={"grant": str(grant), "until": str(grant.until), "days": days},
        )
    if grants and not lasting and not wanted.creates:
        last = max(grants, key=lambda grant: grant.until or today)
        command = own_commands.take_down(wanted.project, wanted.zone, wanted.name.node_id) if wanted.name else None
        yield Found(
            level=Level.WARNING,
            subject=last.zone,
            text=f"the grant `{last}` has ended; {wanted.what} is billed since then",
            why="what runs after the last day of a grant is billed",
            remedies=(Remedy("delete it if you no longer need it", command),),
            facts={"grant": str(last), "until": str(last.until)},
        )
    if wanted.creates and wanted.zone == accelerators.load().research_zone:
        yield Found(
            level=Level.NOTE,
            subject=wanted.zone,
            text=f"{wanted.zone} is for grants of the TPU Research Cloud",
            why="its quota exists while a grant lasts, and is removed afterwards",
            facts={"zone": wanted.zone, "isGranted": bool(lasting)},
        )


def _without_grants(facts: Facts) -> Found:
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    kind = accelerator.generation.name if accelerator else wanted.spec.accelerator_type
    # Only the holder knows count and last day.
    grant = f"zone={wanted.zone},type={kind},tier={wanted.spec.tier or Tier.ON_DEMAND},count=COUNT,until=DATE"
    return Found(
        level=Level.ERROR,
        subject=wanted.zone,
        text="`no_billing_outside_grants` is set, but no grants are configured: nothing may be created",
        why="everything created without a grant is billed",
        remedies=(
            Remedy(
                f"if you have a grant, add it to your own settings with `tpuctl config set grants '{grant}'`, with the chips "
                "and the last day of the grant; this replaces the configured grants"
            ),
            Remedy(
                "or turn it off where it was set: a flag, the environment (`TPUCTL_NO_BILLING_OUTSIDE_GRANTS`) or a file; "
                "`tpuctl config show` says where"
            ),
        ),
        facts={"grants": []},
    )


def _not_covered(facts: Facts, accelerator: AcceleratorType, coverage: Coverage, *, level: Level, why: str) -> Found:
    wanted, today = facts.wanted, facts.now.date()
    grant = coverage.grants[0] if coverage.grants else nearest(wanted, accelerator, today)
    reasons = list(differences(grant, wanted, accelerator)) if grant else []
    if grant and grant.has_ended(today):
        reasons.append(f"it ended on {grant.until}")
    if coverage.grants:
        reasons.append(
            f"{coverage.needed} chips are needed, and {coverage.left} of {coverage.granted} are left"
            + (f" ({coverage.used} are in use)" if coverage.used else "")
        )
    return Found(
        level=level,
        subject=wanted.zone,
        text=f"no grant covers {wanted.what}: it will be billed"
        + (f"; the nearest is `{grant}`: {', '.join(reasons)}" if grant else ""),
        why=why,
        remedies=tuple(_covered_instead(facts, accelerator, grant)) if grant else (),
        facts={**_facts(coverage), "nearest": str(grant) if grant else None, "differences": reasons},
    )


def _covered_instead(facts: Facts, accelerator: AcceleratorType, grant: Grant) -> Iterator[Remedy]:
    """Yield what the grant would cover. If that is this very node, only its siblings exceed the grant."""
    wanted = facts.wanted
    free = alternative(grant, accelerator, _held(facts), facts.now.date())
    if free is None:
        return
    tier = pool_of(wanted.spec.tier)
    if (free.zone, free.accelerator_type, pool_of(free.tier)) == (wanted.zone, accelerator.name, tier):
        if wanted.siblings:
            count = 1 + len(wanted.siblings)
            yield Remedy(f"the grant covers this node alone, not all {count} of the command: create fewer at once")
        return
    command = own_commands.again(wanted, zone=free.zone, accelerator_type=free.accelerator_type, tier=free.tier)
    article = "an" if free.tier is Tier.ON_DEMAND else "a"
    yield Remedy(f"covered by that grant: {article} {free.tier} {free.accelerator_type} in {free.zone}", command)


def _held(facts: Facts) -> tuple[Holding, ...]:
    held = known(facts.held)
    return holdings(held, facts.wanted) if held else ()


def _facts(coverage: Coverage) -> dict[str, object]:
    return {
        "grants": [str(grant) for grant in coverage.grants],
        "grantedChips": coverage.granted,
        "heldChips": coverage.used,
        "neededChips": coverage.needed,
    }


RULES = (grant_covers, grant_lasts, reservations.reservation_is_there)
