"""Retries of the clients that answer the queries of a check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cloud.beside import older, outcome, scripted
from tests.cloud.scripted_api import in_turn
from tpuctl.cloud.projects import ComputeClient, ProjectsClient
from tpuctl.cloud.requests import ApiClient
from tpuctl.cloud.storage import BucketsClient


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        (BucketsClient, lambda client: client.bucket("data")),
        (ProjectsClient, lambda client: client.billing("p")),
        (ComputeClient, lambda client: client.network("p", "n")),
    ],
)
def test_optional_information_is_requested_at_most_twice(kind: type[ApiClient], ask: Callable[[Any], object]) -> None:
    """A check has some seconds, and then reports unanswered queries."""
    with scripted(kind, in_turn(older(503, "backendError", "down"))) as (client, server):
        assert outcome(lambda: ask(client))[0] == "ServiceUnavailableError"

    assert len(server.received) == 2
