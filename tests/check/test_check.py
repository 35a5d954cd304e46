"""`tpuctl check` of a type, a node, a file and without a zone; wrong input, and an API that fails."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.check.check_findings import V4, V6E, findings, levels
from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, both_faces, put
from tpuctl.sandbox import administration
from tpuctl.sandbox.request_log import read_log


def test_bucket_on_other_continent_is_error(tpuctl: Console, sandbox: Sandbox) -> None:
    """The finding names both places, the price per TB, the types of that region, and a co-located bucket location."""
    administration.add_bucket(sandbox.state, "data", location="EUROPE-WEST4")

    out, _, code = tpuctl(*V4, "--bucket", "gs://data", "-o", "json")

    found = findings(out)["TPU101", "gs://data"]
    shown = " ".join([found["text"], found["why"], *(remedy["text"] for remedy in found["remedies"])])
    assert (code, found["level"]) == (9, "error")
    for words in ("EUROPE-WEST4", "us-central2", "per TB", "no zone of europe-west4 offers v4", "v6e", "US-CENTRAL2"):
        assert words in shown, words


@pytest.mark.parametrize(
    ("command", "location", "level", "code"),
    [
        (V6E, "EUR4", None, 0),
        (V6E, "EUROPE-WEST4", None, 0),
        (V6E, "EUROPE-WEST1", "error", 9),
        (V6E, "EU", "warning", 0),
        (("check", "v5litepod-8", "--zone", "us-central1-a"), "US", "warning", 0),
        (("check", "v5litepod-8", "--zone", "us-central1-a"), "NAM4", None, 0),
        (V4, "US-CENTRAL1", "error", 9),
        (V4, "US-CENTRAL2", None, 0),
        (V4, "MARS-CENTRAL1", "unknown", 0),
    ],
)
def test_bucket_location_decides_level(  # noqa: PLR0917  # fixtures, and what a row says
    tpuctl: Console, sandbox: Sandbox, command: tuple[str, ...], location: str, level: str | None, code: int
) -> None:
    administration.add_bucket(sandbox.state, "data", location=location)

    out, _, ended = tpuctl(*command, "--bucket", "gs://data", "-o", "json")

    found = findings(out).get(("TPU101", "gs://data"))
    assert (found and found["level"], ended) == (level, code)


@both_faces
def test_ordinary_project_is_ok(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "data", location="US-CENTRAL2")
    administration.add_object(sandbox.state, "data", "train/0", b"x")

    out, err, code = tpuctl(*V4, "--data-bucket", "gs://data/train", "--strict", "-o", "tsv")

    # The sandbox has no limits by default.
    assert ([line.split("\t")[:2] for line in out.splitlines()], code) == ([["level", "id"], ["note", "TPU401"]], 0)
    assert err.splitlines()[-1].endswith(" rules examined in 0.0 s")


def test_strict_fails_on_warning(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "data", location="US")
    command = ("check", "v5litepod-8", "--zone", "us-central1-a", "--bucket", "gs://data")

    assert [tpuctl(*command, *strict)[2] for strict in ((), ("--strict",), ("--strict", "--skip-check", "TPU101"))] == [
        0,
        9,
        0,
    ]


def test_missing_foreign_and_unreadable_buckets_differ(tpuctl: Console, sandbox: Sandbox) -> None:
    """A missing bucket, one of another project and an unreadable one give three different findings."""
    administration.add_project(sandbox.state, "sandbox")
    administration.add_project(sandbox.state, "other-project")
    administration.add_bucket(sandbox.state, "theirs", location="US-CENTRAL2", project="other-project")
    administration.add_bucket(sandbox.state, "closed", location="US-CENTRAL2", denied=["storage.*"])
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
        ("./data", "path on this machine"),
        ("/data/train", "path on this machine"),
        ("data", "did you mean `gs://data`"),
        ("", "is empty"),
    ],
)
def test_invalid_bucket_is_refused(tpuctl: Console, value: str, words: str) -> None:
    out, err, code = tpuctl(*V4, "--bucket", value)

    assert (out, code) == ("", 2)
    assert f"`{value}`" in err
    assert words in err


def test_missing_zone_is_the_only_finding(tpuctl: Console) -> None:
    out, _, code = tpuctl("check", "v4-8", "--zone", "us-centrl2-b", "-o", "json")

    assert (code, levels(out)) == (9, {"error": {"TPU301"}})


def test_unknown_check_id_is_refused(tpuctl: Console) -> None:
    _, err, code = tpuctl(*V4, "--skip-check", "TPU110")

    assert code == 2
    assert err.startswith("error: `--skip-check TPU110`: there is no such check\n  hint: did you mean `TPU10")


def test_check_sends_no_request_twice(tpuctl: Console, sandbox: Sandbox, face: Mapping[str, str]) -> None:
    del face
    for name in ("one", "two"):
        administration.add_bucket(sandbox.state, name, location="EU")

    tpuctl(*V4, "--bucket", "gs://one", "--bucket", "gs://two", "--bucket", "gs://two")

    asked = Counter((entry.method, entry.path) for entry in read_log(sandbox.state.path))
    assert [call for call, count in asked.items() if count > 1] == []


def test_existing_node_skips_creation_rules(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "demo")
    admin_quota(sandbox, limit=8)

    assert tpuctl("check", "demo")[2] == 0
    assert tpuctl("check", "v4-8", "--zone", ZONE)[2] == 9


def test_dead_node_is_checked_as_new(tpuctl: Console, sandbox: Sandbox) -> None:
    """The quota that the dead record uses becomes free."""
    put(sandbox, "demo", state="PREEMPTED")
    admin_quota(sandbox, limit=8)

    out, _, code = tpuctl("check", "demo", "-o", "json")

    assert code == 0
    assert ("TPU401", ZONE) not in findings(out)


def test_settings_file_as_target(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "data", location="EU")
    (tpuctl.folder / "train.yaml").write_text(f"type: v4-8\nzone: {ZONE}\nbuckets: [gs://data]\n")

    out, _, code = tpuctl("check", "train.yaml", "-o", "json")

    assert (code, findings(out)["TPU101", "gs://data"]["level"]) == (9, "error")
    assert tpuctl("check", "nothing.yaml")[2] == 2


def test_check_without_zone_ranks_zones(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "data", location="EUR4")

    out, _, code = tpuctl("check", "v6e-8", "--bucket", "gs://data", "-o", "name")

    assert (code, out.split()[0]) == (0, "europe-west4-a")
    assert len(out.split()) > 3
    assert tpuctl("check", "v4-8", "--where", "--zone", "europe-west4-a,us-central2-b", "-o", "name")[0] == f"{ZONE}\n"


def test_misspelt_type_is_suggested(tpuctl: Console) -> None:
    assert "did you mean `v4-8`?" in tpuctl("check", "v4-7", "--zone", ZONE)[1]


def test_settings_file_does_not_change_existing_node(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "demo")
    (tpuctl.folder / "tpuctl.yaml").write_text("type: v6e-8\n")

    there, new = (
        json.loads(tpuctl("check", "demo", *flags, "-o", "json")[0])["target"] for flags in ((), ("--type", "v4-16"))
    )

    assert (there["acceleratorType"], there["creates"]) == ("v4-8", False)
    assert (new["acceleratorType"], new["creates"]) == ("v4-16", True)


def test_type_of_other_service_is_named(tpuctl: Console) -> None:
    out, _, code = tpuctl("check", "tpu7x-8", "--zone", "us-central1-a", "-o", "json")

    found = [entry for entry in json.loads(out)["findings"] if entry["level"] in {"error", "warning"}]
    assert ([entry["id"] for entry in found], code) == (["TPU304"], 9)
    assert "Compute Engine" in json.dumps(found)


def test_check_without_target_is_refused(tpuctl: Console) -> None:
    _, err, code = tpuctl("check")

    assert (code, err.splitlines()[0]) == (2, "error: no node or type to check")
    assert tpuctl("check", "missing", "--zone", ZONE)[2] == 3
    assert tpuctl("check", "missing")[1:] == (
        "error: no node `missing` in any zone of project sandbox\n  hint: run `tpuctl list` to see the nodes of all zones\n",
        3,
    )
    assert "`tpuctl check v4-8 --bucket gs://data`" in tpuctl("check", "gs://data")[1]


def test_fix_shows_asks_and_checks_again(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.set_services(sandbox.state, {"storage.googleapis.com": "DISABLED"})
    administration.add_bucket(sandbox.state, "data", location="US-CENTRAL2")
    administration.set_iam_policy(
        sandbox.state, [{"role": "roles/storage.admin", "members": ["user:a@example.com"]}], bucket="data"
    )
    command = (*V4, "--bucket", "gs://data", "--fix")

    assert tpuctl(*command)[2] == 2  # no terminal for a confirmation
    _, err, code = tpuctl(*command, stdin="n\n", terminal=True)
    assert (code, sandbox.changes()) == (9, [])
    assert "  gcloud services enable storage.googleapis.com --project=sandbox" in err

    tpuctl(*command, "--yes")
    out, _, code = tpuctl(*command, "--yes", "-o", "json")

    assert (code, levels(out).get("error")) == (0, None)
    assert sorted(sandbox.changes()) == ["enable", "setIamPolicy"]


def admin_quota(sandbox: Sandbox, *, limit: int) -> None:
    """Set the quota of v4 on demand in the zone."""
    from tpuctl.sandbox.capacity import put_quota  # noqa: PLC0415  # only here

    with sandbox.state.write() as session:
        put_quota(session, limit=limit, generation="v4", zone=ZONE)
