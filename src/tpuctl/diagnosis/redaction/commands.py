"""Secrets in command lines of well-known programs, without a name before them. Sources: the manuals of the programs."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.spans import Rule, Span

if TYPE_CHECKING:
    from collections.abc import Iterator

_VALUE = rb"(?P<secret>'[^'\r\n]{1,512}'|\"[^\"\r\n]{1,512}\"|[^\s\"'|;&\x00\\]{1,512})"
_LOGINS = rb"[^\r\n]{0,10}?(?:docker|podman|az|helm|oras|crane|skopeo|nerdctl) login[ \t]"
_LOGIN = rb"[^\r\n]{0,200}?[\"' \t][\w.\-]{1,64}"
_PIPED = rb"[ \t]{0,4}\|[ \t]{0,4}"
_UPTO = rb"(?:[^\r\n;|&]{0,400}?[ \t\"',])?"
# An anchor, how far before it the command may begin, and the pattern with the secret.
_COMMANDS = (
    (b"mysql", 0, rb"mysql\w{0,10}[ \t]" + _UPTO + rb"-p(?=[^\s])" + _VALUE),
    (b"mariadb", 0, rb"mariadb[\w\-]{0,10}[ \t]" + _UPTO + rb"-p(?=[^\s])" + _VALUE),
    (b" login ", 10, _LOGINS + _UPTO + rb"-p[ =]" + _VALUE),
    (b"redis-cli", 0, rb"redis-cli[ \t]" + _UPTO + rb"-a[ ]" + _VALUE),
    (b"sshpass", 0, rb"sshpass[ \t]{1,4}-p[ ]?" + _VALUE),
    (b"unzip ", 0, rb"unzip[ \t]" + _UPTO + rb"-P[ ]" + _VALUE),
    (b"zip ", 0, rb"zip[ \t]" + _UPTO + rb"-P[ ]" + _VALUE),
    (b"7z", 0, rb"7z[a-z]?[ \t]" + _UPTO + rb"-p" + _VALUE),
    (b" pass:", 12, rb"[^\r\n]{0,12}?-pass(?:in|out)?[ ]pass:" + _VALUE),
    (b"chpasswd", 200, _LOGIN + rb":(?P<secret>[^\s\"'|]{1,256})[\"']?" + _PIPED + rb"(?:sudo )?chpasswd"),
    (b"| sudo -", 200, rb"[^\r\n]{0,200}?echo[ \t]{1,4}(?:-\w{1,3}[ \t]{1,4})?" + _VALUE + rb"[ \t]{0,4}\| sudo -\w{0,4}S"),
    (b"basicauth(", 0, rb"(?i:basicauth)\([^)\r\n]{0,200}?,[ \t]?" + _VALUE),
    (b"auth=(", 0, rb"auth=\([^)\r\n]{0,200}?,[ \t]?" + _VALUE),
)  # fmt: skip


def rules() -> tuple[Rule, ...]:
    """Return the rules, one for each program."""
    return tuple(Rule(anchor, partial(_look, back, re.compile(pattern))) for anchor, back, pattern in _COMMANDS)


def _look(back: int, place: re.Pattern[bytes], data: bytes, at: int) -> Iterator[Span]:
    begin = max(0, at - back)
    begin = max(begin, data.rfind(b"\n", begin, at) + 1)
    found = place.match(data, begin)
    if found is None:
        return
    start, end = found.span("secret")
    if data[start : start + 1] in (b"'", b'"'):
        start, end = start + 1, end - 1
    yield Span(start, end, "password")
