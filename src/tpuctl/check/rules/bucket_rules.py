"""Rules about the buckets of the node: where they are, whether they can be read, what they cost, and what they forbid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

from tpuctl.accelerators import AcceleratorType, documented_zones_of, find_accelerator_type, load_accelerators
from tpuctl.check.colocation import (
    TB,
    EgressPrice,
    Relation,
    best_locations,
    egress_price,
    load_locations,
    placement_relation,
    placement_spans,
    regions_within,
    retrieval_price,
)
from tpuctl.check.facts import Absent, BucketFacts, CheckFacts, Known, Purpose, Unknown, value_or_none
from tpuctl.check.findings import (
    Level,
    Remedy,
    RuleResult,
    check_rule,
    create_or_check_command,
    gcloud_command,
    note,
    refer_to_rule,
    unread_result,
)
from tpuctl.check.zone_ranking import zones_with_type
from tpuctl.durations import format_size
from tpuctl.models.bucket import Bucket, BucketContents, BucketPlacement
from tpuctl.names import region_of_zone

_RELATION_LEVELS = {
    Relation.MULTI_REGION: Level.WARNING,
    Relation.SAME_AREA: Level.ERROR,
    Relation.OTHER_AREA: Level.ERROR,
}
_DISTANCE_WORDS = {
    Relation.MULTI_REGION: "the data is somewhere in the multi-region: {each}s are slower, at varying speed",
    Relation.SAME_AREA: "every {each} crosses between regions: it is slower",
    Relation.OTHER_AREA: "every {each} crosses between continents: it is far slower",
}
_CLASS_LEVELS = {"NEARLINE": Level.NOTE, "COLDLINE": Level.WARNING, "ARCHIVE": Level.WARNING}
_MAX_BUCKET_NAME = 63  # documentation, bucket naming: without dots


@dataclass(frozen=True, slots=True)
class _CheckedBucket:
    """One bucket of the node: its facts, and what messages and commands say about it."""

    facts: CheckFacts
    bucket: BucketFacts

    @property
    def name(self) -> str:
        """`gs://bucket`."""
        return f"gs://{self.bucket.use.bucket}"

    @property
    def known(self) -> Bucket | None:
        return value_or_none(self.bucket.bucket)

    @property
    def has_cache(self) -> bool:
        """Return whether an Anywhere Cache runs in the node's zone."""
        caches = value_or_none(self.bucket.caches) or ()
        return any(cache.is_running and cache.zone == self.facts.wanted.zone for cache in caches)

    @property
    def epoch_size(self) -> int | None:
        """The bytes that one epoch reads, from the user or from a complete listing; None if unknown."""
        if not self.bucket.use.reads or self.facts.wanted.dataset_size is not None:
            return self.facts.wanted.dataset_size if self.bucket.use.reads else None
        contents = value_or_none(self.bucket.contents)
        return contents.size if contents and contents.is_complete and contents.objects else None

    @property
    def read_only_remedy(self) -> Remedy:
        return Remedy(f"or declare it as read-only: `--data-bucket={self.bucket.use.url}` instead of `--bucket`")

    def result(
        self,
        level: Level,
        text: str,
        *remedies: Remedy | str,
        why: str | None = None,
        facts: Mapping[str, Any] | None = None,  # JSON
    ) -> RuleResult:
        """Return a result about this bucket."""
        return RuleResult.of(level, self.name, text, *remedies, why=why, facts=facts)

    def command(self, words: str, *arguments: str, **options: str | bool) -> str:
        """Return a gcloud command; it names the project that pays, if the bucket is requester-pays."""
        pays = self.known is not None and self.known.requester_pays
        return gcloud_command(
            words, *arguments, **options, billing_project=self.facts.wanted.billing_project if pays else None
        )

    def update(self, **flag: str | bool) -> str:
        """Return the command that changes a setting of the bucket."""
        return self.command("storage buckets update", self.name, **flag)


def iter_buckets(facts: CheckFacts) -> Iterator[_CheckedBucket]:
    """Yield each bucket once, even if several of its prefixes are used. A node that serves does not write.

    The contents of several prefixes are not added up: one may contain another.
    """
    by_name: dict[str, list[BucketFacts]] = {}
    only_reads = facts.wanted.purpose is Purpose.SERVE
    for bucket in facts.buckets:
        of_node = replace(bucket, use=replace(bucket.use, writes=False)) if only_reads else bucket
        by_name.setdefault(bucket.use.bucket, []).append(of_node)
    for first, *others in by_name.values():
        if not others:
            yield _CheckedBucket(facts, first)
            continue
        uses = [bucket.use for bucket in (first, *others)]
        use = replace(first.use, prefix="", reads=any(u.reads for u in uses), writes=any(u.writes for u in uses))
        yield _CheckedBucket(facts, replace(first, use=use, contents=None))


def iter_readable_buckets(facts: CheckFacts) -> Iterator[tuple[_CheckedBucket, Bucket]]:
    """Yield each bucket that could be read."""
    for checked in iter_buckets(facts):
        if checked.known is not None:
            yield checked, checked.known


@check_rule("TPU101", "the bucket is where the TPU is")
def bucket_is_colocated(facts: CheckFacts) -> Iterator[RuleResult]:
    """Compare the location of each bucket with the TPU's zone.

    Reads within a zone or region, or from a dual-region that contains the TPU, are fast and free. Reads from a multi-region of
    the continent are billed and slower: a warning. Another region of the continent, including a multi-region without the TPU's
    region, and another continent are errors: the TPU waits for its data, and each epoch pays for the network again. For a
    read-only bucket, a running Anywhere Cache in the TPU's zone turns this into a note. A location that this version does not
    know is unknown (documentation, bucket locations; list prices, shown with their date).
    """
    for checked in iter_buckets(facts):
        placement, caches = checked.bucket.placement, checked.bucket.caches
        if placement is None:
            continue
        if found := _judge_placement(checked, placement):
            yield found
        # A cache must be in a zone of the bucket's own location [documentation, Rapid Cache].
        may_be_cached = (
            placement_spans(placement, facts.wanted.region)
            and not placement_relation(placement, facts.wanted.zone).is_colocated
        )
        if isinstance(caches, Unknown) and may_be_cached:
            what, permission = (
                f"the Anywhere Caches of `{checked.name}` in {facts.wanted.zone}",
                "storage.anywhereCaches.list",
            )
            yield unread_result(caches, checked.name, what, permission=permission, role="roles/storage.admin")


def _judge_placement(checked: _CheckedBucket, placement: BucketPlacement) -> RuleResult | None:
    wanted, name, use = checked.facts.wanted, checked.name, checked.bucket.use
    relation = placement_relation(placement, wanted.zone)
    if relation.is_colocated:
        return None
    price = egress_price(placement, wanted.zone, own=wanted.egress_prices)
    values = _placement_facts(checked, placement, relation, price)
    place = f"the TPU in {wanted.region} (zone {wanted.zone})"
    text = f"`{name}` is in {describe_placement(placement)}, {place}"
    if relation is Relation.UNKNOWN:
        word = f"a {placement.kind}" if placement.kind else "a location without type"
        return checked.result(
            Level.UNKNOWN,
            f"`{name}` is in {placement.location or 'an unnamed location'}, {word} that this version does not know; "
            f"unknown whether it is near {place}",
            "look up the location in https://cloud.google.com/storage/docs/locations; a bucket in "
            f"{' or '.join(best_locations(wanted.region))} would be co-located",
            facts=values,
        )
    level, why = _RELATION_LEVELS[relation], _distance_reason(checked, relation, price)
    if checked.has_cache:
        level = level if use.writes else Level.NOTE
        serves = "repeated reads, but no writes" if use.writes else "repeated reads"
        why += f"; an Anywhere Cache in {wanted.zone} serves {serves}"
    return checked.result(level, text, *_colocation_remedies(checked, placement), why=why, facts=values)


def describe_placement(placement: BucketPlacement) -> str:
    """Return a bucket's location as text: `EUROPE-WEST4`, `US (multi-region)`, `US (us-east1 and us-west1)`."""
    if placement.data_locations:
        return f"{placement.location} ({' and '.join(placement.data_locations).lower()})"
    return placement.location if placement.kind in {"region", "zone"} else f"{placement.location} ({placement.kind})"


def _distance_reason(checked: _CheckedBucket, relation: Relation, price: EgressPrice | None) -> str:
    reads = checked.bucket.use.reads
    text = _DISTANCE_WORDS[relation].format(each="read" if reads else "write")
    if price is None:
        return text
    if price.is_free:
        return f"{text}; it is free according to the price in your settings"
    text += f", and billed: {price}" if reads else f", and reading it back is billed: {price}"
    if size := checked.epoch_size:
        text += f"; one epoch, reading all {format_size(size)} once, costs {price.of(size)}"
    return text


def _placement_facts(
    checked: _CheckedBucket, placement: BucketPlacement, relation: Relation, price: EgressPrice | None
) -> dict[str, Any]:
    wanted, size = checked.facts.wanted, checked.epoch_size
    near = nearby_tpus(checked.facts, placement)
    per_tb = price.cost(TB) if price else None
    epoch = price.cost(size) if price and size is not None else None
    return {
        "location": placement.location,
        "locationType": placement.kind,
        "dataLocations": list(placement.data_locations),
        "zone": wanted.zone,
        "region": wanted.region,
        "relation": str(relation),
        "pricePerGiBLow": float(price.low) if price else None,
        "pricePerGiBHigh": float(price.high) if price else None,
        "pricePerTBLow": float(per_tb[0]) if per_tb else None,
        "pricePerTBHigh": float(per_tb[1]) if per_tb else None,
        "priceDate": price.seen if price else None,
        "datasetSize": size,
        "costPerEpochLow": float(epoch[0]) if epoch else None,
        "costPerEpochHigh": float(epoch[1]) if epoch else None,
        "coLocated": list(best_locations(wanted.region)),
        "zonesWithType": list(near.zones),
        "typesThere": list(near.generations),
        "anywhereCache": checked.has_cache,
    }


def _colocation_remedies(checked: _CheckedBucket, placement: BucketPlacement) -> Iterator[Remedy]:
    """Yield how to co-locate a TPU and a bucket, the most useful remedy first.

    tpuctl itself never creates a bucket and never moves data.
    """
    wanted, use = checked.facts.wanted, checked.bucket.use
    # Within a multi-region all zones are equally near.
    can_move_tpu = placement_relation(placement, wanted.zone) is not Relation.MULTI_REGION
    if can_move_tpu:
        yield _move_tpu_remedy(checked.facts, placement)
    locations = best_locations(wanted.region)
    # The bucket's name with the region at the end. Dots are replaced, as they would need a verified domain.
    places = [re.escape(place) for place in (placement.location.lower(), *regions_within(placement)) if place]
    stem = re.sub(f"-(?:{'|'.join(places)})$" if places else "$^", "", use.bucket.replace(".", "-"))
    name = f"gs://{stem[: _MAX_BUCKET_NAME - len(wanted.region) - 1].rstrip('-_')}-{wanted.region}"
    yield Remedy(
        f"{'or ' if can_move_tpu else ''}use a bucket where the TPU is, in {' or '.join(locations)}",
        gcloud_command(
            "storage buckets create",
            name,
            project=wanted.project,
            location=locations[0],
            uniform_bucket_level_access=True,
        ),
    )
    if use.reads:
        target = f"{name}/{use.prefix}".rstrip("/")
        copy = checked.command("storage rsync --recursive", use.url, target)
        yield Remedy("and copy the data there, which is billed like reading it once", copy)
    if use.reads and not checked.has_cache and placement_spans(placement, wanted.region):
        # A cache must be in a zone of the bucket's own location [documentation, Rapid Cache]: not offered elsewhere.
        text = f"or, for data that is read many times, create an Anywhere Cache (Rapid Cache) of the bucket in {wanted.zone}, "
        create = checked.command("storage buckets anywhere-caches create", checked.name, wanted.zone)
        yield Remedy(text + "which has its own prices", create)


def _move_tpu_remedy(facts: CheckFacts, placement: BucketPlacement) -> Remedy:
    near, wanted = nearby_tpus(facts, placement), facts.wanted.spec.accelerator_type
    # Without a name the command only checks.
    nameless = replace(facts.wanted, name=None)
    source = "" if near.is_live else ", according to the table that ships with tpuctl"
    still = "" if regions_within(placement) else "; reads from a multi-region are billed there too"
    if near.zones:
        offer = "offers" if len(near.zones) == 1 else "offer"
        text = f"create the TPU where the data is: {', '.join(near.zones)} {offer} `{wanted}`{source}{still}"
        return Remedy(text, create_or_check_command(nameless, zone=near.zones[0]))
    if not near.generations:
        return Remedy(f"no zone of {near.place} offers a TPU{source}: move the data instead")
    generation = generation_of(wanted)
    lacking = f"`{wanted}`" if generation in near.generations or not generation else generation
    text = f"no zone of {near.place} offers {lacking}; it offers {', '.join(near.generations)}"
    if near.example is None:
        return Remedy(f"{text}{source}")
    type_, zone = near.example
    command = create_or_check_command(nameless, zone=zone, accelerator_type=type_)
    return Remedy(f"{text} (e.g. `{type_}` in {zone}){source}{still}", command)


@dataclass(frozen=True, slots=True)
class NearbyTpus:
    """The zones in a bucket's regions: those that offer the wanted type, and the generations that they offer.

    `generations` are names, oldest first. `example` is a similar type and its zone. `is_live`: the offers come from
    the API, not from the table that ships with tpuctl.
    """

    place: str
    zones: tuple[str, ...]
    generations: tuple[str, ...]
    example: tuple[str, str] | None
    is_live: bool


def nearby_tpus(facts: CheckFacts, placement: BucketPlacement) -> NearbyTpus:
    """Return which TPUs are offered where a bucket is."""
    spec, live = facts.wanted.spec, value_or_none(facts.offers)
    wanted, like = spec.accelerator_type, _find_type(spec.accelerator_type)
    offers = _documented_offers(wanted) if live is None else live
    nearby = {zone: types for zone, types in offers.items() if placement_spans(placement, region_of_zone(zone))}
    names = {generation_of(name) for types in nearby.values() for name in types} - {""}
    order = list(load_accelerators().generations)
    return NearbyTpus(
        " and ".join(regions_within(placement)) or f"the {placement.location} multi-region",
        tuple(sorted(zones_with_type(nearby, spec))),
        tuple(sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))),
        _most_similar_type(nearby, like),
        live is not None,
    )


def generation_of(accelerator_type: str) -> str:
    """Return the generation of a type, such as `v5e`; for an unknown type the part before the number."""
    found = _find_type(accelerator_type)
    return found.generation.name if found else accelerator_type.rpartition("-")[0]


def _most_similar_type(nearby: Mapping[str, tuple[str, ...]], like: AcceleratorType | None) -> tuple[str, str] | None:
    """Return the most similar type of the newest generation, and a zone; AI regions last."""
    order = list(load_accelerators().generations)

    def distance(found: AcceleratorType, zone: str) -> tuple[int, bool, int, bool, str]:
        is_other_size = like is None or found.size != like.size
        return -order.index(found.generation.name), is_other_size, found.size, "-ai" in zone, zone

    candidates = [
        (distance(found, zone), name, zone)
        for zone, types in nearby.items()
        for name in types
        if (found := _find_type(name))
    ]
    return min(candidates)[1:] if candidates else None


@cache
def _documented_offers(wanted: str) -> Mapping[str, tuple[str, ...]]:
    """Return the offers of all zones according to the table, without single-tenant zones."""
    generations = load_accelerators().generations.values()
    names = [generation.type_of(size) for generation in generations for size in generation.sizes]
    offers: dict[str, list[str]] = {}
    for name in dict.fromkeys([*names, wanted]):
        if accelerator := _find_type(name):
            for zone in documented_zones_of(accelerator):
                offers.setdefault(zone, []).append(name)
    return {zone: tuple(types) for zone, types in offers.items()}


@cache  # every zone offers some dozens of types, and the same question comes for each bucket
def _find_type(name: str) -> AcceleratorType | None:
    return find_accelerator_type(name)


@check_rule("TPU102", "the bucket can be read")
def bucket_is_readable(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the bucket exists and that its metadata can be read.

    Bucket names are global: a mistyped name does not exist, or belongs to someone else. An error if the API says that the
    bucket does not exist; unknown if its metadata may not be read, with the permission that is needed (API storage v1,
    buckets.get). The other rules skip a bucket that could not be read.
    """
    for checked in iter_buckets(facts):
        name, bucket = checked.name, checked.bucket
        match bucket.bucket:
            case Absent():
                listing = gcloud_command("storage buckets list", project=facts.wanted.project, format="value(name)")
                yield checked.result(
                    Level.ERROR,
                    f"there is no bucket `{name}`",
                    Remedy("compare the name with the buckets of the project", listing),
                    why="every read and write fails; bucket names are global, so a similar name may belong to someone else",
                )
            case Unknown() if bucket.is_unpaid:
                pass  # TPU104 reports it
            case Unknown() as fact:
                role, project = "roles/storage.legacyBucketReader", facts.wanted.billing_project
                found = unread_result(fact, name, f"`{name}`", permission="storage.buckets.get", role=role)
                where = "" if bucket.placement else "its location, "
                remedies = found.remedies
                if project and not fact.is_passing:
                    # The service also refuses a request with a wrong billing project [API storage v1, userProject].
                    doubt = (
                        f"or the billing project `{project}` is the cause: it must exist, and you need "
                        "`serviceusage.services.use` on it; otherwise name another with `--billing-project`"
                    )
                    remedies += (Remedy(doubt),)
                yield replace(
                    found,
                    remedies=remedies,
                    why=f"not checked: {where}its project, billing, storage class, retention and versioning",
                    is_passing=any(isinstance(one, Unknown) and one.is_passing for one in (fact, bucket.layout)),
                )


@check_rule("TPU108", "there is data to read")
def bucket_has_data(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that there are objects below the prefix that is read, or in the bucket if no prefix is named.

    A mistyped prefix lists nothing and raises no error: training starts without data, or fails after the TPU was billed. A
    warning, as the data may be uploaded later; a note for a bucket without prefix that is also written to, as it may be for
    checkpoints only (API storage v1, objects.list).
    """
    for bucket in facts.buckets:
        if not bucket.use.reads or isinstance(bucket.bucket, Absent):
            continue
        match bucket.contents:
            case Known(contents) if not contents.objects:
                yield _no_data_result(_CheckedBucket(facts, bucket), contents)
            case Unknown() if bucket.is_unpaid:
                pass  # TPU104 reports it
            case Unknown() as fact:
                url, role = bucket.use.url, "roles/storage.objectViewer"
                fact = refer_to_rule(fact, bucket.bucket, "TPU102")
                what, permission = f"the list of objects in `{url}`", "storage.objects.list"
                yield unread_result(fact, url, what, permission=permission, role=role)


def _no_data_result(checked: _CheckedBucket, contents: BucketContents) -> RuleResult:
    use = checked.bucket.use
    values = {"objects": contents.objects, "size": contents.size, "isComplete": contents.is_complete}
    if not contents.is_complete:
        # A page may have only folder markers, or no entries at all, and be followed by others.
        return note(use.url, f"the first page of `{use.url}` lists no data", facts=values)
    is_written = use.writes and checked.facts.wanted.purpose is Purpose.TRAIN
    checkpoints = "; ignore this if the bucket is for checkpoints only" if is_written else ""
    return RuleResult.of(
        Level.NOTE if is_written and not use.prefix else Level.WARNING,
        use.url,
        f"`{use.url}/` has no objects" if use.prefix else f"`{use.url}` is empty",
        Remedy("list the bucket", checked.command("storage ls", checked.name)),
        why=f"a program that reads it finds no data{checkpoints}",
        facts=values,
    )


@check_rule("TPU103", "the bucket belongs to the TPU's project")
def bucket_is_in_project(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the bucket and the TPU belong to the same project, by number.

    A bucket of another project is billed there, and access is decided there: roles that the TPU's account has in its own
    project do not apply. A warning, as sharing may be intended (API storage v1, projectNumber).
    """
    project = value_or_none(facts.project)
    for checked, bucket in iter_readable_buckets(facts) if project else ():
        if (
            project is None
            or not bucket.project_number
            or bucket.project_number == project.number
            or not project.number
        ):
            continue
        values = {"bucketProjectNumber": bucket.project_number, "projectNumber": project.number}
        account = f"`{facts.account}`" if facts.account else "the TPU's account"
        yield checked.result(
            Level.WARNING,
            f"`{checked.name}` belongs to the project with the number {bucket.project_number}, not to `{project.id}` "
            f"({project.number})",
            f"check that it is the bucket you mean, and that its owner has granted access to {account}",
            why=f"storage and network are billed to the other project, and {account} needs a role there or on the bucket",
            facts=values,
        )


@check_rule("TPU104", "a project pays for the requests")
def requests_are_paid(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that a billing project is named for requester-pays buckets.

    Without one, every request of the TPU's programs fails: an error. With one, requests and network are billed to it, and the
    programs must name it as well: a note (documentation, Requester Pays; API storage v1, userProject).
    """
    for checked in iter_buckets(facts):
        name, bucket, payer = checked.name, checked.known, facts.wanted.billing_project
        if checked.bucket.is_unpaid or (bucket and bucket.requester_pays and not payer):
            project = value_or_none(facts.project)
            flag = f"`--billing-project={facts.wanted.project}`"
            remedies = [
                Remedy(f"name the project that pays, such as {flag}, here and in the programs that use the bucket")
            ]
            if bucket and project and bucket.project_number == project.number:
                pays = "or let the bucket's own project pay"
                remedies.append(Remedy(pays, checked.update(no_requester_pays=True)))
            yield checked.result(
                Level.ERROR,
                f"`{name}` is requester-pays, and no billing project is named",
                *remedies,
                why="every read and write without a billing project fails",
                facts={"requesterPays": True, "billingProject": None},
            )
        elif bucket and bucket.requester_pays:
            yield checked.result(
                Level.NOTE,
                f"requests to `{name}` are billed to `{payer}`",
                why="the bucket is requester-pays; programs on the TPU must name the project too: `--billing-project` of "
                "gcloud, `userProject` in the API, `user_project` in Python",
                facts={"requesterPays": True, "billingProject": payer},
            )


@check_rule("TPU105", "reading is free except for the network")
def storage_class_is_free_to_read(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check the default storage class of the bucket's objects.

    Every read of Nearline, Coldline and Archive is billed per GiB: training reads its data once per epoch, and an Archive epoch
    costs more than one from another continent. An object is also billed for at least 30, 90 or 365 days, which matters for
    checkpoints. Coldline and Archive are a warning, as objects may have another class than the default; Nearline is a note.
    With Autoclass reads are free, which is a note (price list and documentation of storage classes).
    """
    for checked, bucket in iter_readable_buckets(facts):
        name, class_ = checked.name, bucket.storage_class
        has_autoclass = bucket.autoclass
        values = {"storageClass": class_, "autoclass": has_autoclass}
        if not class_:
            continue
        if has_autoclass:
            text = f"Autoclass chooses the storage class of each object in `{name}`"
            why = (
                "an object that is read becomes STANDARD again, and reads are free; each object has a small monthly fee"
            )
            yield checked.result(Level.NOTE, text, why=why, facts=values)
        elif class_ in _CLASS_LEVELS:
            yield _charged_class_result(checked, class_, values)
        elif class_ not in load_locations()["classes"]:
            text = f"the cost of reading `{name}` is unknown: its storage class `{class_}` is newer than this version"
            yield checked.result(Level.UNKNOWN, text, facts=values)


def _charged_class_result(checked: _CheckedBucket, class_: str, values: dict[str, Any]) -> RuleResult:
    use, price, days = checked.bucket.use, retrieval_price(class_), load_locations()["classes"][class_]["days"]
    why = [f"every read is billed, {price} in addition to the network"] if use.reads else []
    why += [f"each checkpoint is billed for {days} days, even if it is deleted earlier"] if use.writes else []
    rewrite = checked.command("storage objects update", f"{use.url}/**", storage_class="STANDARD")
    return checked.result(
        _CLASS_LEVELS[class_],
        f"new objects in `{checked.name}` are {class_}",
        Remedy("make new objects STANDARD", checked.update(default_storage_class="STANDARD")),
        Remedy("rewrite the existing objects, which is billed as one read", rewrite),
        why="; ".join(why) or None,
        facts={
            **values,
            "retrievalPricePerGiB": float(price.high) if price else None,
            "minimumStorageDays": days,
            "priceDate": price.seen if price else None,
        },
    )


@check_rule("TPU106", "written objects can be deleted")
def objects_can_be_deleted(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that a bucket that is written to has no retention policy and no default event-based hold.

    Under either, objects can be neither deleted nor overwritten: the second checkpoint with the same name, the removal of old
    checkpoints and most temporary files fail. An error; a locked policy can never be removed or shortened. Not checked for a
    node that serves (documentation, Bucket Lock and object holds).
    """
    for checked, bucket in iter_readable_buckets(facts):
        if not checked.bucket.use.writes:
            continue
        if not bucket.retention and not bucket.default_event_based_hold:
            continue
        reasons, remedies = [], []
        if bucket.retention:
            locked = "locked " if bucket.retention_is_locked else ""
            reasons.append(f"a {locked}retention policy keeps them for {_period_in_words(bucket.retention)}")
            text = "remove the retention policy, if you are responsible for it"
            remedies.append(Remedy(text, checked.update(clear_retention_period=True)))
        if bucket.default_event_based_hold:
            reasons.append("new objects get an event-based hold")
            text = "end the hold for new objects; existing objects keep theirs"
            remedies.append(Remedy(text, checked.update(no_default_event_based_hold=True)))
        if bucket.retention and bucket.retention_is_locked:
            text = "write checkpoints to another bucket: a locked retention policy cannot be removed or shortened"
            remedies = [Remedy(text)]
        if checked.bucket.use.reads:
            remedies.append(checked.read_only_remedy)
        yield checked.result(
            Level.ERROR,
            f"checkpoints in `{checked.name}` cannot be deleted or overwritten: {', and '.join(reasons)}",
            *remedies,
            why="programs that keep the last few checkpoints, or write to the same name again, fail there",
            facts={
                "retentionPeriod": int(bucket.retention.total_seconds()) if bucket.retention else 0,
                "isLocked": bucket.retention_is_locked,
                "defaultEventBasedHold": bucket.default_event_based_hold,
            },
        )


@check_rule("TPU107", "deleted objects are gone")
def deleted_objects_are_free(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that a bucket that is written to does not keep, and bill for, deleted or overwritten objects.

    With object versioning, old versions of checkpoints remain until someone deletes them: a warning, or a note if a lifecycle
    rule deletes old versions. With soft delete, the default of new buckets, they remain for 7 days: a note (documentation of
    object versioning and soft delete).
    """
    for checked, bucket in iter_readable_buckets(facts):
        if not checked.bucket.use.writes:
            continue
        deletes_old = _deletes_old_versions(bucket)
        values = {
            "versioning": bucket.versioning,
            "softDeleteSeconds": int(bucket.soft_delete.total_seconds()),
            "deletesOldVersions": deletes_old,
        }
        if not bucket.versioning and not bucket.soft_delete:
            continue
        keeping, remedies = [], []
        if bucket.versioning:
            until = "until a lifecycle rule deletes them" if deletes_old else "until you delete them"
            keeping.append(f"versioning keeps old versions {until}")
            text = "turn versioning off; existing old versions remain"
            remedies.append(Remedy(text, checked.update(no_versioning=True)))
        if bucket.soft_delete:
            keeping.append(f"soft delete keeps them for {_period_in_words(bucket.soft_delete)}")
            text = "turn soft delete off; nothing can be restored then, so do this only if all data is temporary"
            remedies.append(Remedy(text, checked.update(clear_soft_delete=True)))
        yield checked.result(
            Level.WARNING if bucket.versioning and not deletes_old else Level.NOTE,
            f"deleted or overwritten checkpoints in `{checked.name}` are still billed: {', and '.join(keeping)}",
            *remedies,
            why="a run that writes a checkpoint every few minutes and keeps the last few pays for all of them",
            facts=values,
        )


def _deletes_old_versions(bucket: Bucket) -> bool:
    """Return whether a lifecycle rule deletes versions that are no longer live [API storage v1, lifecycle]."""
    for rule in bucket.lifecycle:
        is_about_old = {"numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore"} & set(rule.condition)
        if rule.action == "Delete" and (is_about_old or rule.condition.get("isLive") is False):
            return True
    return False


def _period_in_words(period: timedelta) -> str:
    for unit, name in ((timedelta(days=1), "day"), (timedelta(hours=1), "hour"), (timedelta(minutes=1), "minute")):
        if period >= unit and not period % unit:
            return f"{period // unit} {name}" + ("" if period == unit else "s")
    return f"{period.total_seconds():.0f} seconds"


BUCKET_RULES = (
    bucket_is_colocated,
    bucket_is_readable,
    bucket_is_in_project,
    requests_are_paid,
    storage_class_is_free_to_read,
    objects_can_be_deleted,
    deleted_objects_are_free,
    bucket_has_data,
)
