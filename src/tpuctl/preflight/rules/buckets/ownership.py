"""Which project owns a bucket, and which project pays for reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.rules.buckets.uses import each_bucket, each_known, root, update

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.bucket import Bucket
    from tpuctl.preflight.facts import BucketFacts, Facts


@rule("TPU103", "the bucket belongs to the TPU's project")
def other_project(facts: Facts) -> Iterator[Found]:
    """Check that the bucket and the TPU belong to the same project, by number.

    A bucket of another project is billed there, and access is decided there: roles that the TPU's account has in its own
    project do not apply. A warning, as sharing may be intended (API storage v1, projectNumber).
    """
    project = known(facts.project)
    if project is None:
        return
    for about, bucket in each_known(facts):
        name = root(about.use.bucket)
        values = {"bucketProjectNumber": bucket.project_number, "projectNumber": project.number}
        if not bucket.project_number or not project.number:
            continue
        if bucket.project_number == project.number:
            text = f"`{name}` belongs to `{project.id}`"
            yield Found(level=Level.OK, subject=name, text=text, facts=values)
            continue
        account = f"`{facts.account}`" if facts.account else "the TPU's account"
        yield Found(
            level=Level.WARNING,
            subject=name,
            text=f"`{name}` belongs to the project with the number {bucket.project_number}, not to `{project.id}` "
            f"({project.number})",
            why=f"storage and network are billed to the other project, and {account} needs a role there or on the bucket",
            remedies=(
                Remedy(f"check that it is the bucket you mean, and that its owner has granted access to {account}"),
            ),
            facts=values,
        )


@rule("TPU104", "a project pays for the requests")
def requester_pays(facts: Facts) -> Iterator[Found]:
    """Check that a billing project is named for requester-pays buckets.

    Without one, every request of the TPU's programs fails: an error. With one, requests and network are billed to it, and the
    programs must name it as well: a note (documentation, Requester Pays; API storage v1, userProject).
    """
    for about in each_bucket(facts):
        name, payer = root(about.use.bucket), facts.wanted.billing_project
        match about.bucket:
            case Known(bucket) if bucket.requester_pays and payer:
                yield Found(
                    level=Level.NOTE,
                    subject=name,
                    text=f"requests to `{name}` are billed to `{payer}`",
                    why="the bucket is requester-pays; programs on the TPU must name the project too: `--billing-project` of "
                    "gcloud, `userProject` in the API, `user_project` in Python",
                    facts={"requesterPays": True, "billingProject": payer},
                )
            case Known(bucket) if bucket.requester_pays:
                yield _unpaid(facts, about, bucket)
            case Known():
                yield Found(level=Level.OK, subject=name, text=f"the owner of `{name}` pays for requests")
            case Unknown() if about.is_unpaid:
                yield _unpaid(facts, about, None)
            case Absent() | Unknown():
                pass


def _unpaid(facts: Facts, about: BucketFacts, bucket: Bucket | None) -> Found:
    name, project = root(about.use.bucket), known(facts.project)
    remedies = [
        Remedy(
            f"name the project that pays, such as `--billing-project={facts.wanted.project}`, here and in the programs that "
            "use the bucket"
        )
    ]
    if bucket and project and bucket.project_number == project.number:
        remedies.append(Remedy("or let the bucket's own project pay", update(facts, about, "--no-requester-pays")))
    return Found(
        level=Level.ERROR,
        subject=name,
        text=f"`{name}` is requester-pays, and no billing project is named",
        why="every read and write without a billing project fails",
        remedies=tuple(remedies),
        facts={"requesterPays": True, "billingProject": None},
    )
