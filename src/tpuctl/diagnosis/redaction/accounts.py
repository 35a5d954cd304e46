"""Aliases for names that are not secret but private: e-mail and IP addresses."""

from __future__ import annotations

import ipaddress
import re
from threading import Lock
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.spans import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

_EMAIL = re.compile(
    rb"(?<![A-Za-z0-9._%+\-])[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){0,8}\.[A-Za-z]{2,24}"
)
_IPV4 = re.compile(rb"(?<![\w.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w]|\.[0-9])")
_IPV6 = re.compile(
    rb"(?<![\w:.])(?:(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){1,6})(?![\w:])"
)


class Accounts:
    """Gives each address an alias: `account-1`, `address-2`. The same in all files of a bundle; safe for several threads."""

    def __init__(self) -> None:
        self._aliases: dict[bytes, bytes] = {}
        self._counts: dict[str, int] = {}
        self._lock = Lock()

    def spans(self, data: bytes) -> Iterator[Span]:
        """Yield the addresses in a piece of text, except those that are the same on every machine."""
        if b"@" in data:
            for found in _EMAIL.finditer(data):
                yield Span(*found.span(), "account", label=self._alias("account", found.group().lower()))
        for pattern in (_IPV4, _IPV6):
            for found in pattern.finditer(data):
                try:
                    address = ipaddress.ip_address(found.group().decode("ascii"))
                except ValueError:
                    continue
                is_common = (
                    address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast
                )
                if not is_common:
                    yield Span(*found.span(), "address", label=self._alias("address", found.group().lower()))

    def _alias(self, kind: str, name: bytes) -> bytes:
        with self._lock:
            if name not in self._aliases:
                self._counts[kind] = self._counts.get(kind, 0) + 1
                self._aliases[name] = f"{kind}-{self._counts[kind]}".encode()
            return self._aliases[name]
