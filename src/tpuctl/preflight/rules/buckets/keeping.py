"""What it costs to keep and change things in a bucket, and what it forbids."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.colocation import retrieval
from tpuctl.colocation.table import load
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.rules.buckets.uses import command, each_known, payer, root, update

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.model.bucket import Bucket
    from tpuctl.preflight.facts import BucketFacts, Facts

_LEVELS = {"NEARLINE": Level.NOTE, "COLDLINE": Level.WARNING, "ARCHIVE": Level.WARNING}


@rule("TPU105", "reading costs nothing but the network")
def storage_class(facts: Facts) -> Iterator[Found]:
    """Check the storage class that objects of the bucket have by default.

    Reading Nearline, Coldline and Archive is charged per GiB, every time: training reads its data once per epoch, and an
    Archive epoch costs more than one from another continent. An object is also billed for 30, 90 or 365 days however soon
    it is deleted, which counts for checkpoints. Coldline and Archive are a warning, as objects may have another class than
    the bucket's default; Nearline is a note. With Autoclass nothing is charged for reads, which is a note (price list and
    documentation of storage classes).
    """
    for about, bucket in each_known(facts):
        name, class_ = root(about.use.bucket), bucket.storage_class
        values = {"storageClass": class_, "autoclass": _has_autoclass(bucket.raw)}
        if not class_:
            continue
        if _has_autoclass(bucket.raw):
            text = f"Autoclass chooses the storage class of each object in `{name}`"
            why = "what is read becomes STANDARD again and its reads are not charged; each object costs a small fee a month"
            yield Found(level=Level.NOTE, subject=name, text=text, why=why, facts=values)
        elif class_ in _LEVELS:
            yield _charged(facts, about, class_, values)
        elif class_ in load().classes:
            yield Found(
                level=Level.OK, subject=name, text=f"`{name}` is {class_}: reading is not charged", facts=values
            )
        else:
            text = f"what reading `{name}` costs is not known: its storage class `{class_}` is newer than this version"
            yield Found(level=Level.UNKNOWN, subject=name, text=text, facts=values)


def _charged(facts: Facts, about: BucketFacts, class_: str, values: Mapping[str, Any]) -> Found:
    name, price, days = root(about.use.bucket), retrieval(class_), load().classes[class_].days
    why = [f"reading it is charged each time, {price} beside the network"] if about.use.reads else []
    why += [f"each checkpoint is billed for {days} days, however soon it is deleted"] if about.use.writes else []
    pattern = f"{about.use.url}/**"
    return Found(
        level=_LEVELS[class_],
        subject=name,
        text=f"new objects in `{name}` are {class_}",
        why="; ".join(why) or None,
        remedies=(
            Remedy("make new objects STANDARD", update(facts, about, "--default-storage-class=STANDARD")),
            Remedy(
                "rewrite the objects that are there, which is charged as one read",
                command("storage", "objects", "update", pattern, "--storage-class=STANDARD", *payer(facts, about)),
            ),
        ),
        facts={
            **values,
            "retrievalPricePerGiB": float(price.high) if price else None,
            "minimumStorageDays": days,
            "priceDate": price.seen if price else None,
        },
    )


@rule("TPU106", "what is written may be deleted")
def held(facts: Facts) -> Iterator[Found]:
    """Check that a bucket which is written has no retention policy and no default event-based hold.

    Under either, objects can neither be deleted nor overwritten: the second checkpoint of the same name, the clean-up of old
    ones and most temporary files are refused. An error; a locked policy cannot be removed or shortened by anybody. Who serves
    writes nothing and is not asked (documentation, Bucket Lock and object holds).
    """
    for about, bucket in each_known(facts):
        if not about.use.writes:
            continue
        name = root(about.use.bucket)
        if not bucket.retention and not bucket.default_event_based_hold:
            yield Found(level=Level.OK, subject=name, text=f"objects in `{name}` can be overwritten and deleted")
            continue
        reasons = [_policy(bucket, bucket.retention)] if bucket.retention else []
        reasons += ["new objects get an event-based hold"] if bucket.default_event_based_hold else []
        yield Found(
            level=Level.ERROR,
            subject=name,
            text=f"checkpoints in `{name}` cannot be deleted or overwritten: {', and '.join(reasons)}",
            why="programs that keep the last few checkpoints, or write to the same name again, fail there",
            remedies=tuple(_releases(facts, about, bucket)),
            facts={
                "retentionPeriod": int(bucket.retention.total_seconds()) if bucket.retention else 0,
                "isLocked": bucket.retention_is_locked,
                "defaultEventBasedHold": bucket.default_event_based_hold,
            },
        )


def _policy(bucket: Bucket, period: timedelta) -> str:
    locked = "locked " if bucket.retention_is_locked else ""
    return f"a {locked}retention policy keeps them for {_in_words(period)}"


def _releases(facts: Facts, about: BucketFacts, bucket: Bucket) -> Iterator[Remedy]:
    if bucket.retention and bucket.retention_is_locked:
        yield Remedy("write checkpoints to another bucket: a locked retention policy cannot be removed or shortened")
        yield from _only_read(about)
        return
    if bucket.retention:
        yield Remedy(
            "remove the retention policy, if it is yours to remove", update(facts, about, "--clear-retention-period")
        )
    if bucket.default_event_based_hold:
        text = "end the hold for new objects; those that are there keep theirs"
        yield Remedy(text, update(facts, about, "--no-default-event-based-hold"))
    yield from _only_read(about)


def _only_read(about: BucketFacts) -> Iterator[Remedy]:
    if about.use.reads:
        yield Remedy(f"or say that it is only read: `--data-bucket={about.use.url}` instead of `--bucket`")


@rule("TPU107", "what is deleted is gone")
def kept(facts: Facts) -> Iterator[Found]:
    """Check that a bucket which is written does not go on billing for what was deleted or overwritten.

    With object versioning every overwritten or deleted checkpoint stays until somebody deletes the old version: a warning,
    or a note where a lifecycle rule deletes old versions. With soft delete, which new buckets have for 7 days, it stays for
    that long: a note (documentation of object versioning and soft delete).
    """
    for about, bucket in each_known(facts):
        if not about.use.writes:
            continue
        name = root(about.use.bucket)
        values = {
            "versioning": bucket.versioning,
            "softDeleteSeconds": int(bucket.soft_delete.total_seconds()),
            "deletesOldVersions": _deletes_old_versions(bucket.raw),
        }
        if not bucket.versioning and not bucket.soft_delete:
            text = f"what is deleted from `{name}` is no longer billed"
            yield Found(level=Level.OK, subject=name, text=text, facts=values)
            continue
        is_endless = bucket.versioning and not values["deletesOldVersions"]
        yield Found(
            level=Level.WARNING if is_endless else Level.NOTE,
            subject=name,
            text=f"checkpoints that are deleted from `{name}` or overwritten there are billed on: {_keeping(bucket)}",
            why="a run that writes a checkpoint every few minutes and keeps the last few pays for all of them",
            remedies=tuple(_endings(facts, about, bucket)),
            facts=values,
        )


def _keeping(bucket: Bucket) -> str:
    until = (
        "until a lifecycle rule deletes them" if _deletes_old_versions(bucket.raw) else "until somebody deletes them"
    )
    parts = [f"versioning keeps old versions {until}"] if bucket.versioning else []
    parts += [f"soft delete keeps them for {_in_words(bucket.soft_delete)}"] if bucket.soft_delete else []
    return ", and ".join(parts)


def _endings(facts: Facts, about: BucketFacts, bucket: Bucket) -> Iterator[Remedy]:
    if bucket.versioning:
        yield Remedy("keep no old versions; those that are there stay", update(facts, about, "--no-versioning"))
    if bucket.soft_delete:
        text = "delete for good at once; nothing can be restored then, so do it only where all is temporary"
        yield Remedy(text, update(facts, about, "--clear-soft-delete"))


def _deletes_old_versions(raw: Mapping[str, Any]) -> bool:
    """Tell whether a lifecycle rule deletes versions that are no longer live [API storage v1, lifecycle]."""
    for entry in (raw.get("lifecycle") or {}).get("rule") or ():
        condition = entry.get("condition") or {}
        is_about_old = {"numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore"} & set(condition)
        if (entry.get("action") or {}).get("type") == "Delete" and (is_about_old or condition.get("isLive") is False):
            return True
    return False


def _has_autoclass(raw: Mapping[str, Any]) -> bool:
    return bool((raw.get("autoclass") or {}).get("enabled"))


def _in_words(period: timedelta) -> str:
    for unit, name in ((timedelta(days=1), "day"), (timedelta(hours=1), "hour"), (timedelta(minutes=1), "minute")):
        if period >= unit and not period % unit:
            return f"{period // unit} {name}" + ("" if period == unit else "s")
    return f"{period.total_seconds():.0f} seconds"
