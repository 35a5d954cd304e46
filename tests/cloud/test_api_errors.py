"""From HTTP and operation errors to what the user reads, and the exit code."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tpuctl.cloud.errors import (
    _BY_KIND,
    AnswerLostError,
    ApiError,
    NotSentError,
    UntrustedServerError,
    operation_error,
    parse_error_response,
    translate,
)
from tpuctl.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    CredentialsError,
    ExitCode,
    InvalidRequestError,
    NoCapacityError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.explain.messages import known_messages
from tpuctl.models.operation import OperationError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def error_of(code: int, status: str | None, message: str, *details: dict[str, Any]) -> TpuctlError:
    error: dict[str, Any] = {"code": code, "message": message, "details": details}
    content = json.dumps({"error": error if status is None else {**error, "status": status}}).encode()
    return translate(ApiError(parse_error_response(code, {}, content, now=NOW)))


def test_every_known_message_has_an_error_class() -> None:
    assert {message.kind for message in known_messages()} <= _BY_KIND.keys()
    assert all(kind == entry.kind for kind, entry in _BY_KIND.items())


@pytest.mark.parametrize(
    ("code", "status", "kind", "exit_code"),
    [
        (400, "INVALID_ARGUMENT", InvalidRequestError, 2),
        (400, "FAILED_PRECONDITION", ConflictError, 8),
        (401, "UNAUTHENTICATED", CredentialsError, 4),
        (403, "PERMISSION_DENIED", AccessError, 4),
        (404, "NOT_FOUND", NotFoundError, 3),
        (409, "ALREADY_EXISTS", AlreadyExistsError, 8),
        (409, "ABORTED", ConflictError, 8),
        (412, None, ConflictError, 8),
        (429, "RESOURCE_EXHAUSTED", QuotaError, 7),
        (500, "INTERNAL", ServiceUnavailableError, 1),
        (503, "UNAVAILABLE", ServiceUnavailableError, 1),
        (418, "TEAPOT", TpuctlError, 1),
    ],
)
def test_unknown_message_is_classified_by_its_status(
    code: int, status: str | None, kind: type[TpuctlError], exit_code: int
) -> None:
    error = error_of(code, status, "sentence of\n  the service")

    assert (type(error), error.exit_code) == (kind, ExitCode(exit_code))
    assert "sentence of the service" in error.message
    assert "\n" not in error.message


def test_known_message_keeps_the_text_of_the_service_and_adds_a_hint() -> None:
    message = "Cloud TPU API has not been used in project 12 before or it is disabled."
    error = error_of(403, "PERMISSION_DENIED", message, {"@type": "x.ErrorInfo", "reason": "SERVICE_DISABLED"})

    assert (type(error), error.error_id) == (AccessError, "api-disabled")
    assert error.message.endswith(message)
    assert error.hint


def test_reason_classifies_an_error_without_text() -> None:
    error = error_of(403, "PERMISSION_DENIED", "x", {"reason": "SERVICE_DISABLED"})

    assert error.error_id == "api-disabled"


def test_localized_message_replaces_a_missing_one() -> None:
    error = error_of(
        400, "INVALID_ARGUMENT", "", {"@type": "type.googleapis.com/google.rpc.LocalizedMessage", "message": "So!"}
    )

    assert "So!" in error.message


def test_older_error_format_has_a_reason_instead_of_a_status() -> None:
    content = b'{"error": {"code": 404, "message": "no bucket", "errors": [{"reason": "notFound"}]}}'

    response = parse_error_response(404, {}, content, now=NOW)

    assert (response.status, response.is_not_found) == ("notFound", True)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[]", b"[[[", b'{"error": 5}', b'"x"', b"null", b"[" * 100_000, b"\xff\xfe"]
)
@pytest.mark.parametrize("code", [302, 400, 404, 500])
def test_error_in_another_format_is_not_from_the_api(content: bytes, code: int) -> None:
    response = parse_error_response(code, {}, content, now=NOW)

    assert not response.is_from_api
    assert isinstance(translate(ApiError(response)), ServiceUnavailableError)


_PER_MINUTE = "Maximum number of CreateNode requests per minute exceeded"
_NAMED_QUOTA = "Quota limit 'TPUV4PerProject' has been exceeded. Limit: 0 in zone z."
_ANY = "Resource has been exhausted (e.g. check quota)."


@pytest.mark.parametrize(
    ("message", "headers", "frees_resources", "is_rate_limit"),
    [
        pytest.param(_PER_MINUTE, {}, False, True, id="per minute"),
        pytest.param(_NAMED_QUOTA, {}, False, False, id="a quota by name"),
        pytest.param(_NAMED_QUOTA, {"retry-after": "2"}, False, False, id="a quota by name, with Retry-After"),
        pytest.param(_ANY, {}, False, False, id="any quota"),
        pytest.param(_ANY, {"retry-after": "2"}, False, True, id="any quota, with Retry-After"),
        pytest.param(_ANY, {}, True, True, id="any quota, for a deletion"),
        pytest.param("sentence of the service", {}, False, False, id="unknown text"),
        pytest.param("sentence of the service", {"retry-after": "2"}, False, True, id="unknown text, with Retry-After"),
    ],
)
def test_rate_limit_is_distinguished_from_a_quota(
    message: str, headers: dict[str, str], frees_resources: bool, is_rate_limit: bool
) -> None:
    content = json.dumps({"error": {"status": "RESOURCE_EXHAUSTED", "message": message}}).encode()

    response = parse_error_response(429, headers, content, now=NOW, frees_resources=frees_resources)

    assert response.is_rate_limit is is_rate_limit


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (8, "There is no more capacity in the zone us-central2-b", NoCapacityError),
        (8, "sentence", NoCapacityError),
        (3, "sentence", InvalidRequestError),
        (5, "sentence", NotFoundError),
        (6, "sentence", AlreadyExistsError),
        (7, "sentence", AccessError),
        (9, "sentence", ConflictError),
        (10, "sentence", ConflictError),
        (13, "sentence", ServiceUnavailableError),
        (14, "", ServiceUnavailableError),
        (99, "", ServiceUnavailableError),
    ],
)
def test_failed_operation_raises_its_error_class(code: int, message: str, kind: type[TpuctlError]) -> None:
    error = operation_error(OperationError(code, message))

    assert type(error) is kind
    assert error.message


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (UntrustedServerError("the certificate of h is not trusted"), "NO_PROXY"),
        (NotSentError("h cannot be reached"), "network"),
        (AnswerLostError("h gave no answer"), "try again"),
    ],
)
def test_missing_answer_raises_unavailable_with_a_hint(failure: NotSentError | AnswerLostError, hint: str) -> None:
    error = translate(failure)

    assert (type(error), error.message) == (ServiceUnavailableError, str(failure))
    assert hint in str(error.hint)
