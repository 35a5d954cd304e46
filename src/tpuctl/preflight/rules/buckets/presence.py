"""Whether a bucket exists, can be read, and has objects."""

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


@rule("TPU102", "the bucket can be read")
def readable(facts: Facts) -> Iterator[Found]:
    """Check that the bucket exists and that its metadata can be read.

    Bucket names are global: a mistyped name does not exist, or belongs to someone else. An error if the API says that the
    bucket does not exist; unknown if its metadata may not be read, with the permission that is needed (API storage v1,
    buckets.get). The other rules skip a bucket that could not be read.
    """
    for about in each_bucket(facts):
        name = root(about.use.bucket)
        match about.bucket:
            case Known():
                yield Found(level=Level.OK, subject=name, text=f"`{name}` exists and its metadata can be read")
            case Absent():
                listing = command(
                    "storage", "buckets", "list", f"--project={facts.wanted.project}", "--format=value(name)"
                )
                yield Found(
                    level=Level.ERROR,
                    subject=name,
                    text=f"there is no bucket `{name}`",
                    why="every read and write fails; bucket names are global, so a similar name may belong to someone else",
                    remedies=(Remedy("compare the name with the buckets of the project", listing),),
                )
            case Unknown() if about.is_unpaid:
                pass  # TPU104 reports it
            case Unknown() as fact:
                role = "roles/storage.legacyBucketReader"
                found = unread(fact, name, f"`{name}`", permission="storage.buckets.get", role=role)
                where = "" if about.placement else "its location, "
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
                    is_passing=fact.is_passing or (isinstance(about.layout, Unknown) and about.layout.is_passing),
                )


@rule("TPU108", "there is data to read")
def empty(facts: Facts) -> Iterator[Found]:
    """Check that there are objects below the prefix that is read, or in the bucket if no prefix is named.

    A mistyped prefix lists nothing and raises no error: training starts without data, or fails after the TPU was billed. A
    warning, as the data may be uploaded later; a note for a bucket without prefix that is also written to, as it may be for
    checkpoints only (API storage v1, objects.list).
    """
    for about in facts.buckets:
        use = about.use
        if not use.reads or isinstance(about.bucket, Absent):
            continue
        match about.contents:
            case Known(contents):
                yield _of_contents(facts, about, contents)
            case Unknown() if about.is_unpaid:
                pass  # TPU104 reports it
            case Unknown() as fact:
                what, role = f"the list of objects in `{use.url}`", "roles/storage.objectViewer"
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
    if not contents.is_complete:
        # A page may have only folder markers, or no entries at all, and be followed by others.
        text = f"the first page of `{use.url}` lists no data"
        return Found(level=Level.NOTE, subject=use.url, text=text, facts=values)
    is_written = use.writes and facts.wanted.purpose is Purpose.TRAIN
    checkpoints = "; ignore this if the bucket is for checkpoints only" if is_written else ""
    return Found(
        level=Level.NOTE if is_written and not use.prefix else Level.WARNING,
        subject=use.url,
        text=f"`{use.url}/` has no objects" if use.prefix else f"`{use.url}` is empty",
        why=f"a program that reads it finds no data{checkpoints}",
        remedies=(Remedy("list the bucket", command("storage", "ls", root(use.bucket), *payer(facts, about))),),
        facts=values,
    )
