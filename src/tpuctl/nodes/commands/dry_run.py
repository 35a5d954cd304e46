"""Output of `--dry-run`: the steps, the API requests, and the equivalent gcloud commands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuctl.escaping import contains_mask, dump_printable_json, mask_value
from tpuctl.models.node import OWNER_LABEL
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.expiry import stamp_spec
from tpuctl.nodes.plan import PlanStep, gcloud_commands
from tpuctl.output.terminal import View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.cloud.requests import ApiRequest
    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.output.terminal import Terminal
    from tpuctl.prices import Price


def show_plan(
    app: App,
    steps: tuple[PlanStep, ...],
    *,
    spec: NodeSpec | None,
    nodes: Sequence[Node] = (),
    changes: Mapping[NodeName, Mapping[str, Any]] | None = None,
) -> None:
    """Show what a command would do with `nodes`, those of them that exist. Sends no request.

    Without a `spec` each is created again as it is. `changes` has the fields of an update by node.
    """
    present = {node.name: node for node in nodes}
    specs = {
        step.name: spec
        or (app.journal.past(step.name).spec_as_it_is(present[step.name]) if step.name in present else None)
        for step in steps
    }
    if any(step.verb is Verb.CREATE for step in steps):
        stamp = partial(stamp_spec, owner=app.owner_label, now=app.now())
        specs = {name: stamp(one) if one else None for name, one in specs.items()}
    planned = [
        _described(
            app,
            step,
            specs[step.name],
            (changes or {}).get(step.name, {}),
            present[step.name].raw if step.name in present else {},
        )
        for step in steps
    ]
    spec = next(iter(specs.values()), spec)

    def show(terminal: Terminal) -> None:
        if not planned:
            terminal.write("nothing to do")
        for number, (step, entry) in enumerate(zip(steps, planned, strict=True), start=1):
            terminal.write(f"{number}. {entry['step']} {entry['node']} in {entry['zone']}: {entry['reason']}")
            if price := _price(app, step, specs[step.name]):
                dated = f", list of {price.as_of}" if price.per_hour is not None else ""
                terminal.write(f"   price: {price}{dated}{_file_of_type(app, specs[step.name])}")
            if request := entry.get("request"):
                terminal.write(f"   {request['method']} {request['url']}")
                if request.get("body"):
                    terminal.write("   " + dump_printable_json(terminal.masked(request["body"])))
            for line in entry.get("gcloud", ()):
                terminal.write(f"   $ {line}")
        terminal.note("dry run: nothing was changed")
        if spec and spec.setup and any(entry["step"] == Verb.CREATE for entry in planned):
            terminal.note("the setup commands run over ssh once the node is usable; gcloud has no equivalent")
        if spec and spec.boot_disk_size is not None and any(entry["step"] == Verb.CREATE for entry in planned):
            terminal.note("gcloud has no `--boot-disk-size`: its command asks for a boot disk of the default size")
        if app.settings["endpoint"] and not app.is_sandbox and any("gcloud" in entry for entry in planned):
            terminal.note("gcloud uses Google's endpoint unless CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU names this one")
        if any(contains_mask(line) for entry in planned for line in entry.get("gcloud", ())):
            terminal.note("metadata values are hidden: add `--show-metadata` for commands that can be run unchanged")

    app.show(View(value=lambda: planned, text=show))


def _described(
    app: App, step: PlanStep, spec: NodeSpec | None, changes: Mapping[str, Any], present: Mapping[str, Any]
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "step": str(step.verb),
        "node": step.name.node_id,
        "zone": step.name.zone,
        "project": step.name.project,
        "reason": step.reason,
    }
    if price := _price(app, step, spec):
        entry["price"] = price.to_json()
    if preview := _preview(app, step, spec, changes):
        entry["request"] = {"method": preview.method, "url": preview.url}
        if preview.body is not None:
            entry["request"]["body"] = preview.body
    if not app.terminal.shows_metadata:
        # Metadata may hold secrets, and users paste a dry run into tickets.
        spec = replace(spec, metadata=_hidden_values(spec.metadata)) if spec else None
        if "metadata" in changes:
            wanted, before = changes["metadata"], present.get("metadata") or {}
            # Values that stay the same are kept, so that no command is printed for them.
            unchanged = {key: value for key, value in wanted.items() if before.get(key) == value}
            changes = {**changes, "metadata": {**_hidden_values(wanted), **unchanged}}
    if spec is not None:
        # A command that the user types needs no label about who typed it.
        labels = {key: value for key, value in spec.labels.items() if key != OWNER_LABEL}
        spec = replace(spec, labels=labels)
    # gcloud's flags for the account and the quota project of tpuctl's calls.
    flags = {"--impersonate-service-account": "impersonate_service_account", "--billing-project": "quota_project"}
    account = [f"{flag}={value}" for flag, key in flags.items() if (value := app.settings.text(key))]
    if commands := gcloud_commands(step, spec, changes, present, account=account):
        entry["gcloud"] = list(commands)
    return entry


def _file_of_type(app: App, spec: NodeSpec | None) -> str:
    """Return which project file chose the type, in parentheses; empty if none did."""
    kind, file = app.chosen_by_file.get("type"), app.project_file
    return f" (type {kind}: from {file.path.name})" if file and spec and spec.accelerator_type == kind else ""


def _price(app: App, step: PlanStep, spec: NodeSpec | None) -> Price | None:
    """Return what the node of a creation costs; None for any other step."""
    if step.verb is not Verb.CREATE or spec is None:
        return None
    return app.prices.hourly_price(spec.accelerator_type, step.name.zone, spec.tier)


def _preview(app: App, step: PlanStep, spec: NodeSpec | None, changes: Mapping[str, Any]) -> ApiRequest | None:
    client = app.client
    match step.verb:
        case Verb.CREATE:
            if spec is not None and step.window is not None:
                return client.preview_create_queued_resource(step.name, spec, step.window)
            return client.preview_create(step.name, spec) if spec else None
        case Verb.DELETE:
            if step.queued_resource:
                return client.preview_delete_queued_resource(step.queued_resource, force=step.force)
            return client.preview_delete(step.name)
        case Verb.START:
            return client.preview_start(step.name)
        case Verb.STOP:
            return client.preview_stop(step.name)
        case Verb.UPDATE:
            return client.preview_update(step.name, changes)
        case Verb.REBOOT | Verb.WAIT:
            return None


def _hidden_values(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: mask_value(value) for key, value in metadata.items()}
