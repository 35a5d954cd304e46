"""Secrets that are known by their form: tokens with a prefix of their issuer. Sources: the issuers' documentation."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.spans import Rule, Span, going_on, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD = rb"A-Za-z0-9_\-"
_DOTTED = rb"A-Za-z0-9_.~\-"
_PLAIN = rb"A-Za-z0-9"

# Kind; the beginning that tells it; the characters that may follow.
_FORMS = (
    ("oauth-token", rb"ya29\.[A-Za-z0-9._~\-]{8}", _DOTTED),
    ("refresh-token", rb"1//0[A-Za-z0-9_\-]{16}", _WORD),
    ("refresh-token", rb"1//[A-Za-z0-9_\-]{24}", _WORD),
    ("oauth-code", rb"4/0A[A-Za-z0-9_\-]{20}", _WORD),
    ("client-secret", rb"GOCSPX-[A-Za-z0-9_\-]{16}", _WORD),
    ("api-key", rb"AIza[A-Za-z0-9_\-]{30}", _WORD),
    ("github-token", rb"ghp_[A-Za-z0-9]{16}", _WORD),
    ("github-token", rb"gho_[A-Za-z0-9]{16}", _WORD),
    ("github-token", rb"ghu_[A-Za-z0-9]{16}", _WORD),
    ("github-token", rb"ghs_[A-Za-z0-9]{16}", _WORD),
    ("github-token", rb"ghr_[A-Za-z0-9]{16}", _WORD),
    ("github-token", rb"github_pat_[A-Za-z0-9_]{16}", _WORD),
    ("gitlab-token", rb"glpat-[A-Za-z0-9_\-]{16}", _DOTTED),
    ("hugging-face-token", rb"hf_[A-Za-z0-9]{20}", _PLAIN),
    ("hugging-face-token", rb"api_org_[A-Za-z0-9]{20}", _PLAIN),
    ("wandb-key", rb"local-[0-9a-f]{40}", _PLAIN),
    ("wandb-key", rb"wandb_v1_[A-Za-z0-9_\-]{20}", _WORD),
    ("aws-access-key", rb"AKIA[A-Z0-9]{16}", _PLAIN),
    ("aws-access-key", rb"ASIA[A-Z0-9]{16}", _PLAIN),
    ("slack-token", rb"xox[abeoprs]-[A-Za-z0-9\-]{10}", rb"A-Za-z0-9.\-"),
    ("slack-token", rb"xapp-[A-Za-z0-9\-]{10}", rb"A-Za-z0-9.\-"),
    ("slack-webhook", rb"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_\-]{8}", rb"A-Za-z0-9/_\-"),
    # A key of one of these has no hyphen so soon, unlike `sk-learn-contrib-…`.
    ("openai-key", rb"sk-[A-Za-z0-9]{20}", _WORD),
    ("openai-key", rb"sk-(?:proj|svcacct|admin|or)-[A-Za-z0-9_\-]{16}", _WORD),
    ("anthropic-key", rb"sk-ant-[A-Za-z0-9_\-]{16}", _WORD),
    ("stripe-key", rb"[sr]k_live_[A-Za-z0-9]{16}", _PLAIN),
    ("npm-token", rb"npm_[A-Za-z0-9]{30}", _PLAIN),
    ("pypi-token", rb"pypi-AgE[A-Za-z0-9_\-]{20}", _WORD),
    ("databricks-token", rb"dapi[0-9a-f]{32}", rb"0-9a-f\-"),
    # Header and payload; an encrypted one has more parts, a detached one no payload.
    ("jwt", rb"eyJ[A-Za-z0-9_\-]{6,4096}\.(?:[A-Za-z0-9_\-]{8}|\.[A-Za-z0-9_\-]{8})", _DOTTED + rb"="),
)
# A form begins with its anchor: as much of it as is no character class.
_ANCHOR = re.compile(rb"[A-Za-z0-9_/\-]+")
_ANCHORS = {rb"xox[": b"xox", rb"[sr]": b"k_live_", rb"hooks\.": b"hooks.slack.com/", rb"sk-(": b"sk-"}
# What is short is met within words too, or within base64. After an escape such as `\n` in JSON, or `%3D` in a URL, a word
# begins whatever stands there; `1//` is part of many paths, where it follows a word, a slash or a dot.
_ESCAPED = rb"(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})"
_NO_WORD = rb"(?:(?<![A-Za-z0-9_\-])|" + _ESCAPED + rb")"
_NO_PATH = rb"(?:(?<![\w/.:\-])|" + _ESCAPED + rb")"
_NO_BASE64 = rb"(?:(?<![A-Za-z0-9/+])|" + _ESCAPED + rb")"
_BEFORE = {
    **dict.fromkeys((b"1//0", b"1//", b"4/0A"), _NO_PATH),
    **dict.fromkeys((b"AIza", b"AKIA", b"ASIA"), _NO_BASE64),
    **dict.fromkeys((b"eyJ", b"hf_", b"npm_", b"sk-", b"dapi"), _NO_WORD),
}


def rules() -> tuple[Rule, ...]:
    """Return the rules, one for each form."""
    return tuple(_rule(kind, form, characters) for kind, form, characters in _FORMS)


def _rule(kind: str, form: bytes, characters: bytes) -> Rule:
    anchor = next((anchor for begin, anchor in _ANCHORS.items() if form.startswith(begin)), None)
    if anchor is None:
        found = _ANCHOR.match(form)
        anchor = found.group() if found else b""
    back = 1 if form.startswith(rb"[sr]") else 0
    before = _BEFORE.get(anchor, rb"")
    return Rule(anchor.lower(), partial(_look, kind, re.compile(before + form), run_of(characters), back=back))


def _look(
    kind: str, form: re.Pattern[bytes], tail: re.Pattern[bytes], data: bytes, at: int, *, back: int = 0
) -> Iterator[Span]:
    if found := form.match(data, max(0, at - back)):
        yield going_on(data, found.start(), found.end(), kind, tail)
