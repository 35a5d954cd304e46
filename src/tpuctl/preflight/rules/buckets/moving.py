"""How to co-locate a TPU and its data. tpuctl itself never creates a bucket and never moves data."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.colocation.places import Relation, best_locations, regions_within, relation, spans
from tpuctl.preflight.findings import Remedy
from tpuctl.preflight.own_commands import again
from tpuctl.preflight.rules.buckets.nearby import generation_of, nearby
from tpuctl.preflight.rules.buckets.uses import command, payer, root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.bucket import Placement
    from tpuctl.preflight.facts import BucketFacts, Facts

_LONGEST = 63  # documentation, bucket naming: without dots


def remedies(facts: Facts, about: BucketFacts, placement: Placement, *, has_cache: bool) -> tuple[Remedy, ...]:
    """Return how to co-locate a TPU and a bucket, the most useful remedy first."""
    wanted = facts.wanted
    found: list[Remedy] = []
    # Within a multi-region all zones are equally near.
    if relation(placement, wanted.zone) is not Relation.MULTI_REGION:
        found.append(_tpu_to_data(facts, placement))
    found.extend(_data_to_tpu(facts, about, placement, first="or " if found else ""))
    if not has_cache and about.use.reads and spans(placement, wanted.region):
        # A cache must be in a zone of the bucket's own location [documentation, Rapid Cache]: not offered elsewhere.
        text = f"or, for data that is read many times, create an Anywhere Cache (Rapid Cache) of the bucket in {wanted.zone}, "
        create = ("storage", "buckets", "anywhere-caches", "create", root(about.use.bucket), wanted.zone)
        found.append(Remedy(text + "which has its own prices", command(*create, *payer(facts, about))))
    return tuple(found)


def _tpu_to_data(facts: Facts, placement: Placement) -> Remedy:
    near, wanted = nearby(facts, placement), facts.wanted.spec.accelerator_type
    source = "" if near.is_asked else ", according to the table that ships with tpuctl"
    still = "" if regions_within(placement) else "; reads from a multi-region are billed there too"
    if near.zones:
        offer = "offers" if len(near.zones) == 1 else "offer"
        text = f"create the TPU where the data is: {', '.join(near.zones)} {offer} `{wanted}`{source}{still}"
        return Remedy(text, _check(facts, wanted, near.zones[0]))
    if not near.generations:
        return Remedy(f"no zone of {near.place} offers a TPU{source}: move the data instead")
    generation = generation_of(wanted)
    lacking = f"`{wanted}`" if generation in near.generations or not generation else generation
    text = f"no zone of {near.place} offers {lacking}; it offers {', '.join(near.generations)}"
    if near.example is None:
        return Remedy(f"{text}{source}")
    text += f" (e.g. `{near.example[0]}` in {near.example[1]}){source}{still}"
    return Remedy(text, _check(facts, *near.example))


def _check(facts: Facts, accelerator_type: str, zone: str) -> str:
    # Without a name the command only checks.
    nameless = replace(facts.wanted, name=None)
    return again(nameless, zone=zone, accelerator_type=accelerator_type)


def _data_to_tpu(facts: Facts, about: BucketFacts, placement: Placement, *, first: str) -> Iterator[Remedy]:
    wanted = facts.wanted
    locations = best_locations(wanted.region)
    name = _name_near(about.use.bucket, placement, wanted.region)
    options = (f"--project={wanted.project}", f"--location={locations[0]}", "--uniform-bucket-level-access")
    yield Remedy(
        f"{first}use a bucket where the TPU is, in {' or '.join(locations)}",
        command("storage", "buckets", "create", root(name), *options),
    )
    if about.use.reads:
        target = f"{root(name)}/{about.use.prefix}".rstrip("/")
        yield Remedy(
            "and copy the data there, which is billed like reading it once",
            command("storage", "rsync", "--recursive", about.use.url, target, *payer(facts, about)),
        )


def _name_near(bucket: str, placement: Placement, region: str) -> str:
    """Return the bucket's name with the region at the end. Dots are replaced, as they would need a verified domain."""
    places = [placement.location.lower(), *regions_within(placement)]
    stem = re.sub("|".join(f"-{re.escape(place)}$" for place in places if place) or "$^", "", bucket.replace(".", "-"))
    return f"{stem[: _LONGEST - len(region) - 1].rstrip('-_')}-{region}"
