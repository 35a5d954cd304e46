"""The user's own options for ssh: which are passed on, and which would undo what tpuctl stands for. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OF_HOST_KEYS = {
    word.lower(): word
    for word in (
        *(
            "StrictHostKeyChecking",
            "UserKnownHostsFile",
            "HostKeyAlias",
            "CheckHostIP",
            "UpdateHostKeys",
            "HashKnownHosts",
        ),
        *("NoHostAuthenticationForLocalhost", "VerifyHostKeyDNS"),
    )
}
# ssh takes the first value of an option, and tpuctl's come first: these would be passed over without a word.
_ELSEWHERE = {
    "identityfile": "name the key with `--ssh-key FILE`",
    "identitiesonly": "name the key with `--ssh-key FILE`",
    "user": "log in as another user with `--user LOGIN` or `LOGIN@NODE`",
    "hostname": "choose the worker with `--worker`, and its address with `--internal-ip` or `--external-ip`",
}
_LETTERS = {"i": "IdentityFile", "l": "User", "J": "ProxyJump"}
_PROXIES = {"proxycommand": "ProxyCommand", "proxyjump": "ProxyJump"}
_KEY = re.compile(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)")
# Letters of ssh's options [ssh(1), OpenSSH 9.9]: with a value, and without.
_WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
_ALONE = frozenset("46AaCfGgKkMNnqsTtVvXxYy")
# Those that `tpuctl ssh` has too, with the same meaning.
_OURS = frozenset("LRDANto")


def vetted(keys: Sequence[str], flags: Sequence[str], *, has_proxy: bool, is_plain: bool = False) -> tuple[str, ...]:
    """Return ssh's words for the values of `-o` and of `--ssh-flag`.

    Raises `InvalidInputError` for what concerns host keys, with `has_proxy` for another proxy, and unless `is_plain` for what
    tpuctl itself tells ssh.
    """
    words = tuple(word for flag in flags for word in _split(flag))
    for text in (*keys, *_keys_in(words)):
        _check(text, has_proxy=has_proxy, is_plain=is_plain)
    return (*(word for key in keys for word in ("-o", key)), *words)


def misplaced(word: str, node: str, rest: Sequence[str]) -> InvalidInputError:
    """Return the error for an option of ssh where a command is expected: gcloud passes on what follows `--`."""
    letter = word[1:2]
    if letter in _OURS:
        option = shlex.join([word, *rest[:1]] if letter in _WITH_VALUE and len(word) == 2 else [word])
        hint = f"ssh's own options go before `--`: `tpuctl ssh {node} {option}`"
    elif letter in _WITH_VALUE | _ALONE:
        hint = f"ssh's own options go before `--`: `tpuctl ssh {node} --ssh-flag={word}`"
    else:
        hint = "begin the command with a word: `-- env …`"
    return InvalidInputError(f"`{word}` after `--` is not a command", hint=hint)


def _check(text: str, *, has_proxy: bool, is_plain: bool) -> None:
    match = _KEY.match(text)
    if match is None:
        raise InvalidInputError(f"`-o {text}` is no option of ssh", hint="one looks like `-o ServerAliveInterval=30`")
    key = match[1].lower()
    if key in _OF_HOST_KEYS:
        raise InvalidInputError(
            f"`-o {_OF_HOST_KEYS[key]}` is refused: it decides which host keys are trusted, and tpuctl always checks them",
            hint="keys that the service publishes are trusted alone; else a worker's first key is kept and no other accepted",
        )
    if key in _ELSEWHERE and not is_plain:
        raise InvalidInputError(f"`-o {match[1]}` is refused: tpuctl gives it to ssh itself", hint=_ELSEWHERE[key])
    if key in _PROXIES and has_proxy:
        raise InvalidInputError(
            f"`-o {_PROXIES[key]}` is refused: the worker is reached through another proxy already",
            hint="leave out `--iap`, or set `iap` to false; sandbox workers have no other way",
        )


def _split(flag: str) -> list[str]:
    try:
        return shlex.split(flag)
    except ValueError as error:
        raise InvalidInputError(
            f"`--ssh-flag={flag}` cannot be read: {error}".lower(), hint="close its quotes"
        ) from None


def _keys_in(words: Sequence[str]) -> Iterator[str]:
    """Yield what the words say as KEY=VALUE, also where a letter of its own says it."""
    for letter, value in _letters(words):
        if letter == "o":
            yield value
        elif letter in _LETTERS:
            yield f"{_LETTERS[letter]}={value}"


def _letters(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option of a list of words with its value, as ssh's own parser takes them apart: `-vo Key=x`, `-oKey=x`."""
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-") or word in {"-", "--"}:
            raise InvalidInputError(
                f"`{word}` in `--ssh-flag` is no option of ssh", hint="the command goes after `--`: `-- COMMAND`"
            )
        for place, letter in enumerate(word[1:], start=1):
            if letter in _WITH_VALUE:
                yield letter, word[place + 1 :] or next(remaining, "")
                break
            yield letter, ""
