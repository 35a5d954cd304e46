"""Endpoints, and the hosts that may receive a token."""

from __future__ import annotations

import pytest

from tpuctl.cloud.endpoint import ApiEndpoint, takes_token
from tpuctl.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "url", "is_loopback"),
    [
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v2/", True),
        ("http://127.9.9.9", "http://127.9.9.9/v2/", True),
        ("http://localhost:1/pre/fix", "http://localhost:1/pre/fix/v2/", True),
        ("http://[::1]:80", "http://[::1]/v2/", True),
        ("https://tpu.corp:8443/x/", "https://tpu.corp:8443/x/v2/", False),
        ("tpu.corp", "https://tpu.corp/v2/", False),
    ],
)
def test_endpoint_serves_all_apis_below_its_prefix(text: str, url: str, is_loopback: bool) -> None:
    endpoint = ApiEndpoint.parse(text)

    assert (endpoint.url("v2/"), endpoint.is_loopback) == (url, is_loopback)


@pytest.mark.parametrize(
    "text",
    [
        "http://tpu.googleapis.com",
        "http://127.0.0.1.evil.test",
        "http://localhost.evil.test/",
        "http://0.0.0.0:1",
        "https://me:secret@host",
        "http://localhost@evil.test",
        "https://host?x=1",
        "https://host#f",
        "ftp://host",
        "https://",
        "https://host:port",
        "https://[::1",
        f"https://{'a' * 64}.test",
        "",
    ],
)
def test_unsafe_endpoint_is_refused_without_repeating_a_password(text: str) -> None:
    with pytest.raises(InvalidInputError, match="endpoint") as caught:
        ApiEndpoint.parse(text)
    assert "secret" not in str(caught.value)


def test_token_goes_only_to_google_and_to_the_named_endpoint() -> None:
    named = ApiEndpoint.parse("https://tpu.corp:8443/x")
    urls = [
        "https://tpu.googleapis.com/v2/x",
        "https://us-central1-tpu.googleapis.com/",
        "https://tpu.mtls.googleapis.com/",
        "https://tpu-me.p.googleapis.com/",
        "https://tpu.corp:8443/x/v2/",
        "https://tpu.corp/x",
        "http://tpu.googleapis.com/",
        "https://tpu.googleapis.com:99/",
        "https://googleapis.com.evil.test/",
        "https://evilgoogleapis.com/",
        "https://tpu.googleapis.com@evil.test/",
        "https://[",
    ]

    assert [takes_token(url, named) for url in urls] == [True] * 5 + [False] * 7
    assert not takes_token("http://localhost:1/", ApiEndpoint.parse("http://localhost:1"))
