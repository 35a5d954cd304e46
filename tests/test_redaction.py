"""Secrets are taken out wherever they stand, and nothing else is changed."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.secrets_in_places import IN_PLACES, READABLE
from tests.support.secrets_planted import AROUND, HARMLESS, NAMED, PEM, TOKENS
from tpuctl.redaction import AccountAliases, Redactor, redact

# More than is searched at once.
WINDOW = 256 * 1024
LETTERS = "Ab3dEf6hIj9lMn2pQr5tUv8xYz1BcD4eFgH7iJkL0mNoPqRsTuVwXyZa"
FILLER = b"I1121 10:00:00.000000 1 x.cc:1] all is well\n"
HOSTILE = (
    *(b"eyJ", b"eyJ-", b"token=", b'password="', b"token token ", b"-----BEGIN PRIVATE KEY-----", b"\\", b"://a:b"),
    *(
        b"A" * 64 + b"\n-----END PRIVATE KEY-----",
        b"-----END PRIVATE KEY-----",
        b"machine ",
        b"--token ",
        b"ya29.aaaaaaaaaa",
    ),
    *(
        b"mysql -",
        b"docker login ",
        b"password\n  x\n",
        b"&amp;",
        b"\x1b[0m",
        b"'\"'\"'",
        b"LS0tLS1CRUdJT",
        b"IBAAKCAQEA",
    ),
    *(
        b"\\u0022",
        b"basicauth(",
        b" pass:",
        b"api key ",
        b'"kty"',
        b"Private-Lines: 1\na",
        b"token for a ",
        b"https://a:",
    ),
    b"x: |\n  pass: |\n  ",
)


def in_pieces(text: bytes, *cuts: int) -> bytes:
    redactor = Redactor()
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    done = [redactor.feed(text[begin:end]) for begin, end in pairwise(places)]
    return b"".join([*done, redactor.close()])


@pytest.mark.parametrize(("before", "after"), AROUND)
@pytest.mark.parametrize("name", TOKENS)
def test_token_is_found_by_its_form(name: str, before: str, after: str) -> None:
    secret, kind = TOKENS[name]

    assert redact((before + secret + after).encode()) == f"{before}[redacted {kind}]{after}".encode()


@pytest.mark.parametrize("name", NAMED)
def test_secret_is_found_by_the_text_before_it(name: str) -> None:
    planted = NAMED[name]

    assert redact(planted.text) == planted.hidden


@pytest.mark.parametrize("text", IN_PLACES)
def test_secret_is_found_in_any_place(text: str) -> None:
    text = re.sub("@([0-9]+)@", lambda found: LETTERS[: int(found[1])], text)
    text = re.sub("#([0-9]+)#", lambda found: ("0123456789abcdef" * 4)[: int(found[1])], text)
    planted = text.replace("<<", "").replace(">>", "")

    hidden = re.sub(r"\[redacted [a-z-]+\]", "<<>>", redact(planted.encode()).decode())

    assert hidden == re.sub("(?s)<<.*?>>", "<<>>", text)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----"),
        ("-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", "-----END EC PRIVATE KEY-----"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----", "-----END PGP PRIVATE KEY BLOCK-----"),
        ("---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----", "---- END SSH2 ENCRYPTED PRIVATE KEY ----"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\\n", "\n    "])
def test_private_key_is_found_in_all_forms(begin: str, end: str, line_end: str) -> None:
    body = PEM.split("\n")[1:-1]

    left = redact(f"before\n{line_end.join([begin, *body, end])}\nafter\n".encode()).decode()

    assert (left.startswith("before\n"), left.endswith("after\n")) == (True, True)
    assert not [line for line in body[:-1] if line in left]


def test_training_logs_stay_unchanged() -> None:
    """`explain` reads the logs of a bundle after redaction."""
    logs = [path.read_bytes() for path in sorted((Path(__file__).parent / "corpus").rglob("*.log"))]
    logs = [log for log in logs if b"\0" not in log[:100]]

    assert len(logs) > 100
    assert [log for log in logs if redact(log) != log] == []


@pytest.mark.parametrize("text", [*HARMLESS, *READABLE])
def test_text_without_secrets_stays_unchanged(text: str) -> None:
    data = text.encode("latin-1")

    assert redact(data) == data
    assert redact(data + b"\n" + data) == data + b"\n" + data


@given(st.binary(max_size=200), st.sampled_from(sorted(NAMED)), st.lists(st.integers(0, 5000), max_size=6))
def test_redaction_is_independent_of_pieces(noise: bytes, name: str, cuts: list[int]) -> None:
    text = noise + b"\n" + NAMED[name].text + b"\n" + noise

    assert in_pieces(text, *cuts) == redact(text)


@given(st.text("abc \n.,:;=-\"'\\", max_size=60), st.sampled_from(sorted(TOKENS)), st.text(" \n.,;\"'", max_size=9))
def test_token_is_found_in_any_context(before: str, name: str, after: str) -> None:
    secret, _ = TOKENS[name]

    left = redact(f"{before} {secret}{after}".encode())

    assert not any(piece.encode() in left for piece in _pieces(secret))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=2000), st.lists(st.integers(0, 3000), max_size=4))
def test_redaction_never_fails(data: bytes, cuts: list[int]) -> None:
    assert in_pieces(data, *cuts) == redact(data)


@pytest.mark.parametrize("line_end", [b"\n", b"x"])
def test_secret_across_windows_is_found(line_end: bytes) -> None:
    texts = [secret for secret, _ in TOKENS.values() if "\n" not in secret] + [PEM]
    filler = FILLER.replace(b"\n", line_end).replace(b" ", b" " if line_end == b"\n" else b"_")
    for number in range(4):
        chosen = texts[number * len(texts) // 4 : (number + 1) * len(texts) // 4]
        row = b" " + b" ".join(text.encode() for text in chosen) + b" "
        padding = (filler * (WINDOW // len(filler) + 1))[: WINDOW - len(row) // 2 - number]
        left = in_pieces(padding + row + filler * 700, 1000, WINDOW - 3, WINDOW + 5)

        assert left.startswith(padding)
        assert left.endswith(filler * 700)
        assert not [piece for text in chosen for piece in _pieces(text) if piece.encode() in left]


def test_long_secret_is_removed_completely() -> None:
    for before, after in (("ya29.", " x"), ("PASSWORD=", "\n"), ('"token": "', '"')):
        left = redact(f"{before}{'Ab3_' * 100_000}{after}".encode())
        assert (len(left) < 60, left.endswith(after.encode())) == (True, True)


def test_rest_of_a_very_long_line_is_left_out() -> None:
    """A rule could not see a name in one part of it and the value in the other."""
    redactor = Redactor()
    left = (
        redactor.feed(b"first\n" + b"x" * 5 * WINDOW) + redactor.feed(b" HF_TOKEN=abc1234\nlast\n") + redactor.close()
    )

    assert (left[:7], left[-27:]) == (b"first\nx", b"x[redacted long-line]\nlast\n")
    assert dict(redactor.counts) == {"long-line": 1}


def test_truncated_key_is_removed() -> None:
    lines = PEM.split("\n")
    for begin, end in ((0, 5), (0, 1), (3, None), (9, None)):
        left = redact(("\n".join(["before it", *lines[begin:end], "words after it", ""])).encode())

        assert (left.startswith(b"before it\n"), left.endswith(b"words after it\n")) == (True, True)
        assert not [line for line in lines[1:-1] if line.encode() in left]

    marked = redact("\n".join(f"[3] {line}" for line in lines[2:]).encode())
    assert not [line for line in lines[1:-1] if line.encode() in marked]


def test_redactions_are_counted_by_kind() -> None:
    redactor = Redactor()
    redactor.feed("\n".join([TOKENS["oauth"][0], TOKENS["oauth"][0], PEM]).encode())
    redactor.close()

    assert dict(redactor.counts) == {"oauth-token": 2, "private-key": 1}


def test_account_has_the_same_alias_everywhere() -> None:
    accounts = AccountAliases()
    first = redact(b"ada@example.com and bob@example.com from 10.1.2.3, fd00::1:2 at 10:04:12, v1.2.3.400", accounts)
    second = redact(b"BOB@example.com 10.1.2.3 127.0.0.1 169.254.169.254", accounts)

    assert first == b"account-1 and account-2 from address-1, address-2 at 10:04:12, v1.2.3.400"
    assert second == b"account-2 address-1 127.0.0.1 169.254.169.254"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_redaction_takes_linear_time(hostile: bytes) -> None:
    """Quadratic would be many seconds."""
    began = time.thread_time()
    redact(hostile * (40_000 // len(hostile)))

    assert time.thread_time() - began < 2


def _pieces(secret: str) -> list[str]:
    """Return parts of a secret of which none may be left."""
    long = [line for line in secret.split("\n") if not line.startswith("-----")]
    return [line[at : at + 12] for line in long for at in range(5, len(line) - 12, 12)]
