"""Rules about the buckets of the node: where they are, whether they can be read, what they cost, and what they forbid."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from tpuctl.accelerators import documented_zones_of, find_accelerator_type, load_accelerators
from tpuctl.check.colocation import (
    TB,
    Relation,
    best_locations,
    egress_price,
    load_locations,
    placement_relation,
    placement_spans,
    regions_within,
    retrieval_price,
)
from tpuctl.check.facts import Absent, Known, Purpose, Unknown, value_or_none
from tpuctl.check.findings import (
    Level,
    Remedy,
    RuleResult,
    check_rule,
    create_or_check_command,
    gcloud_command,
    refer_to_rule,
    short_reason,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from decimal import Decimal

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.check.colocation import EgressPrice
    from tpuctl.check.facts import BucketFacts, CheckFacts
    from tpuctl.models.bucket import Bucket, BucketContents, BucketPlacement


_RELATION_LEVELS = {
    Relation.MULTI_REGION: Level.WARNING,
    Relation.SAME_AREA: Level.ERROR,
    Relation.OTHER_AREA: Level.ERROR,
    Relation.UNKNOWN: Level.UNKNOWN,
}
_DISTANCE_WORDS = {
    Relation.MULTI_REGION: "the data is somewhere in the multi-region: {each}s are slower, at varying speed",
    Relation.SAME_AREA: "every {each} crosses between regions: it is slower",
    Relation.OTHER_AREA: "every {each} crosses between continents: it is far slower",
}


@check_rule("TPU101", "the bucket is where the TPU is")
def bucket_is_colocated(facts: CheckFacts) -> Iterator[RuleResult]:
    """Compare the location of each bucket with the TPU's zone.

    Reads within a zone or region, or from a dual-region that contains the TPU, are fast and free. Reads from a multi-region of
    the continent are billed and slower: a warning. Another region of the continent, including a multi-region without the TPU's
    region, and another continent are errors: the TPU waits for its data, and each epoch pays for the network again. For a
    read-only bucket, a running Anywhere Cache in the TPU's zone turns this into a note. A location that this version does not
    know is unknown (documentation, bucket locations; list prices, shown with their date).
    """
    for bucket_facts in iter_buckets(facts):
        placement = bucket_facts.placement
        if placement is None:
            continue
        yield _judge_placement(facts, bucket_facts, placement)
        # A cache must be in a zone of the bucket's own location [documentation, Rapid Cache].
        may_be_cached = (
            placement_spans(placement, facts.wanted.region)
            and not placement_relation(placement, facts.wanted.zone).is_colocated
        )
        if isinstance(bucket_facts.caches, Unknown) and may_be_cached:
            name = bucket_url(bucket_facts.use.bucket)
            what, permission = f"the Anywhere Caches of `{name}` in {facts.wanted.zone}", "storage.anywhereCaches.list"
            yield unread_bucket_result(
                bucket_facts.caches, name, what, permission=permission, role="roles/storage.admin"
            )


def _judge_placement(facts: CheckFacts, bucket_facts: BucketFacts, placement: BucketPlacement) -> RuleResult:
    wanted, name = facts.wanted, bucket_url(bucket_facts.use.bucket)
    relation = placement_relation(placement, wanted.zone)
    price = egress_price(placement, wanted.zone, own=wanted.egress_prices)
    values = _placement_facts(facts, bucket_facts, placement, price)
    place = f"the TPU in {wanted.region} (zone {wanted.zone})"
    if relation.is_colocated:
        text = f"`{name}` is in {describe_placement(placement)}, {place}"
        return RuleResult(Level.OK, name, text, facts=values)
    if relation is Relation.UNKNOWN:
        word = f"a {placement.kind}" if placement.kind else "a location without type"
        return RuleResult(
            Level.UNKNOWN,
            name,
            f"`{name}` is in {placement.location or 'an unnamed location'}, {word} that this version does not know; "
            f"unknown whether it is near {place}",
            remedies=(
                Remedy(
                    "look up the location in https://cloud.google.com/storage/docs/locations; a bucket in "
                    f"{' or '.join(best_locations(wanted.region))} would be co-located"
                ),
            ),
            facts=values,
        )
    is_cached = _has_cache(facts, bucket_facts)
    why = _distance_reason(relation, price, bucket_facts, facts)
    if is_cached:
        serves = "repeated reads, but no writes" if bucket_facts.use.writes else "repeated reads"
        why += f"; an Anywhere Cache in {wanted.zone} serves {serves}"
    return RuleResult(
        Level.NOTE if is_cached and not bucket_facts.use.writes else _RELATION_LEVELS[relation],
        name,
        f"`{name}` is in {describe_placement(placement)}, {place}",
        why=why,
        remedies=colocation_remedies(facts, bucket_facts, placement, has_cache=is_cached),
        facts=values,
    )


def describe_placement(placement: BucketPlacement) -> str:
    """Return a bucket's location as text: `EUROPE-WEST4`, `US (multi-region)`, `US (us-east1 and us-west1)`."""
    if placement.data_locations:
        return f"{placement.location} ({' and '.join(placement.data_locations).lower()})"
    return placement.location if placement.kind in {"region", "zone"} else f"{placement.location} ({placement.kind})"


def _distance_reason(
    relation: Relation, price: EgressPrice | None, bucket_facts: BucketFacts, facts: CheckFacts
) -> str:
    text = _DISTANCE_WORDS[relation].format(each="read" if bucket_facts.use.reads else "write")
    if price is None:
        return text
    if price.is_free:
        return f"{text}; it is free according to the price in your settings"
    text += f", and billed: {price}" if bucket_facts.use.reads else f", and reading it back is billed: {price}"
    if size := _epoch_size(facts, bucket_facts):
        text += f"; one epoch, reading all {size_in_words(size)} once, costs {price.of(size)}"
    return text


def _epoch_size(facts: CheckFacts, bucket_facts: BucketFacts) -> int | None:
    """Return the bytes that one epoch reads, from the user or from a complete listing; None if unknown."""
    if not bucket_facts.use.reads:
        return None
    contents = value_or_none(bucket_facts.contents)
    measured = contents.size if contents and contents.is_complete and contents.objects else None
    return facts.wanted.dataset_size if facts.wanted.dataset_size is not None else measured


def _has_cache(facts: CheckFacts, bucket_facts: BucketFacts) -> bool:
    caches = value_or_none(bucket_facts.caches) or ()
    return any(cache.is_running and cache.zone == facts.wanted.zone for cache in caches)


def _placement_facts(
    facts: CheckFacts, bucket_facts: BucketFacts, placement: BucketPlacement, price: EgressPrice | None
) -> dict[str, Any]:
    wanted, size = facts.wanted, _epoch_size(facts, bucket_facts)
    relation = placement_relation(placement, wanted.zone)
    near = None if relation.is_colocated else nearby_tpus(facts, placement)
    epoch = price.cost(size) if price and size is not None else (None, None)
    per_gib, per_tb = (price.low, price.high) if price else (None, None), price.cost(TB) if price else (None, None)
    return {
        "location": placement.location,
        "locationType": placement.kind,
        "dataLocations": list(placement.data_locations),
        "zone": wanted.zone,
        "region": wanted.region,
        "relation": str(relation),
        "pricePerGiBLow": _as_float(per_gib[0]),
        "pricePerGiBHigh": _as_float(per_gib[1]),
        "pricePerTBLow": _as_float(per_tb[0]),
        "pricePerTBHigh": _as_float(per_tb[1]),
        "priceDate": price.seen if price else None,
        "datasetSize": size,
        "costPerEpochLow": _as_float(epoch[0]),
        "costPerEpochHigh": _as_float(epoch[1]),
        "coLocated": list(best_locations(wanted.region)),
        "zonesWithType": list(near.zones) if near else None,
        "typesThere": list(near.generations) if near else None,
        "anywhereCache": _has_cache(facts, bucket_facts),
    }


def _as_float(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)


@check_rule("TPU102", "the bucket can be read")
def bucket_is_readable(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the bucket exists and that its metadata can be read.

    Bucket names are global: a mistyped name does not exist, or belongs to someone else. An error if the API says that the
    bucket does not exist; unknown if its metadata may not be read, with the permission that is needed (API storage v1,
    buckets.get). The other rules skip a bucket that could not be read.
    """
    for bucket_facts in iter_buckets(facts):
        name = bucket_url(bucket_facts.use.bucket)
        match bucket_facts.bucket:
            case Known():
                yield RuleResult(Level.OK, name, f"`{name}` exists and its metadata can be read")
            case Absent():
                listing = gcloud_command(
                    "storage", "buckets", "list", f"--project={facts.wanted.project}", "--format=value(name)"
                )
                yield RuleResult(
                    Level.ERROR,
                    name,
                    f"there is no bucket `{name}`",
                    why="every read and write fails; bucket names are global, so a similar name may belong to someone else",
                    remedies=(Remedy("compare the name with the buckets of the project", listing),),
                )
            case Unknown() if bucket_facts.is_unpaid:
                pass  # TPU104 reports it
            case Unknown() as fact:
                role = "roles/storage.legacyBucketReader"
                found = unread_bucket_result(fact, name, f"`{name}`", permission="storage.buckets.get", role=role)
                where = "" if bucket_facts.placement else "its location, "
                project = facts.wanted.billing_project
                # The service also refuses a request with a wrong billing project [API storage v1, userProject].
                doubt = (
                    f"or the billing project `{project}` is the cause: it must exist, and you need "
                    "`serviceusage.services.use` on it; otherwise name another with `--billing-project`"
                )
                yield replace(
                    found,
                    remedies=(*found.remedies, *((Remedy(doubt),) if project and not fact.is_passing else ())),
                    why=f"not checked: {where}its project, billing, storage class, retention and versioning",
                    is_passing=fact.is_passing
                    or (isinstance(bucket_facts.layout, Unknown) and bucket_facts.layout.is_passing),
                )


@check_rule("TPU108", "there is data to read")
def bucket_has_data(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that there are objects below the prefix that is read, or in the bucket if no prefix is named.

    A mistyped prefix lists nothing and raises no error: training starts without data, or fails after the TPU was billed. A
    warning, as the data may be uploaded later; a note for a bucket without prefix that is also written to, as it may be for
    checkpoints only (API storage v1, objects.list).
    """
    for bucket_facts in facts.buckets:
        use = bucket_facts.use
        if not use.reads or isinstance(bucket_facts.bucket, Absent):
            continue
        match bucket_facts.contents:
            case Known(contents):
                yield _contents_result(facts, bucket_facts, contents)
            case Unknown() if bucket_facts.is_unpaid:
                pass  # TPU104 reports it
            case Unknown() as fact:
                what, role = f"the list of objects in `{use.url}`", "roles/storage.objectViewer"
                yield unread_bucket_result(
                    refer_to_rule(fact, bucket_facts.bucket, "TPU102"),
                    use.url,
                    what,
                    permission="storage.objects.list",
                    role=role,
                )
            case Absent() | None:
                pass


def _contents_result(facts: CheckFacts, bucket_facts: BucketFacts, contents: BucketContents) -> RuleResult:
    use = bucket_facts.use
    values = {"objects": contents.objects, "size": contents.size, "isComplete": contents.is_complete}
    if contents.objects:
        more = "" if contents.is_complete else "at least "
        objects = f"{contents.objects} object" + ("" if contents.objects == 1 else "s")
        text = f"`{use.url}` has {more}{objects}, {size_in_words(contents.size)}"
        return RuleResult(Level.OK, use.url, text, facts=values)
    if not contents.is_complete:
        # A page may have only folder markers, or no entries at all, and be followed by others.
        text = f"the first page of `{use.url}` lists no data"
        return RuleResult(Level.NOTE, use.url, text, facts=values)
    is_written = use.writes and facts.wanted.purpose is Purpose.TRAIN
    checkpoints = "; ignore this if the bucket is for checkpoints only" if is_written else ""
    return RuleResult(
        Level.NOTE if is_written and not use.prefix else Level.WARNING,
        use.url,
        f"`{use.url}/` has no objects" if use.prefix else f"`{use.url}` is empty",
        why=f"a program that reads it finds no data{checkpoints}",
        remedies=(
            Remedy(
                "list the bucket",
                gcloud_command("storage", "ls", bucket_url(use.bucket), *payer_flag(facts, bucket_facts)),
            ),
        ),
        facts=values,
    )


@check_rule("TPU103", "the bucket belongs to the TPU's project")
def bucket_is_in_project(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the bucket and the TPU belong to the same project, by number.

    A bucket of another project is billed there, and access is decided there: roles that the TPU's account has in its own
    project do not apply. A warning, as sharing may be intended (API storage v1, projectNumber).
    """
    project = value_or_none(facts.project)
    if project is None:
        return
    for bucket_facts, bucket in iter_readable_buckets(facts):
        name = bucket_url(bucket_facts.use.bucket)
        values = {"bucketProjectNumber": bucket.project_number, "projectNumber": project.number}
        if not bucket.project_number or not project.number:
            continue
        if bucket.project_number == project.number:
            text = f"`{name}` belongs to `{project.id}`"
            yield RuleResult(Level.OK, name, text, facts=values)
            continue
        account = f"`{facts.account}`" if facts.account else "the TPU's account"
        yield RuleResult(
            Level.WARNING,
            name,
            f"`{name}` belongs to the project with the number {bucket.project_number}, not to `{project.id}` "
            f"({project.number})",
            why=f"storage and network are billed to the other project, and {account} needs a role there or on the bucket",
            remedies=(
                Remedy(f"check that it is the bucket you mean, and that its owner has granted access to {account}"),
            ),
            facts=values,
        )


@check_rule("TPU104", "a project pays for the requests")
def requests_are_paid(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that a billing project is named for requester-pays buckets.

    Without one, every request of the TPU's programs fails: an error. With one, requests and network are billed to it, and the
    programs must name it as well: a note (documentation, Requester Pays; API storage v1, userProject).
    """
    for bucket_facts in iter_buckets(facts):
        name, payer = bucket_url(bucket_facts.use.bucket), facts.wanted.billing_project
        match bucket_facts.bucket:
            case Known(bucket) if bucket.requester_pays and payer:
                yield RuleResult(
                    Level.NOTE,
                    name,
                    f"requests to `{name}` are billed to `{payer}`",
                    why="the bucket is requester-pays; programs on the TPU must name the project too: `--billing-project` of "
                    "gcloud, `userProject` in the API, `user_project` in Python",
                    facts={"requesterPays": True, "billingProject": payer},
                )
            case Known(bucket) if bucket.requester_pays:
                yield _unpaid_result(facts, bucket_facts, bucket)
            case Known():
                yield RuleResult(Level.OK, name, f"the owner of `{name}` pays for requests")
            case Unknown() if bucket_facts.is_unpaid:
                yield _unpaid_result(facts, bucket_facts, None)
            case Absent() | Unknown():
                pass


def _unpaid_result(facts: CheckFacts, bucket_facts: BucketFacts, bucket: Bucket | None) -> RuleResult:
    name, project = bucket_url(bucket_facts.use.bucket), value_or_none(facts.project)
    remedies = [
        Remedy(
            f"name the project that pays, such as `--billing-project={facts.wanted.project}`, here and in the programs that "
            "use the bucket"
        )
    ]
    if bucket and project and bucket.project_number == project.number:
        remedies.append(
            Remedy(
                "or let the bucket's own project pay", update_bucket_command(facts, bucket_facts, "--no-requester-pays")
            )
        )
    return RuleResult(
        Level.ERROR,
        name,
        f"`{name}` is requester-pays, and no billing project is named",
        why="every read and write without a billing project fails",
        remedies=tuple(remedies),
        facts={"requesterPays": True, "billingProject": None},
    )


_CLASS_LEVELS = {"NEARLINE": Level.NOTE, "COLDLINE": Level.WARNING, "ARCHIVE": Level.WARNING}


@check_rule("TPU105", "reading is free except for the network")
def storage_class_is_free_to_read(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check the default storage class of the bucket's objects.

    Every read of Nearline, Coldline and Archive is billed per GiB: training reads its data once per epoch, and an Archive epoch
    costs more than one from another continent. An object is also billed for at least 30, 90 or 365 days, which matters for
    checkpoints. Coldline and Archive are a warning, as objects may have another class than the default; Nearline is a note.
    With Autoclass reads are free, which is a note (price list and documentation of storage classes).
    """
    for bucket_facts, bucket in iter_readable_buckets(facts):
        name, class_ = bucket_url(bucket_facts.use.bucket), bucket.storage_class
        values = {"storageClass": class_, "autoclass": _has_autoclass(bucket.raw)}
        if not class_:
            continue
        if _has_autoclass(bucket.raw):
            text = f"Autoclass chooses the storage class of each object in `{name}`"
            why = (
                "an object that is read becomes STANDARD again, and reads are free; each object has a small monthly fee"
            )
            yield RuleResult(Level.NOTE, name, text, why=why, facts=values)
        elif class_ in _CLASS_LEVELS:
            yield _charged_class_result(facts, bucket_facts, class_, values)
        elif class_ in load_locations().classes:
            yield RuleResult(Level.OK, name, f"`{name}` is {class_}: reading is free", facts=values)
        else:
            text = f"the cost of reading `{name}` is unknown: its storage class `{class_}` is newer than this version"
            yield RuleResult(Level.UNKNOWN, name, text, facts=values)


def _charged_class_result(
    facts: CheckFacts, bucket_facts: BucketFacts, class_: str, values: Mapping[str, Any]
) -> RuleResult:
    name, price, days = (
        bucket_url(bucket_facts.use.bucket),
        retrieval_price(class_),
        load_locations().classes[class_].days,
    )
    why = [f"every read is billed, {price} in addition to the network"] if bucket_facts.use.reads else []
    why += (
        [f"each checkpoint is billed for {days} days, even if it is deleted earlier"] if bucket_facts.use.writes else []
    )
    pattern = f"{bucket_facts.use.url}/**"
    return RuleResult(
        _CLASS_LEVELS[class_],
        name,
        f"new objects in `{name}` are {class_}",
        why="; ".join(why) or None,
        remedies=(
            Remedy(
                "make new objects STANDARD",
                update_bucket_command(facts, bucket_facts, "--default-storage-class=STANDARD"),
            ),
            Remedy(
                "rewrite the existing objects, which is billed as one read",
                gcloud_command(
                    "storage",
                    "objects",
                    "update",
                    pattern,
                    "--storage-class=STANDARD",
                    *payer_flag(facts, bucket_facts),
                ),
            ),
        ),
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
    for bucket_facts, bucket in iter_readable_buckets(facts):
        if not bucket_facts.use.writes:
            continue
        name = bucket_url(bucket_facts.use.bucket)
        if not bucket.retention and not bucket.default_event_based_hold:
            yield RuleResult(Level.OK, name, f"objects in `{name}` can be overwritten and deleted")
            continue
        reasons = []
        if bucket.retention:
            locked = "locked " if bucket.retention_is_locked else ""
            reasons.append(f"a {locked}retention policy keeps them for {_period_in_words(bucket.retention)}")
        if bucket.default_event_based_hold:
            reasons.append("new objects get an event-based hold")
        yield RuleResult(
            Level.ERROR,
            name,
            f"checkpoints in `{name}` cannot be deleted or overwritten: {', and '.join(reasons)}",
            why="programs that keep the last few checkpoints, or write to the same name again, fail there",
            remedies=tuple(_hold_remedies(facts, bucket_facts, bucket)),
            facts={
                "retentionPeriod": int(bucket.retention.total_seconds()) if bucket.retention else 0,
                "isLocked": bucket.retention_is_locked,
                "defaultEventBasedHold": bucket.default_event_based_hold,
            },
        )


def _hold_remedies(facts: CheckFacts, bucket_facts: BucketFacts, bucket: Bucket) -> Iterator[Remedy]:
    if bucket.retention and bucket.retention_is_locked:
        yield Remedy("write checkpoints to another bucket: a locked retention policy cannot be removed or shortened")
    else:
        if bucket.retention:
            command = update_bucket_command(facts, bucket_facts, "--clear-retention-period")
            yield Remedy("remove the retention policy, if you are responsible for it", command)
        if bucket.default_event_based_hold:
            command = update_bucket_command(facts, bucket_facts, "--no-default-event-based-hold")
            yield Remedy("end the hold for new objects; existing objects keep theirs", command)
    if bucket_facts.use.reads:
        yield Remedy(f"or declare it as read-only: `--data-bucket={bucket_facts.use.url}` instead of `--bucket`")


@check_rule("TPU107", "deleted objects are gone")
def deleted_objects_are_free(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that a bucket that is written to does not keep, and bill for, deleted or overwritten objects.

    With object versioning, old versions of checkpoints remain until someone deletes them: a warning, or a note if a lifecycle
    rule deletes old versions. With soft delete, the default of new buckets, they remain for 7 days: a note (documentation of
    object versioning and soft delete).
    """
    for bucket_facts, bucket in iter_readable_buckets(facts):
        if not bucket_facts.use.writes:
            continue
        name, deletes_old = bucket_url(bucket_facts.use.bucket), _deletes_old_versions(bucket.raw)
        values = {
            "versioning": bucket.versioning,
            "softDeleteSeconds": int(bucket.soft_delete.total_seconds()),
            "deletesOldVersions": deletes_old,
        }
        if not bucket.versioning and not bucket.soft_delete:
            text = f"objects deleted from `{name}` are no longer billed"
            yield RuleResult(Level.OK, name, text, facts=values)
            continue
        keeping, remedies = [], []
        if bucket.versioning:
            until = "until a lifecycle rule deletes them" if deletes_old else "until you delete them"
            keeping.append(f"versioning keeps old versions {until}")
            text = "turn versioning off; existing old versions remain"
            remedies.append(Remedy(text, update_bucket_command(facts, bucket_facts, "--no-versioning")))
        if bucket.soft_delete:
            keeping.append(f"soft delete keeps them for {_period_in_words(bucket.soft_delete)}")
            text = "turn soft delete off; nothing can be restored then, so do this only if all data is temporary"
            remedies.append(Remedy(text, update_bucket_command(facts, bucket_facts, "--clear-soft-delete")))
        yield RuleResult(
            Level.WARNING if bucket.versioning and not deletes_old else Level.NOTE,
            name,
            f"deleted or overwritten checkpoints in `{name}` are still billed: {', and '.join(keeping)}",
            why="a run that writes a checkpoint every few minutes and keeps the last few pays for all of them",
            remedies=tuple(remedies),
            facts=values,
        )


def _deletes_old_versions(raw: Mapping[str, Any]) -> bool:
    """Return whether a lifecycle rule deletes versions that are no longer live [API storage v1, lifecycle]."""
    for entry in (raw.get("lifecycle") or {}).get("rule") or ():
        condition = entry.get("condition") or {}
        is_about_old = {"numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore"} & set(condition)
        if (entry.get("action") or {}).get("type") == "Delete" and (is_about_old or condition.get("isLive") is False):
            return True
    return False


def _has_autoclass(raw: Mapping[str, Any]) -> bool:
    return bool((raw.get("autoclass") or {}).get("enabled"))


def _period_in_words(period: timedelta) -> str:
    for unit, name in ((timedelta(days=1), "day"), (timedelta(hours=1), "hour"), (timedelta(minutes=1), "minute")):
        if period >= unit and not period % unit:
            return f"{period // unit} {name}" + ("" if period == unit else "s")
    return f"{period.total_seconds():.0f} seconds"


_MAX_BUCKET_NAME = 63  # documentation, bucket naming: without dots


def colocation_remedies(
    facts: CheckFacts, bucket_facts: BucketFacts, placement: BucketPlacement, *, has_cache: bool
) -> tuple[Remedy, ...]:
    """Return how to co-locate a TPU and a bucket, the most useful remedy first.

    tpuctl itself never creates a bucket and never moves data.
    """
    wanted = facts.wanted
    found: list[Remedy] = []
    # Within a multi-region all zones are equally near.
    if placement_relation(placement, wanted.zone) is not Relation.MULTI_REGION:
        found.append(_move_tpu_remedy(facts, placement))
    found.extend(_move_data_remedies(facts, bucket_facts, placement, first="or " if found else ""))
    if not has_cache and bucket_facts.use.reads and placement_spans(placement, wanted.region):
        # A cache must be in a zone of the bucket's own location [documentation, Rapid Cache]: not offered elsewhere.
        text = f"or, for data that is read many times, create an Anywhere Cache (Rapid Cache) of the bucket in {wanted.zone}, "
        create = ("storage", "buckets", "anywhere-caches", "create", bucket_url(bucket_facts.use.bucket), wanted.zone)
        found.append(
            Remedy(text + "which has its own prices", gcloud_command(*create, *payer_flag(facts, bucket_facts)))
        )
    return tuple(found)


def _move_tpu_remedy(facts: CheckFacts, placement: BucketPlacement) -> Remedy:
    near, wanted = nearby_tpus(facts, placement), facts.wanted.spec.accelerator_type
    source = "" if near.is_live else ", according to the table that ships with tpuctl"
    still = "" if regions_within(placement) else "; reads from a multi-region are billed there too"
    if near.zones:
        offer = "offers" if len(near.zones) == 1 else "offer"
        text = f"create the TPU where the data is: {', '.join(near.zones)} {offer} `{wanted}`{source}{still}"
        return Remedy(text, _check_command(facts, wanted, near.zones[0]))
    if not near.generations:
        return Remedy(f"no zone of {near.place} offers a TPU{source}: move the data instead")
    generation = generation_of(wanted)
    lacking = f"`{wanted}`" if generation in near.generations or not generation else generation
    text = f"no zone of {near.place} offers {lacking}; it offers {', '.join(near.generations)}"
    if near.example is None:
        return Remedy(f"{text}{source}")
    text += f" (e.g. `{near.example[0]}` in {near.example[1]}){source}{still}"
    return Remedy(text, _check_command(facts, *near.example))


def _check_command(facts: CheckFacts, accelerator_type: str, zone: str) -> str:
    # Without a name the command only checks.
    nameless = replace(facts.wanted, name=None)
    return create_or_check_command(nameless, zone=zone, accelerator_type=accelerator_type)


def _move_data_remedies(
    facts: CheckFacts, bucket_facts: BucketFacts, placement: BucketPlacement, *, first: str
) -> Iterator[Remedy]:
    wanted = facts.wanted
    locations = best_locations(wanted.region)
    # The bucket's name with the region at the end. Dots are replaced, as they would need a verified domain.
    places = "|".join(
        f"-{re.escape(place)}$" for place in (placement.location.lower(), *regions_within(placement)) if place
    )
    stem = re.sub(places or "$^", "", bucket_facts.use.bucket.replace(".", "-"))
    name = f"{stem[: _MAX_BUCKET_NAME - len(wanted.region) - 1].rstrip('-_')}-{wanted.region}"
    options = (f"--project={wanted.project}", f"--location={locations[0]}", "--uniform-bucket-level-access")
    yield Remedy(
        f"{first}use a bucket where the TPU is, in {' or '.join(locations)}",
        gcloud_command("storage", "buckets", "create", bucket_url(name), *options),
    )
    if bucket_facts.use.reads:
        target = f"{bucket_url(name)}/{bucket_facts.use.prefix}".rstrip("/")
        yield Remedy(
            "and copy the data there, which is billed like reading it once",
            gcloud_command(
                "storage", "rsync", "--recursive", bucket_facts.use.url, target, *payer_flag(facts, bucket_facts)
            ),
        )


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
    wanted = facts.wanted.spec.accelerator_type
    live = value_or_none(facts.offers)
    offers = _documented_offers(wanted) if live is None else live
    nearby = {zone: types for zone, types in offers.items() if placement_spans(placement, zone.rpartition("-")[0])}
    names = {generation_of(name) for types in nearby.values() for name in types} - {""}
    order = list(load_accelerators().generations)
    spec, like = facts.wanted.spec, _find_type(wanted)
    if spec.topology and like:
        # Types have default shapes; for another shape only the generation counts.
        prefix = f"{like.generation.prefix}-"
        offering = [zone for zone, types in nearby.items() if any(name.startswith(prefix) for name in types)]
    else:
        offering = [zone for zone, types in nearby.items() if wanted in types]
    place = " and ".join(regions_within(placement)) or f"the {placement.location} multi-region"
    return NearbyTpus(
        place,
        tuple(sorted(offering)),
        tuple(sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))),
        _most_similar_type(nearby, wanted),
        live is not None,
    )


def generation_of(accelerator_type: str) -> str:
    """Return the generation of a type, such as `v5e`; for an unknown type the part before the number."""
    found = _find_type(accelerator_type)
    return found.generation.name if found else accelerator_type.rpartition("-")[0]


def _most_similar_type(nearby: Mapping[str, tuple[str, ...]], wanted: str) -> tuple[str, str] | None:
    """Return the most similar type of the newest generation, and a zone; AI regions last."""
    like = _find_type(wanted)
    order = list(load_accelerators().generations)
    best: tuple[tuple[int, bool, int, bool, str], str, str] | None = None
    for zone, types in nearby.items():
        for name in types:
            if found := _find_type(name):
                is_other_size = like is None or found.size != like.size
                key = (-order.index(found.generation.name), is_other_size, found.size, "-ai" in zone, zone)
                best = min(best, (key, name, zone)) if best else (key, name, zone)
    return best[1:] if best else None


@cache
def _documented_offers(wanted: str) -> Mapping[str, tuple[str, ...]]:
    """Return the offers of all zones according to the table, without single-tenant zones."""
    names = [
        generation.type_of(size) for generation in load_accelerators().generations.values() for size in generation.sizes
    ]
    offers: dict[str, list[str]] = {}
    for name in dict.fromkeys([*names, wanted]):
        if accelerator := _find_type(name):
            for zone in documented_zones_of(accelerator):
                offers.setdefault(zone, []).append(name)
    return {zone: tuple(types) for zone, types in offers.items()}


@cache  # every zone offers some dozens of types, and the same question comes for each bucket
def _find_type(name: str) -> AcceleratorType | None:
    return find_accelerator_type(name)


_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def iter_buckets(facts: CheckFacts) -> Iterator[BucketFacts]:
    """Yield the facts about each bucket once, even if several of its prefixes are used. A node that serves does not write.

    The contents of several prefixes are not added up: one may contain another.
    """
    by_name: dict[str, list[BucketFacts]] = {}
    only_reads = facts.wanted.purpose is Purpose.SERVE
    for bucket_facts in facts.buckets:
        of_node = replace(bucket_facts, use=replace(bucket_facts.use, writes=False)) if only_reads else bucket_facts
        by_name.setdefault(bucket_facts.use.bucket, []).append(of_node)
    for first, *others in by_name.values():
        if not others:
            yield first
            continue
        uses = [bucket_facts.use for bucket_facts in (first, *others)]
        merged = replace(first.use, prefix="", reads=any(u.reads for u in uses), writes=any(u.writes for u in uses))
        yield replace(first, use=merged, contents=None)


def iter_readable_buckets(facts: CheckFacts) -> Iterator[tuple[BucketFacts, Bucket]]:
    """Yield each bucket that could be read."""
    for bucket_facts in iter_buckets(facts):
        if isinstance(bucket_facts.bucket, Known):
            yield bucket_facts, bucket_facts.bucket.value


def unread_bucket_result(fact: Unknown, subject: str, what: str, *, permission: str, role: str) -> RuleResult:
    """Return the finding that `what` could not be read. Reading it takes `permission`, which `role` has."""
    needed = fact.permission or permission
    if fact.is_passing:
        advice = f"check again; reading it takes the permission `{needed}`"
    else:
        advice = f"ask the bucket's owner for the permission `{needed}`, which the role `{role}` has"
    return RuleResult(
        Level.UNKNOWN,
        subject,
        f"{what} could not be read: {short_reason(fact)}",
        remedies=(Remedy(advice),),
        facts={"permission": needed},
        is_passing=fact.is_passing,
    )


def bucket_url(bucket: str) -> str:
    """Return `gs://bucket`."""
    return f"gs://{bucket}"


def payer_flag(facts: CheckFacts, bucket_facts: BucketFacts) -> tuple[str, ...]:
    """Return the flag that names the billing project, for a requester-pays bucket."""
    bucket, project = value_or_none(bucket_facts.bucket), facts.wanted.billing_project
    return (f"--billing-project={project}",) if bucket and bucket.requester_pays and project else ()


def update_bucket_command(facts: CheckFacts, bucket_facts: BucketFacts, *flags: str) -> str:
    """Return the command that changes a bucket's settings."""
    return gcloud_command(
        "storage", "buckets", "update", bucket_url(bucket_facts.use.bucket), *flags, *payer_flag(facts, bucket_facts)
    )


def size_in_words(size: float) -> str:
    """Return a number of bytes in decimal units: `1.5 TB`."""
    power = 0
    while size >= 999.5 and power < len(_SIZE_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_SIZE_UNITS[power]}" if size < 9.95 and power else f"{size:.0f} {_SIZE_UNITS[power]}"


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
