"""The checksums of objects. Pure."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed
_LONGEST = 1 << 20  # 1 MiB takes 100 ms here


def md5(content: bytes) -> str:
    """Return the MD5 hash in base64."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def crc32c(content: bytes) -> str | None:
    """Return the CRC32C, big-endian in base64. None for more than a megabyte, which would take too long."""
    if len(content) > _LONGEST:
        return None
    table, remainder = _crc_table(), 0xFFFFFFFF
    for byte in content:
        remainder = table[(remainder ^ byte) & 0xFF] ^ (remainder >> 8)
    return base64.b64encode((remainder ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)
