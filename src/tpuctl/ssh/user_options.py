"""Check the user's options for ssh: some would disable host key checks, or override what tpuctl sets. Pure."""

from __future__ import annotations

import errno
import re
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.errors import ConflictError, InvalidInputError

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


def check_ssh_options(
    keys: Sequence[str], flags: Sequence[str], *, has_proxy: bool, is_plain: bool = False
) -> tuple[str, ...]:
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


def misplaced_option_error(word: str, node: str, rest: Sequence[str]) -> InvalidInputError:
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


# Port forwards of `--forward`: a service name or a port of a worker, and the local port.


# The default ports of TensorBoard and Jupyter [their documentation].
_NAMES = {"tensorboard": 6006, "jupyter": 8888}
_PORTS = re.compile(r"(?:(?P<local>\d{1,5}):)?(?P<remote>\d{1,5})", re.ASCII)
# How many ports above a port in use are tried.
_MAX_TRIES = 100
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class PortForward:
    """A port of a worker and the local port that forwards to it. `is_fixed`: the user named the local port."""

    local: int
    remote: int
    is_fixed: bool

    @classmethod
    def parse(cls, text: str) -> PortForward:
        """Parse `tensorboard`, `jupyter`, `PORT` or `LOCAL:PORT`. Raises `InvalidInputError`."""
        if remote := _NAMES.get(text):
            return cls(remote, remote, is_fixed=False)
        match = _PORTS.fullmatch(text)
        remote = int(match["remote"]) if match else 0
        local = int(match["local"] or remote) if match else 0
        if match is None or not (0 < local <= _MAX_PORT and 0 < remote <= _MAX_PORT):
            hint = "use `tensorboard`, `jupyter`, PORT or LOCAL:PORT; for another host `-L LOCAL:HOST:PORT`"
            raise InvalidInputError(f"`--forward {text}` is not a port", hint=hint)
        return cls(local, remote, is_fixed=match["local"] is not None)

    @property
    def options(self) -> tuple[str, ...]:
        """The options for ssh. Services on workers often listen on the loopback address only."""
        return ("-L", f"{self.local}:localhost:{self.remote}")


def choose_local_ports(forwards: list[PortForward]) -> list[PortForward]:
    """Return the forwards with free local ports: the next free port, or the port that the user named.

    Raises `ConflictError` if a named port is in use or not permitted.
    """
    chosen: list[PortForward] = []
    for forward in forwards:
        used = {one.local for one in chosen}
        last = forward.local if forward.is_fixed else min(forward.local + _MAX_TRIES, _MAX_PORT)
        candidates = (
            port for port in range(forward.local, last + 1) if port not in used and _port_problem(port) is None
        )
        port = next(candidates, None)
        if port is None:
            why = _port_problem(forward.local) or "it is already forwarded"
            raise ConflictError(
                f"the local port {forward.local} cannot be used: {why}",
                hint=f"name another port: `--forward LOCAL:{forward.remote}`"
                + (f", or let tpuctl choose: `--forward {forward.remote}`" if forward.is_fixed else ""),
            )
        chosen.append(PortForward(port, forward.remote, forward.is_fixed))
    return chosen


def _port_problem(port: int) -> str | None:
    """Return why ssh cannot listen on a local port, None if it can. ssh needs one of the two loopback addresses."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return "another program listens on it"
                if error.errno == errno.EACCES:
                    return "ports below 1024 need administrator rights"
    return None
