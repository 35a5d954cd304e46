"""Messages as they were met, and what is made of each: specific beats generic, text beats code, reason beats text."""

from __future__ import annotations

import re
import time

import pytest

from tests.explain.examples import Example, examples_of, ids_of
from tpuctl import errors
from tpuctl.explain.messages import Action, MessageOrigin, classify, known_messages, message_by_id

_EXAMPLES = examples_of("api", "operations")


@pytest.mark.parametrize("example", _EXAMPLES, ids=ids_of(_EXAMPLES))
def test_api_message_is_recognized_with_facts(example: Example) -> None:
    message = message_by_id(example.match.id)

    assert message is not None
    verdict = classify(example.text, where=message.where)
    assert verdict is not None
    assert (verdict.id, verdict.facts) == example.match
    assert "{" not in " ".join(verdict.remedy)


def test_every_kind_belongs_to_an_exception() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]

    assert {message.kind for message in known_messages()} <= {getattr(value, "kind", "") for value in classes}


def test_every_placeholder_of_a_remedy_is_a_group_of_the_pattern() -> None:
    at_hand, of_ssh = {"node", "worker", "service_account"}, {"login", "address", "key", "alias", "known_hosts"}
    wanted = {
        m.id: set(re.findall(r"\{(\w+)\}", " ".join((m.meaning, *m.remedy))))
        - set(re.compile(m.match).groupindex)
        - at_hand
        - (of_ssh if m.where is MessageOrigin.SSH else set())
        for m in known_messages()
    }

    assert {key: names for key, names in wanted.items() if names} == {}


@pytest.mark.parametrize(
    ("where", "text", "known"),
    [
        # The same code 8 means three things.
        ("operation", 'RESOURCE_EXHAUSTED: There is no more capacity in the zone "us-x1-b"; you can', "capacity-zone"),
        (
            "operation",
            "RESOURCE_EXHAUSTED: Quota limit 'TPUV6EX' has been exceeded. Limit: 8 in region a",
            "quota-limit-exceeded",
        ),
        ("api", "RESOURCE_EXHAUSTED: Quota 'TPUV5E' exhausted. Limit 0 in zone us-x1-b", "quota-limit-zero"),
        ("api", "RESOURCE_EXHAUSTED: stockout", "capacity-word"),
        # The same code 3 means two.
        ("api", "INVALID_ARGUMENT: stop is not supported while in state STOPPED", "state-forbids-action"),
        ("operation", 'INVALID_ARGUMENT: The requested zone "a-b1-c" is not supported.', "zone-not-supported"),
        # The same text means different things in different places.
        ("queued-resource", "INTERNAL: an internal error has occurred", "internal-error-qr"),
        ("api", "INTERNAL:\n  an internal\terror has occurred", "internal-error"),
        ("api", "NOT_FOUND: Resource 'projects/p/locations/z/nodes/n' was not found", "node-not-found"),
        ("api", "UNAVAILABLE: try again", None),
        ("api", "", None),
    ],
)
def test_classify_same_code_by_text(where: str, text: str, known: str | None) -> None:
    verdict = classify(text, where=MessageOrigin(where))

    assert (verdict.id if verdict else None) == known


@pytest.mark.parametrize(
    ("reason", "text", "known"),
    [
        ("SERVICE_DISABLED", "PERMISSION_DENIED: words never seen before", "api-disabled"),
        ("BILLING_DISABLED", "PERMISSION_DENIED: Permission 'tpu.nodes.get' denied on x", "billing-disabled"),
        ("ACCESS_TOKEN_SCOPE_INSUFFICIENT", "PERMISSION_DENIED: x", "auth-insufficient-scopes"),
        ("CREDENTIALS_MISSING", "UNAUTHENTICATED: x", "auth-missing"),
        ("LOCATION_POLICY_VIOLATED", "PERMISSION_DENIED: x", "iam-location-policy"),
        # One reason, several messages: the text chooses.
        (
            "RATE_LIMIT_EXCEEDED",
            "RESOURCE_EXHAUSTED: Quota limit 'TPUX' has been exceeded. Limit: 0 in zone a",
            "quota-limit-zero",
        ),
        ("RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED: x", "quota-rate"),
        ("SOMETHING_NEW", "NOT_FOUND: x", "nothing-found"),
    ],
)
def test_classify_reason_beats_text(reason: str, text: str, known: str) -> None:
    verdict = classify(text, where=MessageOrigin.API, reason=reason)

    assert verdict is not None
    assert verdict.id == known


def test_classify_returns_facts_of_message() -> None:
    text = "RESOURCE_EXHAUSTED: Quota limit 'TPUV6EPerProjectPerZone' has been exceeded. Limit: 0 in zone us-east5-b."
    verdict = classify(text, where=MessageOrigin.API)

    assert verdict is not None
    assert (verdict.kind, verdict.action, verdict.retriable) == ("quota", Action.QUOTA, False)
    assert dict(verdict.facts) == {"quota": "TPUV6EPerProjectPerZone", "place": "us-east5-b"}
    assert verdict.remedy[0] == (
        "request quota for `TPUV6EPerProjectPerZone` in us-east5-b; there are limits for the region and for the zone, "
        "and both count"
    )


def test_classify_unknown_placeholder_becomes_capitals() -> None:
    verdict = classify("PERMISSION_DENIED: x", where=MessageOrigin.API, reason="BILLING_DISABLED")

    assert verdict is not None
    assert verdict.remedy[0].startswith("run `gcloud billing projects link PROJECT --billing-account=ACCOUNT`")


def test_classify_long_hostile_text_is_fast() -> None:
    before = time.thread_time()
    classify("RESOURCE_EXHAUSTED: " + "Quota 'TPU" * 100_000, where=MessageOrigin.API)

    assert time.thread_time() - before < 1
