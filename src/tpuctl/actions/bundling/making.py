"""Add the files that describe a bundle: the verdict on its logs, a page for people, the manifest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tpuctl.actions.bundling.manifest import manifest, readme
from tpuctl.actions.bundling.verdict import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpuctl.actions.bundling.contents import Contents
    from tpuctl.actions.bundling.manifest import About
    from tpuctl.actions.bundling.verdict import Read
    from tpuctl.diagnosis.explanation import Explanation

NOTHING_KNOWN = "the logs have no known failure"
NO_LOGS = "the bundle has no logs"
# Verdicts whose evidence is located in its file; for the others see `files` in explanation.json.
_TRACED = 20


def finish(
    contents: Contents,
    about: About,
    *,
    to_json: Callable[[Explanation], dict[str, Any]],
    page: Callable[[Explanation], Iterable[str]],
) -> Read:
    """Add the files that describe a bundle, and return the verdict on its logs. `to_json` and `page` render the verdict."""
    read = explain(contents.entries, {"node": about.name.node_id})
    parts = [{"path": part.path, "firstLine": part.first_line, "lines": part.lines} for part in read.parts]
    contents.add_own("explanation.json", _json({**to_json(read.explanation), "files": parts}))
    # The page counts the lines of all files as one text.
    places: list[str] = []
    for one in (*read.explanation.conclusions, *read.explanation.harmless)[:_TRACED]:
        line = one.sighting.first.line
        if place := read.place(line):
            places.append(f"  line {line}: {place[0]}, line {place[1]}")
    located = ["", "files of these lines:", *dict.fromkeys(places)] if places else []
    lines = [*page(read.explanation), *located] or [verdict(read)]
    contents.add_own("explanation.txt", _text("\n".join(lines)))
    entries = contents.entries
    contents.add_own("README.txt", _text(readme(about, entries, contents.lacks, verdict=verdict(read))))
    contents.add_own("manifest.json", _json(manifest(about, contents.entries, contents.lacks)))
    return read


def verdict(read: Read) -> str:
    """Return the first verdict in one line, with the place of its evidence."""
    if not read.explanation.conclusions:
        return NOTHING_KNOWN if read.parts else NO_LOGS
    first = read.explanation.conclusions[0]
    place = read.place(first.sighting.first.line)
    where = f" ({place[0]}, line {place[1]})" if place else ""
    return f"{first.id}: {first.meaning}{where}"


def _json(value: Any) -> bytes:
    return _text(json.dumps(value, indent=2, ensure_ascii=False))


def _text(text: str) -> bytes:
    return (text.rstrip("\n") + "\n").encode("utf-8", "replace")
