"""What workers may do to run, jobs, logs, attach, kill, unstick, doctor and wait: each attack ends as one error."""

from __future__ import annotations

from tests.hostile import HostileSlice


def test_workers_without_steps_are_honest(pod: HostileSlice) -> None:
    out, err, code = pod.tpuctl("run", "pod", "--", "echo $TPUCTL_WORKER_ID")

    assert (sorted(out.splitlines()), err, code) == (["[0] 0", "[1] 1", "[2] 2", "[3] 3"], "", 0)
