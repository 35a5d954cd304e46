"""`tpuctl attributes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import cli_command, node_argument, worker_option
from tpuctl.models.node import WorkerSet
from tpuctl.output.terminal import Cell, table_view

if TYPE_CHECKING:
    from tpuctl.app.app import App


@cli_command("attributes", is_short=True)
@node_argument
@worker_option
@grouped_option(
    "--query-path",
    metavar="PATH",
    default="",
    help="Attributes to show: NAMESPACE/ or NAMESPACE/KEY. [default: all]",
)
def command(app: App, *, node: str, worker: str, query_path: str) -> None:
    """Show the guest attributes that the workers of a node have published, such as their ssh host keys.

    \b
    Examples:
      tpuctl attributes trainer
      tpuctl attributes trainer --worker 3 --query-path hostkeys/ -o json
    """
    workers = WorkerSet.parse(worker)
    found = app.services.find(node)
    chosen = workers.of(found.name.node_id, found.workers)
    published = app.services.client.guest_attributes(found.name, path=query_path)
    rows = [
        (number, *path.partition("/")[::2], value)
        for number, attributes in enumerate(published)
        if number in chosen
        for path, value in sorted(attributes.items())
    ]
    app.show(
        table_view(
            ("WORKER", "NAMESPACE", "KEY", "VALUE"),
            [tuple(Cell(str(cell)) for cell in row) for row in rows],
            value=lambda: [dict(zip(("worker", "namespace", "key", "value"), row, strict=True)) for row in rows],
            empty=f"no worker of `{found.name.node_id}` has published such attributes yet",
        )
    )
