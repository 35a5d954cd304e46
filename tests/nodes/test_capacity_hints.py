"""The commands that an error of capacity names can be run as printed: the typed options stay, the place or way changes."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put

NODE = ("--type", "v6e-8", "--zone", "us-east5-b", "--for", "healthy", "--timeout", "1h")
CREATE = ("--type", "v6e-8", "--zone", "us-east5-b")


@pytest.mark.parametrize(
    ("typed", "commands"),
    [
        pytest.param(
            ("up", "demo", *NODE, "--spot"),
            [
                "up demo --zone any --type v6e-8 --for healthy --spot",
                "up demo --queue --type v6e-8 --zone us-east5-b --for healthy --spot",
            ],
            id="options-of-up-stay",
        ),
        pytest.param(
            ("create", "demo", *CREATE, "--spot"),
            ["up demo --zone any --type v6e-8 --spot", "up demo --queue --type v6e-8 --zone us-east5-b --spot"],
            id="options-of-create-serve-up",
        ),
    ],
)
def test_hints_without_capacity_have_the_typed_options(
    tpuctl: Console, sandbox: Sandbox, typed: tuple[str, ...], commands: list[str]
) -> None:
    sandbox.fault("operation-error")

    _, err, code = tpuctl(*typed)

    found = re.findall(r"`tpuctl (up [^`]*)`", err)
    assert (code, found) == (6, commands)
    for command in found:
        assert tpuctl(*shlex.split(command), "--dry-run")[2] == 0


@pytest.mark.parametrize("tier", [("--spot",), ("--reservation", "r")], ids=["spot", "reservation"])
def test_hint_with_tiers_replaces_the_typed_tier(tpuctl: Console, sandbox: Sandbox, tier: tuple[str, ...]) -> None:
    sandbox.fault(
        "quota", method="*nodes.create", message="Quota limit 'TPUV6EPerProjectPerZoneForTPUAPI' has been exceeded."
    )

    _, err, code = tpuctl("up", "demo", *NODE, *tier)

    (command,) = re.findall(r"`tpuctl (up [^`]*)`", err)
    assert (code, command) == (7, "up demo --zone any --tier spot,on-demand --type v6e-8 --for healthy")
    assert tpuctl(*shlex.split(command), "--dry-run")[2] == 0


def test_hints_of_run_up_repeat_the_whole_job(tpuctl: Console, sandbox: Sandbox) -> None:
    """Its `--rm`, its limits, its capacity type and its command stay; it works in one zone."""
    sandbox.fault("operation-error")
    job = "run ci --up v6e-8 --spot --rm --no-sync --timeout 3h"

    _, err, code = tpuctl(*job.split(), "--zone", "us-east5-b", "--", "echo a b")

    assert (code, re.findall(r"`tpuctl ([^`]*)`", err)[:2]) == (
        6,
        [f"{job} --zone ZONE -- 'echo a b'", f"{job} --zone us-east5-b --queue -- 'echo a b'"],
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("run", "trainr", "--", "true"), "did you mean `trainer`?"),
        (("ssh", "traner"), "did you mean `trainer`?"),
        (("status", "sweep-3"), "run `tpuctl list` to see the nodes of all zones"),
    ],
    ids=["run", "ssh", "another-number"],
)
def test_mistyped_name_has_the_near_one_in_its_hint(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], hint: str
) -> None:
    for name in ("trainer", "sweep-2"):
        put(sandbox, name)

    _, err, code = tpuctl(*words)

    assert (code, err.splitlines()[1]) == (3, f"  hint: {hint}")
