"""Secrets recognized by their form: tokens with a prefix of the issuer. Sources: the documentation of the issuers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.spans import Rule, Span, going_on, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD = rb"A-Za-z0-9_\-"
_DOTTED = rb"A-Za-z0-9_.~\-"
_PLAIN = rb"A-Za-z0-9"

# Kind; the anchor; the part before it, if any; the part after it; the characters that may continue it.
_FORMS = (
    ("oauth-token", rb"ya29.", rb"", rb"[A-Za-z0-9._~\-]{8}", _DOTTED),
    ("refresh-token", rb"1//", rb"", rb"(?:0[A-Za-z0-9_\-]{16}|[A-Za-z0-9_\-]{24})", _WORD),
    ("oauth-code", rb"4/0A", rb"", rb"[A-Za-z0-9_\-]{20}", _WORD),
    ("client-secret", rb"GOCSPX-", rb"", rb"[A-Za-z0-9_\-]{16}", _WORD),
    ("api-key", rb"AIza", rb"", rb"[A-Za-z0-9_\-]{30}", _WORD),
    *(("github-token", rb"gh%c_" % kind, rb"", rb"[A-Za-z0-9]{16}", _PLAIN) for kind in b"pousr"),
    ("github-token", rb"github_pat_", rb"", rb"[A-Za-z0-9_]{16}", _WORD),
    *(
        ("gitlab-token", rb"gl%s-" % kind, rb"", rb"[A-Za-z0-9_\-]{16}", _DOTTED)
        for kind in (b"pat", b"dt", b"rt", b"cbt", b"ptt", b"oas", b"soat", b"ft", b"imt", b"agent", b"ffct", b"wt")
    ),
    ("gitlab-token", rb"GR1348941", rb"", rb"[A-Za-z0-9_\-]{16}", _WORD),
    ("hugging-face-token", rb"hf_", rb"", rb"(?:(?:oauth|jwt)_[A-Za-z0-9_.\-]{20}|[A-Za-z0-9]{20})", _DOTTED),
    ("hugging-face-token", rb"api_org_", rb"", rb"[A-Za-z0-9]{20}", _PLAIN),
    ("wandb-key", rb"local-", rb"", rb"[0-9a-f]{40}", _PLAIN),
    ("wandb-key", rb"wandb_v1_", rb"", rb"[A-Za-z0-9_\-]{20}", _WORD),
    ("kaggle-key", rb"KGAT_", rb"", rb"[0-9A-Za-z]{20}", _PLAIN),
    ("aws-access-key", rb"AKIA", rb"", rb"[A-Z0-9]{16}", _PLAIN),
    ("aws-access-key", rb"ASIA", rb"", rb"[A-Z0-9]{16}", _PLAIN),
    ("azure-secret", rb"Q~", rb"(?<![A-Za-z0-9])[A-Za-z0-9_.~\-]{3}[0-9]", rb"[A-Za-z0-9_.~\-]{30}", _DOTTED),
    ("slack-token", rb"xox", rb"", rb"[a-eoprs]-[A-Za-z0-9\-]{10}", rb"A-Za-z0-9.%\-"),
    ("slack-token", rb"xoxe.xox", rb"", rb"[a-eoprs]-[A-Za-z0-9\-]{10}", rb"A-Za-z0-9.%\-"),
    ("slack-token", rb"xapp-", rb"", rb"[A-Za-z0-9\-]{10}", rb"A-Za-z0-9.\-"),
    ("webhook", rb"hooks.slack.com/", rb"", rb"(?:services|workflows|triggers)/[A-Za-z0-9/_\-]{8}", rb"A-Za-z0-9/_\-"),
    ("webhook", rb"/api/webhooks/", rb"", rb"[0-9]{4,24}/[A-Za-z0-9_\-]{20}", _WORD),
    ("webhook", rb"webhook.office.com/", rb"", rb"[A-Za-z0-9/_@\-]{16}", rb"A-Za-z0-9/_@\-"),
    ("telegram-token", rb":AA", rb"(?<![0-9])[0-9]{8,10}", rb"[A-Za-z0-9_\-]{33}", _WORD),
    # A key of one of these has no hyphen so soon, unlike `sk-learn-contrib-…`.
    ("openai-key", rb"sk-", rb"", rb"(?:[A-Za-z0-9]{20}|(?:proj|svcacct|admin|or|None)-[A-Za-z0-9_\-]{16})", _WORD),
    ("anthropic-key", rb"sk-ant-", rb"", rb"[A-Za-z0-9_\-]{16}", _WORD),
    *(
        ("model-api-key", begin, rb"", rb"[A-Za-z0-9_\-]{30}", _WORD)
        for begin in (b"gsk_", b"xai-", b"r8_", b"pplx-", b"nvapi-")
    ),
    ("stripe-key", rb"k_live_", rb"[sr]", rb"[A-Za-z0-9]{16}", _PLAIN),
    ("stripe-key", rb"k_test_", rb"[sr]", rb"[A-Za-z0-9]{16}", _PLAIN),
    ("stripe-key", rb"whsec_", rb"", rb"[A-Za-z0-9+/=]{24}", _PLAIN),
    ("npm-token", rb"npm_", rb"", rb"[A-Za-z0-9]{30}", _PLAIN),
    ("pypi-token", rb"pypi-AgE", rb"", rb"[A-Za-z0-9_\-]{20}", _WORD),
    ("rubygems-key", rb"rubygems_", rb"", rb"[0-9a-f]{40}", _PLAIN),
    ("docker-token", rb"dckr_", rb"", rb"(?:pat|oat)_[A-Za-z0-9_\-]{20}", _WORD),
    ("databricks-token", rb"dapi", rb"", rb"[0-9a-f]{32}", rb"0-9a-f\-"),
    ("digitalocean-token", rb"_v1_", rb"do[opr]", rb"[0-9a-f]{40}", _PLAIN),
    *(("vault-token", rb"hv%c." % kind, rb"", rb"[A-Za-z0-9_\-]{20}", _WORD) for kind in b"sbr"),
    ("terraform-token", rb".atlasv1.", rb"[A-Za-z0-9]{14}", rb"[A-Za-z0-9_\-]{20}", _WORD),
    ("pulumi-token", rb"pul-", rb"", rb"[0-9a-f]{40}", _PLAIN),
    ("grafana-token", rb"glsa_", rb"", rb"[A-Za-z0-9]{30}", _WORD),
    ("grafana-token", rb"glc_", rb"", rb"[A-Za-z0-9+/=]{30}", rb"A-Za-z0-9+/="),
    ("linear-key", rb"lin_api_", rb"", rb"[A-Za-z0-9]{30}", _PLAIN),
    ("notion-token", rb"ntn_", rb"", rb"[A-Za-z0-9]{40}", _PLAIN),
    ("notion-token", rb"secret_", rb"", rb"[A-Za-z0-9]{43}", _PLAIN),
    ("doppler-token", rb"dp.", rb"", rb"(?:pt|st|sa|ct|scim|audit)\.[A-Za-z0-9._\-]{30}", _DOTTED),
    ("fly-token", rb"fm2_", rb"", rb"[A-Za-z0-9+/=_\-]{30}", rb"A-Za-z0-9+/=_\-,"),
    ("shopify-token", rb"shp", rb"", rb"(?:at|ca|pa|ss)_[0-9a-fA-F]{32}", _PLAIN),
    ("tailscale-key", rb"tskey-", rb"", rb"[A-Za-z0-9\-]{16}", _WORD),
    ("sendgrid-key", rb"SG.", rb"", rb"[A-Za-z0-9_\-]{20,24}\.[A-Za-z0-9_\-]{30}", _WORD),
    ("age-key", rb"AGE-SECRET-KEY-1", rb"", rb"[A-Z0-9]{20}", _PLAIN),
    ("sentry-token", rb"sntry", rb"", rb"[su]_[A-Za-z0-9+/=_\-]{30}", rb"A-Za-z0-9+/=_\-"),
    # Header and payload; an encrypted one has more parts, a detached one no payload.
    ("jwt", rb"eyJ", rb"", rb"[A-Za-z0-9_\-]{6,4096}\.(?:[A-Za-z0-9_\-]{8}|\.[A-Za-z0-9_\-]{8})", _DOTTED + rb"="),
)
# Short anchors occur within words too, or within base64. After an escape such as `\n` in JSON, or `%3D` in a URL, a word always
# begins; `1//` occurs in many paths, after a word, a slash or a dot.
_ESCAPED = rb"(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})"
_NO_WORD = rb"(?:(?<![A-Za-z0-9_\-])|" + _ESCAPED + rb")"
_NO_PATH = rb"(?:(?<![\w/.:\-])|" + _ESCAPED + rb")"
_NO_BASE64 = rb"(?:(?<![A-Za-z0-9/+])|" + _ESCAPED + rb")"
_BEFORE = {
    **dict.fromkeys((b"1//", b"4/0A"), _NO_PATH),
    **dict.fromkeys((b"AIza", b"AKIA", b"ASIA", b"SG.", b"dp."), _NO_BASE64),
    **dict.fromkeys(
        (
            b"eyJ",
            b"hf_",
            b"npm_",
            b"sk-",
            b"dapi",
            b"gsk_",
            b"xai-",
            b"r8_",
            b"ntn_",
            b"glc_",
            b"pul-",
            b"shp",
            b"secret_",
        ),
        _NO_WORD,
    ),
}
# Anchors of tokens that may be as short as a short word.
_SHORT = frozenset({b"ya29.", b"xox", b"xapp-", b"hooks.slack.com/", b"eyJ"})
_FARTHEST_BACK = 16
# Text copied from a terminal has long words cut. The header of a log line does not continue a word.
_WIDE = 72
_REST = re.compile(
    rb"\n(?![IWEF][0-9]{4}\b|[0-9]{4}-[0-9]{2})(?=[A-Za-z_\-]{0,40}[0-9])(?=[^A-Za-z]{0,40}[A-Za-z])[A-Za-z0-9._~+/=\-]{4,4096}"
)


def rules() -> tuple[Rule, ...]:
    """Return the rules, one for each form."""
    found: list[Rule] = []
    for kind, anchor, back, following, characters in _FORMS:
        whole = re.compile(_BEFORE.get(anchor, rb"") + re.escape(anchor) + following)
        form = _Form(kind, re.compile(back + rb"$") if back else None, whole, run_of(characters))
        found.append(Rule(anchor.lower(), partial(_look, form), is_long=anchor not in _SHORT))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a token."""

    kind: str
    back: re.Pattern[bytes] | None  # the part before the anchor, if any
    whole: re.Pattern[bytes]  # the anchor and the part after it
    tail: re.Pattern[bytes]


def _look(form: _Form, data: bytes, at: int) -> Iterator[Span]:
    found = form.whole.match(data, at)
    if found is None:
        return
    start = at
    if form.back is not None:
        floor = max(0, at - _FARTHEST_BACK)
        before = form.back.search(data[floor:at])
        if before is None:
            return
        start = floor + before.start()
    span = going_on(data, start, found.end(), form.kind, form.tail)
    # The bytes of the line before the end of the token, up to the width that matters.
    column = span.end - data.rfind(b"\n", max(0, span.end - _WIDE - 1), span.end) - 1
    rest = _REST.match(data, span.end) if column >= _WIDE else None
    yield replace(span, end=rest.end()) if rest else span
