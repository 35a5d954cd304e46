"""What is known of a node without its workers: documents, each had by a question that may fail by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.actions.bundling.contents import Contents

# What the guest publishes and anybody may know [Compute Engine documentation of guest attributes].
_HARMLESS = ("hostkeys/", "guestinventory/", "guest-agent/", "diagnostics/")


def put(contents: Contents, documents: Mapping[str, Callable[[], Any]], *, is_late: Callable[[], bool]) -> int:
    """Ask for documents, and put them into a bundle under their names; one that is nothing is left out. Returns how many.

    Once it `is_late` nothing more is asked.
    """
    found = 0
    for path, ask in documents.items():
        if is_late():
            contents.lacks_of(path, "there was no time left for it")
            continue
        try:
            value = ask()
        except TpuctlError as error:
            contents.lacks_of(path, error.message)
            continue
        if value is not None and value not in ([], {}, ()):
            contents.add_json(path, value)
            found += 1
    return found


def published(workers: Sequence[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return what each worker publishes; values of namespaces that may hold anything are hidden."""
    return {str(worker): {key: _shown(key, text) for key, text in one.items()} for worker, one in enumerate(workers)}


def _shown(key: str, text: str) -> str:
    return text if key.lower().startswith(_HARMLESS) else f"[hidden: {len(text)} characters]"
