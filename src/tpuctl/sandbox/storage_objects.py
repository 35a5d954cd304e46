"""Objects of Cloud Storage: one generation each, replaced or deleted under exact preconditions, for any number of writers.

Objects are not versioned, and a deleted object is gone: no soft delete. A change of its metadata keeps its generation.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpuctl.sandbox.api_calls import ApiError, Media, Response, answers, page_position, page_size, page_token
from tpuctl.sandbox.representation import millisecond_timestamp
from tpuctl.sandbox.storage_buckets import (
    BUCKET_LINK,
    condition_not_met,
    find_bucket,
    merge_patch,
    open_bucket,
    storage_invalid,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

OBJECT_KIND = "storage.object"
_DOWNLOAD = "https://storage.googleapis.com/download/storage/v1/b"
_LONGEST_NAME = 1024  # documentation: bytes of UTF-8
# The fields that a client may set.
_INSERT_FIELDS = (
    *("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType", "customTime"),
    *("metadata", "storageClass", "eventBasedHold", "temporaryHold"),
)


@answers("storage.objects.insert")
def _insert_object(session: StateSession, call: Call) -> Json:
    bucket, name = call["bucket"], str(call.params.get("name") or call.body.get("name") or "")
    open_bucket(session, call, "storage.objects.create")
    if call.media is None:
        message = "Upload requests must include an uploadType URL parameter and a URL path beginning with /upload/"
        raise storage_invalid(message, reason="wrongUrlForUpload")  # unverified words
    if not name:
        raise storage_invalid("Required")  # unverified words
    if len(name.encode()) > _LONGEST_NAME:
        raise storage_invalid("The maximum object length is 1024 characters, but got a name with more.")
    current = session.resources.get(OBJECT_KIND, bucket, name)
    _check_preconditions(call, current)
    if current is not None:
        open_bucket(session, call, "storage.objects.delete")  # documentation: replacing an object needs it
    calculated = _md5_digest(call.media.content)
    if call.body.get("md5Hash") not in {None, calculated}:
        raise storage_invalid(f'Provided MD5 hash "{call.body["md5Hash"]}" doesn\'t match calculated MD5 hash.')
    return _store_object(session, bucket, name, media=call.media, fields=call.body)


def put_object(session: StateSession, /, bucket: str, name: str, content: bytes | str = b"", **fields: Any) -> Json:
    """Add an object for a seed, or a new generation of it. Raises `ApiError` 404 for a bucket that does not exist."""
    media = Media(content.encode() if isinstance(content, str) else content, str(fields.get("contentType", "")))
    return _store_object(session, bucket, name, media=media, fields=fields)


def _store_object(session: StateSession, bucket: str, name: str, *, media: Media, fields: Json) -> Json:
    """Store an object as a new generation and return it. Raises `ApiError` 404 for a bucket that does not exist."""
    bucket_record = find_bucket(session, bucket)
    current = session.resources.get(OBJECT_KIND, bucket, name)
    moment = int(session.now.timestamp() * 1_000_000)
    # Greater than every earlier one, even if the clock stands still, and not reused after a delete.
    generation = max(moment, int(session.setting("storage.generation", 0)) + 1)
    session.set_setting("storage.generation", generation)
    now = millisecond_timestamp(session.now)
    document: Json = {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{generation}",
        "selfLink": f"{BUCKET_LINK}/{bucket}/o/{quote(name, safe='')}",
        "mediaLink": f"{_DOWNLOAD}/{bucket}/o/{quote(name, safe='')}?generation={generation}&alt=media",
        "name": name,
        "bucket": bucket,
        "generation": str(generation),
        "metageneration": "1",
        "contentType": media.content_type or "application/octet-stream",
        "storageClass": bucket_record.document["document"].get("storageClass", "STANDARD"),
        "size": str(len(media.content)),
        "md5Hash": _md5_digest(media.content),
        "etag": base64.b64encode(generation.to_bytes(8, "big")).decode(),
        **dict.fromkeys(("timeCreated", "updated", "timeFinalized", "timeStorageClassUpdated"), now),
        **{field: fields[field] for field in _INSERT_FIELDS if fields.get(field) is not None},
    }
    if current is not None:
        session.resources.delete_content(_object_key(bucket, current))
    session.resources.put(OBJECT_KIND, bucket, name, document)
    session.resources.put_content(_object_key(bucket, document), media.content)
    return document


@answers("storage.objects.get")
def _get_object(session: StateSession, call: Call) -> Json | Response:
    """Return the object's JSON, or its bytes for `alt=media`."""
    document = _open_object(session, call, "storage.objects.get")
    if not call.wants_media:
        return document
    headers = {
        "content-type": document["contentType"],
        "etag": document["etag"],
        "x-goog-generation": document["generation"],
        "x-goog-metageneration": document["metageneration"],
        "x-goog-hash": f"md5={document['md5Hash']}",
        "x-goog-stored-content-length": document["size"],
        "x-goog-stored-content-encoding": document.get("contentEncoding", "identity"),
    }
    return Response(200, session.resources.content(_object_key(document["bucket"], document)), headers)


@answers("storage.objects.list")
def _list_objects(session: StateSession, call: Call) -> Json:
    """List objects. `versions` and `softDeleted` add nothing: replaced and deleted objects are gone."""
    open_bucket(session, call, "storage.objects.list")
    objects: dict[str, Json] = {}
    if not call.params.get("softDeleted"):
        records = session.resources.list_records(OBJECT_KIND, call["bucket"], prefix=call["prefix"])
        objects = {record.name: record.document for record in records}
    after = page_position(call)
    entries = [
        entry for entry in select_names(objects, call.params) if not after or entry > (after[0], after[-1] == "prefix")
    ]
    size = page_size(call)
    page = entries[:size]
    answer: Json = {"kind": "storage#objects"}
    if prefixes := [name for name, is_prefix in page if is_prefix]:
        answer["prefixes"] = prefixes
    if items := [objects[name] for name, is_prefix in page if not is_prefix]:
        answer["items"] = items
    if len(entries) > size:
        answer["nextPageToken"] = page_token(page[-1][0], "prefix" if page[-1][1] else "object")
    return answer


@answers("storage.objects.delete")
def _delete_object(session: StateSession, call: Call) -> Json | Response:
    """Return 204 without a body."""
    document = _open_object(session, call, "storage.objects.delete")
    session.resources.delete(OBJECT_KIND, document["bucket"], document["name"])
    session.resources.delete_content(_object_key(document["bucket"], document))
    return Response(204, b"")


def _check_preconditions(call: Call, current: Json | None) -> None:
    """Raise `ApiError` 412 unless a call's preconditions hold; a missing object has generation 0."""
    for field in ("generation", "metageneration"):
        expected = call.params.get(f"if{field.capitalize()}Match")
        if expected is not None and int(expected) != (int(current[field]) if current else 0):
            raise condition_not_met()


def _find_object(session: StateSession, bucket: str, name: str, generation: object = None) -> Json | None:
    """Return an object. None if it, or the requested generation, does not exist."""
    document = session.resources.get(OBJECT_KIND, bucket, name)
    return None if document is None or (generation and str(generation) != document["generation"]) else document


def _open_object(session: StateSession, call: Call, permission: str) -> Json:
    """Return the object of a call. Raises `ApiError` unless it exists and permission and preconditions allow the call."""
    bucket, name = call["bucket"], call["object"]
    open_bucket(session, call, permission)
    document = _find_object(session, bucket, name, call.params.get("generation"))
    _check_preconditions(call, document)
    if document is None:
        raise _object_not_found(bucket, name)
    return document


def _object_not_found(bucket: str, name: str) -> ApiError:
    return ApiError(404, "NOT_FOUND", f"No such object: {bucket}/{name}")  # unverified words


def _object_key(bucket: str, document: Json) -> str:
    """Return the name under which the bytes of an object are stored."""
    return f"{bucket}/{document['name']}#{document['generation']}"


# Documentation of objects.patch. They do not include the storage class: a rewrite changes it, and a patch of it
# is ignored (unverified; gcloud 528 sends the current one).
_PATCH_FIELDS = (
    *("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType", "customTime"),
    *("metadata", "eventBasedHold", "temporaryHold"),
)


@answers("storage.objects.patch")
def _change_metadata(session: StateSession, call: Call) -> Json:
    """Change metadata (documentation): it is merged, and null removes a field."""
    current = _open_object(session, call, "storage.objects.update")
    change = {key: call.body[key] for key in _PATCH_FIELDS if key in call.body}
    metageneration = int(current["metageneration"]) + 1
    etag = base64.b64encode(int(current["generation"]).to_bytes(8, "big") + metageneration.to_bytes(4, "big")).decode()
    document = {
        "contentType": "application/octet-stream",
        **{key: value for key, value in {**current, **merge_patch(current, change)}.items() if value is not None},
        "metageneration": str(metageneration),
        "etag": etag,
        "updated": millisecond_timestamp(session.now),
    }
    session.resources.put(OBJECT_KIND, document["bucket"], document["name"], document)
    return document


# Metadata that a copy inherits unless the request sets them.
_COPIED_FIELDS = ("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "customTime", "metadata")


@answers("storage.objects.rewrite")
def _rewrite_object(session: StateSession, call: Call) -> Json:
    """Copy an object: complete in one call for every size."""
    source, name = call["sourceBucket"], call["sourceObject"]
    target, new_name = call["destinationBucket"], call["destinationObject"]
    _check_bucket(session, call, source, "storage.objects.get")
    _check_bucket(session, call, target, "storage.objects.create")
    source_document = _find_object(session, source, name, call.params.get("sourceGeneration"))
    if source_document is None:
        raise _object_not_found(source, name)
    current = session.resources.get(OBJECT_KIND, target, new_name)
    _check_preconditions(call, current)
    if current is not None:
        _check_bucket(session, call, target, "storage.objects.delete")  # documentation: replacing an object needs it
    content = session.resources.content(_object_key(source, source_document))
    fields = {**{key: source_document[key] for key in _COPIED_FIELDS if key in source_document}, **call.body}
    media = Media(content, str(call.body.get("contentType") or source_document["contentType"]))
    document = _store_object(session, target, new_name, media=media, fields=fields)
    sizes = dict.fromkeys(("totalBytesRewritten", "objectSize"), document["size"])
    return {"kind": "storage#rewriteResponse", **sizes, "done": True, "resource": document}


def _check_bucket(session: StateSession, call: Call, bucket: str, permission: str) -> None:
    open_bucket(session, replace(call, params={**call.params, "bucket": bucket}), permission)


def select_names(names: Iterable[str], params: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return the entries of a list in order, each with whether it is a prefix. Pure. Source: API field texts."""
    prefix, delimiter, glob = (params.get(key) or "" for key in ("prefix", "delimiter", "matchGlob"))
    entries: set[tuple[str, bool]] = set()
    for name in names:
        if not name.startswith(prefix) or (glob and not _glob_expression(glob).fullmatch(name)):
            continue
        head, end, _ = name[len(prefix) :].partition(delimiter or "\0")
        entries.add((prefix + head + end, True) if end else (name, False))
    return sorted(entries)


@cache
def _glob_expression(glob: str) -> re.Pattern[str]:
    """Return the regular expression of a glob: `**` crosses slashes, `*` and `?` do not; `{a,b}` is either."""
    parts = re.split(r"(\*\*|\*|\?|\[[^\]]+\]|[{},])", glob)
    depth, expression = 0, ""
    for part in parts:
        match part:
            case "**":
                expression += ".*"
            case "*":
                expression += "[^/]*"
            case "?":
                expression += "[^/]"
            case "{":
                expression, depth = expression + "(?:", depth + 1
            case "}" if depth:
                expression, depth = expression + ")", depth - 1
            case "," if depth:
                expression += "|"
            case _ if part.startswith("[") and len(part) > 2:
                expression += "[" + part[1:-1].replace("\\", r"\\").replace("!", "^", 1 if part[1] == "!" else 0) + "]"
            case _:
                expression += re.escape(part)
    try:
        return re.compile(expression + ")" * depth, re.DOTALL)
    except re.error:
        return re.compile(re.escape(glob))


def _md5_digest(content: bytes) -> str:
    """Return the MD5 hash in base64."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
