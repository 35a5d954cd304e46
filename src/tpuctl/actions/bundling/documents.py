"""The sources of a bundle: documents from the API and this machine, and files from the workers.

Each document has a query of its own, which may fail without the others.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.actions.bundling.contents import Contents
    from tpuctl.actions.bundling.questions import Questions

_NO_TIME = timedelta(0)
# Guest attributes without secrets [Compute Engine documentation of guest attributes].
_HARMLESS = ("hostkeys/", "guestinventory/", "guest-agent/", "diagnostics/")


def put(contents: Contents, documents: Mapping[str, Callable[[], Any]], questions: Questions) -> int:
    """Fetch documents, and add them to a bundle under their names, except empty ones. Return how many were added.

    Sends no more queries once the time is up.
    """
    found = 0
    for path, call in documents.items():
        if not questions.left > _NO_TIME:
            contents.lacks_of(path, "timed out before it was requested")
            continue
        try:
            value = questions.ask(call)
        except TpuctlError as error:
            contents.lacks_of(path, error.message)
            continue
        if value is not None and value not in ([], {}, ()):
            contents.add_json(path, value)
            found += 1
    return found


def published(workers: Sequence[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the guest attributes of each worker, without the values of namespaces that may hold secrets."""
    return {
        str(worker): {
            key: text if key.lower().startswith(_HARMLESS) else f"[hidden: {len(text)} characters]"
            for key, text in attributes.items()
        }
        for worker, attributes in enumerate(workers)
    }


def without_folder(value: Any, folder: str) -> Any:  # JSON
    """Return a document in which `~` replaces a folder at the beginning of paths."""
    if isinstance(value, dict):
        return {key: without_folder(one, folder) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_folder(one, folder) for one in value]
    if not isinstance(value, str) or len(folder) <= 1 or folder not in value:
        return value
    return re.sub(rf"(?<![\w/.\-]){re.escape(folder.rstrip('/'))}(?=/|\W|$)", "~", value)
