"""Commands that are printed for people to paste: what may stand in one, and its quotation marks.

A value of a printed command often comes from a log, a worker or the API. It is shown only if it fits the pattern of its kind,
else the kind in capitals stands there. `fill_text` is for a text with `{placeholders}`, which are named after their kinds;
`command_word` and `fitting` are for a single value. `quote_word` is the one function that quotes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

# A part of a resource name. What exists may have a name that could not be chosen for something new.
_SEGMENT = r"[A-Za-z0-9_~+%][A-Za-z0-9._:~+%-]{0,249}"
_PROJECTS = rf"projects/{_SEGMENT}"
_COMPUTE_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_BUCKET = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}"
_EMAIL = r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,99}@[A-Za-z0-9][A-Za-z0-9.-]{0,199}"
# Letters of any script. A first hyphen would make it an option; zsh looks for a program behind a first `=`.
_PATH = r"(?![-=])~?[\w ./+@,:=%-]{1,1000}"
_OBJECT = r"[\w ./+@,:=%*-]{0,600}"

# The kinds of values that may stand in a command, by the names of their placeholders. `names` has the rules for what is sent to
# the API; these only keep out what is none of the kind.
KINDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("node", "name"),
        rf"(?:{_SEGMENT}/)?{_SEGMENT}|{_PROJECTS}/(?:locations|zones)/{_SEGMENT}/\w{{5,20}}/{_SEGMENT}",
    ),
    **dict.fromkeys(("zone", "place", "region"), r"[a-z][a-z0-9]{0,30}(?:-[a-z0-9]{1,30}){1,4}"),
    # Its id, also of a domain, or its number.
    "project": r"(?:[a-z0-9][a-z0-9.-]{0,99}:)?[a-z0-9][a-z0-9-]{0,62}",
    **dict.fromkeys(("network", "subnetwork"), rf"(?:{_SEGMENT}/){{0,6}}{_COMPUTE_NAME}"),
    **dict.fromkeys(("instance", "disk", "firewall_rule", "configuration"), _COMPUTE_NAME),
    "type": r"[a-z][a-z0-9]{0,19}(?:-[a-z0-9]{1,20}){0,3}",
    "bucket": _BUCKET,
    "bucket_url": rf"gs://{_BUCKET}(?:/{_OBJECT})?",
    "account": _EMAIL,
    "service_account": _EMAIL,
    "member": rf"(?:user|serviceAccount|group):{_EMAIL}|allUsers|allAuthenticatedUsers",
    "role": rf"(?:(?:projects|organizations)/{_SEGMENT}/)?roles/[A-Za-z][A-Za-z0-9_.]{{1,99}}",
    "service": r"[a-z][a-z0-9-]{0,59}(?:\.[a-z][a-z0-9-]{0,59}){1,4}",
    "permission": r"[a-z][A-Za-z0-9]{0,59}(?:\.[A-Za-z][A-Za-z0-9]{0,59}){1,5}",
    "attribute": r"[a-z][a-z0-9_-]{0,59}",
    "property": r"[a-z][a-z0-9_]{0,59}(?:/[a-z][a-z0-9_]{0,59})?",
    "variable": r"[A-Za-z_][A-Za-z0-9_]{0,99}",
    "module": r"[A-Za-z_][A-Za-z0-9_]{0,99}(?:\.[A-Za-z_][A-Za-z0-9_]{0,99}){0,9}",
    "job": r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
    # `kill 0` would end the shell itself, and 1 is the machine.
    "pid": r"(?!1$)[1-9][0-9]{0,9}",
    "worker": r"[0-9]{1,5}",
    "alias": _SEGMENT,
    **dict.fromkeys(("path", "key", "file", "known_hosts"), _PATH),
}
# A log that names an account does not decide who is granted a role: only the API and tpuctl itself name these.
NEVER_FROM_TEXT = frozenset({"account", "service_account", "member", "role"})
# Kinds that never need quotation marks, and so may stand inside of some.
_PLAIN = frozenset({"variable", "module", "pid", "worker", "attribute"})
# What stands for a value that does not fit, where the name of the kind is not the word.
_CAPITALS = {"account": "EMAIL", "bucket_url": "gs://BUCKET", "name": "NODE", "place": "ZONE"}

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
# `~/` is expanded only outside of quotation marks.
_HOME = re.compile(r"~/+")


def quote_word(word: str) -> str:
    """Return a word for a POSIX shell. One with control characters is quoted as `$'…'`, for bash and zsh."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = word.replace("\\", r"\\").replace("'", r"\'").replace("\n", r"\n").replace("\t", r"\t")
    shown = (
        mark if mark.isprintable() else "".join(f"\\x{byte:02x}" for byte in mark.encode("utf-8", "surrogateescape"))
        for mark in escaped
    )
    return f"$'{''.join(shown)}'"


def quote_path(path: str) -> str:
    """Return a path for a POSIX shell, which still expands `~/` at its beginning."""
    home = _HOME.match(path)
    return f"~/{quote_word(path[home.end() :])}" if home and path[home.end() :] else quote_word(path)


def join_command(words: Iterable[str]) -> str:
    """Return the words of a command as one line for a shell."""
    return " ".join(map(quote_word, words))


def fits(kind: str, value: str) -> bool:
    """Return whether a value can be one of a kind. Nothing fits an unknown kind."""
    return kind in KINDS and value.isprintable() and re.fullmatch(KINDS[kind], value) is not None


def fitting(kind: str, value: object) -> str:
    """Return a value, unquoted, for a command: the kind in capitals if it does not fit, or is None."""
    text = "" if value is None else str(value)
    return text if fits(kind, text) else _CAPITALS.get(kind, kind.upper())


def command_word(kind: str, value: object) -> str:
    """Return a value as a word of a command, quoted for a shell: the kind in capitals if it does not fit, or is None."""
    return quote_path(fitting(kind, value)) if KINDS.get(kind) == _PATH else quote_word(fitting(kind, value))


def fill_text(text: str, values: Mapping[str, object]) -> str:
    """Return a text with its `{placeholders}` filled; one without a value becomes capitals.

    What stands in backticks is a command, but for a placeholder alone. A value elsewhere is a quotation, which cannot begin a
    command of its own.
    """

    def word(found: re.Match[str]) -> str:
        return command_word(found[1], values.get(found[1]))

    def quotation(found: re.Match[str]) -> str:
        return as_quotation(str(values.get(found[1], found[1].upper())))

    if "{" not in text:
        return text
    parts = text.split("`")
    return "`".join(
        _PLACEHOLDER.sub(word if at % 2 and not _PLACEHOLDER.fullmatch(part) else quotation, part)
        for at, part in enumerate(parts)
    )


def as_quotation(text: str) -> str:
    """Return words of others for a sentence of ours: on one line, and without backticks, which mark our commands."""
    return " ".join(text.split()).replace("`", "'")


def template_problems(text: str) -> list[str]:
    """Return what is wrong with the placeholders of a text: each in a command needs a kind, and a place that can be quoted."""
    problems = ["an odd number of backticks"] if text.count("`") % 2 else []
    for command in text.split("`")[1::2]:
        names = _PLACEHOLDER.findall(command)
        if names == [command[1:-1]]:
            continue
        for name in names:
            if name not in KINDS:
                problems.append(f"`{command}`: {{{name}}} has no kind")
            elif name not in _PLAIN and _is_in_quotes(command, name):
                problems.append(f"`{command}`: {{{name}}} may need quotation marks, and is in some")
    return problems


def _is_in_quotes(command: str, name: str) -> bool:
    """Return whether a placeholder is in quotation marks: there, a space does not end a word."""
    place = f"{{{name}}}"
    others = _PLACEHOLDER.sub(lambda found: found[0] if found[0] == place else "x", command)
    return len(shlex.split(others.replace(place, "x"))) == len(shlex.split(others.replace(place, "x y")))
