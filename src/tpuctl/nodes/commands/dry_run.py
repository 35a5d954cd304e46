"""Output of `--dry-run`: the next steps, their API requests, and the equivalent gcloud commands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.app.spec_building import chosen_by_file
from tpuctl.escaping import contains_mask, dump_printable_json, mask_value
from tpuctl.models.node import OWNER_LABEL
from tpuctl.nodes.expiry import stamp_spec
from tpuctl.nodes.plan import gcloud_commands
from tpuctl.output.terminal import View
from tpuctl.prices import hourly_price

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpuctl.app.app import App
    from tpuctl.nodes.plan import PlanStep
    from tpuctl.output.terminal import Terminal
    from tpuctl.prices import Price


def show_plan(app: App, steps: Iterable[PlanStep]) -> None:
    """Show the requests that a command would send next. Sends none."""
    steps = [
        replace(step, spec=stamp_spec(step.spec, owner=app.services.owner_label, now=app.now())) if step.spec else step
        for step in steps
    ]
    planned = [_described(app, step) for step in steps]
    specs = [step.spec for step in steps if step.spec]

    def show(terminal: Terminal) -> None:
        if not planned:
            terminal.write("nothing to do")
        for number, (step, entry) in enumerate(zip(steps, planned, strict=True), start=1):
            terminal.write(f"{number}. {entry['step']} {entry['node']} in {entry['zone']}: {entry['reason']}")
            if price := _price(step):
                dated = f", list of {price.as_of}" if price.per_hour is not None else ""
                terminal.write(f"   price: {price}{dated}{_file_of_type(app, step)}")
            if request := entry.get("request"):
                terminal.write(f"   {request['method']} {request['url']}")
                if request.get("body"):
                    terminal.write("   " + dump_printable_json(terminal.masked(request["body"])))
            for line in entry.get("gcloud", ()):
                terminal.write(f"   $ {line}")
            if step.is_recreation:
                terminal.write("   a creation follows, once the node is gone")
        terminal.note("dry run: nothing was changed")
        if any(spec.setup for spec in specs):
            terminal.note("the setup commands run over ssh once the node is usable; gcloud has no equivalent")
        if any(spec.boot_disk_size is not None for spec in specs):
            terminal.note("gcloud has no `--boot-disk-size`: its command asks for a boot disk of the default size")
        if app.settings["endpoint"] and not app.is_sandbox and any("gcloud" in entry for entry in planned):
            terminal.note("gcloud uses Google's endpoint unless CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU names this one")
        if any(contains_mask(line) for entry in planned for line in entry.get("gcloud", ())):
            terminal.note("metadata values are hidden: add `--show-metadata` for commands that can be run unchanged")

    app.show(View(value=lambda: planned, text=show))


def _described(app: App, step: PlanStep) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "step": str(step.verb),
        "node": step.name.node_id,
        "zone": step.name.zone,
        "project": step.name.project,
        "reason": step.reason,
    }
    if price := _price(step):
        entry["price"] = price.to_json()
    preview = app.services.client.preview(
        step.verb,
        step.name,
        spec=step.spec,
        window=step.window,
        changes=step.changes,
        queued_resource=step.queued_resource,
        force=step.force,
    )
    if preview:
        entry["request"] = {"method": preview.method, "url": preview.url}
        if preview.body is not None:
            entry["request"]["body"] = preview.body
    spec, changes = step.spec, step.changes
    if not app.terminal.shows_metadata:
        # Metadata may hold secrets, and users paste a dry run into tickets.
        spec = replace(spec, metadata=_hidden_values(spec.metadata)) if spec else None
        if "metadata" in changes:
            wanted, before = changes["metadata"], step.present.get("metadata") or {}
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
    if commands := gcloud_commands(replace(step, spec=spec, changes=changes), account=account):
        entry["gcloud"] = list(commands)
    return entry


def _file_of_type(app: App, step: PlanStep) -> str:
    """Return which project file chose the type, in parentheses; empty if none did."""
    kind, file = chosen_by_file(app).get("type"), app.project_file
    is_from_file = kind and file and step.spec and step.spec.accelerator_type == kind
    return f" (type {kind}: from {file.path.name})" if file and is_from_file else ""


def _price(step: PlanStep) -> Price | None:
    """Return what the node of a creation costs; None for any other step."""
    spec = step.spec
    if spec is None:
        return None
    price = hourly_price(spec.accelerator_type, step.name.zone, spec.tier)
    return price.times(len(spec.queued_slices(step.name)) or 1)


def _hidden_values(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: mask_value(value) for key, value in metadata.items()}
