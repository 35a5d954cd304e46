"""Rules about what a node was created with: image, addresses, account, disks, and whether its workers can be examined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.model import NodeState
from tpuctl.names import short
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.images import Match, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.node.facts import NodeFacts

_LEVELS = {Match.FITS: Level.OK, Match.DOUBTFUL: Level.WARNING, Match.MISFIT: Level.ERROR, Match.UNKNOWN: Level.NOTE}
# The first leaves everything to IAM; the others allow at least Cloud Storage.
_ALL_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
_STORAGE = ("devstorage.read_write", "devstorage.full_control")


@rule("TPU957", "runtime version of the node")
def image(facts: NodeFacts) -> Iterator[Found]:
    """Check by its name that the image fits the accelerator, with the table of TPU303.

    With another image the node becomes READY, but programs do not find its chips [observed]. API v2 cannot change the image.
    """
    node, name = facts.node, short(facts.node.runtime_version)
    if node.accelerator is None or not name:
        return
    verdict = judge(name, node.accelerator)
    better = verdict.better or node.accelerator.runtime_version
    is_fine = verdict.match is Match.FITS
    again = f"tpuctl up {node.name.node_id} --version={better} --replace"
    yield Found(
        level=_LEVELS[verdict.match],
        subject=node.name.node_id,
        text=f"`{name}` fits {node.accelerator.name}"
        if is_fine
        else f"`{name}` on {node.accelerator.name}: {verdict.reason}",
        why=None
        if is_fine
        else "with an image that does not fit, a node becomes READY but programs do not find its chips",
        remedies=() if is_fine else (Remedy(f"recreate the node with `{better}`", again),),
        facts={"runtimeVersion": name, "match": str(verdict.match), "better": verdict.better},
    )


@rule("TPU958", "addresses of the workers")
def addresses(facts: NodeFacts) -> Iterator[Found]:
    """Check that a READY node has an address for each worker of its type; a note if none of them is external."""
    node, name = facts.node, facts.node.name.node_id
    if node.state is not NodeState.READY:
        return
    endpoints = node.endpoints
    found = {
        "workers": node.workers,
        "endpoints": len(endpoints),
        "external": sum(one.external is not None for one in endpoints),
    }
    lacking = sum(one.address is None for one in endpoints)
    if len(endpoints) < node.workers or lacking:
        has = len(endpoints) - lacking
        text = f"it lists {has or 'no'} address{'es' if has != 1 else ''} for {node.workers} workers"
        wait = Remedy("wait until all of them are listed", f"tpuctl wait {name} --for healthy")
        why = "a worker without an address cannot be reached, and may not exist"
        yield Found(level=Level.ERROR, subject=name, text=text, why=why, remedies=(wait,), facts=found)
    elif not found["external"]:
        text = "its workers have internal addresses only: connect with `--iap`, or from inside their network"
        yield Found(level=Level.NOTE, subject=name, text=text, facts=found)
    else:
        yield Found(level=Level.OK, subject=name, text="every worker has an address", facts=found)


@rule("TPU959", "service account of the node")
def account(facts: NodeFacts) -> Iterator[Found]:
    """Check that the scopes of the node's service account allow Cloud Storage; TPU201 checks what IAM grants."""
    given = facts.node.raw.get("serviceAccount") or {}
    scopes, name = tuple(given.get("scope") or ()), facts.node.name.node_id
    if not scopes:
        return
    found = {"email": given.get("email"), "scopes": list(scopes)}
    if _ALL_SCOPES in scopes or any(scope.endswith(_STORAGE) for scope in scopes):
        yield Found(level=Level.OK, subject=name, text="its scopes allow programs to use Cloud Storage", facts=found)
        return
    reads = any("devstorage.read_only" in scope for scope in scopes)
    yield Found(
        level=Level.WARNING,
        subject=name,
        text=f"its scopes {'allow programs only to read from' if reads else 'do not allow programs to use'} Cloud Storage",
        why="programs cannot write checkpoints and logs there, even with the right IAM roles",
        remedies=(
            Remedy(
                "recreate the node with the scope that leaves everything to IAM",
                f"tpuctl up {name} --scopes=cloud-platform --replace",
            ),
        ),
        facts=found,
    )


@rule("TPU960", "disks and shielding of the node")
def equipment(facts: NodeFacts) -> Iterator[Found]:
    """Show the attached data disks, and whether secure boot is on; disks are not mounted automatically [API v2, dataDisks]."""
    raw = facts.node.raw
    disks = [
        (short(str(one.get("sourceDisk") or "")), str(one.get("mode") or "")) for one in raw.get("dataDisks") or ()
    ]
    shielded = bool((raw.get("shieldedInstanceConfig") or {}).get("enableSecureBoot"))
    named = ", ".join(f"`{name}`" for name, _ in disks)
    text = f"data disks: {named}" if disks else "it has no data disk"
    yield Found(
        level=Level.OK,
        subject=facts.node.name.node_id,
        text=text + ("; secure boot is on" if shielded else ""),
        facts={"dataDisks": [{"name": name, "mode": mode} for name, mode in disks], "enableSecureBoot": shielded},
    )


@rule("TPU961", "what the workers publish")
def published(facts: NodeFacts) -> Iterator[Found]:
    """Check that the workers publish host keys and instance names as guest attributes [observed; gcloud 528 source].

    A note if they do not: ssh then trusts the first key that it sees, and Identity-Aware Proxy tunnels do not find them.
    """
    node, name = facts.node, facts.node.name.node_id
    if node.state is not NodeState.READY:
        return
    match facts.published:
        case Known(workers):
            silent = sum(not any(key.startswith("hostkeys/") for key in one) for one in workers)
            silent += max(0, node.workers - len(workers))
            if not silent:
                yield Found(level=Level.OK, subject=name, text="every worker publishes its host keys")
                return
            which = "none of its workers publishes" if silent >= node.workers else f"{silent} of its workers publish no"
            yield Found(
                level=Level.NOTE,
                subject=name,
                text=f"{which} host keys",
                why="ssh trusts the first key that it sees, and `--iap` needs what they publish",
                remedies=(
                    Remedy("check that `compute.disableGuestAttributesAccess` is not enforced in the organization"),
                ),
                facts={"silent": silent},
            )
        case Absent():
            pass
        case Unknown() as fact:
            text = f"the guest attributes of its workers could not be read: {fact.reason}"
            yield Found(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)


@rule("TPU965", "whether the workers can be examined")
def can_be_asked(facts: NodeFacts) -> Iterator[Found]:
    """Show why the workers were not examined, if so: the state of the node, or what is missing on this machine."""
    if facts.obstacle is not None:
        yield Found(
            level=Level.UNKNOWN,
            subject=facts.node.name.node_id,
            text=f"its workers were not examined: {facts.obstacle}",
            remedies=(Remedy(facts.remedy),) if facts.remedy else (),
            is_passing=facts.node.state is not NodeState.READY,
        )


RULES = (image, addresses, account, equipment, published, can_be_asked)
