"""A program that exits with 0 in a tenth of the time of `true`: it loads no C library."""

from __future__ import annotations

import platform
import shutil
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# By machine: its number in ELF, and `exit(0)` as Linux is called.
_CODE = {
    "x86_64": (62, "31ff b83c000000 0f05"),  # xor edi, edi; mov eax, 60; syscall
    "aarch64": (183, "000080d2 a80b80d2 010000d4"),  # mov x0, #0; mov x8, #93; svc #0
}
_ADDRESS = 0x400000


def write_instant_exit(folder: Path) -> Path:
    """Write the program into a folder and return its path; on other machines the path of `true`."""
    if sys.platform != "linux" or platform.machine() not in _CODE:
        return folder / (shutil.which("true") or "/bin/true")
    machine, text = _CODE[platform.machine()]
    code = bytes.fromhex(text)
    headers = 64 + 56  # that of the file, and that of its only segment
    size = headers + len(code)
    content = struct.pack("<4s5B7x", b"\x7fELF", 2, 1, 1, 0, 0)
    content += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, _ADDRESS + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    content += struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x1000)
    program = folder / "instant-exit"
    program.write_bytes(content + code)
    program.chmod(0o755)
    return program
