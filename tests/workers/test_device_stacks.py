"""`tpuctl stacks --device`: which worker the others wait for, by two looks at the launches of all workers."""

from __future__ import annotations

import pytest

from tpuctl.ssh.tpu_metrics import CoreState
from tpuctl.workers.device_stacks import find_late

WORK, WAITS = "fusion.42", "all-reduce.17"


def look(*cores: tuple[int, str]) -> dict[str, CoreState]:
    return {str(worker): CoreState(0, launch, "p", place, 0, "") for worker, (launch, place) in enumerate(cores)}


@pytest.mark.parametrize(
    ("first", "second", "late"),
    [
        pytest.param(look((7, WORK), (7, WORK)), look((9, WORK), (9, WORK)), set(), id="together"),
        # The first worker answers first, both times.
        pytest.param(look((7, WORK), (8, WORK)), look((9, WORK), (10, WORK)), set(), id="goes on"),
        pytest.param(look((7, WORK), (8, WAITS)), look((7, WORK), (8, WAITS)), {"0"}, id="hangs"),
        pytest.param(look((7, WORK), (8, WORK)), look((7, WORK), (8, WORK)), {"0"}, id="hangs, same place"),
        pytest.param(
            look((7, WORK), (8, WAITS), (8, WAITS)), look((9, WORK), (10, WAITS), (10, WAITS)), {"0"}, id="slow"
        ),
        pytest.param(
            look((7, WORK), (8, WAITS), (8, WORK)), look((9, WORK), (10, WAITS), (10, WORK)), set(), id="unsure"
        ),
        pytest.param(look((7, WORK), (8, WAITS)), look((10, WAITS), (9, WORK)), set(), id="by turns"),
        pytest.param(
            look((7, WORK), (7, WORK), (8, WAITS)), look((7, WORK), (7, WORK), (8, WAITS)), {"0", "1"}, id="two"
        ),
        pytest.param(look((7, WORK)), look((7, WORK)), set(), id="alone"),
        pytest.param({}, {}, set(), id="none"),
    ],
)
def test_worker_that_the_others_wait_for(
    first: dict[str, CoreState], second: dict[str, CoreState], late: set[str]
) -> None:
    assert find_late(first, second) == late
