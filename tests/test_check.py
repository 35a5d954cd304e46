"""`tpuctl check`: what it says of a type, a node, a file, a zone; what it does with wrong input and with an API that fails."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.check_findings import V4, V6E, findings, levels
from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, one_face, put
from tpuctl.sandbox import provision, request_log


def test_a_bucket_on_another_continent_is_an_error(tpuctl: Console, sandbox: Sandbox) -> None:
    """It names both places, the price per TB, what that region offers instead, and where a bucket would be beside."""
    provision.add_bucket(sandbox.world, "data", location="EUROPE-WEST4")

    out, _, code = tpuctl(*V4, "--bucket", "gs://data", "-o", "json")

    found = findings(out)["TPU101", "gs://data"]
    said = " ".join([found["text"], found["why"], *(remedy["text"] for remedy in found["remedies"])])
    assert (code, found["level"]) == (9, "error")
    for words in ("EUROPE-WEST4", "us-central2", "per TB", "no zone of europe-west4 offers v4", "v6e", "US-CENTRAL2"):
        assert words in said, words


@pytest.mark.parametrize(
    ("command", "location", "level", "code"),
    [
        (V6E, "EUR4", "ok", 0),
        (V6E, "EUROPE-WEST4", "ok", 0),
        (V6E, "EUROPE-WEST1", "error", 9),
        (V6E, "EU", "warning", 0),
        (("check", "v5litepod-8", "--zone", "us-central1-a"), "US", "warning", 0),
        (("check", "v5litepod-8", "--zone", "us-central1-a"), "NAM4", "ok", 0),
        (V4, "US-CENTRAL1", "error", 9),
        (V4, "US-CENTRAL2", "ok", 0),
        (V4, "MARS-CENTRAL1", "unknown", 0),
    ],
)
@one_face
def test_the_place_of_a_bucket_decides(  # noqa: PLR0917  # fixtures, and what a row says
    tpuctl: Console, sandbox: Sandbox, command: tuple[str, ...], location: str, level: str, code: int
) -> None:
    provision.add_bucket(sandbox.world, "data", location=location)

    out, _, ended = tpuctl(*command, "--bucket", "gs://data", "-o", "json")

    assert (findings(out)["TPU101", "gs://data"]["level"], ended) == (level, code)


def test_an_ordinary_project_is_fine(tpuctl: Console, sandbox: Sandbox) -> None:
    provision.add_bucket(sandbox.world, "data", location="US-CENTRAL2")
    provision.add_object(sandbox.world, "data", "train/0", b"x")

    out, err, code = tpuctl(*V4, "--data-bucket", "gs://data/train", "--strict")

    # The sandbox limits nothing unless it is told to.
    assert ([line.split("\t")[:2] for line in out.splitlines()], code) == ([["note", "TPU401"]], 0)
    assert err.splitlines()[-1].endswith(" ok in 0.0 s")


@one_face
def test_strict_fails_by_a_warning(tpuctl: Console, sandbox: Sandbox) -> None:
    provision.add_bucket(sandbox.world, "data", location="US")
    command = ("check", "v5litepod-8", "--zone", "us-central1-a", "--bucket", "gs://data")

    assert [tpuctl(*command, *strict)[2] for strict in ((), ("--strict",), ("--strict", "--skip-check", "TPU101"))] == [
        0,
        9,
        0,
    ]


@one_face
def test_three_ways_in_which_a_bucket_is_not_ours(tpuctl: Console, sandbox: Sandbox) -> None:
    """One that does not exist, one of somebody else, one that may not be looked at: three different findings."""
    provision.add_project(sandbox.world, "sandbox")
    provision.add_project(sandbox.world, "other-project")
    provision.add_bucket(sandbox.world, "theirs", location="US-CENTRAL2", project="other-project")
    provision.add_bucket(sandbox.world, "closed", location="US-CENTRAL2", denied=["storage.*"])
    buckets = [word for name in ("nowhere-at-all", "theirs", "closed") for word in ("--bucket", f"gs://{name}")]

    out, _, code = tpuctl(*V4, *buckets, "-o", "json")

    found = findings(out)
    assert code == 9
    assert found["TPU102", "gs://nowhere-at-all"]["level"] == "error"
    assert found["TPU103", "gs://theirs"]["level"] == "warning"
    assert found["TPU102", "gs://closed"]["level"] == "unknown"
    assert "storage.buckets.get" in json.dumps(found["TPU102", "gs://closed"])
    assert ("TPU101", "gs://closed") not in found


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("gs://", "has no valid bucket"),
        ("gs://data//", "several slashes"),
        ("s3://data", "not in Cloud Storage"),
        ("https://example.com/x", "not in Cloud Storage"),
        ("./data", "path of this machine"),
        ("/data/train", "path of this machine"),
        ("data", "did you mean `gs://data`"),
        ("", "is empty"),
    ],
)
@one_face
def test_what_is_no_bucket_is_refused(tpuctl: Console, value: str, words: str) -> None:
    out, err, code = tpuctl(*V4, "--bucket", value)

    assert (out, code) == ("", 2)
    assert f"`{value}`" in err
    assert words in err


@one_face
def test_of_a_zone_that_does_not_exist_only_that_is_said(tpuctl: Console) -> None:
    out, _, code = tpuctl("check", "v4-8", "--zone", "us-centrl2-b", "-o", "json")

    assert (code, levels(out)) == (9, {"error": {"TPU301"}})


@one_face
def test_an_unknown_id_of_a_check_is_refused(tpuctl: Console) -> None:
    _, err, code = tpuctl(*V4, "--skip-check", "TPU110")

    assert code == 2
    assert err.startswith("error: `--skip-check TPU110`: there is no such check\n  hint: did you mean `TPU10")


def test_nothing_is_asked_twice(tpuctl: Console, sandbox: Sandbox, face: Mapping[str, str]) -> None:
    del face
    for name in ("one", "two"):
        provision.add_bucket(sandbox.world, name, location="EU")

    tpuctl(*V4, "--bucket", "gs://one", "--bucket", "gs://two", "--bucket", "gs://two")

    asked = Counter((entry.method, entry.path) for entry in request_log.entries(sandbox.world.path))
    assert [call for call, count in asked.items() if count > 1] == []


@one_face
def test_a_node_that_is_there_is_not_judged_by_what_it_would_take_to_make_it(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "demo")
    admin_quota(sandbox, limit=8)

    assert tpuctl("check", "demo")[2] == 0
    assert tpuctl("check", "v4-8", "--zone", ZONE)[2] == 9


@one_face
def test_a_dead_node_is_checked_as_it_would_be_made_anew(tpuctl: Console, sandbox: Sandbox) -> None:
    """The quota that its record holds is its own."""
    put(sandbox, "demo", state="PREEMPTED")
    admin_quota(sandbox, limit=8)

    out, _, code = tpuctl("check", "demo", "-o", "json")

    assert (code, findings(out)["TPU401", ZONE]["level"]) == (0, "ok")


def test_a_file_says_what_is_checked(tpuctl: Console, sandbox: Sandbox) -> None:
    provision.add_bucket(sandbox.world, "data", location="EU")
    (tpuctl.folder / "train.yaml").write_text(f"type: v4-8\nzone: {ZONE}\nbuckets: [gs://data]\n")

    out, _, code = tpuctl("check", "train.yaml", "-o", "json")

    assert (code, findings(out)["TPU101", "gs://data"]["level"]) == (9, "error")
    assert tpuctl("check", "nothing.yaml")[2] == 2


def test_without_a_zone_the_zones_are_ranked(tpuctl: Console, sandbox: Sandbox) -> None:
    provision.add_bucket(sandbox.world, "data", location="EUR4")

    out, _, code = tpuctl("check", "v6e-8", "--bucket", "gs://data", "-o", "name")

    assert (code, out.split()[0]) == (0, "europe-west4-a")
    assert len(out.split()) > 3
    assert tpuctl("check", "v4-8", "--where", "--zone", "europe-west4-a,us-central2-b", "-o", "name")[0] == f"{ZONE}\n"


@one_face
def test_a_type_that_is_misspelt_is_no_node(tpuctl: Console) -> None:
    assert "did you mean `v4-8`?" in tpuctl("check", "v4-7", "--zone", ZONE)[1]


@one_face
def test_a_file_about_new_nodes_does_not_change_what_is_there(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "demo")
    (tpuctl.folder / "tpuctl.yaml").write_text("type: v6e-8\n")

    there, anew = (
        json.loads(tpuctl("check", "demo", *flags, "-o", "json")[0])["target"] for flags in ((), ("--type", "v4-16"))
    )

    assert (there["acceleratorType"], there["creates"]) == ("v4-8", False)
    assert (anew["acceleratorType"], anew["creates"]) == ("v4-16", True)


@one_face
def test_what_another_service_rents_is_named(tpuctl: Console) -> None:
    out, _, code = tpuctl("check", "tpu7x-8", "--zone", "us-central1-a", "-o", "json")

    found = [entry for entry in json.loads(out)["findings"] if entry["level"] in {"error", "warning"}]
    assert ([entry["id"] for entry in found], code) == (["TPU304"], 9)
    assert "Compute Engine" in json.dumps(found)


@one_face
def test_nothing_to_check_says_what_to_name(tpuctl: Console) -> None:
    _, err, code = tpuctl("check")

    assert (code, err.splitlines()[0]) == (2, "error: what is to be checked?")
    assert tpuctl("check", "nobody", "--zone", ZONE)[2] == 3
    assert tpuctl("check", "nobody")[1:] == (
        "error: no node `nobody` in any zone of project sandbox\n  hint: run `tpuctl list` to see the nodes of all zones\n",
        3,
    )
    assert "`tpuctl check v4-8 --bucket gs://data`" in tpuctl("check", "gs://data")[1]


@one_face
def test_fix_shows_what_it_would_do_asks_and_looks_again(tpuctl: Console, sandbox: Sandbox) -> None:
    provision.set_services(sandbox.world, {"storage.googleapis.com": "DISABLED"})
    provision.add_bucket(sandbox.world, "data", location="US-CENTRAL2")
    provision.set_iam_policy(
        sandbox.world, [{"role": "roles/storage.admin", "members": ["user:a@example.com"]}], bucket="data"
    )
    command = (*V4, "--bucket", "gs://data", "--fix")

    assert tpuctl(*command)[2] == 2  # nobody can be asked
    _, err, code = tpuctl(*command, stdin="n\n", terminal=True)
    assert (code, sandbox.changes()) == (9, [])
    assert "  gcloud services enable storage.googleapis.com --project=sandbox" in err

    tpuctl(*command, "--yes")
    out, _, code = tpuctl(*command, "--yes", "-o", "json")

    assert (code, levels(out).get("error")) == (0, None)
    assert sorted(sandbox.changes()) == ["enable", "setIamPolicy"]


def admin_quota(sandbox: Sandbox, *, limit: int) -> None:
    """Set the quota of v4 on demand in the zone."""
    from tpuctl.sandbox import quotas  # noqa: PLC0415  # only here

    with sandbox.world.write() as session:
        quotas.set_quota(session, limit=limit, generation="v4", zone=ZONE)
