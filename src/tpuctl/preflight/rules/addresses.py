"""Rules about external IP addresses: every worker uses one unless the node has internal addresses only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.preflight import own_commands
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.wanted import Wanted

METRIC = "IN_USE_ADDRESSES"
# The default of a region [observed: users' logs].
MANY = 8


@rule("TPU403", "external addresses")
def addresses_are_enough(facts: Facts) -> Iterator[Found]:
    """Check that the region's quota of external addresses (IN_USE_ADDRESSES) has one left for each worker.

    A warning if it has not: a slice is never created in part. It is not an error, because only observations of users show that
    workers count against this quota, and because slices were seen with fewer workers than documented. Not checked for nodes
    without external addresses.
    """
    wanted, needed = facts.wanted, _workers(facts.wanted)
    if not wanted.creates or not needed or facts.region_quotas is None or facts.is_without_zone:
        return
    match facts.region_quotas:
        case Known(quotas) if METRIC in quotas:
            # The node that is replaced frees its addresses.
            freed = sum(1 for endpoint in wanted.replaces.endpoints if endpoint.external) if wanted.replaces else 0
            limit = round(quotas[METRIC].limit)
            used = max(round(quotas[METRIC].usage) - freed, 0)
            values = {"metric": METRIC, "region": wanted.region, "limit": limit, "held": used, "needed": needed}
            if used + needed <= limit:
                text = f"{used + needed} of {limit} external addresses in {wanted.region}"
                yield Found(level=Level.OK, subject=wanted.region, text=text, facts=values)
                return
            left = max(limit - used, 0)
            page = f"https://console.cloud.google.com/iam-admin/quotas?project={wanted.project}"
            yield Found(
                level=Level.WARNING,
                subject=wanted.region,
                text=f"{_count(needed)} needed in {wanted.region}, and {left} of {limit} are left",
                why="every worker uses one, and a slice is never created in part",
                remedies=(_without(wanted), Remedy(f"request more of {METRIC} in {wanted.region}: {page}")),
                facts=values,
            )
        case Known() | Absent():
            text = f"{wanted.region} shows no quota of external addresses"
            values = {"metric": METRIC, "region": wanted.region, "needed": needed}
            yield Found(level=Level.NOTE, subject=wanted.region, text=text, facts=values)
        case Unknown() as unknown:
            what = f"the external addresses left in {wanted.region}"
            yield unread(unknown, wanted.region, what, permission="compute.regions.get", project=wanted.project)


@rule("TPU404", "many external addresses")
def many_addresses(facts: Facts) -> Iterator[Found]:
    """Report nodes whose workers use eight or more external addresses: a note.

    Eight is the default of a region [observed: users' logs]; and every external address can be reached from outside.
    """
    wanted, needed = facts.wanted, _workers(facts.wanted)
    if wanted.creates and needed >= MANY:
        yield Found(
            level=Level.NOTE,
            subject=wanted.what.strip("`"),
            text=f"{_count(needed)} used, one by each worker",
            why=f"a region has {MANY} unless you request more, and every external address can be reached from outside",
            remedies=(_without(wanted),),
            facts={"needed": needed},
        )


def _without(wanted: Wanted) -> Remedy:
    return Remedy(
        f"create it without: buckets are then reached by Private Google Access in {wanted.region}, all else by Cloud NAT",
        own_commands.again(wanted, more=("--internal-ips",)),
    )


def _workers(wanted: Wanted) -> int:
    """Return the number of external addresses that the new nodes use."""
    return sum(spec.workers for spec in (wanted.spec, *wanted.siblings) if not spec.internal_ips)


def _count(number: int) -> str:
    return f"{number} external address{'' if number == 1 else 'es'} {'is' if number == 1 else 'are'}"
