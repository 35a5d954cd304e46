"""A bucket that is not where the TPU is, and the remedies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.check.bucket_facts import LATE, PAYS, READ, a_bucket, commands_of, facts_of, findings_of, summaries_of
from tpuctl.check.facts import BucketFacts, BucketUse, Known
from tpuctl.check.findings import Level, RuleResult
from tpuctl.models.spec import NodeSpec


@pytest.mark.parametrize(
    ("location", "kind", "zone", "level", "text"),
    [
        (
            "US-CENTRAL2",
            "region",
            "us-central2-b",
            "silent",
            "US-CENTRAL2, the TPU in us-central2 (zone us-central2-b)",
        ),
        (
            "US-CENTRAL1-A",
            "zone",
            "us-central1-a",
            "silent",
            "US-CENTRAL1-A, the TPU in us-central1 (zone us-central1-a)",
        ),
        (
            "US-CENTRAL1-A",
            "zone",
            "us-central1-b",
            "silent",
            "US-CENTRAL1-A, the TPU in us-central1 (zone us-central1-b)",
        ),
        (
            "EUR4",
            "dual-region",
            "europe-west4-a",
            "silent",
            "EUR4 (dual-region), the TPU in europe-west4 (zone europe-west4-a)",
        ),
        (
            "US",
            "multi-region",
            "us-central1-a",
            "warning",
            "US (multi-region), the TPU in us-central1 (zone us-central1-a)",
        ),
        (
            "EU",
            "multi-region",
            "europe-west2-b",
            "error",
            "EU (multi-region), the TPU in europe-west2 (zone europe-west2-b)",
        ),
        ("US-CENTRAL1", "region", "us-central2-b", "error", "US-CENTRAL1, the TPU in us-central2 (zone us-central2-b)"),
        (
            "EUROPE-WEST4",
            "region",
            "us-central2-b",
            "error",
            "EUROPE-WEST4, the TPU in us-central2 (zone us-central2-b)",
        ),
        (
            "EUR9",
            "dual-region",
            "europe-west4-a",
            "unknown",
            (
                "EUR9, a dual-region that this version does not know; unknown whether it is near the TPU in europe-west4 "
                "(zone europe-west4-a)"
            ),
        ),
        (
            "US",
            "planet",
            "us-east1-d",
            "unknown",
            (
                "US, a planet that this version does not know; unknown whether it is near the TPU in us-east1 "
                "(zone us-east1-d)"
            ),
        ),
    ],
)
def test_bucket_level_depends_on_distance(location: str, kind: str, zone: str, level: str, text: str) -> None:
    expected = [] if level == "silent" else [(level, f"`gs://b` is in {text}")]

    assert summaries_of("TPU101", facts_of(a_bucket(location, kind), zone=zone)) == expected


def test_bucket_on_other_continent_has_price_and_remedies() -> None:
    (found,) = findings_of("TPU101", facts_of(a_bucket("EUROPE-WEST4")))

    assert found == RuleResult(
        level=Level.ERROR,
        subject="gs://b",
        text="`gs://b` is in EUROPE-WEST4, the TPU in us-central2 (zone us-central2-b)",
        why="every read crosses between continents: it is far slower, and billed: $46.57 to $74.51 per TB ($0.05 to $0.08/GiB, "
        "list price of 2026-06)",
        remedies=found.remedies,
        facts={
            "location": "EUROPE-WEST4",
            "locationType": "region",
            "dataLocations": [],
            "zone": "us-central2-b",
            "region": "us-central2",
            "relation": "other-area",
            "pricePerGiBLow": 0.05,
            "pricePerGiBHigh": 0.08,
            "pricePerTBLow": 46.57,
            "pricePerTBHigh": 74.51,
            "priceDate": "2026-06",
            "datasetSize": None,
            "costPerEpochLow": None,
            "costPerEpochHigh": None,
            "coLocated": ["US-CENTRAL2"],
            "zonesWithType": [],
            "typesThere": ["v2", "v3", "v5e", "v5p", "v6e"],
            "anywhereCache": False,
        },
    )
    assert [(remedy.text, remedy.command) for remedy in found.remedies] == [
        (
            (
                "no zone of europe-west4 offers v4; it offers v2, v3, v5e, v5p, v6e (e.g. `v6e-8` in "
                "europe-west4-a), according to the table that ships with tpuctl"
            ),
            "tpuctl check --project=p --zone=europe-west4-a --type=v6e-8 --bucket=gs://b",
        ),
        (
            "or use a bucket where the TPU is, in US-CENTRAL2",
            (
                "gcloud storage buckets create gs://b-us-central2 --project=p --location=US-CENTRAL2 "
                "--uniform-bucket-level-access"
            ),
        ),
        (
            "and copy the data there, which is billed like reading it once",
            "gcloud storage rsync --recursive gs://b gs://b-us-central2",
        ),
    ]


_EUROPE = {"europe-west4-a": ("v6e-4", "v6e-8", "v3-8"), "europe-west4-b": ("v5p-8",), "us-central2-b": ("v4-8",)}


@pytest.mark.parametrize(
    ("type_", "offers", "text", "where"),
    [
        (
            "v4-8",
            Known(_EUROPE),
            "no zone of europe-west4 offers v4; it offers v3, v5p, v6e (e.g. `v6e-8` in europe-west4-a)",
            "--zone=europe-west4-a --type=v6e-8",
        ),
        (
            "v6e-8",
            Known(_EUROPE),
            "create the TPU where the data is: europe-west4-a offers `v6e-8`",
            "--zone=europe-west4-a --type=v6e-8",
        ),
        (
            "v6e-8",
            Known({"europe-west4-b": ("v6e-8",), "europe-west4-a": ("v6e-8",)}),
            "create the TPU where the data is: europe-west4-a, europe-west4-b offer `v6e-8`",
            "--zone=europe-west4-a --type=v6e-8",
        ),
        (
            "v6e-16",
            Known(_EUROPE),
            "no zone of europe-west4 offers `v6e-16`; it offers v3, v5p, v6e (e.g. `v6e-4` in europe-west4-a)",
            "--zone=europe-west4-a --type=v6e-4",
        ),
        (
            "v9x-8",
            Known({"europe-west4-a": ("v9x-4",)}),
            "no zone of europe-west4 offers `v9x-8`; it offers v9x",
            None,
        ),
        (
            "v4-8",
            Known({"us-central2-b": ("v4-8",)}),
            "no zone of europe-west4 offers a TPU: move the data instead",
            None,
        ),
        (
            "v6e-8",
            LATE,
            "create the TPU where the data is: europe-west4-a offers `v6e-8`, according to the table that ships with tpuctl",
            "--zone=europe-west4-a --type=v6e-8",
        ),
        (
            "v5p-1024",
            None,
            "create the TPU where the data is: europe-west4-b offers `v5p-1024`, according to the table that ships with tpuctl",
            "--zone=europe-west4-b --type=v5p-1024",
        ),
    ],
)
def test_remedy_lists_tpus_near_the_data(type_: str, offers: Any, text: str, where: str | None) -> None:
    (found,) = findings_of("TPU101", facts_of(a_bucket("EUROPE-WEST4"), type_=type_, offers=offers))

    command = f"tpuctl check --project=p {where} --bucket=gs://b" if where else None
    assert (found.remedies[0].text, found.remedies[0].command) == (text, command)


def test_custom_shape_is_offered_with_its_generation() -> None:
    facts = facts_of(a_bucket("EUROPE-WEST4"), zone="us-east5-a", offers=Known(_EUROPE))
    spec = NodeSpec(accelerator_type="v5p-64", runtime_version="v", topology="2x4x4", named=facts.wanted.spec.named)

    (found,) = findings_of("TPU101", replace(facts, wanted=replace(facts.wanted, spec=spec)))

    assert found.facts["zonesWithType"] == ["europe-west4-b"]
    assert found.remedies[0].command == (
        "tpuctl check --project=p --zone=europe-west4-b --type=v5p --topology=2x4x4 --bucket=gs://b"
    )


def test_multi_region_elsewhere_is_error() -> None:
    (found,) = findings_of("TPU101", facts_of(a_bucket("EU", "multi-region"), type_="v6e-8", offers=Known(_EUROPE)))

    assert found.remedies[0].text == (
        "create the TPU where the data is: europe-west4-a offers `v6e-8`; reads from a multi-region are billed there too"
    )


def test_multi_region_of_continent_suggests_cache() -> None:
    (found,) = findings_of("TPU101", facts_of(a_bucket("US", "multi-region"), zone="us-central1-a"))

    assert found.why == (
        "the data is somewhere in the multi-region: reads are slower, at varying speed, and billed: $18.63 per TB "
        "($0.02/GiB, list price of 2026-06)"
    )
    assert [remedy.command for remedy in found.remedies] == [
        "gcloud storage buckets create gs://b-us-central1 --project=p --location=US-CENTRAL1 --uniform-bucket-level-access",
        "gcloud storage rsync --recursive gs://b gs://b-us-central1",
        "gcloud storage buckets anywhere-caches create gs://b us-central1-a",
    ]
    assert found.facts["coLocated"] == ["US-CENTRAL1", "NAM4"]


def test_prefixes_of_one_bucket_are_merged() -> None:
    data = BucketFacts(use=BucketUse("b", "data", writes=False), bucket=Known(a_bucket("EUROPE-WEST4")))
    checkpoints = replace(data, use=BucketUse("b", "ckpt", reads=False))
    facts = replace(facts_of(a_bucket()), buckets=(data, checkpoints))

    (found,) = findings_of("TPU101", facts)

    assert [remedy.command for remedy in found.remedies][0::2] == [
        "tpuctl check --project=p --zone=europe-west4-a --type=v6e-8 --bucket=gs://b",
        "gcloud storage rsync --recursive gs://b gs://b-us-central2",
    ]


@pytest.mark.parametrize(
    ("name", "location", "kind", "expected"),
    [
        ("data", "EUROPE-WEST4", "region", "data-us-central2"),
        ("data-europe-west4", "EUROPE-WEST4", "region", "data-us-central2"),
        ("data-eur4", "EUR4", "dual-region", "data-us-central2"),
        ("data-europe-north1", "EUR4", "dual-region", "data-us-central2"),
        ("data.example.org", "EU", "multi-region", "data-example-org-us-central2"),
        ("d" * 63, "EU", "multi-region", "d" * 51 + "-us-central2"),
    ],
)
def test_suggested_bucket_name_ends_with_region(name: str, location: str, kind: str, expected: str) -> None:
    facts = facts_of(a_bucket(location, kind), BucketUse(name, "x/y", writes=False))

    command = f"gcloud storage rsync --recursive gs://{name}/x/y gs://{expected}/x/y"
    assert command in commands_of("TPU101", facts)


def test_commands_name_billing_project_if_needed() -> None:
    bucket = a_bucket("US", "multi-region", billing={"requesterPays": True})
    facts = facts_of(bucket, READ, zone="us-central1-a", wanted={"billing_project": "payer"})

    assert commands_of("TPU101", facts)[1:] == [
        "gcloud storage rsync --recursive gs://b gs://b-us-central1 --billing-project=payer",
        "gcloud storage buckets anywhere-caches create gs://b us-central1-a --billing-project=payer",
    ]
    archive = facts_of(a_bucket(storageClass="ARCHIVE", **PAYS), wanted={"billing_project": "payer"})
    assert commands_of("TPU105", archive) == [
        "gcloud storage buckets update gs://b --default-storage-class=STANDARD --billing-project=payer",
        "gcloud storage objects update 'gs://b/**' --storage-class=STANDARD --billing-project=payer",
    ]
