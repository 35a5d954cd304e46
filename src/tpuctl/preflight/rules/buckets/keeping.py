"""What storing and changing objects in a bucket costs, and what the bucket forbids."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.colocation.prices import retrieval
from tpuctl.colocation.table import load
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.rules.buckets.uses import command, each_known, payer, root, update

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.model.bucket import Bucket
    from tpuctl.preflight.facts import BucketFacts, Facts

_LEVELS = {"NEARLINE": Level.NOTE, "COLDLINE": Level.WARNING, "ARCHIVE": Level.WARNING}


@rule("TPU105", "reading is free except for the network")
def storage_class(facts: Facts) -> Iterator[Found]:
    """Check the default storage class of the bucket's objects.

    Every read of Nearline, Coldline and Archive is billed per GiB: training reads its data once per epoch, and an Archive epoch
    costs more than one from another continent. An object is also billed for at least 30, 90 or 365 days, which matters for
    checkpoints. Coldline and Archive are a warning, as objects may have another class than the default; Nearline is a note.
    With Autoclass reads are free, which is a note (price list and documentation of storage classes).
    """
    for about, bucket in each_known(facts):
        name, class_ = root(about.use.bucket), bucket.storage_class
        values = {"storageClass": class_, "autoclass": _has_autoclass(bucket.raw)}
        if not class_:
            continue
        if _has_autoclass(bucket.raw):
            text = f"Autoclass chooses the storage class of each object in `{name}`"
            why = (
                "an object that is read becomes STANDARD again, and reads are free; each object has a small monthly fee"
            )
            yield Found(level=Level.NOTE, subject=name, text=text, why=why, facts=values)
        elif class_ in _LEVELS:
            yield _charged(facts, about, class_, values)
        elif class_ in load().classes:
            yield Found(level=Level.OK, subject=name, text=f"`{name}` is {class_}: reading is free", facts=values)
        else:
            text = f"the cost of reading `{name}` is unknown: its storage class `{class_}` is newer than this version"
            yield Found(level=Level.UNKNOWN, subject=name, text=text, facts=values)


def _charged(facts: Facts, about: BucketFacts, class_: str, values: Mapping[str, Any]) -> Found:
    name, price, days = root(about.use.bucket), retrieval(class_), load().classes[class_].days
    why = [f"every read is billed, {price} in addition to the network"] if about.use.reads else []
    why += [f"each checkpoint is billed for {days} days, even if it is deleted earlier"] if about.use.writes else []
    pattern = f"{about.use.url}/**"
    return Found(
        level=_LEVELS[class_],
        subject=name,
        text=f"new objects in `{name}` are {class_}",
        why="; ".join(why) or None,
        remedies=(
            Remedy("make new objects STANDARD", update(facts, about, "--default-storage-class=STANDARD")),
            Remedy(
                "rewrite the existing objects, which is billed as one read",
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


@rule("TPU106", "written objects can be deleted")
def held(facts: Facts) -> Iterator[Found]:
    """Check that a bucket that is written to has no retention policy and no default event-based hold.

    Under either, objects can be neither deleted nor overwritten: the second checkpoint with the same name, the removal of old
    checkpoints and most temporary files fail. An error; a locked policy can never be removed or shortened. Not checked for a
    node that serves (documentation, Bucket Lock and object holds).
    """
    for about, bucket in each_known(facts):
        if not about.use.writes:
            continue
        name = root(about.use.bucket)
        if not bucket.retention and not bucket.default_event_based_hold:
            yield Found(level=Level.OK, subject=name, text=f"objects in `{name}` can be overwritten and deleted")
            continue
        reasons = []
        if bucket.retention:
            locked = "locked " if bucket.retention_is_locked else ""
            reasons.append(f"a {locked}retention policy keeps them for {_in_words(bucket.retention)}")
        if bucket.default_event_based_hold:
            reasons.append("new objects get an event-based hold")
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


def _releases(facts: Facts, about: BucketFacts, bucket: Bucket) -> Iterator[Remedy]:
    if bucket.retention and bucket.retention_is_locked:
        yield Remedy("write checkpoints to another bucket: a locked retention policy cannot be removed or shortened")
    else:
        if bucket.retention:
            command = update(facts, about, "--clear-retention-period")
            yield Remedy("remove the retention policy, if you are responsible for it", command)
        if bucket.default_event_based_hold:
            command = update(facts, about, "--no-default-event-based-hold")
            yield Remedy("end the hold for new objects; existing objects keep theirs", command)
    if about.use.reads:
        yield Remedy(f"or declare it as read-only: `--data-bucket={about.use.url}` instead of `--bucket`")


@rule("TPU107", "deleted objects are gone")
def kept(facts: Facts) -> Iterator[Found]:
    """Check that a bucket that is written to does not keep, and bill for, deleted or overwritten objects.

    With object versioning, old versions of checkpoints remain until someone deletes them: a warning, or a note if a lifecycle
    rule deletes old versions. With soft delete, the default of new buckets, they remain for 7 days: a note (documentation of
    object versioning and soft delete).
    """
    for about, bucket in each_known(facts):
        if not about.use.writes:
            continue
        name, deletes_old = root(about.use.bucket), _deletes_old_versions(bucket.raw)
        values = {
            "versioning": bucket.versioning,
            "softDeleteSeconds": int(bucket.soft_delete.total_seconds()),
            "deletesOldVersions": deletes_old,
        }
        if not bucket.versioning and not bucket.soft_delete:
            text = f"objects deleted from `{name}` are no longer billed"
            yield Found(level=Level.OK, subject=name, text=text, facts=values)
            continue
        keeping, remedies = [], []
        if bucket.versioning:
            until = "until a lifecycle rule deletes them" if deletes_old else "until you delete them"
            keeping.append(f"versioning keeps old versions {until}")
            text = "turn versioning off; existing old versions remain"
            remedies.append(Remedy(text, update(facts, about, "--no-versioning")))
        if bucket.soft_delete:
            keeping.append(f"soft delete keeps them for {_in_words(bucket.soft_delete)}")
            text = "turn soft delete off; nothing can be restored then, so do this only if all data is temporary"
            remedies.append(Remedy(text, update(facts, about, "--clear-soft-delete")))
        yield Found(
            level=Level.WARNING if bucket.versioning and not deletes_old else Level.NOTE,
            subject=name,
            text=f"deleted or overwritten checkpoints in `{name}` are still billed: {', and '.join(keeping)}",
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


def _in_words(period: timedelta) -> str:
    for unit, name in ((timedelta(days=1), "day"), (timedelta(hours=1), "hour"), (timedelta(minutes=1), "minute")):
        if period >= unit and not period % unit:
            return f"{period // unit} {name}" + ("" if period == unit else "s")
    return f"{period.total_seconds():.0f} seconds"
