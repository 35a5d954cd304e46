"""`tpuctl check --fix`: a refused change does not stop the others, and the progress is always reported."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE
from tpuctl.clock import ManualClock
from tpuctl.sandbox import administration

FIX = (
    "check",
    "--fix",
    "--yes",
    "v4-8",
    "--zone",
    ZONE,
    *(word for name in "abc" for word in ("--bucket", f"gs://data-{name}")),
)


@pytest.fixture
def buckets(sandbox: Sandbox) -> Sandbox:
    """Three buckets that the node's account may not use."""
    administration.add_project(sandbox.state, "sandbox")
    for name in ("data-a", "data-b", "data-c"):
        administration.add_bucket(sandbox.state, name, location="US-CENTRAL2")
        administration.set_iam_policy(
            sandbox.state, [{"role": "roles/storage.admin", "members": ["user:a@example.com"]}], bucket=name
        )
    return sandbox


def grant(name: str) -> str:
    """Return the command that grants the node's account a role on a bucket."""
    account = f"{administration.project_number('sandbox')}-compute@developer.gserviceaccount.com"
    return (
        f"gcloud storage buckets add-iam-policy-binding gs://{name} --member=serviceAccount:{account} "
        "--role=roles/storage.objectUser --condition=None"
    )


REFUSED = (
    "`storage.buckets.setIamPolicy` is not allowed on the bucket `gs://data-a`: The caller does not have permission"
)
HINT = "ask for a role with `storage.buckets.setIamPolicy` for your identity (`tpuctl config show`)"


@pytest.mark.parametrize(("flags", "ended"), [((), 9), (("--skip-check", "TPU201"), 4)])
def test_fix_refused_change_does_not_stop_others(
    tpuctl: Console, buckets: Sandbox, flags: tuple[str, ...], ended: int
) -> None:
    """The exit code is that of the second check or, if that finds no error, that of the refused change."""
    buckets.fault("http-error", status=403, method="storage.buckets.setIamPolicy", count=1)

    _, err, code = tpuctl(*FIX, *flags)

    lines = err[err.index(f"failed: {grant('data-a')}: {REFUSED}\n") :].splitlines()
    assert code == ended
    assert lines[1:3] == [f"done: {grant('data-b')}", f"done: {grant('data-c')}"]
    assert lines[4:] == [
        "warning: `--fix` did 2 of 3 changes",
        f"  done: {grant('data-b')}",
        f"  done: {grant('data-c')}",
        f"  failed: {grant('data-a')}",
        f"    {REFUSED}",
        f"    hint: {HINT}",
    ]


def test_fix_interrupted_reports_progress(tpuctl: Console, buckets: Sandbox) -> None:
    """The first change is refused; the second is interrupted while it waits for a retry."""
    buckets.fault("http-error", status=403, method="storage.buckets.setIamPolicy", count=1)
    buckets.fault("http-error", status=503, method="storage.buckets.setIamPolicy", count=0)

    _, err, code = replace(tpuctl, clock=Interrupted())(*FIX)

    assert code == 130
    assert err[err.index("warning: `--fix` was interrupted") :].splitlines()[:4] == [
        "warning: `--fix` was interrupted",
        f"  failed: {grant('data-a')}: {REFUSED}",
        f"  started, may be done: {grant('data-b')}",
        f"  not done: {grant('data-c')}",
    ]


class Interrupted(ManualClock):
    """A clock that interrupts a sleeping caller."""

    def sleep(self, duration: timedelta) -> None:  # noqa: ARG002  # the signature of a clock
        raise KeyboardInterrupt
