"""Check the user's options for ssh: some would disable host key checks, or override what tpuctl sets. Pure."""

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
# ssh uses the first value of an option, and tpuctl's come first: ssh would silently ignore these.
_SET_BY_TPUCTL = {
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
# Options that `tpuctl ssh` has too, with the same meaning.
_SHARED_LETTERS = frozenset("LRDANto")


def vetted(keys: Sequence[str], flags: Sequence[str], *, has_proxy: bool, is_plain: bool = False) -> tuple[str, ...]:
    """Return the arguments of ssh for the values of `-o` and of `--ssh-flag`.

    Raises `InvalidInputError` for an option about host keys, with `has_proxy` for another proxy, and unless `is_plain` for an
    option that tpuctl sets itself.
    """
    words: list[str] = []
    for flag in flags:
        try:
            words += shlex.split(flag)
        except ValueError as error:
            message = f"`--ssh-flag={flag}` cannot be parsed: {error}".lower()
            raise InvalidInputError(message, hint="close its quotes") from None
    for text in (*keys, *_settings_in(words)):
        _check_setting(text, has_proxy=has_proxy, is_plain=is_plain)
    return (*(word for key in keys for word in ("-o", key)), *words)


def misplaced(word: str, node: str, rest: Sequence[str]) -> InvalidInputError:
    """Return the error for an option of ssh in place of a command. gcloud passes such an option on to ssh."""
    letter = word[1:2]
    if letter in _SHARED_LETTERS:
        option = shlex.join([word, *rest[:1]] if letter in _WITH_VALUE and len(word) == 2 else [word])
        hint = f"put options of ssh before `--`: `tpuctl ssh {node} {option}`"
    elif letter in _WITH_VALUE | _ALONE:
        hint = f"put options of ssh before `--`: `tpuctl ssh {node} --ssh-flag={word}`"
    else:
        hint = "start the command with a word: `-- env …`"
    return InvalidInputError(f"`{word}` after `--` is not a command", hint=hint)


def _check_setting(text: str, *, has_proxy: bool, is_plain: bool) -> None:
    match = _KEY.match(text)
    if match is None:
        raise InvalidInputError(f"`-o {text}` is not an option of ssh", hint="example: `-o ServerAliveInterval=30`")
    key = match[1].lower()
    if key in _OF_HOST_KEYS:
        raise InvalidInputError(
            f"`-o {_OF_HOST_KEYS[key]}` is not allowed: tpuctl always checks host keys",
            hint="tpuctl trusts only the host keys that the API publishes; without them, only the first key of a worker",
        )
    if key in _SET_BY_TPUCTL and not is_plain:
        raise InvalidInputError(f"`-o {match[1]}` is not allowed: tpuctl sets it", hint=_SET_BY_TPUCTL[key])
    if key in _PROXIES and has_proxy:
        raise InvalidInputError(
            f"`-o {_PROXIES[key]}` is not allowed: tpuctl already uses another proxy for this worker",
            hint="remove `--iap`, or set `iap` to false; sandbox workers always need their proxy",
        )


def _settings_in(words: Sequence[str]) -> Iterator[str]:
    """Yield the settings in an argv as KEY=VALUE. Parses combined letters as ssh does: `-vo Key=x`, `-oKey=x`."""
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-") or word in {"-", "--"}:
            raise InvalidInputError(
                f"`{word}` in `--ssh-flag` is not an option of ssh", hint="put the command after `--`: `-- COMMAND`"
            )
        for place, letter in enumerate(word[1:], start=1):
            if letter in _WITH_VALUE:
                value = word[place + 1 :] or next(remaining, "")
                if letter == "o":
                    yield value
                elif letter in _LETTERS:
                    yield f"{_LETTERS[letter]}={value}"
                break
