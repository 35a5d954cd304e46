"""The body of `tpuctl update`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuctl.app.spec_building import metadata_from_files, parse_disk, parse_items, parse_pairs
from tpuctl.errors import ConflictError, InvalidInputError, NotFoundError
from tpuctl.models.node import NodeState
from tpuctl.models.node_changes import changed_fields
from tpuctl.models.spec import OWN_LABEL_PREFIX, check_no_own_labels, check_tags, check_user_labels
from tpuctl.names import last_segment
from tpuctl.nodes.commands.change_frame import NodeVerb, Planned, change_nodes
from tpuctl.nodes.commands.change_options import ChangeOptions
from tpuctl.nodes.commands.selected_changes import name_nodes, show_selected
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.controller import NodeResult
from tpuctl.nodes.plan import PlanStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import DataDisk, Node
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.nodes.commands.update import UpdateOptions


# The keys with which users enter the workers.
_KEPT_METADATA = "ssh-keys"


def run_update(app: App, *, selection: GivenSelection, wanted: UpdateOptions, dry_run: bool, yes: bool) -> int:
    """Change labels, network tags, metadata, description, data disks or external addresses of nodes."""
    if not wanted.given and wanted.internal_ips is None:
        raise InvalidInputError("no change given", hint="see `tpuctl update --help`")
    check_user_labels(parse_pairs("--labels", wanted.labels))
    check_no_own_labels(parse_items(wanted.remove_labels))
    check_tags(parse_items(wanted.tags))
    metadata = {
        **parse_pairs("--metadata", wanted.metadata),
        **metadata_from_files(app, wanted.metadata_from_file),
    }
    disks = [parse_disk("--attach-disk", text) for text in wanted.attach_disk]
    changes = partial(_changes, metadata=metadata, disks=disks)

    def plan(node: Node) -> PlanStep | None:
        fields = changes(node, wanted)
        return PlanStep(Verb.UPDATE, node.name, ", ".join(fields), changes=fields, present=node.raw) if fields else None

    def show(app: App, planned: Planned) -> None:
        losses = [(node, removed) for node, step in planned if (removed := removed_words(node, step.changes))]
        show_selected(app, losses)
        for node, removed in losses:
            app.terminal.note(f"{node.name.node_id}: removes {', '.join(removed)}")

    def question(planned: Planned) -> tuple[str, Sequence[Node]]:
        losing = [node.name for node, step in planned if not chosen.is_by_name and removed_words(node, step.changes)]
        # The file system of a disk may be in use.
        detaching = [
            node
            for node, _ in planned
            if node.state is not NodeState.STOPPED and any(_has_disk(node, text) for text in wanted.detach_disk)
        ]
        parts = [f"update {name_nodes(losing)}"] if losing else []
        if detaching:
            names = ", ".join(node.name.node_id for node in detaching)
            parts.append(f"detach {', '.join(wanted.detach_disk)} from {names} (is it unmounted on the workers)")
        return "; ".join(parts), detaching

    verb = NodeVerb(
        plan=plan,
        show=show,
        question=question,
        send=lambda _, node, step, __: NodeResult(_update(app, node, wanted, changes) if step else node),
        leaves="the update of {} may have been sent",
        resume="tpuctl status {}",
        ends_work=False,
    )
    try:
        chosen = selection.parse(app)
        return change_nodes(app, chosen, verb, ChangeOptions(dry_run=dry_run, yes=yes))
    except (InvalidInputError, NotFoundError):
        if not wanted.metadata or len(selection.names) < 2:
            raise
        raise InvalidInputError(
            f"one of the {len(selection.names)} names is no node; it is not shown, because it may be part of a secret value",
            hint="quote a value of `--metadata` that contains spaces",
        ) from None


def _update(
    app: App, node: Node, wanted: UpdateOptions, changes: Callable[[Node, UpdateOptions], dict[str, Any]]
) -> Node:
    """Update a node as it is then, say what changed, and return it."""
    sent: list[tuple[Node, dict[str, Any]]] = []

    def change(found: Node) -> dict[str, Any]:
        # It is called again if another client changed the node: the disk may be detached already.
        present = [text for text in wanted.detach_disk if not sent or _has_disk(found, text)]
        sent.append((found, changes(found, replace(wanted, detach_disk=tuple(present)))))
        return sent[-1][1]

    changed = app.services.client.change_node(
        node.name, change, expected_id=node.id, timeout=app.settings.duration("timeout")
    )
    current, fields = sent[0]
    if fields:
        app.terminal.note(f"{node.name.node_id}: {'; '.join(describe_changes(current, fields))}")
    if fields.get("networkConfig") == {"enableExternalIps": False}:
        ways = "use `--iap` or `--internal-ip` for ssh"
        app.terminal.note(f"`{node.name.node_id}` has no external addresses now: {ways}")
    return changed


def describe_changes(node: Node, fields: Mapping[str, Any]) -> list[str]:
    """Return what a change sets and removes, in words. Values of metadata may be secret, and are left out."""
    found = []
    for field, noun in _NOUNS.items():
        before, after = _items(field, node.raw.get(field)), _items(field, fields.get(field, node.raw.get(field)))
        put = [
            f"{key}={value}" if field == "labels" else key for key, value in after.items() if before.get(key) != value
        ]
        found += [f"{noun} {', '.join(put)}"] if put else []
    if fields.get("networkConfig") == {"enableExternalIps": True}:
        found.append(_ADDRESSES)
    removed = removed_words(node, fields)
    return [*([f"set {', '.join(found)}"] if found else []), *([f"removed {', '.join(removed)}"] if removed else [])]


def removed_words(node: Node, fields: Mapping[str, Any]) -> list[str]:
    """Return what a node loses by a change, by field."""
    found = []
    for field, noun in _NOUNS.items():
        if field in fields:
            gone = _items(field, node.raw.get(field)).keys() - _items(field, fields[field]).keys()
            found += [f"{noun} {', '.join(sorted(gone))}"] if gone else []
    if fields.get("networkConfig") == {"enableExternalIps": False}:
        found.append(_ADDRESSES)
    return found


_NOUNS = {"labels": "labels", "tags": "tags", "metadata": "metadata", "description": "the", "dataDisks": "disks"}


_ADDRESSES = "external addresses"


def _items(field: str, value: Any) -> dict[str, str]:  # of the API, as the other values here
    """Return the parts of a field by their names."""
    match field:
        case "tags":
            return dict.fromkeys(value or (), "")
        case "description":  # "set the description"
            return {"description": value} if value else {}
        case "dataDisks":
            return {last_segment(disk["sourceDisk"]): disk.get("mode", "") for disk in value or ()}
        case _:
            return dict(value or {})


def _changes(
    node: Node, wanted: UpdateOptions, *, metadata: Mapping[str, str], disks: Sequence[DataDisk]
) -> dict[str, Any]:
    """Return the API fields to write: only those whose value changes."""
    labels_before = {
        key: value for key, value in node.labels.items() if not wanted.clear_labels or key.startswith(OWN_LABEL_PREFIX)
    }
    metadata_before = {
        key: value for key, value in node.metadata.items() if not wanted.clear_metadata or key == _KEPT_METADATA
    }
    tags_before = () if wanted.clear_tags else node.raw.get("tags") or ()
    tags = [tag for tag in tags_before if tag not in parse_items(wanted.remove_tags)]
    fields: dict[str, Any] = {
        "labels": _merged(labels_before, parse_pairs("--labels", wanted.labels), parse_items(wanted.remove_labels)),
        "tags": [*tags, *(tag for tag in parse_items(wanted.tags) if tag not in tags)],
        "metadata": _merged(metadata_before, metadata, parse_items(wanted.remove_metadata)),
        "description": node.raw.get("description", "") if wanted.description is None else wanted.description,
        "dataDisks": attached_disks(node, disks, wanted.detach_disk),
    }
    return changed_fields(node, fields) | _address_change(node, wanted)


def _merged(present: Mapping[str, str], added: Mapping[str, str], removed: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, value in {**present, **added}.items() if key not in removed}


def _address_change(node: Node, wanted: UpdateOptions) -> dict[str, Any]:
    configs = node.raw.get("networkConfigs") or [node.raw.get("networkConfig") or {}]
    has_external = any(config.get("enableExternalIps") for config in configs)
    if wanted.internal_ips is None or wanted.internal_ips != has_external:
        return {}
    return {"networkConfig": {"enableExternalIps": not wanted.internal_ips}}


def attached_disks(node: Node, attached: Sequence[DataDisk], detached: Sequence[str]) -> list[dict[str, Any]]:
    """Return the data disks of a node after a change; the others stay as the API has them. Pure.

    Raises `ConflictError` for a disk that is attached in another mode, or not attached; `InvalidInputError` for a name that two
    attached disks have.
    """
    disks: list[dict[str, Any]] = [dict(disk) for disk in node.raw.get("dataDisks") or ()]
    name = node.name
    for text in detached:
        found = [disk for disk in disks if _is_disk(disk, text)]
        if not found:
            present = ", ".join(f"`{last_segment(disk['sourceDisk'])}`" for disk in disks) or "none"
            raise ConflictError(f"disk `{text}` is not attached to `{name.node_id}`", hint=f"attached are: {present}")
        if len(found) > 1:
            raise InvalidInputError(
                f"`{name.node_id}` has {len(found)} disks named `{text}`",
                hint=f"write a path: `{found[0]['sourceDisk']}`",
            )
        disks.remove(found[0])
    for disk in attached:
        is_name = "/" not in disk.source
        source = f"projects/{name.project}/zones/{name.zone}/disks/{disk.source}" if is_name else disk.source
        same = next((entry for entry in disks if _is_disk(entry, source)), None)
        if same is None:
            disks.append({"sourceDisk": source, "mode": disk.mode})
        elif (mode := same.get("mode", "READ_WRITE")) != disk.mode:
            short = last_segment(source)
            raise ConflictError(
                f"disk `{short}` is attached to `{name.node_id}` as {mode}",
                hint=f"detach it first: `tpuctl update {name.zone}/{name.node_id} --detach-disk {short}`",
            )
    return disks


def _has_disk(node: Node, text: str) -> bool:
    return any(_is_disk(disk, text) for disk in node.raw.get("dataDisks") or ())


def _is_disk(entry: Mapping[str, Any], text: str) -> bool:
    """Return whether an attached disk is the one that a name, a path or a link means."""
    source = str(entry["sourceDisk"])
    if "/" not in text:
        return last_segment(source) == text
    return source[source.find("projects/") :] == text[text.find("projects/") :]
