"""The account that the node runs as, and the scopes that limit its programs in addition to the account's roles."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.preflight.access import READ, WRITE, needed
from tpuctl.preflight.fact import known
from tpuctl.preflight.findings import Found, Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.findings import Rule
    from tpuctl.preflight.wanted import Wanted

_PREFIX = "https://www.googleapis.com/auth/"
ALL_APIS = f"{_PREFIX}cloud-platform"
# Which scopes let programs read objects, and which write them [documentation of Cloud Storage: OAuth scopes].
_READING = {"cloud-platform", "cloud-platform.read-only"} | {
    f"devstorage.{kind}" for kind in ("read_only", "read_write", "full_control")
}
_WRITING = {"cloud-platform", "devstorage.read_write", "devstorage.full_control", "devstorage.write_only"}
# Short names of `gcloud compute instances`; `gcloud compute tpus` sends them as they are [gcloud 528 source].
_SHORT_NAMES = {
    "storage-full": "devstorage.full_control",
    "storage-rw": "devstorage.read_write",
    "storage-ro": "devstorage.read_only",
    "cloud-platform": "cloud-platform",
    "default": "devstorage.read_only",
    "gke-default": "devstorage.read_only",
}
_OF_A_PROJECT = ".iam.gserviceaccount.com"
_DEFAULT = "-compute@developer.gserviceaccount.com"
_APP_ENGINE = "@appspot.gserviceaccount.com"
_CROSS_PROJECT = "iam.disableCrossProjectServiceAccountUsage"


@rule("TPU203", "the node's scopes let it use the buckets")
def has_scopes(facts: Facts) -> Iterator[Found]:
    """Check that the scopes of the node's account include Cloud Storage, for writing if the node writes.

    Scopes limit programs on the node in addition to the account's roles, and the scopes of a node cannot be changed. An empty
    list allows all Cloud APIs. It is an error if scopes are named and none of them covers the buckets, a note if no bucket is
    named, and a warning if a new node has short names that only `gcloud compute instances` knows. Source: API field text;
    documentation of Cloud Storage; whether the service rejects short names is unverified.
    """
    wanted = facts.wanted
    scopes = wanted.spec.scopes
    short = [scope for scope in scopes if scope in _SHORT_NAMES]
    if short and wanted.creates:
        full = [_PREFIX + _SHORT_NAMES[scope] for scope in short]
        yield Found(
            level=Level.WARNING,
            subject=_subject(wanted),
            text=f"{_ticked(short)} {'is a short scope name' if len(short) == 1 else 'are short scope names'}, which the "
            "Cloud TPU API is not known to accept",
            why="`gcloud compute instances` expands short names, `gcloud compute tpus` does not",
            remedies=(Remedy(f"write the full name: {_ticked(full)}"),),
            facts={"scope": short, "fullNames": full},
        )
    needs = {name for bucket in facts.buckets for name in needed(wanted, bucket.use)}
    covered = {_SHORT_NAMES.get(scope, scope.removeprefix(_PREFIX)) for scope in scopes}
    can_read, can_write = bool(covered & _READING) or not scopes, bool(covered & _WRITING) or not scopes
    lacks = [
        word
        for word, names, can in (("read", READ, can_read), ("write", WRITE, can_write))
        if needs & set(names) and not can
    ]
    about = {"scope": list(scopes), "canRead": can_read, "canWrite": can_write}
    if lacks:
        if wanted.node is None or wanted.name is None:
            advice = f"omit `--scopes`, which allows all Cloud APIs, or name `{ALL_APIS}`; then only roles decide"
        else:
            advice = (
                f"recreate it, which deletes its disk: `tpuctl up {wanted.name.node_id} --replace` with all of its options "
                f"and `--scopes {ALL_APIS}`; then only roles decide"
            )
        remedies = [Remedy(advice)]
        uses = dict.fromkeys(bucket.use for bucket in facts.buckets)
        if "read" not in lacks and all(use.reads for use in uses):
            flags = " ".join(f"--data-bucket={use.url}" for use in uses if use.writes)
            remedies.append(Remedy(f"or declare what is read-only: `{flags}` instead of `--bucket`"))
        yield Found(
            level=Level.ERROR,
            subject=_subject(wanted),
            text=f"its scopes do not allow it to {' and '.join(lacks)} objects: {_ticked(scopes)}",
            why="programs on the node fail with 403, whichever roles the account has; scopes cannot be changed later",
            remedies=tuple(remedies),
            facts=about,
        )
    elif not (needs or can_read or can_write):
        yield Found(level=Level.NOTE, subject=_subject(wanted), text="its scopes allow no bucket access", facts=about)
    else:
        words = "all Cloud APIs" if not scopes else "reading and writing objects" if can_write else "reading objects"
        yield Found(level=Level.OK, subject=_subject(wanted), text=f"its scopes allow {words}", facts=about)


@rule("TPU204", "the account that the node runs as")
def runs_as(facts: Facts) -> Iterator[Found]:
    """Report the account of the node, and check that it belongs to the node's own project.

    It is the Compute Engine default account unless another is named. It is a warning if a new node uses an account of another
    project: that takes `iam.serviceAccounts.actAs` there, and fails unless that project's organisation allows it
    (`iam.disableCrossProjectServiceAccountUsage`). If the project could not be read, the default account is unknown; TPU506
    reports that. Source: API field text; documentation of IAM.
    """
    wanted, account = facts.wanted, facts.account
    if account is None:
        return
    home, is_default, is_elsewhere = home_of(account), account.endswith(_DEFAULT), is_of_another_project(facts)
    about = {"account": account, "isDefault": is_default, "project": home}
    if not is_elsewhere or not wanted.creates:
        named = "the Compute Engine default account" if is_default else "a named account"
        text = f"it runs as `{account}`, {named}" + (f" of project `{home}`" if is_elsewhere else "")
        yield Found(level=Level.OK, subject=_subject(wanted), text=text, facts=about)
        return
    show = ["gcloud", "org-policies", "describe", _CROSS_PROJECT, f"--project={home}", "--effective"]
    yield Found(
        level=Level.WARNING,
        subject=_subject(wanted),
        text=f"it runs as `{account}`, an account of another project (`{home}`)",
        why=f"creating the node fails unless you may act as the account, and `{_CROSS_PROJECT}` is off in `{home}`",
        remedies=(
            Remedy(f"check whether `{home}` allows it: `enforce` must not be true", shlex.join(show)),
            Remedy(f"ask for `roles/iam.serviceAccountUser` on `{account}`, or use an account of `{wanted.project}`"),
        ),
        facts=about,
    )


def is_of_another_project(facts: Facts) -> bool:
    """Return whether the node's account is known to belong to another project than the node."""
    account, wanted, project = facts.account, facts.wanted, known(facts.project)
    home = home_of(account) if account else None
    own = {wanted.project, *((project.id, project.number) if project else ())}
    # A number cannot be compared with an id.
    is_comparable = project is not None or (home is not None and home.isdigit() == wanted.project.isdigit())
    return home is not None and home not in own and is_comparable


def _subject(wanted: Wanted) -> str:
    return wanted.name.node_id if wanted.name else wanted.spec.accelerator_type


def home_of(account: str) -> str | None:
    """Return the project of an account, by id or number; None if its address does not contain it."""
    name, _, domain = account.lower().rpartition("@")
    if domain.endswith(_OF_A_PROJECT):
        # Of the domain-scoped project example.com:p the domain is p.example.com.iam.gserviceaccount.com.
        project, _, organisation = domain.removesuffix(_OF_A_PROJECT).partition(".")
        return f"{organisation}:{project}" if organisation else project
    if account.endswith(_DEFAULT):
        return account.removesuffix(_DEFAULT)
    return name if account.endswith(_APP_ENGINE) else None


def _ticked(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


RULES: tuple[Rule[Facts], ...] = (has_scopes, runs_as)
