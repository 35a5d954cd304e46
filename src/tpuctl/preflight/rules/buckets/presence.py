"""Whether a bucket is there, may be looked at, and has something in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.rules.buckets.uses import command, each_bucket, payer, root, size_in_words, unread
from tpuctl.preflight.unread import beside
from tpuctl.preflight.wanted import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.bucket import Contents
    from tpuctl.preflight.facts import BucketFacts, Facts


@rule("TPU102", "the bucket can be looked at")
def readable(facts: Facts) -> Iterator[Found]:
    """Check that the bucket exists and that its metadata can be read.

    Names of buckets are global: a mistyped name is no bucket, or somebody else's. An error where the API says that there is
    none; unknown where it may not be looked at, with what stays unanswered and the permission that would answer it
    (API storage v1, buckets.get). The other rules say nothing of a bucket that could not be read.
    """
    for about in each_bucket(facts):
        name = root(about.use.bucket)
        match about.bucket:
            case Known():
                yield Found(level=Level.OK, subject=name, text=f"`{name}` is there and can be looked at")
            case Absent():
                listing = command(
                    "storage", "buckets", "list", f"--project={facts.wanted.project}", "--format=value(name)"
                )
                yield Found(
                    level=Level.ERROR,
                    subject=name,
                    text=f"there is no bucket `{name}`",
                    why="every read and write will fail; names of buckets are global, so a name that is slightly wrong may "
                    "also be somebody else's",
                    remedies=(Remedy("compare the name with the buckets of the project", listing),),
                )
            case Unknown() if about.is_unpaid:
                pass  # TPU104 says why, and what to do
            case Unknown() as fact:
                yield _unreadable(facts, about, fact)


def _unreadable(facts: Facts, about: BucketFacts, fact: Unknown) -> Found:
    name = root(about.use.bucket)
    role = "roles/storage.legacyBucketReader"
    found = unread(fact, name, f"`{name}`", permission="storage.buckets.get", role=role)
    where = "" if about.placement else "where it is, "
    payer = facts.wanted.billing_project
    # The service refuses a request for a wrong project to bill as it does one for the bucket [API storage v1, userProject].
    doubt = (
        f"or the billing project `{payer}` is the cause: it has to exist, and you need `serviceusage.services.use` on it; "
        "otherwise name another with `--billing-project`"
    )
    return replace(
        found,
        remedies=(*found.remedies, *((Remedy(doubt),) if payer and not fact.is_passing else ())),
        why=f"so it stays open {where}whose it is, who pays, its storage class, and what it keeps or forbids to delete",
        is_passing=fact.is_passing or (isinstance(about.layout, Unknown) and about.layout.is_passing),
    )


@rule("TPU108", "there is something to read")
def empty(facts: Facts) -> Iterator[Found]:
    """Check that something is below the prefix that will be read, or in the bucket where no prefix is named.

    A mistyped prefix lists nothing and raises nothing: training starts on no data, or fails after the TPU was paid for. A
    warning, as the data may still be on its way; a note for a bucket that is written too, where no prefix was named: it may
    be for checkpoints only (API storage v1, objects.list).
    """
    for about in facts.buckets:
        use = about.use
        if not use.reads or isinstance(about.bucket, Absent):
            continue
        match about.contents:
            case Known(contents):
                yield _of_contents(facts, about, contents)
            case Unknown() if about.is_unpaid:
                pass  # TPU104 says why, and what to do
            case Unknown() as fact:
                what, role = f"what is in `{use.url}`", "roles/storage.objectViewer"
                yield unread(
                    beside(fact, about.bucket, "TPU102"), use.url, what, permission="storage.objects.list", role=role
                )
            case Absent() | None:
                pass


def _of_contents(facts: Facts, about: BucketFacts, contents: Contents) -> Found:
    use = about.use
    values = {"objects": contents.objects, "size": contents.size, "isComplete": contents.is_complete}
    if contents.objects:
        more = "" if contents.is_complete else "at least "
        objects = f"{contents.objects} object" + ("" if contents.objects == 1 else "s")
        text = f"`{use.url}` has {more}{objects}, {size_in_words(contents.size)}"
        return Found(level=Level.OK, subject=use.url, text=text, facts=values)
    there = f"nothing is below `{use.url}/`" if use.prefix else f"`{use.url}` is empty"
    if not contents.is_complete:
        # A page may hold nothing but markers of folders, or nothing at all, and be followed by others.
        return Found(
            level=Level.NOTE, subject=use.url, text=f"the first page of `{use.url}` lists no data", facts=values
        )
    is_written = use.writes and facts.wanted.purpose is Purpose.TRAIN
    checkpoints = "; that is fine where only checkpoints will go there" if is_written else ""
    return Found(
        level=Level.NOTE if is_written and not use.prefix else Level.WARNING,
        subject=use.url,
        text=there,
        why=f"a program that reads it finds no data{checkpoints}",
        remedies=(
            Remedy("look at what the bucket has", command("storage", "ls", root(use.bucket), *payer(facts, about))),
        ),
        facts=values,
    )
