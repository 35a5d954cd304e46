"""A few random lives of kept jobs; CI has more of them with `make simulation`."""

from __future__ import annotations

import pytest

from tests.workers.kept_life import live_kept


@pytest.mark.parametrize("seed", range(12))
def test_kept_job_runs_once_at_a_time_and_ends_with_0_when_it_is_done(seed: int) -> None:
    """Nothing starts after it has ended with 0, and no node is left that `--rm` deletes."""
    wrong = live_kept(seed)

    assert not wrong, f"{wrong}\n    python -m tests.workers.kept_life {seed}"
