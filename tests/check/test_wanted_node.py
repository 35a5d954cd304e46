"""Parsing of bucket URLs, and the text of a wanted node."""

from __future__ import annotations

import pytest

from tests.check.rule_cases import wanted
from tpuctl.check.facts import BucketUse, parse_bucket_use
from tpuctl.errors import InvalidInputError
from tpuctl.names import NodeName


@pytest.mark.parametrize(
    ("text", "bucket", "prefix", "url"),
    [
        ("gs://data", "data", "", "gs://data"),
        ("gs://data/", "data", "", "gs://data"),
        ("gs://data/a/b", "data", "a/b", "gs://data/a/b"),
        ("gs://data/a/b/", "data", "a/b", "gs://data/a/b"),
        ("gs://data/a/part-0.tfrecord", "data", "a/part-0.tfrecord", "gs://data/a/part-0.tfrecord"),
    ],
)
def test_parse_bucket_with_optional_prefix(text: str, bucket: str, prefix: str, url: str) -> None:
    use = parse_bucket_use(text, writes=False)

    assert (use, use.url) == (BucketUse(bucket, prefix, reads=True, writes=False), url)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("s3://data", "`s3://data` is not in Cloud Storage", "copy it first"),
        ("s3a://data", "`s3a://data` is not in Cloud Storage", "copy it first"),
        ("https://x/y", "`https://x/y` is not in Cloud Storage", "write it like"),
        ("://data", "`://data` is not in Cloud Storage", "write it like"),
        ("data/train", "`data/train` is a path on this machine", "copy them to a bucket"),
        ("./data", "`./data` is a path on this machine", "copy them to a bucket"),
        ("~", "`~` is a path on this machine", "copy them to a bucket"),
        ("..", "`..` is a path on this machine", "copy them to a bucket"),
        ("data", "`data` is not a bucket", "did you mean `gs://data`?"),
        ("", "`` is not a bucket", "write it like"),
        ("gs://data//", "`gs://data//` is not a valid location: it ends with several slashes", "write it like"),
        ("gs://data///a", "`gs://data///a` has several slashes in a row", "write it like"),
        ("gs://data//a", "`gs://data//a` has several slashes in a row", "write it like"),
        ("gs://data/a//b", "`gs://data/a//b` has several slashes in a row", "write it like"),
        ("gs:/data", "`gs:/data` is not a Cloud Storage URL", "did you mean `gs://data`?"),
        ("gs:data/a", "`gs:data/a` is not a Cloud Storage URL", "did you mean `gs://data/a`?"),
        ("gs//data", "`gs//data` is not a Cloud Storage URL", "did you mean `gs://data`?"),
        ("GS://data", "`GS://data` is not a Cloud Storage URL", "did you mean `gs://data`?"),
        ("gs", "`gs` is not a bucket", "did you mean `gs://gs`?"),
        ("gs:", "`gs:` is not a bucket", "write it like"),
        ("gs:///a", "`gs:///a` has no valid bucket", "write it like"),
        ("gs://", "`gs://` has no valid bucket", ""),
    ],
)
def test_parse_bucket_invalid_text_is_explained(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        parse_bucket_use(text)

    assert raised.value.message.startswith(message)
    assert (raised.value.hint or "").startswith(hint)


def test_wanted_node_text_is_name_or_type() -> None:
    assert wanted().what == "a v4-8"
    assert wanted(name=NodeName("p", "us-central2-b", "trainer")).what == "`trainer`"
    assert wanted().region == "us-central2"
