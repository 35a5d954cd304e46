"""The path of a file in a bundle. Names come from workers and are not trusted. Pure."""

from __future__ import annotations

from posixpath import splitext

_LONGEST_PART = 120
_DEEPEST = 10


def safe_path(path: str) -> str:
    """Return a relative path without `..`, control characters, and characters invalid on other systems; never empty."""
    parts = [_safe_part(part) for part in path.replace("\\", "/").split("/") if part not in {"", "."}]
    if len(parts) > _DEEPEST:
        parts = [*parts[: _DEEPEST - 1], parts[-1]]
    return "/".join(parts) or "unnamed"


class Paths:
    """Makes paths safe and unique."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._folders: set[str] = set()

    def take(self, path: str) -> str:
        """Return a safe path that no other file has, ignoring case."""
        safe = safe_path(path)
        # A file cannot be a folder too.
        while above := min(_above(safe.lower()) & self._taken, key=len, default=""):
            safe = f"{safe[: len(above)]}_{safe[len(above) + 1 :]}"
        stem, suffix = splitext(safe)
        number, candidate = 1, safe
        while candidate.lower() in self._taken or candidate.lower() in self._folders:
            number += 1
            candidate = f"{stem}~{number}{suffix}"
        self._taken.add(candidate.lower())
        self._folders |= _above(candidate.lower())
        return candidate


def _above(path: str) -> set[str]:
    return {path[:at] for at, char in enumerate(path) if char == "/"}


def _safe_part(part: str) -> str:
    plain = "".join(char if char.isprintable() and char not in '<>:"|?*' else "_" for char in part)
    plain = plain.strip(" ")
    if set(plain) <= {"."}:
        plain = "_" * max(1, len(plain))
    while len(plain.encode("utf-8", "replace")) > _LONGEST_PART:
        # The end of a name is more useful than its middle.
        half = len(plain) // 2
        plain = plain[: half - 2] + "~" + plain[half + 2 :]
    return plain.encode("utf-8", "replace").decode()
