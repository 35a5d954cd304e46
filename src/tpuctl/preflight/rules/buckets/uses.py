"""What the rules about buckets share: each bucket once, and text for it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Known, known
from tpuctl.preflight.findings import Found, Level, Remedy
from tpuctl.preflight.unread import reason
from tpuctl.preflight.wanted import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.bucket import Bucket
    from tpuctl.preflight.fact import Unknown
    from tpuctl.preflight.facts import BucketFacts, Facts

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def each_bucket(facts: Facts) -> Iterator[BucketFacts]:
    """Yield the facts about each bucket once, even if several of its prefixes are used. A node that serves does not write.

    The contents of several prefixes are not added up: one may contain another.
    """
    by_name: dict[str, list[BucketFacts]] = {}
    only_reads = facts.wanted.purpose is Purpose.SERVE
    for about in facts.buckets:
        seen = replace(about, use=replace(about.use, writes=False)) if only_reads else about
        by_name.setdefault(about.use.bucket, []).append(seen)
    for first, *others in by_name.values():
        if not others:
            yield first
            continue
        uses = [about.use for about in (first, *others)]
        merged = replace(first.use, prefix="", reads=any(u.reads for u in uses), writes=any(u.writes for u in uses))
        yield replace(first, use=merged, contents=None)


def each_known(facts: Facts) -> Iterator[tuple[BucketFacts, Bucket]]:
    """Yield each bucket that could be read."""
    for about in each_bucket(facts):
        if isinstance(about.bucket, Known):
            yield about, about.bucket.value


def unread(fact: Unknown, subject: str, what: str, *, permission: str, role: str) -> Found:
    """Return the finding that `what` could not be read. Reading it takes `permission`, which `role` has."""
    needed = fact.permission or permission
    if fact.is_passing:
        advice = f"check again; reading it takes the permission `{needed}`"
    else:
        advice = f"ask the bucket's owner for the permission `{needed}`, which the role `{role}` has"
    return Found(
        level=Level.UNKNOWN,
        subject=subject,
        text=f"{what} could not be read: {reason(fact)}",
        remedies=(Remedy(advice),),
        facts={"permission": needed},
        is_passing=fact.is_passing,
    )


def root(bucket: str) -> str:
    """Return `gs://bucket`."""
    return f"gs://{bucket}"


def payer(facts: Facts, about: BucketFacts) -> tuple[str, ...]:
    """Return the flag that names the billing project, for a requester-pays bucket."""
    bucket, project = known(about.bucket), facts.wanted.billing_project
    return (f"--billing-project={project}",) if bucket and bucket.requester_pays and project else ()


def update(facts: Facts, about: BucketFacts, *flags: str) -> str:
    """Return the command that changes a bucket's settings."""
    return command("storage", "buckets", "update", root(about.use.bucket), *flags, *payer(facts, about))


def command(*words: str) -> str:
    """Return a gcloud command, quoted for the shell."""
    return shlex.join(["gcloud", *words])


def size_in_words(size: float) -> str:
    """Return a number of bytes in decimal units: `1.5 TB`."""
    power = 0
    while size >= 999.5 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if size < 9.95 and power else f"{size:.0f} {_UNITS[power]}"
