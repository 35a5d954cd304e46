"""Answers that repeat the secrets of their request: none of them is in an error, whatever the encoding."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from tests.cloud.scripted_api import Drop, Reply, Script, ScriptedServer
from tpuctl.cloud.endpoint import TransportOptions
from tpuctl.cloud.errors import ApiError, TransportError, excerpt, parse_error_response, translate
from tpuctl.cloud.transport import AuthRequest, Http
from tpuctl.errors import SettingError

TOKEN = "ya29.a0AfB_byC/x+Kq3=Zt7-Lm9<Np2>Qr5&Uv8Wy1Xz4Ab6Cd0Ef"
REFRESH = "1//0gRefreshTokenOf-A_User.WithSlash/AndMore+Signs="

# How a gateway may write a value: by the name of the encoding.
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON": lambda text: json.dumps(text).replace("/", "\\/")[1:-1],
    "JSON, all escaped": lambda text: "".join(f"\\u{ord(char):04x}" for char in text),
    "HTML": html.escape,
    "HTML, by numbers": lambda text: "".join(char if char.isalnum() else f"&#{ord(char)};" for char in text),
    "URL": lambda text: quote(text, safe=""),
    "URL, in lower case": lambda text: quote(text, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 of a header": lambda text: base64.b64encode(f"me:{text}\r\n".encode()).decode(),
    "base64 after one": lambda text: base64.b64encode(f"x{text}yz".encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(f"ab{text}".encode()).decode().rstrip("="),
    "hexadecimal": lambda text: text.encode().hex(),
    "the beginning": lambda text: text[:20],
    "the end": lambda text: text[-20:],
    "the middle": lambda text: text[12:32],
}
# Where it may stand in an answer.
PLACES: dict[str, Callable[[str], Reply | Drop]] = {
    "refusal": lambda text: Reply(
        f'{{"error": {{"code": 403, "status": "PERMISSION_DENIED", "message": "headers: {text}"}}}}'.encode(), 403
    ),
    "reason": lambda text: Reply(
        f'{{"error": {{"code": 400, "status": "X", "details": [{{"reason": "{text}"}}]}}}}'.encode(), 400
    ),
    "page of a gateway": lambda text: Reply(f"<html>Authorization: Bearer {text}</html>".encode(), 502),
    "page that succeeds": lambda text: Reply(f"<html>Bearer {text}</html>".encode()),
    "header": lambda text: Reply(b"", 403, {"X-Request": f"Bearer {text}"}),
    "no answer": lambda text: Drop(f"Authorization: Bearer {text}\r\n".encode()),
}


def what_is_shown(script: Script, **sent: str) -> str:
    """Return all texts that may be made from the answer."""
    with closing(Http(TransportOptions())) as http, ScriptedServer(script) as server:
        try:
            response, content = http.request(f"{server.url}/v2/x", "POST", "{}", sent)
        except TransportError as error:
            return f"{error} {translate(error).message}"
        refusal = parse_error_response(response.status, response, content, now=datetime.now(UTC))
        final = translate(ApiError(refusal))
        return " ".join((final.message, final.hint or "", excerpt(content), content.decode(), str(dict(response))))


def pieces(text: str) -> list[str]:
    """Return all pieces of a text that may be a useful part of it."""
    return [text[start : start + 15] for start in range(len(text) - 14)]


@pytest.mark.parametrize("place", PLACES.values(), ids=list(PLACES))
@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=list(ENCODINGS))
def test_token_that_an_answer_repeats_is_not_shown(encode: Callable[[str], str], place: Callable[[str], Reply]) -> None:
    written = encode(TOKEN)
    shown = what_is_shown(lambda _: place(written), authorization=f"Bearer {TOKEN}")

    assert [piece for piece in (*pieces(written), *pieces(TOKEN)) if piece in shown] == []
    assert "headers:" in shown or place is not PLACES["refusal"]


def test_answer_that_repeats_no_secret_is_unchanged() -> None:
    text = (
        "Permission 'tpu.nodes.list' denied on resource '//tpu.googleapis.com/projects/p' (or it may not exist): ya29."
    )
    body = {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": text}}
    with closing(Http(TransportOptions())) as http, ScriptedServer(lambda _: Reply(body, 403, {"X": text})) as server:
        response, content = http.request(server.url, headers={"authorization": f"Bearer {TOKEN}"})

    assert (json.loads(content), response["x"]) == (body, text)


@pytest.mark.parametrize("status", [200, 400], ids=["success", "refusal"])
def test_secrets_of_a_token_request_are_hidden_in_its_refusal_only(status: int) -> None:
    """A source of tokens may answer with the same refresh token."""
    form = f"grant_type=refresh_token&client_id=me&refresh_token={quote(REFRESH, safe='')}&client_secret=s3cr3t-of-me"
    body = {"error": "invalid_grant", "refresh_token": REFRESH, "error_description": form}
    with ScriptedServer(lambda _: Reply(body, status)) as server:
        request = AuthRequest(TransportOptions())
        answer = request(server.url, "POST", form.encode(), {"content-type": "application/x-www-form-urlencoded"})
        request.close()

    assert (json.loads(answer.data) == body) == (status == 200)
    found = [secret for secret in (REFRESH, quote(REFRESH, safe=""), "s3cr3t-of-me") if secret in answer.data.decode()]
    assert (found == []) == (status == 400)
    assert "client_id=me" in answer.data.decode()


@pytest.mark.parametrize(
    "value",
    ["ya29.x\r\nX-Evil: 1", "ya29.x\nsecret", "ya29.тайна", "ya29.\x00"],
    ids=["header", "line", "Cyrillic", "zero"],
)
def test_value_that_no_header_can_carry_is_one_error_without_it(value: str) -> None:
    with closing(Http(TransportOptions())) as http, ScriptedServer(lambda _: Reply()) as server:
        with pytest.raises(SettingError) as caught:
            http.request(server.url, headers={"authorization": f"Bearer {value}"})
        lines = server.lines

    assert (
        caught.value.message
        == "the header `authorization` cannot carry its value: it has characters that are not ASCII text"
    )
    assert (lines, "ya29" in f"{caught.value.hint}") == ([], False)
