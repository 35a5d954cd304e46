"""The checks of `up`, `create` and `run --up` before a creation, and the cases that are not checked."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, both_faces, put
from tpuctl.sandbox import administration
from tpuctl.sandbox.capacity import put_quota
from tpuctl.sandbox.request_log import read_log

EU = ("--bucket", "gs://data-eu")


@pytest.fixture
def buckets(sandbox: Sandbox) -> None:
    """A bucket on another continent than the node, and one across a multi-region."""
    administration.add_bucket(sandbox.state, "data-eu", location="EUROPE-WEST4")
    administration.add_bucket(sandbox.state, "data-us", location="US")


def quota(sandbox: Sandbox, limit: int) -> None:
    """Set the quota of on-demand v4 in the zone."""
    with sandbox.state.write() as session:
        put_quota(session, limit=limit, generation="v4", zone=ZONE)


def reads(sandbox: Sandbox) -> int:
    """Count the requests about buckets so far: only checks send them."""
    return sum("/storage/" in entry.path for entry in read_log(sandbox.state.path))


@both_faces
@pytest.mark.usefixtures("buckets")
@pytest.mark.parametrize("verb", ["up", "create"])
def test_check_error_prevents_creation(tpuctl: Console, sandbox: Sandbox, verb: str) -> None:
    out, err, code = tpuctl(verb, *UP[1:], *EU)

    assert (out, code, sandbox.changes()) == ("", 9, [])
    assert (
        "error: `demo` was not created: the check found 1 error\n  TPU101 `gs://data-eu` is in EUROPE-WEST4, the TPU in "
        in err
    )
    assert "per TB" in err
    assert err.rstrip().endswith("or continue with `--skip-check TPU101`")


@pytest.mark.usefixtures("buckets")
def test_check_error_in_json(tpuctl: Console) -> None:
    _, err, code = tpuctl(*UP, *EU, "-o", "json")

    error = json.loads(err.splitlines()[-1])["error"]
    assert (code, error["kind"], error["exit_code"]) == (9, "check_failed", 9)


@pytest.mark.usefixtures("buckets")
@pytest.mark.parametrize("skip", [("--skip-check", "TPU101"), ("--skip-check", "all")])
def test_skipped_check_does_not_stop(tpuctl: Console, sandbox: Sandbox, skip: tuple[str, ...]) -> None:
    _, err, code = tpuctl(*UP, *EU, *skip)

    assert (code, sandbox.changes()) == (0, ["create"])
    # Still said, unless nothing was asked at all.
    assert ("TPU101" in err) == (skip[1] == "TPU101")


@pytest.mark.usefixtures("buckets")
def test_warning_is_one_line_and_does_not_stop(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl("up", "demo", "--type", "v2-8", "--zone", "us-central1-b", "--data-bucket", "gs://data-us")

    lines = [line for line in err.splitlines() if "TPU1" in line]
    assert (code, sandbox.changes()) == (0, ["create"])
    assert [line.partition(" (")[0] for line in lines] == [
        "demo: TPU101 `gs://data-us` is in US",
        "demo: TPU108 `gs://data-us` is empty",
    ]


@pytest.mark.usefixtures("buckets")
def test_existing_node_is_not_checked(tpuctl: Console, sandbox: Sandbox) -> None:
    """The quota that the node itself uses does not block it."""
    put(sandbox)
    quota(sandbox, 8)

    assert (tpuctl(*UP, *EU)[2], sandbox.changes(), reads(sandbox)) == (0, [], 0)


@pytest.mark.usefixtures("buckets")
def test_recreate_checks_before_delete(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, type="v4-16")
    change = ("up", "demo", "--type", "v4-32", "--zone", ZONE, "--replace", "--yes")

    _, _, refused = tpuctl(*change, *EU)
    assert (refused, sandbox.changes()) == (9, [])

    assert (tpuctl(*change)[2], sandbox.changes()) == (0, ["delete", "create"])


def test_dead_record_frees_quota_for_its_successor(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", schedulingConfig={"spot": False})
    quota(sandbox, 8)

    assert (tpuctl(*UP)[2], sandbox.changes()) == (0, ["delete", "create"])


def test_nodes_of_one_command_share_quota(tpuctl: Console, sandbox: Sandbox) -> None:
    quota(sandbox, 16)

    _, err, code = tpuctl("up", "a", "b", "c", "--type", "v4-8", "--zone", ZONE)

    assert (code, sandbox.changes()) == (9, [])
    assert "TPU401" in err


@pytest.mark.usefixtures("buckets")
def test_passed_check_is_cached_ten_minutes(tpuctl: Console, sandbox: Sandbox) -> None:
    command = ("create", "--type", "v2-8", "--zone", "us-central1-b", "--bucket", "gs://data-us", "--no-wait")
    asked = []
    for name, pause in (("a", 0), ("a", 5), ("a", 11)):
        sandbox.advance(minutes=pause)
        before = reads(sandbox)
        err = tpuctl(command[0], name, *command[1:])[1]
        assert "TPU101" in err
        asked.append(reads(sandbox) - before)
        tpuctl("delete", name, "--yes", "--zone", "us-central1-b")

    assert [count > 0 for count in asked] == [True, False, True]


def test_error_clears_cached_checks(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "data", location="US-CENTRAL2")
    assert tpuctl("check", *UP[1:], "--bucket", "gs://data")[2] == 0
    administration.add_bucket(sandbox.state, "data", location="ASIA-NORTHEAST1")
    # Another question, about the same bucket.
    assert tpuctl("check", *UP[2:], "--bucket", "gs://data")[2] == 9

    assert (tpuctl(*UP, "--bucket", "gs://data")[2], sandbox.changes()) == (9, [])


def test_creation_clears_cached_checks_of_others(tpuctl: Console, sandbox: Sandbox) -> None:
    quota(sandbox, 8)
    assert [tpuctl("check", name, *UP[2:])[2] for name in ("a", "b")] == [0, 0]

    assert [tpuctl("up", name, *UP[2:])[2] for name in ("a", "b")] == [0, 9]
    assert sandbox.changes() == ["create"]


@pytest.mark.parametrize("skipped", ["all", "TPU405", "TPU408", "TPU409"])
def test_project_file_cannot_skip_billing_check(tpuctl: Console, sandbox: Sandbox, skipped: str) -> None:
    (tpuctl.folder / "tpuctl.yaml").write_text(f"skip_checks: [TPU101, {skipped}]\n")

    _, err, code = tpuctl(*UP, "--no-billing-outside-grants", TPUCTL_TRUST_PROJECT_FILE="1")

    assert (code, sandbox.changes()) == (2, [])
    assert f"tpuctl.yaml line 1: `skip_checks` of a project file cannot name `{skipped}`" in err


def test_sandbox_cache_ends_with_sandbox(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "data", location="US-CENTRAL2")
    assert tpuctl(*UP, "--bucket", "gs://data")[2] == 0

    sandbox.state.close()
    tpuctl("sandbox", "reset", "--yes")

    assert tpuctl(*UP, "--bucket", "gs://data")[2] == 9


@pytest.mark.usefixtures("buckets")
def test_error_is_not_cached(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl(*UP, *EU)[2] == 9
    administration.add_bucket(sandbox.state, "data-eu", location="US-CENTRAL2")

    assert (tpuctl(*UP, *EU)[2], sandbox.changes()) == (0, ["create"])


def test_other_inputs_are_checked_again(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "near", location="US-CENTRAL2")
    administration.add_bucket(sandbox.state, "far", location="EU")

    assert tpuctl("check", "demo", *UP[2:], "--bucket", "gs://near")[2] == 0
    assert tpuctl(*UP, "--bucket", "gs://far")[2] == 9


@pytest.mark.usefixtures("buckets")
def test_up_uses_cached_check(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "near", location="US-CENTRAL2")
    assert tpuctl("check", "demo", *UP[2:], "--bucket", "gs://near")[2] == 0
    before = reads(sandbox)

    assert (tpuctl(*UP, "--bucket", "gs://near")[2], reads(sandbox)) == (0, before)


@pytest.mark.usefixtures("buckets")
def test_project_file_buckets_are_checked(tpuctl: Console, sandbox: Sandbox) -> None:
    (tpuctl.folder / "tpuctl.yaml").write_text(f"type: v4-8\nzone: {ZONE}\ndata_buckets: [gs://data-eu]\n")

    assert (tpuctl("up", "demo")[2], sandbox.changes()) == (9, [])


@pytest.mark.usefixtures("buckets")
def test_run_up_checks_before_creation(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None]) -> None:
    del fake_ssh
    command = ("run", "demo", "--up", "v4-8", "--zone", ZONE, "--rm", "--no-sync", *EU, "--", "true")

    _, err, code = tpuctl(*command)

    assert (code, sandbox.changes()) == (9, [])
    assert "TPU101" in err
    assert tpuctl("run", "demo", *EU, "--", "true")[1].startswith(
        "error: `--bucket` describes a node, and needs `--up`"
    )


def test_apis_down_do_not_stop_creation(tpuctl: Console, sandbox: Sandbox) -> None:
    for api in ("compute", "serviceusage", "orgpolicy", "cloudbilling", "cloudresourcemanager"):
        sandbox.fault("http-error", method=f"{api}.*", status=503, count=0)

    _, err, code = tpuctl(*UP)

    assert (code, sandbox.changes()) == (0, ["create"])
    assert "demo: not checked, because it could not be read: TPU401" in err


@pytest.mark.usefixtures("buckets")
def test_dry_run_checks(tpuctl: Console, sandbox: Sandbox) -> None:
    out, err, code = tpuctl(*UP, *EU, "--dry-run")

    assert (out, code, sandbox.changes()) == ("", 9, [])
    assert "TPU101" in err
    assert "dry run" not in err


def test_refusal_for_its_price_names_the_limit_first(tpuctl: Console, sandbox: Sandbox) -> None:
    up = ("up", "a", "b", "--type", "v5litepod-8", "--zone", "us-central1-a", "--budget", "5", "--max-price", "1")

    _, err, code = tpuctl(*up)

    assert (code, sandbox.changes()) == (9, [])
    assert (
        "  hint: raise the limit with `--max-price PRICE` and `--budget PRICE`, or choose what costs less\n"
        "  hint: `--skip-check TPU408 --skip-check TPU409` creates it without any limit on its cost\n"
    ) in err
    assert "all nodes with `a` and 1 other new node would cost $19.20/h" in err


def test_watch_does_not_check(tpuctl: Console, sandbox: Sandbox) -> None:
    """`watch` recreates what the user has already created; a check would stop it at night."""
    put(sandbox, state="PREEMPTED")
    (tpuctl.folder / "tpuctl.yaml").write_text("data_buckets: [gs://nowhere-at-all]\n")

    tpuctl("watch", "demo", "--until", "30m")

    assert sandbox.changes() == ["delete", "create"]


def test_remedy_command_creates_same_node_in_same_cloud(tpuctl: Console, sandbox: Sandbox) -> None:
    up = ("up", "demo", "--type", "v4-8", "--zone", "us-west4-a", "--sandbox", "--no-wait")
    err = tpuctl(*up, "--user", "me")[1]

    # The ssh key that tpuctl itself adds to a node is no reason for a mere check.
    remedy = f"tpuctl up demo --project=sandbox --zone={ZONE} --type=v4-8 --sandbox"
    assert f"`{remedy}`" in err
    assert tpuctl(*remedy.split()[1:], "--no-wait")[2] == 0
    assert sandbox.changes() == ["create"]


def test_remedy_command_uses_same_cloud(tpuctl: Console) -> None:
    found = json.loads(tpuctl("check", "v4-8", "--zone", "us-west4-a", "--sandbox", "-o", "json")[0])["findings"]

    (remedy,) = next(finding for finding in found if finding["id"] == "TPU301")["remedies"]
    assert remedy["command"] == f"tpuctl check --project=sandbox --zone={ZONE} --type=v4-8 --sandbox"
