"""Options and settings of a check: each has an effect on the findings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, put
from tpuctl.sandbox import administration

V4 = ("check", "v4-8", "--zone", ZONE)
GRANTS = f"zone={ZONE},type=v4,tier=on-demand,count=8,until=2026-12-31"
SETTINGS = """\
egress_prices: {us-europe: "0.05"}
billing_project: payer
data_buckets: [gs://far/train]
"""


def beside(tpuctl: Console, **environ: str) -> Console:
    """Return the program with additional environment variables."""
    return replace(tpuctl, environ={**tpuctl.environ, **environ})


def checked(tpuctl: Console, *command: str) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Return the target, and the findings by id."""
    answer = json.loads(tpuctl(*command, "-o", "json")[0])
    assert answer["sandbox"]
    by_id: dict[str, list[dict[str, Any]]] = {}
    for one in answer["findings"]:
        by_id.setdefault(one["id"], []).append(one)
    return answer["target"], by_id


def test_settings_file_buckets_prices_and_grants_apply(tpuctl: Console, sandbox: Sandbox) -> None:
    (tpuctl.folder / "tpuctl.yaml").write_text(SETTINGS)
    administration.add_bucket(sandbox.state, "far", location="EUROPE-WEST4", billing={"requesterPays": True})
    administration.add_project(sandbox.state, "payer")
    administration.add_project(sandbox.state, "sandbox")

    granted = beside(tpuctl, TPUCTL_GRANTS=GRANTS, TPUCTL_TRUST_PROJECT_FILE="1")
    target, by_id = checked(granted, *V4, "--dataset-size", "1TB", "--skip-check", "tpu101")

    (place,), (pays,) = by_id["TPU101"], by_id["TPU104"]
    assert target["buckets"] == ["gs://far/train"]
    assert (place["level"], place["accepted"], place["facts"]["datasetSize"]) == ("warning", True, 10**12)
    assert "the price in your settings" in place["why"]
    # A grant covers it.
    assert "TPU405" not in by_id
    assert (pays["level"], pays["facts"]["billingProject"]) == ("note", "payer")
    # It is read only.
    assert "TPU106" not in by_id
    assert "TPU108" in by_id


def test_flags_for_purpose_and_ssh_route_apply(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "near", location="US-CENTRAL2")
    administration.add_instance(sandbox.state, "loader", zone=ZONE)
    twice = ("--checkpoint-bucket", "gs://near", "--checkpoint-bucket", "gs://near/")

    target, by_id = checked(tpuctl, *V4, *twice, "--iap", "--vm", "loader", "--no-billing-outside-grants")

    assert (target["buckets"], target["machine"], target["purpose"]) == (["gs://near"], "loader", "train")
    assert [one["level"] for one in by_id["TPU405"]] == ["error"]
    assert {"TPU604", "TPU701"}.isdisjoint(by_id)
    # It is written only.
    assert "TPU108" not in by_id

    target, by_id = checked(
        tpuctl, *V4, "--bucket", "gs://near", "--internal-ip", "--for", "serve", "--skip-check", "ALL"
    )
    assert target["purpose"] == "serve"
    assert {"TPU202", "TPU604"}.isdisjoint(by_id)


def test_differing_node_is_checked_as_new(tpuctl: Console, sandbox: Sandbox) -> None:
    """The node's own quota becomes free, and the requested type precedes that of the existing node."""
    put(sandbox, "demo", acceleratorType="v4-16")

    as_it_is, _ = checked(tpuctl, "check", "demo")
    other, by_id = checked(tpuctl, "check", "demo", "--type", "v4-8", "--zone", ZONE)

    assert (as_it_is["creates"], as_it_is["acceleratorType"], as_it_is["nodeId"]) == (False, "v4-16", "demo")
    assert (other["creates"], other["acceleratorType"], other["nodeId"]) == (True, "v4-8", "demo")
    assert [one["level"] for one in by_id["TPU306"]] == ["note"]


def test_zone_search_missing_bucket_fails(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "shut", location="EU", denied=["*"])

    assert tpuctl("check", "v4-8", "--bucket", "gs://shut", "-o", "name")[::2] == (f"{ZONE}\n", 0)
    assert tpuctl("check", "v4-8", "--bucket", "gs://nowhere-at-all", "-o", "name")[::2] == (f"{ZONE}\n", 9)
    assert "there is no file `none.yaml`" in tpuctl("check", "none.yaml")[1]
    # Asked where, it does not matter that there is a zone.
    assert tpuctl("check", "v4-8", "--zone", ZONE, "--where", "-o", "name")[::2] == (f"{ZONE}\n", 0)
    # Of several zones the question is which; one that is only a default is the one.
    assert tpuctl("check", "v4-8", "--zone", f"europe-west4-a,{ZONE}", "-o", "name")[0] == f"{ZONE}\n"
    assert checked(beside(tpuctl, CLOUDSDK_COMPUTE_ZONE=ZONE), "check", "v4-8")[0]["zone"] == ZONE
    assert tpuctl("check", "v6e-2048", "-o", "name")[::2] == ("", 9)


@pytest.fixture
def closed(sandbox: Sandbox) -> None:
    administration.set_services(sandbox.state, {"iap.googleapis.com": "DISABLED"})


@pytest.mark.usefixtures("closed")
def test_fix_json_is_one_document(tpuctl: Console, sandbox: Sandbox) -> None:
    command = (*V4, "--iap", "--fix")

    out, err, code = tpuctl(*command, "-o", "json", stdin="n\n")
    assert (json.loads(out)["summary"]["warning"], code, sandbox.changes()) == (1, 0, [])
    assert "nothing was changed" in err
    assert "(`--fix` does this)" not in out

    assert "(`--fix` does this)" in tpuctl(*V4, "--iap", terminal=True)[0]
    out, err, code = tpuctl(*command, "--yes", terminal=True)
    assert "(`--fix` does this)" not in out
    assert (out.count("TPU501"), code, sandbox.changes()) == (1, 0, ["enable"])
    assert err.count("done: gcloud services enable iap.googleapis.com --project=sandbox") == 1

    out, err, code = tpuctl(*command, "-o", "json")
    assert (json.loads(out)["summary"]["warning"], code) == (0, 0)
    assert "`--fix` has nothing to do" in err
    assert "what `--fix` would do" not in err


def test_all_flag_names_the_rules_that_were_run(tpuctl: Console) -> None:
    plain, verbose, every = (tpuctl(*more, *V4, *last)[0] for more, last in (((), ()), (("-v",), ()), ((), ("--all",))))

    assert "examined:" not in plain
    assert "  TPU101  the bucket is where the TPU is\n" in verbose
    assert verbose.endswith(every.partition("examined:")[2])
