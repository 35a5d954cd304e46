"""`tpuctl check` without a zone: rank the zones where the type can run close to the buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.cli.check_waiting import sign_of_life
from tpuctl.errors import ExitCode
from tpuctl.output.zone_ranks import show_zones as show_ranking

if TYPE_CHECKING:
    from tpuctl.actions.checking.gate import Gate
    from tpuctl.cli.app import App
    from tpuctl.cli.check_target import Somewhere


def show_zones(app: App, checks: Gate, search: Somewhere) -> int:
    """Show the zones that offer the type, the best first. Return 9 if there is none, or a bucket does not exist."""
    with sign_of_life(app.terminal):
        ranking = checks.ranking(app.project, search.spec, search.zones)
    show_ranking(app.terminal, ranking, app.format, sandbox=app.is_sandbox)
    is_missing = any(bucket.is_absent for bucket in ranking.unplaced)
    return ExitCode.OK if ranking.zones and not is_missing else ExitCode.CHECK_FAILED
