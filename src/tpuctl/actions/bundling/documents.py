"""What is known of a node without its workers: documents, each had by a question that may fail by itself."""

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
# What the guest publishes and anybody may know [Compute Engine documentation of guest attributes].
_HARMLESS = ("hostkeys/", "guestinventory/", "guest-agent/", "diagnostics/")


def put(contents: Contents, documents: Mapping[str, Callable[[], Any]], questions: Questions) -> int:
    """Ask for documents, and put them into a bundle under their names; one that is nothing is left out. Returns how many.

    Once there is no time left nothing more is asked.
    """
    found = 0
    for path, call in documents.items():
        if not questions.left > _NO_TIME:
            contents.lacks_of(path, "there was no time left for it")
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
    """Return what each worker publishes; values of namespaces that may hold anything are hidden."""
    return {str(worker): {key: _shown(key, text) for key, text in one.items()} for worker, one in enumerate(workers)}


def without_folder(value: Any, folder: str) -> Any:  # JSON
    """Return a document in which `~` stands for a folder, wherever a path in it begins with that."""
    if isinstance(value, dict):
        return {key: without_folder(one, folder) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_folder(one, folder) for one in value]
    if not isinstance(value, str) or len(folder) <= 1 or folder not in value:
        return value
    return re.sub(rf"(?<![\w/.\-]){re.escape(folder.rstrip('/'))}(?=/|\W|$)", "~", value)


def _shown(key: str, text: str) -> str:
    return text if key.lower().startswith(_HARMLESS) else f"[hidden: {len(text)} characters]"
