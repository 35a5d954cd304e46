"""The end of a node's time and its owner, as labels: one row for each rule and boundary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.row_ids import row_id
from tpuctl.models.node import EXPIRY_LABEL, Node
from tpuctl.models.spec import NodeSpec, check_labels
from tpuctl.names import NodeName
from tpuctl.nodes.expiry import (
    expiry_label,
    expiry_note,
    extended_expiry,
    inherit_expiry,
    is_expired,
    move_expiry,
    owner_label,
    time_left,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
INVALID = "never expires: label tpuctl-expires={} is not a time"


def node(label: str | None, **fields: str) -> Node:
    labels = {} if label is None else {EXPIRY_LABEL: label}
    return Node.from_api({"name": "projects/p/locations/us-central2-b/nodes/trainer", "labels": labels, **fields})


# label; time left, whether it is expired, its note, its note without a time
_LABELS: dict[str, tuple[str | None, timedelta | None, bool, str, str]] = {
    "none": (None, None, False, "", ""),
    "two-hours-left": (expiry_label(NOW + 2 * HOUR), 2 * HOUR, False, "expires in 2h", "expires 2026-01-01T14:00:00Z"),
    "one-second-left": (expiry_label(NOW + SECOND), SECOND, False, "expires in 1s", "expires 2026-01-01T12:00:01Z"),
    "this-second": (expiry_label(NOW), timedelta(), True, "expired 0s ago", "expires 2026-01-01T12:00:00Z"),
    "passed": (expiry_label(NOW - 2 * HOUR), -2 * HOUR, True, "expired 2h ago", "expires 2026-01-01T10:00:00Z"),
    **{
        f"invalid-{name}": (text, None, False, INVALID.format(text), INVALID.format(text))
        for name, text in {
            "empty": "",
            "word": "tomorrow",
            "zero": "0",
            "milliseconds": "1767268800000",
            "negative": "-1767268800",
            "leading-zero": "01767268800",
            "other-digits": "١٧٦٧٢٦٨٨٠٠",
        }.items()
    },
}


@pytest.mark.parametrize(("label", "left", "expired", "note", "absolute"), _LABELS.values(), ids=_LABELS.keys())
def test_expiry_of_a_label(label: str | None, left: timedelta | None, expired: bool, note: str, absolute: str) -> None:
    found = node(label)

    assert (time_left(found, NOW), is_expired(found, NOW)) == (left, expired)
    assert (expiry_note(found, NOW), expiry_note(found, None)) == (note, absolute)


@pytest.mark.parametrize(
    ("label", "extended"),
    [
        pytest.param(None, NOW + 2 * HOUR, id="without-an-end"),
        pytest.param("soon", NOW + 2 * HOUR, id="invalid"),
        pytest.param(expiry_label(NOW - HOUR), NOW + 2 * HOUR, id="expired"),
        pytest.param(expiry_label(NOW), NOW + 2 * HOUR, id="expires-now"),
        pytest.param(expiry_label(NOW + HOUR), NOW + 3 * HOUR, id="expires-later"),
    ],
)
def test_extension_counts_from_the_later_of_the_end_and_now(label: str | None, extended: datetime) -> None:
    assert extended_expiry(node(label), 2 * HOUR, NOW) == extended


_OWNERS = {
    "ann@example.com": "ann_example-com",
    "Ann@Example.COM": "ann_example-com",
    "ann.lee@example.com": "ann-lee_example-com-b7e0d837",
    "ann-lee@example.com": "ann-lee_example-com-befc7585",
    "ann_lee@example.com": "ann_lee_example-com",
    "ann@my-corp.com": "ann_my-corp-com-98905a9c",
    "x@example.com.3f2a91bc": "x_example-com-3f2a91bc-87678ebc",
    " ann@example.com ": "ann_example-com",
    "ci@my-project.iam.gserviceaccount.com": "ci_my-project-iam-gserviceaccount-com-f78ba956",
    "müller@höst": "m-ller_h-st-94e92aa3",
    "a b/c:d\n\x1b@host": "a-b-c-d--_host-a50b7212",
    "": "",
    "a" * 61 + "@b": "a" * 61 + "_b",
    "a" * 62 + "@b": "a" * 54 + "-70ac12f9",
}


@pytest.mark.parametrize(("identity", "label"), _OWNERS.items(), ids=row_id)
def test_owner_label_is_valid_and_readable(identity: str, label: str) -> None:
    assert owner_label(identity) == label
    assert check_labels({"tpuctl-owner": label}) == {"tpuctl-owner": label}


def test_owner_labels_of_long_identities_stay_different() -> None:
    first, second = (owner_label(f"{'a' * 70}{last}@example.com") for last in "xy")

    assert first != second
    assert (len(first), len(second)) == (63, 63)


def test_expiry_label_drops_the_fraction_of_a_second() -> None:
    assert expiry_label(NOW + timedelta(milliseconds=900)) == expiry_label(NOW) == "1767268800"


@pytest.mark.parametrize(
    ("present", "written"),
    [
        pytest.param(1_800_000_000, {"labels": {"a": "b", EXPIRY_LABEL: "1800000005"}}, id="earlier"),
        pytest.param(1_800_000_005, {}, id="same"),
        pytest.param(1_800_000_009, {}, id="extended-by-another-client"),
        pytest.param(None, {}, id="removed-by-another-client"),
    ],
)
def test_end_of_a_run_that_is_alive_never_becomes_earlier(present: int | None, written: dict[str, Any]) -> None:
    labels = {"a": "b"} | ({} if present is None else {EXPIRY_LABEL: str(present)})
    node = Node(NodeName("p", "us-central2-b", "trainer"), {"labels": labels})

    assert move_expiry(node, datetime.fromtimestamp(1_800_000_005, UTC)) == written


_CREATED = (NOW - HOUR).isoformat()
_LIMITED = {"expires": NOW + HOUR, "ttl": 5 * HOUR}


@pytest.mark.parametrize(
    ("end", "created", "spec", "watches", "inherited"),
    [
        pytest.param(None, _CREATED, _LIMITED, True, (None, None), id="no end, watch"),
        pytest.param(None, _CREATED, _LIMITED, False, (None, 5 * HOUR), id="no end, up"),
        pytest.param(NOW + HOUR, _CREATED, _LIMITED, True, (NOW + HOUR, 5 * HOUR), id="same end"),
        pytest.param(NOW + 3 * HOUR, _CREATED, _LIMITED, True, (NOW + 3 * HOUR, 5 * HOUR), id="extended"),
        pytest.param(NOW + 3 * HOUR, _CREATED, {}, True, (NOW + 3 * HOUR, 4 * HOUR), id="lasted as long"),
        pytest.param(NOW + 3 * HOUR, None, {}, True, (NOW + 3 * HOUR, None), id="no creation time"),
        pytest.param(NOW - 2 * HOUR, _CREATED, {}, True, (NOW - 2 * HOUR, None), id="ended before it was created"),
    ],
)
def test_node_that_is_recreated_keeps_its_end(
    end: datetime | None,
    created: str | None,
    spec: dict[str, Any],
    *,
    watches: bool,
    inherited: tuple[datetime | None, timedelta | None],
) -> None:
    found = node(None if end is None else expiry_label(end), **({"createTime": created} if created else {}))

    kept = inherit_expiry(NodeSpec(**spec), found, watches=watches)

    assert (kept.expires, kept.ttl) == inherited
