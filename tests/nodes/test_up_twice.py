"""`tpuctl up` twice with the same options: the second run finds what the first made, and no run conflicts with its own node."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from tests.conftest import Console, Sandbox
from tpuctl.app.options import DurationType
from tpuctl.clock import ManualClock
from tpuctl.errors import ExitCode
from tpuctl.models.node import Tier
from tpuctl.nodes.commands.time_options import MomentType
from tpuctl.nodes.commands.up import command
from tpuctl.sandbox.stock import put_reservation

# The combinations that are drawn for each way to request a node; `make simulation` draws more.
DRAWN = int(os.environ.get("UP_TWICE_DRAWN", "8"))
ZONES = ("us-east5-a", "us-east5-b")
ACCOUNT = "trainer@sandbox.iam.gserviceaccount.com"
# What `up` is given for options of a text. A new option of a text needs an entry, here or in `LEFT_OUT`.
TEXTS: Mapping[str, tuple[str, ...]] = {
    "boot_disk_size": ("200GB", "1TB"),
    "buckets": ("gs://data",),
    "cidr_block": ("10.2.0.0/29",),
    "data_disks": ("source=projects/other/zones/us-east5-b/disks/data,mode=read-only",),
    "description": ("of the test",),
    "labels": ("team=vision",),
    "metadata": ("key=value",),
    "network": ("default", "global/networks/default"),
    "reservation": ("res1",),
    "scopes": ("https://www.googleapis.com/auth/cloud-platform",),
    "service_account": (ACCOUNT,),
    "setup": ("true",),
    "start_after": ("10m",),
    "subnetwork": ("default", "regions/us-east5/subnetworks/default"),
    "tags": ("web,team",),
    "topology": ("2x4",),
    "type": ("v6e-8",),
    "version": ("v2-alpha-tpuv6e", "tpu-ubuntu2204-base"),
}
# Options that do not say what the node is, or that every run of the test has, or that need what the test has not.
LEFT_OUT = {
    *("nodes", "zone", "race", "queue", "tier", "type", "yes", "skip_checks", "timeout", "project"),
    *("billing_project", "checkpoint_buckets", "data_buckets", "dataset_size", "buckets", "check_timeout"),
    *("budget", "max_price", "no_billing_outside_grants", "allow_unknown_price"),
    *("dry_run", "no_wait", "replace", "events", "on_usable", "on_recover", "probe", "force_lease"),
    *("metadata_from_file", "startup_script", "setup_script"),
    *("sandbox", "endpoint", "impersonate_service_account", "quota_project", "user", "journal", "lease"),
    *("ssh_key", "ssh_key_expire_after", "trust_project_file", "output", "no_header", "timestamps", "quiet"),
    *("show_metadata", "verbose", "iap", "internal_ip", "goal", "help", "version_"),
}


def values_of(option: click.Parameter) -> st.SearchStrategy[tuple[str, ...]]:
    """Return what draws the words of one option, by its kind."""
    flag = option.opts[0]
    if isinstance(option, click.Option) and option.is_flag:
        return st.just((flag,))
    if isinstance(option.type, click.Choice):
        return st.sampled_from([(flag, str(choice)) for choice in option.type.choices])
    if isinstance(option.type, click.IntRange):
        return st.sampled_from([(flag, str(number)) for number in (1, 2)])
    if isinstance(option.type, DurationType | MomentType):
        return st.sampled_from([(flag, text) for text in ("30m", "20h")])
    return st.sampled_from([(flag, text) for text in TEXTS[str(option.name)]])


OPTIONS = {str(option.name): option for option in command.params if option.name not in LEFT_OUT}
TIERS = st.lists(st.sampled_from(list(Tier)), min_size=1, max_size=2, unique=True).map(
    lambda tiers: ("--tier", ",".join(tiers))
)


# How the node is requested. Each is drawn with every tier, and with the other options.
WAYS = {
    "one zone": ("--zone", ZONES[1]),
    "one zone, queued": ("--zone", ZONES[1], "--queue"),
    "zones": ("--zone", ",".join(ZONES)),
    "zones, queued": ("--zone", ",".join(ZONES), "--queue"),
    "race": ("--zone", ",".join(ZONES), "--race"),
}


@st.composite
def further_options(draw: st.DrawFn) -> tuple[str, ...]:
    """Draw the tier and up to four more options."""
    words = [*draw(st.one_of(st.just(()), TIERS))]
    for name in sorted(draw(st.sets(st.sampled_from([*OPTIONS]), max_size=4))):
        words += draw(values_of(OPTIONS[name]))
    return tuple(words)


def test_every_option_of_up_is_drawn_or_left_out() -> None:
    texts = {
        str(option.name)
        for option in OPTIONS.values()
        if not (isinstance(option, click.Option) and option.is_flag)
        and not isinstance(option.type, click.Choice | click.IntRange | DurationType | MomentType)
    }

    assert texts - set(TEXTS) == set()


@pytest.fixture
def console(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Console:
    """Return the program on a machine without ssh: `up` waits until the node is healthy."""
    monkeypatch.setenv("PATH", str(tmp_path))
    environ = {
        "HOME": str(tmp_path),
        "TPUCTL_STATE_DIR": str(tmp_path / "state"),
        "LOGNAME": "ada",
        "TPUCTL_SANDBOX": "1",
    }
    return Console(environ, tmp_path, clock)


@pytest.mark.parametrize("way", [pytest.param(words, id=name) for name, words in WAYS.items()])
@settings(
    max_examples=DRAWN,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    database=None,
    suppress_health_check=tuple(HealthCheck),
)
@given(further=further_options())
def test_second_up_with_the_same_options_finds_the_node_usable(
    console: Console, sandbox: Sandbox, way: tuple[str, ...], further: tuple[str, ...]
) -> None:
    # A project of its own for each, so that no quota runs out.
    project = f"project-{next(NUMBERS)}"
    with sandbox.state.write() as session:
        for zone in ZONES:
            reservation = f"projects/{project}/locations/{zone}/reservations/res1"
            put_reservation(session, name=reservation, state="ACTIVE", standard={"size": 64})
    words = ("up", "demo", "--type", "v6e-8", *way, *further, "--project", project, *ALWAYS)

    first = console(*words)

    assert first[2] != ExitCode.CONFLICT, first
    event(f"exit code {first[2]}")
    if first[2] == ExitCode.OK:
        second = console(*words)
        assert (second[0], second[2]) == (first[0], 0), (first, second)


# The checks before a creation have tests of their own.
ALWAYS = ("--timeout", "3h", "--skip-check", "all", "--yes")
NUMBERS = itertools.count()
