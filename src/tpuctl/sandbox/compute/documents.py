"""The common parts of Compute Engine's resources: links, ids, lists, errors."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from tpuctl.sandbox import paging
from tpuctl.sandbox.calls import ApiError, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.world import Session

BASE = "https://www.googleapis.com/compute/v1/"
_CALIFORNIA = timezone(timedelta(hours=-8))
_LARGEST_PAGE = 500  # API field text of maxResults
_OF_NAME = re.compile(r"\(?\s*name(?P<operator>\s*=\s*|\s+eq\s+)(?P<value>\S+?)\s*\)?")
# API field text of each resource's name.
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


def identity(session: Session, kind: str, path: str) -> Json:
    """Return the first fields of every resource. `path` is its name below the API: `projects/P/zones/Z/disks/D`."""
    return {
        "kind": f"compute#{kind}",
        "id": number(path),
        "creationTimestamp": timestamp(session.now),
        "name": path.rpartition("/")[2],
        "selfLink": BASE + path,
    }


def timestamp(moment: datetime) -> str:
    """Return a time in compute's format: Pacific standard time, with three digits of a second."""
    return moment.astimezone(_CALIFORNIA).isoformat(timespec="milliseconds")


def number(path: str) -> str:
    """Return the numeric id of a resource: the same for the same name."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return str(10**18 + int.from_bytes(digest) % (8 * 10**18))


def link(project: str, collection: str, given: str) -> str:
    """Return the full link of a resource given by id, path or link; `collection` as in `global/networks`."""
    if "projects/" in given:
        return BASE + given[given.index("projects/") :]
    return f"{BASE}projects/{project}/{collection}/{given.rpartition('/')[2]}"


def listed(call: Call, kind: str, path: str, entries: Sequence[Json]) -> Json:
    """Return a page of a list; `kind` as in `compute#diskList`, `path` its name below the API."""
    is_wanted = _filter(call)
    shown, next_token = paging.page(_paged(call), [entry for entry in entries if is_wanted(entry)])
    answer: Json = {"kind": f"compute#{kind}", "id": path, "selfLink": BASE + path}
    if shown:
        answer["items"] = list(shown)
    return {**answer, "nextPageToken": next_token} if next_token else answer


def aggregated(call: Call, kind: str, key: str, *, entries: Iterable[tuple[str, Json]], scopes: Iterable[str]) -> Json:
    """Return an aggregated list: entries by scope (`zones/Z`), and a warning for each empty scope."""
    path = f"projects/{call.params['project']}/aggregated/{key}"
    is_wanted = _filter(call)
    shown, next_token = paging.page(_paged(call), [(scope, entry) for scope, entry in entries if is_wanted(entry)])
    items: dict[str, Json] = {}
    for scope in scopes:
        message = f"There are no results for scope '{scope}' on this page."
        data = [{"key": "scope", "value": scope}]
        items[scope] = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": data}}
    for scope, entry in shown:
        if key not in items.setdefault(scope, {key: []}):
            items[scope] = {key: []}
        items[scope][key].append(entry)
    answer: Json = {"kind": f"compute#{kind}", "id": path, "selfLink": BASE + path, "items": items}
    return {**answer, "nextPageToken": next_token} if next_token else answer


def kept(session: Session, kind: str, project: str, defaults: Mapping[str, Json]) -> dict[str, Json]:
    """Return the resources of a kind by name: the defaults of every project, and added ones; an empty document hides one."""
    found = {**defaults, **{entry.name: entry.document for entry in session.resources.list_records(kind, project)}}
    return {name: found[name] for name in sorted(found) if found[name]}


def check_name(name: str) -> None:
    """Raise `ApiError` 400 for an invalid resource name (words unverified)."""
    if not _NAME.fullmatch(name):
        raise invalid_value("resource.name", name, f"Must be a match of regex '{_NAME.pattern}'")


def not_found(path: str) -> ApiError:
    """Return the error for a missing resource (words unverified)."""
    return ApiError(404, "NOT_FOUND", f"The resource '{path}' was not found", reason="notFound")


def already_exists(path: str) -> ApiError:
    """Return the error for a second insert (words unverified)."""
    return ApiError(409, "ALREADY_EXISTS", f"The resource '{path}' already exists", reason="alreadyExists")


def invalid_value(field: str, value: str, problem: str) -> ApiError:
    """Return the error for an invalid field value (words unverified)."""
    message = f"Invalid value for field '{field}': '{value}'. {problem}"
    return ApiError(400, "INVALID_ARGUMENT", message, reason="invalid")


def _filter(call: Call) -> Callable[[Json], bool]:
    """Return the predicate of a list's filter if it has one of two forms; other filters accept everything.

    API field text: `name = value`, and `name eq pattern`, an RE2 expression for the whole name.
    """
    found = _OF_NAME.fullmatch(str(call.params.get("filter") or "").strip())
    if found is None:
        return lambda _: True
    wanted = found["value"].strip("\"'")
    pattern = wanted if found["operator"].strip() == "eq" else re.escape(wanted)
    try:
        expression = re.compile(pattern)
    except re.error:
        raise invalid_value("filter", str(call.params["filter"]), "Invalid list filter expression.") from None
    return lambda entry: expression.fullmatch(str(entry["name"])) is not None


def _paged(call: Call) -> Call:
    size = int(call.params.get("maxResults") or _LARGEST_PAGE)
    if size < 0:
        raise invalid_value("maxResults", str(size), "Values must be between [0, 500]")  # unverified words
    params = {"pageSize": min(size, _LARGEST_PAGE), "pageToken": call.params.get("pageToken")}
    return Call(call.version, call.method, params, {})
