"""`tpuctl update`."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import cli_command, dry_run_option, option, takes_options, yes_option
from tpuctl.app.spec_options import GivenOptions
from tpuctl.app.value_completion import complete_label
from tpuctl.nodes.commands.selection_options import selection_options


@dataclass(frozen=True, slots=True)
class UpdateOptions(GivenOptions):
    """The changes of `tpuctl update`, as given."""

    labels: tuple[str, ...] = option(
        "--labels",
        "--update-labels",
        metavar="KEY=VALUE,...",
        multiple=True,
        shell_complete=complete_label,
        help="Labels to set; keeps other labels.",
    )
    remove_labels: tuple[str, ...] = option(
        "--remove-labels", metavar="KEY,...", multiple=True, help="Labels to remove."
    )
    clear_labels: bool = option(
        "--clear-labels", is_flag=True, help="Remove all labels except tpuctl's own (tpuctl-*), before --labels."
    )
    tags: tuple[str, ...] = option(
        "--tags", "--add-tags", metavar="TAG,...", multiple=True, help="Network tags to add."
    )
    remove_tags: tuple[str, ...] = option(
        "--remove-tags", metavar="TAG,...", multiple=True, help="Network tags to remove."
    )
    clear_tags: bool = option("--clear-tags", is_flag=True, help="Remove all network tags, before --tags.")
    metadata: tuple[str, ...] = option(
        "--metadata",
        "--update-metadata",
        metavar="KEY=VALUE,...",
        multiple=True,
        help="Metadata to set; keeps other keys.",
    )
    metadata_from_file: tuple[str, ...] = option(
        "--metadata-from-file",
        metavar="KEY=FILE,...",
        multiple=True,
        help="Metadata to set, with values from local files.",
    )
    remove_metadata: tuple[str, ...] = option(
        "--remove-metadata", metavar="KEY,...", multiple=True, help="Metadata to remove."
    )
    clear_metadata: bool = option(
        "--clear-metadata", is_flag=True, help="Remove all metadata except ssh-keys, before --metadata."
    )
    description: str | None = option(
        "--description", metavar="TEXT", help="New description of the node; empty removes it."
    )
    attach_disk: tuple[str, ...] = option(
        "--attach-disk",
        metavar="DISK[,mode=MODE]",
        multiple=True,
        help="Persistent disk to attach, by name or path, read-write (default) or read-only. Repeatable.",
    )
    detach_disk: tuple[str, ...] = option(
        "--detach-disk",
        metavar="DISK",
        multiple=True,
        help="Disk to detach, by name or path; keeps its data. Repeatable.",
    )
    internal_ips: bool | None = option(
        "--internal-ips/--no-internal-ips",
        default=None,
        help="Remove the external IP addresses of the workers, or add them.",
    )


@cli_command("update")
@selection_options()
@takes_options(UpdateOptions, "wanted", group=OptionGroup.NODE)
@dry_run_option
@yes_option
@body_in("tpuctl.nodes.commands.update_run:run_update")
def command() -> None:
    """Change labels, network tags, metadata, description, data disks or external addresses of nodes.

    Everything else stays unchanged. A detached disk is not deleted. Unmount it on the workers of a running node first.

    \b
    Examples:
      tpuctl update trainer --labels team=vision,run=7
      tpuctl update trainer --remove-labels run --description "free to use"
      tpuctl update 'sweep-*' -l team=vision --labels tpuctl-keep=yes
      tpuctl update trainer --attach-disk dataset,mode=read-only
    """
